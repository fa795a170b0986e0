"""What operators are held to: softmax and filters in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def softmax64(logits: np.ndarray, temperature: Any = 1.0) -> np.ndarray:
    z = logits.astype(np.float64) / np.asarray(temperature, np.float64).reshape(-1, 1)
    weights = np.exp(z - z.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def in_order(row: np.ndarray) -> np.ndarray:
    """Ids, larger first, of equal ones the lower first."""
    return np.argsort(-row.astype(np.float64), kind="stable")


def kept64(row: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    p = row.astype(np.float64)
    order = in_order(row)[: top_k if 0 < top_k < row.size else row.size]
    if top_p < 1:
        sums = np.cumsum(p[order])
        order = order[: int(np.searchsorted(sums, top_p * sums[-1])) + 1]
    out = np.zeros(row.size)
    stays = order[p[order] >= min_p * p[order].max()]
    out[stays] = p[stays] / p[stays].sum()
    return out
