"""Batches of rows of a family, in the forms that ways read: logits, logits divided by the temperature, probabilities, and drafts
with what a drafter and a target gave them.

Families are those of crates/cuda/examples/replay, made by torch: the same distributions, other rows.
"""

from pathlib import Path

import torch
from torch.nn.functional import pad

import plan

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
RECORDED, RECORDED_VOCAB = Path(__file__).parents[2] / "conformance/rows/smollm2.bf16", 49152


class Inputs:
    """What ways were given last; kept until the shape or the family changes."""

    def __init__(self):
        self.shape, self.forms = None, {}

    def of(self, vocab, rows, given, dtype="f32", batches=None, like="model", temperatures=(plan.TEMPERATURE,)):
        """Returns batches, together cold, or so many: tensors [rows, vocab], or for `drafts` the drafter's probabilities
        [rows, drafts, vocab], its tokens [rows, drafts], the target's probabilities [rows, drafts + 1, vocab], and the
        tokens as int64 behind each chain's last one, [rows, drafts + 1]. Rows take the temperatures in turn."""
        rows_of_a_row = 2 * plan.DRAFTS + 1 if given == "drafts" else 1
        batches = batches or plan.batches(vocab, rows, plan.BYTES[dtype] * rows_of_a_row)
        shape = (batches, rows, vocab, given == "drafts", like)
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
        batches, rows, vocab, _, like = self.shape
        if given == "drafts":
            # Apart from one another: most chains end at their first draft, and a whole residual is to be drawn from.
            drafts, targets = (
                torch.softmax(family(like, (batches, rows, count, vocab), seed) / plan.TEMPERATURE, -1)
                for seed, count in enumerate((plan.DRAFTS, plan.DRAFTS + 1))
            )
            tokens = [q.argmax(-1) for q in drafts]
            return [(q, ids.int(), p, pad(ids, (1, 0))) for q, ids, p in zip(drafts, tokens, targets)]
        if dtype != "f32":
            return self.of(vocab, rows, given, "f32", batches, like, temperatures).to(DTYPES[dtype])
        if given == "logits":
            return family(like, (batches, rows, vocab))
        divided = self.of(vocab, rows, "logits", "f32", batches, like) / column(temperatures, rows)
        return torch.softmax(divided, -1) if given == "probabilities" else divided

    def logits(self, index):
        """The logits that a batch comes from."""
        batches, rows, vocab, _, like = self.shape
        return self.of(vocab, rows, "logits", batches=batches, like=like)[index]


def column(temperatures, rows):
    """The temperatures of rows that take them in turn, [rows, 1]."""
    turns = [temperatures[row % len(temperatures)] for row in range(rows)]
    return torch.tensor(turns, device="cuda")[:, None]


def family(like, shape, seed=0):
    """Rows [.., vocab] of a family."""
    name, _, temperature = like.partition("-t")
    generator = torch.Generator("cuda").manual_seed(shape[-1] + shape[1] + seed)
    rows = made_by(name, shape, generator)
    return rows.div_(float(temperature)) if temperature else rows


def made_by(name, shape, generator):
    name, _, number = name.partition("-")
    vocab = shape[-1]

    def bell(sigma):
        return torch.empty(shape, device="cuda").normal_(0, sigma, generator=generator)

    def some(count):
        return torch.randint(vocab, (*shape[:-1], count), device="cuda", generator=generator)

    def ranks():
        return torch.rand(shape, device="cuda", generator=generator).argsort(-1) + 1

    if name == "model":
        peaks = some(20)
        return bell(2).scatter_add_(-1, peaks, 6 + 8 * torch.rand(peaks.shape, device="cuda", generator=generator))
    if name in ("bell", "flat"):
        return bell(float(number or 2) if name == "bell" else 0.001)
    if name == "zipf":
        return bell(0.1).sub_(ranks().float().log_().mul_(float(number)))
    if name == "heaps":
        near = some(300)
        rows = bell(1).scatter_(-1, near, 8 + 0.1 * torch.randn(near.shape, device="cuda", generator=generator))
        return rows.scatter_(-1, some(3000), 5.0)
    if name == "ties":
        return bell(2).mul_(8).round_().div_(8)
    if name == "equal":
        return torch.zeros(shape, device="cuda")
    if name == "real":
        return real(shape, generator)
    raise ValueError(f"no family is called {name}")


def real(shape, generator):
    """Recorded rows, each moved along the ids. Ids beyond the recorded vocabulary take logits of a row's lower half."""
    vocab = shape[-1]
    recorded = torch.frombuffer(bytearray(RECORDED.read_bytes()), dtype=torch.bfloat16).view(-1, RECORDED_VOCAB)
    recorded = recorded.float().cuda()
    lower = recorded.sort(-1).values[:, : RECORDED_VOCAB // 2]
    rows = torch.empty(shape, device="cuda").view(-1, vocab)
    for index, row in enumerate(rows):
        of = index % len(recorded)
        kept = min(vocab, RECORDED_VOCAB)
        row[:kept] = recorded[of, :kept]
        picks = torch.randint(RECORDED_VOCAB // 2, (vocab - kept,), device="cuda", generator=generator)
        row[kept:] = lower[of][picks]
        row.copy_(row.roll(977 * index))
    return rows.view(shape)
