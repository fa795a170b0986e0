"""Draws of operators follow their law, whichever kind their rows are; five million are slow. `gpu/operators_check.py` holds draws on a GPU to these.

Seeds are fixed; a right sampler is rejected once in a million seeds.
"""

from __future__ import annotations

import math
import resource
from typing import Any

import numpy as np
import pytest

import gumball
from float64 import kept64, softmax64

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"top_k": 20},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.02},
    "top-k, top-p": {"top_k": 40, "top_p": 0.8},
    "joint": {"top_k": 30, "top_p": 0.95, "order": "joint"},
}
# One in a million, one-sided, of a normal variable.
SIGMAS = 4.7535


def model_like(vocab: int, seed: int) -> np.ndarray:
    """Logits like a model's: a bell of deviation 2, and peaks raised by 6 to 14."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 2, vocab)
    row[rng.choice(vocab, min(20, vocab // 4), replace=False)] += rng.uniform(6, 14, min(20, vocab // 4))
    return row.astype(np.float32)


def quantile(degrees: int) -> float:
    """The value that a chi-square of `degrees` degrees exceeds once in a million (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + SIGMAS * math.sqrt(spread)) ** 3


def fits(counts: np.ndarray, law: np.ndarray) -> None:
    """Asserts that counts follow a law: by the angle between them, and by chi-square, small bins as one."""
    total = counts.sum()
    cosine = float(counts @ law / np.linalg.norm(counts) / np.linalg.norm(law))
    assert cosine > 0.99, cosine
    expected = total * law
    large = expected >= 5
    seen, wanted = counts[large].astype(np.float64), expected[large]
    if (rest := expected[~large].sum()) > 0:
        seen, wanted = np.append(seen, counts[~large].sum()), np.append(wanted, rest)
    chi2 = float(((seen - wanted) ** 2 / wanted).sum())
    assert len(wanted) < 2 or chi2 < quantile(len(wanted) - 1), (chi2, len(wanted))


@pytest.mark.parametrize("kind", ["probs", "logits"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_draws_follow_their_law(kind: str, filters: dict[str, Any]) -> None:
    """Draws from rows that hold one row, turned by their number, follow its law; none is of a token that was cut."""
    rows, vocab = 99, 32_000
    logits = model_like(vocab, 7)
    probs = softmax64(logits)[0].astype(np.float32)
    line, draw = (probs, gumball.sampling_from_probs) if kind == "probs" else (logits, gumball.sampling_from_logits)
    batch = np.stack([np.roll(line, row) for row in range(rows)])
    tokens = draw(batch, n=-(-100_000 // rows), seed=11, **filters)
    for row in {0, rows // 2, rows - 1}:
        of = "logits" if kind == "logits" else "probabilities"
        assert (gumball.probabilities(batch[row], kind=of, **filters)[tokens[row]] > 0).all()
    turned = (tokens.astype(np.int64) - np.arange(rows)[:, None]) % vocab
    fits(np.bincount(turned.ravel(), minlength=vocab), kept64(probs, **filters))


@pytest.mark.slow
def test_five_million_draws_of_one_row_by_an_index_list_are_fine() -> None:
    row = softmax64(model_like(128_256, 4)).astype(np.float32)
    lines, out = np.zeros(5_000_000, np.int64), np.zeros(5_000_000, np.int32)
    gumball.sampling_from_probs(row, lines[:100_000], seed=3, out=out[:100_000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gumball.sampling_from_probs(row, lines, seed=3, out=out)
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    fits(np.bincount(out, minlength=row.size), row[0].astype(np.float64) / row.sum(dtype=np.float64))
    # A word for each line, seed, position and draw index, and each token twice: 48 bytes a draw are 235 MiB.
    assert kib < 300_000, kib
