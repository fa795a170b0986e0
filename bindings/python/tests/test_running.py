"""Long runs: no leak over many calls, and threads that share a pool or have one each."""

from __future__ import annotations

import gc
import resource
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from gumball import Batch, Pool, Sampler, SamplingParams

CALLS = 100_000


def counted(work: Callable[[], object], calls: int = CALLS) -> tuple[int, int]:
    """How many blocks, and how many KiB, are more after many calls than after few."""
    for _ in range(2000):
        work()
    gc.collect()
    blocks, memory = sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        work()
    gc.collect()
    return sys.getallocatedblocks() - blocks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory


def holds(work: Callable[[], object], *objects: object, calls: int = CALLS) -> None:
    counts = [sys.getrefcount(it) for it in objects]
    blocks, kib = counted(work, calls)
    assert [sys.getrefcount(it) for it in objects] == counts
    assert blocks < 200 and kib < 4096, (blocks, kib)


def test_steps_leak_nothing() -> None:
    pool = Pool(16, slots=2, threads=1, top_n=2)
    slots, logits, forced = [pool.admit(SamplingParams(seed=1))], np.zeros((1, 16), np.float32), [3]
    masks = np.full((1, 1), -1, np.int32)

    def work() -> None:
        out = pool.step(logits, Batch(slots, masks=masks, forced=forced))
        assert out.tokens[0] == 3 and out.top_ids.shape == (1, 2)
        pool.shorten(slots[:1], [1])

    holds(work, pool, slots, logits, forced, masks)


def test_samples_and_refusals_leak_nothing() -> None:
    sampler, logits = Sampler(SamplingParams(seed=1), 16), np.zeros(16, np.float32)
    double = np.zeros(16)

    def work() -> None:
        sampler.sample(logits)
        sampler.truncate(0)
        try:
            sampler.sample(double)
        except TypeError:
            pass

    holds(work, sampler, logits, double)


def test_requests_and_states_leak_nothing() -> None:
    pool, params, prompt = Pool(16, slots=4, threads=1), SamplingParams(seed=1, stop_ids=[2]), [1, 2, 3]

    def work() -> None:
        slot = pool.admit(params, prompt)
        other = pool.resume(params, pool.state(slot))
        pool.release(pool.fork(slot, 1))
        pool.release(slot)
        pool.release(other)

    holds(work, pool, params, prompt, calls=CALLS // 4)


def test_loans_of_device_arrays_end() -> None:
    pytest.importorskip("numpy", "1.25")
    try:
        pool = Pool(16, device="emulated", slots=1, rows=1)
    except ValueError:
        pytest.skip("no emulator")
    pool.assign([pool.admit(SamplingParams(seed=1))])

    def work() -> None:
        tokens = pool.on_device().outputs("tokens")
        np.from_dlpack(tokens)
        tokens.__dlpack__(max_version=(1, 0))  # A capsule that nobody takes up.
        tokens.__dlpack__()
        np.asarray(tokens)

    holds(work, pool)
    view = np.from_dlpack(pool.on_device().outputs("tokens"))
    assert sys.getrefcount(pool) == 3
    del view
    assert sys.getrefcount(pool) == 2


def test_threads_share_a_pool(batch: np.ndarray) -> None:
    pool, params = Pool(900, slots=8), [SamplingParams(seed=seed) for seed in range(7)]
    slots = [pool.admit(one) for one in params]

    def work(row: int) -> None:
        for _ in range(300):
            pool.step(batch[row : row + 1], [slots[row]])

    threads = [threading.Thread(target=work, args=(row,)) for row in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row, slot in enumerate(slots):
        sampler = Sampler(params[row], 900)
        assert pool.output(slot) == [sampler.sample(batch[row]) for _ in range(300)]


def test_others_run_while_a_step_works() -> None:
    pool = Pool(1 << 20, slots=1, threads=1, route="oracle")
    slot, logits = pool.admit(SamplingParams(seed=1, top_p=0.9)), np.zeros((1, 1 << 20), np.float32)
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = turns
    pool.step(logits, [slot])
    seen = turns - before
    done.set()
    counter.join()
    assert seen > 1000
