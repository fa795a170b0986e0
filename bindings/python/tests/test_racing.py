"""Rows that another thread writes while they are read, which no program should do: any token may come, and nothing breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

import gumball
from gumball import FILTERS, DynamicTemperature, LogprobsParams, Mirostat, Pool, Probabilities, Sampler, SamplingParams

# Chance decides which rows these read, so they run in `ci/long python` for as long as one likes, and not in every run.
pytestmark = pytest.mark.slow

VOCAB = 32_000
SECONDS = 0.5


@contextmanager
def written(rows: np.ndarray, probabilities: bool) -> Iterator[None]:
    """Rows that a thread writes all the time: with other rows, with nothing, with no numbers."""
    done = threading.Event()
    random = np.random.default_rng(5)
    others = [random.normal(0, deviation, rows.shape).astype(np.float32) for deviation in (0.1, 3, 30)]
    if probabilities:
        others = [np.exp(other - other.max()) for other in others]
    others += [np.full(rows.shape, value, np.float32) for value in (0, -np.inf, np.nan, np.inf, -1)]
    cast = [other.astype(rows.dtype) for other in others]

    def write() -> None:
        while not done.is_set():
            for other in cast:
                rows[...] = other

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def until(work: Callable[[], object]) -> None:
    """Calls again and again."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        work()


EDITS = dict(repetition_penalty=1.3, logit_bias={5: 3.0}, banned_ids=[7], top_k=40)
PARAMS = {
    "plain": SamplingParams(seed=1),
    "greedy": SamplingParams(temperature=0),
    "top_k": SamplingParams(seed=1, top_k=3000),
    "top_p": SamplingParams(seed=1, top_p=0.9),
    "a flat nucleus": SamplingParams(seed=1, temperature=3, top_p=0.99),
    "joint": SamplingParams(seed=1, top_k=2000, top_p=0.9, min_p=0.001, order="joint"),
    "xtc": SamplingParams(seed=1, xtc_probability=1, xtc_threshold=0.001),
    "mirostat": SamplingParams(seed=1, mirostat=Mirostat(4, 0.1)),
    "adaptive": SamplingParams(seed=1, adaptive_target=0.3, top_k=500),
    "dynamic": SamplingParams(seed=1, dynamic_temperature=DynamicTemperature(0.5, 2)),
    "logprobs": SamplingParams(seed=1, top_p=0.9, logprobs=LogprobsParams("processed", 20, [1, 2, 31_999])),
    "edits": SamplingParams(seed=1, **EDITS),
}
LESS = {name: getattr(SamplingParams(), name) is False or 1e-3 for name in FILTERS if name not in PARAMS}
PARAMS |= {name: SamplingParams(seed=1, **{name: value}) for name, value in LESS.items()}
LEVELS = ["scalar", None]


@pytest.mark.parametrize("name", PARAMS)
def test_a_sampler_over_rows_that_are_written_meanwhile_goes_on(name: str) -> None:
    row = np.zeros(VOCAB, [np.float32, ml_dtypes.bfloat16][len(name) % 2])
    with written(row, False):
        for level in LEVELS:
            sampler = Sampler(PARAMS[name], VOCAB, prompt=[1, 2, 3], level=level)
            until(lambda: sampler.sample(row) and None)
    row[:] = 0
    row[9] = 60
    assert sampler.sample(row) in range(VOCAB)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pool_over_rows_that_are_written_meanwhile_goes_on(threads: int) -> None:
    plain = {
        name: one for name, one in PARAMS.items() if name not in ("top_n_sigma", "dynamic", "edits", "a flat nucleus")
    }
    pool = Pool(VOCAB, slots=32, threads=threads, top_n=20, ids=3, kept=True)
    for kind, params in (("logits", PARAMS), ("probabilities", plain)):
        rows = np.zeros((len(params), VOCAB), np.float32)
        slots = [pool.admit(one) for one in params.values()]
        with written(rows, kind == "probabilities"):
            until(lambda: pool.step(Probabilities(rows) if kind == "probabilities" else rows, slots))
        for slot in slots:
            pool.release(slot)


def test_operators_over_rows_that_are_written_meanwhile_go_on() -> None:
    rows, out = np.zeros((4, VOCAB), np.float32), np.zeros((4, VOCAB), np.float32)
    with written(rows, True):
        for work in (
            lambda: gumball.softmax(rows, out=out),
            lambda: gumball.probabilities(rows, kind="probabilities", top_p=0.9, out=out),
            lambda: gumball.probabilities(rows, kind="probabilities", top_k=3000, out=out),
            lambda: gumball.mask_logits(rows, top_p=0.5, out=out),
            lambda: gumball.sample(rows, [0] * 100, kind="probabilities", seed=1, position=0, top_p=0.9),
            lambda: gumball.judge(rows[None, :3], np.array([[1, 2, 3]]), rows[None], seed=1, position=0),
        ):
            until(work)
