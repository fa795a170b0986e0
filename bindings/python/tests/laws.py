"""The law of draws that operators make, wherever their rows lie: for `test_laws.py` on the host, `gpu/proofs.py` on a GPU.

Seeds are fixed; a right sampler is rejected once in a million seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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


class Place(NamedTuple):
    """Where arrays lie: `put` takes numpy's there, `back` brings them."""

    put: Callable[..., Any]
    back: Callable[[Any], np.ndarray]


def model_like(vocab: int, seed: int) -> np.ndarray:
    """Logits like a model's: a bell of deviation 2, and peaks raised by 6 to 14."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 2, vocab)
    row[rng.choice(vocab, min(20, vocab // 4), replace=False)] += rng.uniform(6, 14, min(20, vocab // 4))
    return row.astype(np.float32)


def quantile(degrees: int) -> float:
    """What a chi-square of so many degrees exceeds once in a million (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + SIGMAS * math.sqrt(spread)) ** 3


def fits(counts: np.ndarray, law: np.ndarray) -> str:
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
    return f"cosine {cosine:.5f}, chi-square {chi2:.0f} of {len(wanted) - 1}"


def draws_follow(place: Place, rows: int, vocab: int, draws: int, filters: dict[str, Any], kind: str = "probs") -> str:
    """Draws from rows that hold one row, turned by their number, follow its law; none is of a token that was cut."""
    logits = model_like(vocab, 7)
    probs = softmax64(logits)[0].astype(np.float32)
    line, draw = (probs, gumball.sampling_from_probs) if kind == "probs" else (logits, gumball.sampling_from_logits)
    batch = place.put(np.stack([np.roll(line, row) for row in range(rows)]))
    tokens = place.back(draw(batch, n=-(-draws // rows), seed=11, **filters))
    assert tokens.min() >= 0 and tokens.max() < vocab
    for row in {0, rows // 2, rows - 1}:
        of = "logits" if kind == "logits" else "probabilities"
        kept = place.back(gumball.probabilities(batch[row : row + 1], kind=of, **filters))[0] > 0
        assert kept[tokens[row]].all()
    turned = (tokens.astype(np.int64) - np.arange(rows)[:, None]) % vocab
    return fits(np.bincount(turned.ravel(), minlength=vocab), kept64(probs, **filters))
