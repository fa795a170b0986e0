"""Calls of every operator, on arrays of any library and in any memory, which must all come to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gumball
from float64 import softmax64
from gumball import SamplingParams, _gumball

Calls = dict[str, Callable[[], Any]]
OF_PROBS = {"kind": "probabilities"}


def in_place(work: Any, rows: Any, value: Any) -> Any:
    assert work(rows, value, rows) is rows
    return rows


def calls(ops: Any, batch: np.ndarray, put: Callable[..., Any]) -> Calls:
    """Calls of each function of `ops`, on arrays that `put` makes of numpy's."""
    plain = softmax64(batch).astype(np.float32)
    logits, probs, column = put(batch), put(plain), put(np.linspace(0.5, 2, 7, dtype=np.float32))
    ks, seeds, lines = put(np.arange(1, 8)), put(np.arange(-3, 4)), put(np.array([6, 0, 0, 3]))
    half, narrow = put(plain, "float16"), put(batch, "bfloat16")
    q, ids, p = put(plain[:4].reshape(2, 2, -1)), put(np.array([[1, 2], [3, 4]])), put(plain[:6].reshape(2, 3, -1))
    pools, of_pools, pool = (
        put(np.array([3, 0, 2, 2, 1, 4, 0])),
        put(np.array([5, 6, 7, 2**63 - 1, 9])),
        put(np.array([1])),
    )
    tree, pair, shares = (
        put(np.full((2, 2), -1)),
        put(np.array([0, 5])),
        put(np.linspace(0.1, 0.5, 7, dtype=np.float32)),
    )
    return {
        "softmax": lambda: ops.softmax(logits, column),
        "softmax of bfloat16": lambda: ops.softmax(narrow, 0.7),
        "softmax to out": lambda: ops.softmax(logits, 0.7, put(np.empty_like(batch))),
        "softmax in place": lambda: in_place(ops.softmax, put(batch.copy()), column),
        "probabilities": lambda: ops.probabilities(
            logits, temperature=0.7, top_k=ks, top_p=0.9, order=["top_p", "top_k"]
        ),
        "probabilities of probabilities": lambda: ops.probabilities(half, **OF_PROBS, top_k=ks),
        "probabilities to out": lambda: ops.probabilities(probs, **OF_PROBS, top_p=0.9, out=put(np.empty_like(plain))),
        "probabilities, joint": lambda: ops.probabilities(probs, **OF_PROBS, top_k=ks, top_p=0.9, order="joint"),
        "mask_logits": lambda: ops.mask_logits(logits, min_p=shares),
        "mask_logits of bfloat16": lambda: ops.mask_logits(narrow, top_k=3),
        "sample of probabilities": lambda: ops.sample(half, **OF_PROBS, top_p=0.9, seed=seeds, position=3),
        "sample of lines": lambda: ops.sample(
            probs, lines, **OF_PROBS, seed=2**64 - 3, position=0, dtype="int64", top_k=ks, draw=2
        ),
        "sample": lambda: ops.sample(logits, temperature=column, seed=5, position=0, min_p=0.05),
        "sample to out": lambda: ops.sample(logits, seed=5, position=1, out=put(np.empty(7, np.int32))),
        "judge": lambda: ops.judge(q, ids, p, seed=9, position=pair)[0],
        "judge of trees": lambda: ops.judge(
            None, ids, p, tree, rule="threshold", threshold_acc=0.5, seed=9, position=0
        )[1],
        "judge of blocks": lambda: ops.judge(q, ids, p, rule="block", seed=pair, position=0, dtype="int64")[0],
        "sample_from_pools": lambda: ops.sample_from_pools(
            probs,
            pools,
            seed=of_pools,
            position=2,
            **OF_PROBS,
        ),
        "sample_from_pools of pools": lambda: ops.sample_from_pools(
            logits, pool, seed=pair, position=pair, rows_per_slot=7, top_p=0.9, dtype="int64"
        ),
        "radii": lambda: ops.radii(logits, temperature=column, seed=5, position=2, top_k=ks, order="joint"),
        "radii of bfloat16": lambda: ops.radii(narrow, seed=seeds, position=3, draw=0, top_p=0.9, min_p=0.02),
        "selected_logprobs": lambda: ops.selected_logprobs(logits, ks),
        "selected_logprobs of one id": lambda: ops.selected_logprobs(half, 5, **OF_PROBS, return_ranks=True)[1] * 1,
        "row_count": lambda: ops.softmax(logits, 0.7) * ops.row_count(logits),
    }


def more_calls(batch: np.ndarray, put: Callable[..., Any]) -> Calls:
    """Calls that no custom operator has: lists, other columns, statuses, bodies of `gumball.operators` alone."""
    rows = batch.copy()
    rows[2], rows[4, 5] = -np.inf, np.nan
    logits, probs = put(rows), put(softmax64(batch).astype(np.float32))
    held: dict[str, Any] = dict(
        seed=put(np.array([5, 6, 7, 2**63 - 1, 9])),
        temperature=put(np.array([1.0, 0.0, 0.7, 1.2, 0.5], np.float32)),
        top_k=put(np.array([0, 5, 40, 7, 3])),
        position=put(np.array([0, 1 << 32 | 3, 2 << 32 | 2**32 - 2, 3 << 32 | 8, 1])),
        high_draws=True,
    )
    offsets = dict(position=put(np.array([5, 1 << 32 | 5, -(1 << 32) + 5, 7 << 32, 0, 1, (1 << 62) + 9])), offsets=True)
    tokens, ones, ids, some = (
        [5, 0, -1, 8, 7, 7, 3],
        put(np.ones((7, 1))),
        put(np.zeros((1, 2), np.int32)),
        put(np.arange(7)),
    )
    slots, there, lines = put(np.array([3, 0, 2, 2, 1, 4, 0])), put(np.array(tokens)), put(np.array([6, 0, 0]))
    draws = put(np.arange(3))
    keeps = np.pad(batch > np.array([-9, -1, 0, 3, 6, 9, 30])[:, None], ((0, 0), (0, -batch.shape[1] % 128)))
    sets = np.packbits(keeps, axis=1, bitorder="little").view("<i4")
    used, bits = 7 + np.minimum(keeps.sum(1), sets.shape[1]).sum(), put(sets)
    return {
        "packed sets": lambda: _gumball.pack_kept(bits).reshape(-1)[:used],
        "lists": lambda: gumball.sample(
            logits, seed=list(range(7)), position=0, temperature=[0.5] * 7, top_k=(3,) * 7, return_statuses=True
        ),
        "other filters": lambda: gumball.mask_logits(
            logits, temperature=ones, params=SamplingParams(typical_p=0.8), return_statuses=True
        ),
        "joint": lambda: gumball.sample(
            logits, lines, seed=3, position=0, top_k=4, top_p=0.9, order="joint", draw=draws
        ),
        "offsets": lambda: gumball.sample(logits, seed=some, zero_for_none=True, **offsets),
        "pools": lambda: gumball.sample_from_pools(probs, slots, **held, dtype="int64"),
        "pools, neighbours": lambda: gumball.sample_from_pools(logits, [3], rows_per_slot=7, **held),
        "radii of lists, to out": lambda: gumball.radii(
            logits,
            seed=list(range(7)),
            position=0,
            temperature=[0.5] * 7,
            top_k=(3,) * 7,
            out=put(np.empty(7, np.float32)),
        ),
        "logprobs": lambda: gumball.selected_logprobs(logits, tokens, return_ranks=True, return_statuses=True),
        "logprobs of ids there": lambda: gumball.selected_logprobs(probs, there, kind="probabilities"),
        "statuses": lambda: gumball.softmax(logits, 0.7, return_statuses=True),
        "blocks": lambda: gumball.judge(None, ids, probs[:3].reshape(1, 3, -1), seed=1, position=0),
    }


def of_torch(array: np.ndarray, dtype: str | None = None, device: str = "cpu") -> Any:
    import torch

    return torch.from_numpy(array).to(device, dtype and getattr(torch, dtype))


def of_numpy(array: np.ndarray, dtype: str | None = None) -> np.ndarray:
    if dtype == "bfloat16":
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16)
    return array if dtype is None else array.astype(dtype)


def as_arrays(found: Any) -> list[np.ndarray]:
    """Results of any library as numpy's arrays of float32 or int64; bits of statuses are int32 on a device."""
    if isinstance(found, tuple):
        return [array for part in found if part is not None for array in as_arrays(part)]
    if hasattr(found, "cpu"):
        found = (found.float() if found.is_floating_point() else found).cpu().numpy()
    return [found.astype(np.int64 if found.dtype.kind in "iu" else np.float32)]


def same(found: Any, wanted: Any) -> bool:
    """Whether two results are equal, bit for bit except for NaN."""
    pairs = zip(as_arrays(found), as_arrays(wanted), strict=True)
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
