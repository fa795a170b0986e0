"""Batches of rows, in the forms that ways read: logits, logits divided by the temperature, probabilities, and drafts with what a
drafter and a target gave them.

Rows are those that our program wrote to a file, or, if no file is named, rows like a model's that torch makes.
"""

import math
from pathlib import Path

import torch
from torch.nn.functional import pad

import plan

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Inputs:
    """What ways were given last; kept until the shape or the file changes."""

    def __init__(self):
        self.shape, self.forms, self.file = None, {}, None

    def of(self, vocab, rows, given, dtype="f32", batches=None, temperatures=(plan.TEMPERATURE,)):
        """Returns batches, together cold, or so many: tensors [rows, vocab], or for `drafts` the drafter's probabilities
        [rows, drafts, vocab], its tokens [rows, drafts], the target's probabilities [rows, drafts + 1, vocab], and the
        tokens as int64 behind each chain's last one, [rows, drafts + 1]. Rows take the temperatures in turn."""
        rows_of_a_row = 2 * plan.DRAFTS + 1 if given == "drafts" else 1
        batches = batches or plan.batches(vocab, rows, plan.BYTES[dtype] * rows_of_a_row)
        shape = (batches, rows, vocab, given == "drafts", self.file)
        if shape != self.shape:
            self.shape, self.forms = None, {}
            torch.cuda.empty_cache()
            self.shape = shape
        # Logits are the same at every temperature.
        which = (given, dtype, None if given == "logits" else temperatures)
        if which not in self.forms:
            self.forms[which] = self.made(given, dtype, temperatures)
        return self.forms[which]

    def made(self, given, dtype, temperatures):
        batches, rows, vocab, *_ = self.shape
        if given == "drafts":
            # Apart from one another: most chains end at their first draft, and a whole residual is to be drawn from.
            drafts, targets = (
                torch.softmax(model((batches, rows, count, vocab), seed) / plan.TEMPERATURE, -1)
                for seed, count in enumerate((plan.DRAFTS, plan.DRAFTS + 1))
            )
            tokens = [q.argmax(-1) for q in drafts]
            return [(q, ids.int(), p, pad(ids, (1, 0))) for q, ids, p in zip(drafts, tokens, targets)]
        if dtype != "f32":
            return self.of(vocab, rows, given, "f32", batches, temperatures).to(DTYPES[dtype])
        if given == "logits":
            shape = (batches, rows, vocab)
            return repeated(distinct(self.file, vocab), shape) if self.file else model(shape)
        divided = self.of(vocab, rows, "logits", "f32", batches) / column(temperatures, rows)
        return torch.softmax(divided, -1) if given == "probabilities" else divided

    def logits(self, index):
        """The logits that a batch comes from."""
        batches, rows, vocab, *_ = self.shape
        return self.of(vocab, rows, "logits", batches=batches)[index]


def column(temperatures, rows):
    """The temperatures of rows that take them in turn, [rows, 1]."""
    turns = [temperatures[row % len(temperatures)] for row in range(rows)]
    return torch.tensor(turns, device="cuda")[:, None]


def distinct(file, vocab):
    """The rows that our program wrote to a file, [rows, vocab]."""
    return torch.from_file(str(file), size=Path(file).stat().st_size // 4).view(-1, vocab).cuda()


def repeated(rows, shape):
    """Rows, one after the other and again from the first, as our program fills its memory: [.., vocab]."""
    count = math.prod(shape[:-1])
    return rows[torch.arange(count, device="cuda") % len(rows)].view(shape)


def model(shape, seed=0, device="cuda"):
    """Rows like a model's: the distribution of our program's, other rows."""
    generator = torch.Generator(device).manual_seed(shape[-1] + shape[1] + seed)
    peaks = torch.randint(shape[-1], (*shape[:-1], 20), device=device, generator=generator)
    raised = 6 + 8 * torch.rand(peaks.shape, device=device, generator=generator)
    return torch.empty(shape, device=device).normal_(0, 2, generator=generator).scatter_add_(-1, peaks, raised)
