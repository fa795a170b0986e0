"""What operators are held to: softmax and filters in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def softmax64(logits: np.ndarray, temperature: Any = 1.0) -> np.ndarray:
    z = logits.astype(np.float64) / np.asarray(temperature, np.float64).reshape(-1, 1)
    weights = np.exp(z - z.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def kept64(row: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, order: str = "") -> np.ndarray:
    """What filters leave of a row, by a full sort: larger ones first, of equal ones the lower id."""
    p = row.astype(np.float64)
    ids = np.argsort(-p, kind="stable")
    count = top_k if 0 < top_k < p.size else p.size
    weighed = ids if order == "joint" else ids[:count]
    if top_p < 1:
        sums = np.cumsum(p[weighed])
        count = min(count, int(np.searchsorted(sums, top_p * sums[-1])) + 1)
    stays = ids[:count][p[ids[:count]] >= min_p * p[ids[0]]]
    out = np.zeros(p.size)
    out[stays] = p[stays] / p[stays].sum()
    return out
