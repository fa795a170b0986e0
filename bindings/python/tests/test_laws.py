"""Draws of operators on the host follow their law; five million draws are slow."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

import gumball
from float64 import softmax64
from laws import FILTERS, Place, draws_follow, fits, model_like

HERE = Place(np.asarray, np.asarray)


@pytest.mark.parametrize("kind", ["probs", "logits"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_draws_follow_their_law(kind: str, filters: dict[str, Any]) -> None:
    print(draws_follow(HERE, 99, 32_000, 100_000, filters, kind))


@pytest.mark.slow
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("rows", [1, 99, 989])
@pytest.mark.parametrize("vocab", [111, 32_000, 128_256])
def test_five_million_draws_follow_their_law(rows: int, vocab: int, filters: dict[str, Any]) -> None:
    print(draws_follow(HERE, rows, vocab, 5_000_000, filters))


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
