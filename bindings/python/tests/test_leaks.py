"""No memory and no references are lost over many calls; threads share a pool, and others run while it works."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, DynamicTemperature, LogprobsParams, Mirostat, Pool, Sampler, SamplingParams, State, Step
from operator_calls import calls, of_numpy, of_torch
from test_arrays import DLPack
from threads import on_threads

VOCAB = 16
ROW = np.zeros((2, VOCAB), np.float32)
Work = tuple[Callable[[], object], list[Any]]
CALLS = 100_000


def holds(work: Callable[[], object], objects: list[Any], calls: int = CALLS) -> None:
    """Asserts that many calls leave as many blocks, as much memory and as many references as few."""
    counts = [sys.getrefcount(it) for it in objects]
    for _ in range(min(2000, calls)):
        work()
    gc.collect()
    blocks, kib = sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        work()
    gc.collect()
    more = sys.getallocatedblocks() - blocks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kib
    assert [sys.getrefcount(it) for it in objects] == counts
    assert more[0] < 200 and more[1] < 4096, more


@pytest.mark.parametrize("of", [of_numpy, pytest.param(of_torch, marks=pytest.mark.slow)])
def test_operators_leak_nothing(of: Any) -> None:
    if of is of_torch:
        pytest.importorskip("torch")
    works = calls(gumball, np.random.default_rng(1).random((7, VOCAB)).astype(np.float32), of)
    for work in works.values():
        holds(work, [work], CALLS // 200)


def pool_of(**options: Any) -> tuple[Pool, list[int]]:
    pool = Pool(VOCAB, slots=4, threads=1, **options)
    return pool, [pool.admit(SamplingParams(seed=1)) for _ in range(2)]


def steps() -> Work:
    (pool, slots), lent, forced, masks = pool_of(top_n=2), DLPack(ROW, True), [3, None], np.full((2, 1), -1, np.int32)

    def work() -> None:
        out = pool.step(lent, Batch(slots, masks=masks, forced=forced))
        assert out.tokens[0] == 3 and out.top_ids.shape == (2, 2)
        pool.shorten(slots, [1, 1])

    return work, [pool, slots, lent, forced, masks]


def tensors() -> Work:
    torch = pytest.importorskip("torch")
    (pool, slots), logits, lines = pool_of(), torch.zeros(2, VOCAB), torch.zeros(2, dtype=torch.int64)

    def work() -> None:
        torch.from_numpy(pool.step(logits, Batch(slots, row_indices=lines)).tokens)
        pool.shorten(slots, lines + 1)

    return work, [pool, logits, lines]


def refusals() -> Work:
    sampler, double, out = (
        Sampler(SamplingParams(seed=1), VOCAB),
        np.zeros((2, VOCAB)),
        np.zeros((3, VOCAB), np.float32),
    )

    def work() -> None:
        for call in (
            lambda: sampler.sample(double[0]),
            lambda: gumball.softmax(double),
            lambda: gumball.softmax(ROW, out=out),
            lambda: gumball.softmax(ROW, [1.0, -1.0]),
            lambda: gumball.sample(ROW, [2], kind="probabilities"),
        ):
            with suppress(TypeError, ValueError):
                call()
                raise AssertionError("taken")

    return work, [sampler, double, out]


def requests() -> Work:
    (pool, _), params, prompt = pool_of(), SamplingParams(seed=1, stop_ids=[2]), [1, 2, 3]

    def work() -> None:
        slot = pool.admit(params, prompt)
        other = pool.resume(params, pool.state(slot))
        pool.release(other)
        pool.release(pool.fork(slot, 1))
        pool.release(slot)

    return work, [pool, params, prompt]


def hooks() -> Work:
    sampler, (pool, slots) = Sampler(SamplingParams(seed=1), VOCAB), pool_of()

    def hook(logits: np.ndarray) -> None:
        logits[3] = 9

    def fails(logits: np.ndarray) -> None:
        raise KeyError

    def work() -> None:
        sampler.sample(ROW[0], hook=hook)
        sampler.shorten(1)
        pool.step(ROW, Batch(slots, hooks=[hook, None]))
        pool.shorten(slots, [1, 1])
        with suppress(KeyError):
            sampler.sample(ROW[0], hook=fails)
        with suppress(KeyError):
            pool.step(ROW, Batch(slots, hooks=[fails] * 2))

    return work, [sampler, pool, hook, fails]


def parts() -> Work:
    parts: dict[str, Any] = dict(
        dynamic_temperature=DynamicTemperature(0.5, 1.5), logprobs=LogprobsParams(top_n=2, ids=[3])
    )
    params = SamplingParams(seed=1, stop_ids=[1], min_tokens=1, **parts)
    sampler, pool = Sampler(params, VOCAB, prompt=[1]), Pool(VOCAB, slots=2, threads=1, top_n=2, ids=1, kept=True)
    slot = pool.admit(SamplingParams(seed=1, mirostat=Mirostat(3, 0.1)), [1])
    batch, pieces = Batch([slot]), [Step(ROW[0])]
    sampler.collect_kept(True)

    def work() -> None:
        sampler.sample(ROW[0])
        assert sampler.logprobs is not None and sampler.kept and sampler.history and isinstance(sampler.state, State)
        sampler.fork(1)
        Sampler.resume(params, VOCAB, sampler.state)
        sampler.reset([1])
        pool.assign(batch)
        pool.enqueue(pieces)
        outputs = pool.fetch()
        assert outputs.tokens.size and outputs.kept(0).size and outputs.emitted() and outputs.request(0).tokens.size
        pool.shorten([slot], [len(pool.output(slot))])

    return work, [params, sampler, pool, batch, pieces]


def loans_of_a_device() -> Work:
    if not gumball._gumball.EMULATOR:
        pytest.skip("no emulator")
    pool = Pool(VOCAB, device="emulated", slots=1, rows=1)
    pool.assign([pool.admit(SamplingParams(seed=1))])

    def work() -> None:
        tokens = pool.on_device().outputs("tokens")
        np.from_dlpack(tokens)
        tokens.__dlpack__(max_version=(1, 0))  # A capsule that nobody takes up.
        tokens.__dlpack__()
        np.asarray(tokens)

    return work, [pool]


WORKS = {work.__name__: work for work in (steps, tensors, refusals, requests, hooks, parts, loans_of_a_device)}


@pytest.mark.parametrize("name", WORKS)
def test_calls_leak_nothing(name: str) -> None:
    work, objects = WORKS[name]()
    holds(work, objects, CALLS // 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_many_calls_leak_nothing(name: str) -> None:
    work, objects = WORKS[name]()
    holds(work, objects, 3 * CALLS)


def test_a_view_of_a_device_keeps_its_pool() -> None:
    _, [pool] = loans_of_a_device()
    counts = sys.getrefcount(pool)
    view = np.from_dlpack(pool.on_device().outputs("tokens"))
    assert sys.getrefcount(pool) == counts + 1
    del view
    assert sys.getrefcount(pool) == counts


def test_threads_share_a_pool_and_others_run_meanwhile(batch: np.ndarray) -> None:
    pool, params = Pool(900, slots=8), [SamplingParams(seed=seed) for seed in range(7)]
    slots = [pool.admit(one) for one in params]

    def work(row: int) -> None:
        for _ in range(300):
            pool.step(batch[row : row + 1], [slots[row]])

    on_threads(7, work)
    for row, slot in enumerate(slots):
        sampler = Sampler(params[row], 900)
        assert pool.output(slot) == [sampler.sample(batch[row]) for _ in range(300)]
    pool, turns, done = Pool(1 << 20, slots=1, threads=1, route="oracle"), [0], threading.Event()
    slot, logits = pool.admit(SamplingParams(seed=1, top_p=0.9)), np.zeros((1, 1 << 20), np.float32)

    def count() -> None:
        while not done.is_set():
            turns[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = turns[0]
    pool.step(logits, [slot])
    seen = turns[0] - before
    done.set()
    counter.join()
    assert seen > 1000
