"""Rows whose logits move by less than their radius keep their token (L7): some thousands, or a million."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gumball import LogprobsParams, Pool, SamplingParams

VOCAB, ROWS = 600, 1000
SETTINGS: list[dict[str, Any]] = [
    dict(temperature=0),
    dict(),
    dict(temperature=0.6),
    dict(top_k=20),
    dict(top_p=0.9),
    dict(top_p=0.5, temperature=0.7),
    dict(min_p=0.05),
    dict(top_k=30, top_p=0.8),
    dict(top_p=0.95, min_p=0.03),
    dict(top_k=40, top_p=0.9, min_p=0.02, order="joint"),
    dict(top_p=0.9, min_p=0.03, order=["min_p", "top_p"]),
    dict(top_k=30, top_p=0.8, min_p=0.05, order=["min_p", "top_k", "top_p"]),
    dict(epsilon_cutoff=0.002),
    dict(top_a=0.2, temperature=0.7),
    dict(p_less=True),
    dict(top_k=30, top_a=0.05, epsilon_cutoff=0.001),
    dict(epsilon_cutoff=0.001, top_p=0.8, order=["epsilon_cutoff", "top_p"]),
    dict(p_less=True, top_a=0.02, top_k=20, top_p=0.9, order=["p_less", "top_a", "top_k", "top_p"]),
    dict(top_k=10, temperature=1.5, temperature_last=True),
    dict(repetition_penalty=1.4, presence_penalty=0.5, top_k=50),
    dict(repetition_penalty=0.7, logit_bias={3: 2.0, 77: -1.5}, top_p=0.9),
]


def signs(rng: np.random.Generator, rows: np.ndarray, tokens: np.ndarray, way: int) -> np.ndarray:
    """Which logits go up and which down: at random; or all but the token's up; or the likely ones one way and the others the other way."""
    if way == 0:
        return rng.choice(np.float32([-1, 1]), rows.shape)
    if way == 1:
        signs = np.ones_like(rows)
    else:
        likely = rows >= np.sort(rows, 1)[:, [-1 - rng.integers(60)]]
        signs = np.where(likely, np.float32(-1), np.float32(1)) * (1 if way == 2 else -1)
    signs[np.arange(len(rows)), tokens] = -1
    return signs


@pytest.mark.parametrize("turns", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_rows_that_move_by_less_than_their_radius_keep_their_token(turns: int) -> None:
    asked = LogprobsParams(mode=["raw", "radius"])
    rng = np.random.default_rng(turns)
    tried = 0
    for setting in SETTINGS * turns:
        rows = rng.normal(0, rng.choice([0.5, 2, 4]), (ROWS, VOCAB)).astype(np.float32)
        requests = [SamplingParams(seed=int(rng.integers(1 << 60)), logprobs=asked, **setting) for _ in range(ROWS)]
        pool = Pool(VOCAB, slots=ROWS, rows=ROWS)

        def drawn(rows: np.ndarray, requests: Any = requests, pool: Pool = pool) -> Any:
            slots = [pool.admit(request, [3, 5, 77, 3]) for request in requests]
            out = pool.step(rows, slots)
            for slot in slots:
                pool.release(slot)
            return out

        first = drawn(rows)
        reach = np.minimum(first.second_logprobs, 30)[:, None] * np.float32(0.9999)
        for way in range(4):
            moved = rows + reach * signs(rng, rows, first.tokens, way)
            differ = np.flatnonzero(drawn(moved).tokens != first.tokens)
            assert not differ.size, (setting, way, reach[differ[0]], requests[differ[0]])
            tried += ROWS
    assert tried == turns * len(SETTINGS) * 4 * ROWS
