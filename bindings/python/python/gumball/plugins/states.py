"""Admits an engine's requests to a pool: new requests, and requests that return with the tokens that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..params import SamplingParams, State

__all__ = ["admit", "mirostat_start"]


def mirostat_start(params: SamplingParams) -> float:
    """Mirostat's limit before the first token, in bits; 0 without mirostat."""
    mirostat = params.mirostat
    return 0.0 if mirostat is None else 2 * mirostat.tau if mirostat.mu is None else mirostat.mu


def admit(
    pool: Any, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], seed: int, mu: float | None = None
) -> int:
    """Admits a request to a pool and returns its slot. One that has tokens goes on after them.

    seed: the request's, whatever its parameters say. mu: mirostat's limit after the tokens; None where nobody knows it any more, for the one
    before the first.
    """
    limit = mirostat_start(params) if mu is None else mu
    position = (len(prompt) + len(output)) % 2**32
    return int(pool.resume(params, State(prompt, output, seed=seed, position=position, mu=limit)))
