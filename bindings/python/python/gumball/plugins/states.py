"""Admits an engine's requests to a pool: new requests, and requests that return with the tokens that they have. Makes a seed of a request's id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..params import SamplingParams, State

__all__ = ["admit", "mirostat_start", "seed_of"]


def seed_of(name: str, engine_seed: int = 0) -> int:
    """The seed of a request that has none of its own, the same in all processes: made of the request's id and the engine's seed.

    It is below 2^56, so that any field for a seed takes it, and those of the samples of a request that follow it.
    """
    digest = hashlib.blake2b(f"{engine_seed}:{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


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
