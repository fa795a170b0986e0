"""Admits an engine's requests to a pool: new requests, and requests that return with the tokens that they have. Makes a seed of a request's id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..params import SamplingParams, State

__all__ = ["admit", "mu_start", "seed_of", "steered_by"]


def seed_of(name: str, engine_seed: int = 0) -> int:
    """The seed of a request that has none of its own, the same in all processes: made of the request's id and the engine's seed.

    It is below 2^56, so that any field for a seed takes it, and those of the samples of a request that follow it.
    """
    digest = hashlib.blake2b(f"{engine_seed}:{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def steered_by(params: SamplingParams) -> str | None:
    """The flat name of the parameter by which draws move `mu`, which is mirostat's limit or the mean of adaptive-p; None where nothing does."""
    if params.adaptive_target >= 0:
        return "adaptive_target"
    return None if params.mirostat is None else "mirostat_tau"


def mu_start(params: SamplingParams) -> float:
    """`mu` before the first token: mirostat's limit, in bits, or the mean of adaptive-p; 0 without both."""
    mirostat = params.mirostat
    if mirostat is None:
        return max(params.adaptive_target, 0.0)
    return 2 * mirostat.tau if mirostat.mu is None else mirostat.mu


def admit(
    pool: Any, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], seed: int, mu: float | None = None
) -> int:
    """Admits a request to a pool and returns its slot. One that has tokens goes on after them.

    seed: the request's, whatever its parameters say. mu: as :func:`mu_start` after the tokens; None where nobody knows it any more, for the one
    before the first.
    """
    limit = mu_start(params) if mu is None else mu
    position = (len(prompt) + len(output)) % 2**32
    return int(pool.resume(params, State(prompt, output, seed=seed, position=position, mu=limit)))
