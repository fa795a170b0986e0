"""The bodies of `laws.py` on the host, over numpy's arrays and torch's tensors; five million draws are slow."""

from __future__ import annotations

import resource
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from laws import BODIES, FILTERS, Place, draws_follow, fits, model_like, softmax64

# Row count, vocabulary, draws.
ALL = [(rows, vocab, 5_000_000) for rows in (1, 99, 989) for vocab in (111, 32_000, 128_256)]


def place_of_numpy() -> Place:
    types = {"bfloat16": ml_dtypes.bfloat16}

    def put(array: np.ndarray, dtype: str | None = None) -> Any:
        # What is too large for float16 becomes infinite, as with torch.
        with np.errstate(over="ignore"):
            return array.copy() if dtype is None else array.astype(types.get(dtype, dtype))

    def back(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32) if array.dtype.kind in "fV" else array.copy()

    return Place("numpy", put, back)


def place_of_torch() -> Place:
    torch = pytest.importorskip("torch")

    def put(array: np.ndarray, dtype: str | None = None) -> Any:
        tensor = torch.tensor(array)
        return tensor if dtype is None else tensor.to(getattr(torch, dtype))

    def back(array: Any) -> np.ndarray:
        if isinstance(array, np.ndarray):
            return array
        return (array.float() if array.is_floating_point() else array.clone()).numpy()

    return Place("torch", put, back)


@pytest.fixture(params=[place_of_numpy, place_of_torch], ids=["numpy", "torch"])
def place(request: pytest.FixtureRequest) -> Place:
    return request.param()  # type: ignore[no-any-return]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_laws_hold(place: Place, body: Any) -> None:
    print(body(place))


@pytest.mark.parametrize("kind", ["probs", "logits"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_draws_follow_their_law(kind: str, filters: dict[str, Any]) -> None:
    print(draws_follow(place_of_numpy(), 99, 32_000, 100_000, filters, kind))


@pytest.mark.slow
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize(("rows", "vocab", "draws"), ALL)
def test_five_million_draws_follow_their_law(rows: int, vocab: int, draws: int, filters: dict[str, Any]) -> None:
    print(draws_follow(place_of_numpy(), rows, vocab, draws, filters))


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
