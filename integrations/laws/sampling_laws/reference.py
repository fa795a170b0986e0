"""What right is: the law of a row and a request, in float64, and how counts are held to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, Request

Doubles = NDArray[np.float64]

#: One in a million, one-sided, of a normal variable.
SIGMAS = 4.7535


def softmax(row: Any) -> Doubles:
    """Probabilities in float64; -inf has none."""
    z = np.asarray(row, np.float64)
    weights = np.exp(z - z.max())
    return np.asarray(weights / weights.sum(), np.float64)


def edited(row: Any, request: Request, engine: Engine | None = None) -> Doubles:
    """The row after penalties, bias and mask."""
    z = np.array(row, np.float64)
    prompt = request.prompt if engine is None or "repetition_of_prompt" in engine.features else ()
    for token in sorted({*prompt, *request.output}):
        z[token] *= request.repetition_penalty if z[token] <= 0 else 1 / request.repetition_penalty
    for token in sorted({*request.output}):
        z[token] -= request.frequency_penalty * request.output.count(token) + request.presence_penalty
    for token, bias in request.logit_bias.items():
        z[token] += bias
    if request.allowed is not None:
        z[[id for id in range(z.size) if id not in request.allowed]] = -math.inf
    return z


def law(row: Any, request: Request, engine: Engine | None = None) -> Doubles:
    """The probabilities that a request's token is drawn with. Where tokens tie, filters prefer lower ids."""
    z = edited(row, request, engine)
    engine = engine or Engine()
    if request.temperature == 0:
        return np.asarray(np.eye(z.size)[int(z.argmax())], np.float64)
    p = softmax(z if engine.temperature_last else z / request.temperature)
    ids = np.argsort(-p, kind="stable")
    kept = ids[: request.top_k] if request.top_k > 0 else ids
    if request.top_p < 1:
        sums = np.cumsum(p[kept])
        whole = 1.0 if engine.joint else sums[-1]
        kept = kept[: int(np.searchsorted(sums, request.top_p * whole)) + 1]
    kept = kept[p[kept] >= request.min_p * p[ids[0]]]
    kept = kept[p[kept] > 0]
    drawn = softmax(z / request.temperature)
    filtered = np.zeros_like(drawn)
    filtered[kept] = drawn[kept] / drawn[kept].sum()
    return filtered


def quantile(degrees: int) -> float:
    """The bound that a chi-square of `degrees` degrees exceeds once in a million (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + SIGMAS * math.sqrt(spread)) ** 3)


def chi_square(counts: Sequence[int] | NDArray[Any], expected: Doubles) -> tuple[float, float]:
    """Chi-square of counts, and its bound; a right sampler is above that once in a million times.

    Bins with an expectation below 10 are taken together.
    """
    seen = np.asarray(counts, np.float64)
    small = expected < 10
    if small.any():
        seen = np.append(seen[~small], seen[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < 5 and expected.size > 1:
        seen = np.append(seen[:-2], seen[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    if expected.size < 2:
        return 0.0, 0.0
    return float(((seen - expected) ** 2 / expected).sum()), quantile(expected.size - 1)
