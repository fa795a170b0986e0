"""Sizes beyond all use, endless lists, interrupts: an error in good time, and the process lives."""

from __future__ import annotations

import itertools
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball
from conftest import Heard
from gumball import Batch, Pool, Sampler, SamplingParams, State
from gumball._gumball import break_off

VOCAB = 64
ROW = np.zeros(VOCAB, np.float32)
LONG = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (1 << 33,), (0,))


def admitted(prompt: Any) -> Pool:
    pool = Pool(VOCAB, slots=1)
    pool.admit(SamplingParams(), prompt)
    return pool


TAKERS: dict[str, Callable[[Any], object]] = {
    "Sampler's prompt": lambda ids: Sampler(SamplingParams(), VOCAB, prompt=ids),
    "Sampler.reset": lambda ids: Sampler(SamplingParams(), VOCAB).reset(ids),
    "Pool.admit": admitted,
    "Pool.step's slots": lambda slots: Pool(VOCAB).step(ROW, slots),
    "banned_ids": lambda ids: Sampler(SamplingParams(banned_ids=ids), VOCAB),
    "bad_words": lambda ids: Sampler(SamplingParams(bad_words=[ids]), VOCAB),
    "seed": lambda ids: gumball.sample(ROW[None], seed=ids, position=0),
    "top_k": lambda ids: gumball.mask_logits(ROW[None], top_k=ids),
    "a state's output": lambda ids: Sampler.resume(SamplingParams(), VOCAB, State([], ids)),
}


@pytest.mark.parametrize("name", TAKERS)
def test_a_list_that_is_too_long_is_refused(name: str) -> None:
    for long in (range(10**12), range(10**30), LONG) if name not in ("seed", "top_k") else (LONG,):
        with pytest.raises(ValueError, match=r"'s length is .*, but must be at most 268435456"):
            TAKERS[name](long)


def test_an_endless_iterator_ends_in_an_error() -> None:
    with pytest.raises(ValueError, match="prompt's length is more than 16777216, but must be at most 16777216"):
        Sampler(SamplingParams(), VOCAB, prompt=itertools.repeat(3))


@pytest.mark.parametrize("call", ["prompt", "logits", "turn"])
def test_a_signal_is_heard_while_a_call_works_or_waits(call: str, alarm: Callable[[], None]) -> None:
    sampler, inside, leave = Sampler(SamplingParams(seed=1), VOCAB), threading.Event(), threading.Event()
    head, hidden = gumball.Head.auto(np.ones((2048, 4096), np.float32), screen=False), np.ones((8000, 4096), np.float32)

    def hook(logits: np.ndarray) -> None:
        inside.set()
        leave.wait(20)

    other = threading.Thread(target=lambda: sampler.sample(ROW, hook=hook))
    if call == "turn":
        other.start()
        inside.wait()
    began = time.monotonic()
    alarm()
    with pytest.raises(Heard):
        {
            "prompt": lambda: Sampler(SamplingParams(), VOCAB, prompt=itertools.repeat(3)),
            "logits": lambda: head.logits(hidden),
            "turn": lambda: sampler.sample(ROW),
        }[call]()
    assert time.monotonic() - began < 20
    if call == "turn":
        leave.set()
        other.join()
        assert sampler.position == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_inside_an_argument_comes_out_as_it_is(kind: type[BaseException]) -> None:
    class Raises:
        def fail(self, *_: Any, **__: Any) -> Any:
            raise kind

        __index__ = __float__ = __len__ = __iter__ = __dlpack__ = __dlpack_device__ = fail

    pool, sampler, bad = Pool(VOCAB, slots=1), Sampler(SamplingParams(), VOCAB), Raises()
    pool.admit(SamplingParams())
    calls: list[Callable[[], object]] = [
        lambda: sampler.sample(bad),
        lambda: sampler.sample(ROW, mask=bad),
        lambda: sampler.sample(ROW, forced=bad),
        lambda: sampler.reset(bad),
        lambda: pool.step(ROW, bad),
        lambda: pool.step(ROW, [bad]),
        lambda: pool.step(ROW, Batch([0], row_indices=bad)),
        lambda: pool.step(ROW, Batch([0], hooks=bad)),
        lambda: pool.step(ROW, Batch([0], forced=[bad])),
        lambda: pool.step(ROW, Batch([0], forced=(bad,))),
        lambda: pool.draft(ROW, Batch([0], forced=[bad])),
        lambda: pool.verify(np.stack([ROW, ROW]), Batch([0], forced=[None, bad]), [[1]]),
        lambda: Sampler(SamplingParams(temperature=bad), VOCAB),
        lambda: Sampler(SamplingParams(seed=bad), VOCAB),
        lambda: Sampler(SamplingParams(logit_bias=bad), VOCAB),
        lambda: Sampler(SamplingParams(banned_ids=[bad]), VOCAB),
        lambda: gumball.softmax(ROW[None], bad),
        lambda: gumball.softmax(ROW[None], [bad]),
        lambda: gumball.softmax(bad),
        lambda: gumball.mask_logits(ROW[None], top_k=bad),
        lambda: Pool(bad),
    ]
    for call in calls:
        with pytest.raises(kind):
            call()
    assert pool.state(0).position == 0 and sampler.position == 0


@pytest.mark.slow
def test_five_million_draws_by_an_index_list_take_48_bytes_each() -> None:
    row, lines, out = np.ones((1, 128_256), np.float32), np.zeros(5_000_000, np.int64), np.zeros(5_000_000, np.int32)
    keys: dict[str, Any] = dict(kind="probabilities", seed=3, position=0)
    gumball.sample(row, lines[:100_000], out=out[:100_000], **keys)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gumball.sample(row, lines, out=out, **keys)
    # A word for each line, seed, position and draw index, and each token twice: 235 MiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_what_breaks_comes_out_as_an_exception() -> None:
    with pytest.raises(RuntimeError, match="the call broke off: on purpose.*please report it") as told:
        break_off("on purpose")
    assert isinstance(told.value, Exception)
