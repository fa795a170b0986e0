"""Batches of rows like a model's, in the forms that ways read: logits, logits divided by the temperature, probabilities,
and drafts with what a drafter and a target gave them."""

import torch
from torch.nn.functional import pad

import plan

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Inputs:
    """What ways were given last; kept until the shape changes."""

    def __init__(self):
        self.shape, self.forms = None, {}

    def of(self, vocab, rows, given, dtype="f32", batches=None):
        """Returns batches, together cold, or so many: tensors [rows, vocab], or for `drafts` the drafter's probabilities
        [rows, drafts, vocab], its tokens [rows, drafts], the target's probabilities [rows, drafts + 1, vocab], and the
        tokens as int64 behind each chain's last one, [rows, drafts + 1]."""
        rows_of_a_row = 2 * plan.DRAFTS + 1 if given == "drafts" else 1
        batches = batches or plan.batches(vocab, rows, plan.BYTES[dtype] * rows_of_a_row)
        shape = (batches, rows, vocab, given == "drafts")
        if shape != self.shape:
            self.shape, self.forms = None, {}
            torch.cuda.empty_cache()
            self.shape = shape
        if (given, dtype) not in self.forms:
            self.forms[given, dtype] = self.made(given, dtype)
        return self.forms[given, dtype]

    def made(self, given, dtype):
        batches, rows, vocab, _ = self.shape
        if given == "drafts":
            # Apart from one another: most chains end at their first draft, and a whole residual is to be drawn from.
            drafts = probabilities(model_like(batches, rows, plan.DRAFTS, vocab))
            targets = probabilities(model_like(batches, rows, plan.DRAFTS + 1, vocab, seed=1))
            tokens = [q.argmax(-1) for q in drafts]
            return [(q, ids.int(), p, pad(ids, (1, 0))) for q, ids, p in zip(drafts, tokens, targets)]
        if dtype != "f32":
            return self.of(vocab, rows, given, batches=batches).to(DTYPES[dtype])
        if given == "logits":
            return model_like(batches, rows, vocab)
        logits = self.of(vocab, rows, "logits", batches=batches)
        return probabilities(logits) if given == "probabilities" else logits / plan.TEMPERATURE

    def logits(self, index):
        """The logits that a batch comes from."""
        batches, rows, vocab, _ = self.shape
        return self.of(vocab, rows, "logits", batches=batches)[index]


def probabilities(logits):
    return torch.softmax(logits / plan.TEMPERATURE, -1)


def model_like(*shape, seed=0):
    """Normal with sigma 2, then 20 tokens raised by 6 to 14."""
    *rows, vocab = shape
    generator = torch.Generator("cuda").manual_seed(vocab + rows[1] + seed)
    logits = torch.empty(shape, device="cuda").normal_(0, 2, generator=generator)
    peaks = torch.randint(vocab, (*rows, 20), device="cuda", generator=generator)
    raised = 6 + 8 * torch.rand(peaks.shape, device="cuda", generator=generator)
    return logits.scatter_add_(-1, peaks, raised)
