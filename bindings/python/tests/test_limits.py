"""Sizes beyond all use, endless lists, interrupts: an error in good time, and the process lives."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gumball
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
    "a state's output": lambda ids: Sampler.resume(SamplingParams(), VOCAB, State([], ids)),
}


@pytest.mark.parametrize("name", TAKERS)
def test_a_list_that_is_too_long_is_refused(name: str) -> None:
    for long in (range(10**12), range(10**30), LONG):
        with pytest.raises(ValueError, match=r"'s length is .*, but must be at most 268435456"):
            TAKERS[name](long)


def test_a_column_that_is_too_long_is_refused() -> None:
    for name, call in {
        "seed": lambda long: gumball.sampling_from_logits(ROW[None], seed=long),
        "temperature": lambda long: gumball.softmax(ROW[None], long.view(np.float64)),
        "top_k": lambda long: gumball.mask_logits(ROW[None], top_k=long),
    }.items():
        with pytest.raises(ValueError, match=f"{name}'s length is"):
            call(LONG)


def test_more_draws_than_a_list_has_elements_are_refused() -> None:
    for n in (2**40, 2**62):
        with pytest.raises((ValueError, MemoryError)):
            gumball.sampling_from_logits(ROW[None], n=n, seed=1)


def test_an_endless_iterator_ends_in_an_error() -> None:
    with pytest.raises(ValueError, match="prompt's length is more than 16777216, but must be at most 16777216"):
        Sampler(SamplingParams(), VOCAB, prompt=itertools.repeat(3))


class Heard(BaseException):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    def hear(*_: object) -> None:
        raise Heard

    before = signal.signal(signal.SIGALRM, hear)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_is_heard_while_a_prompt_is_read(alarm: None) -> None:
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Heard):
        Sampler(SamplingParams(), VOCAB, prompt=itertools.repeat(3))
    assert time.monotonic() - began < 2


def test_a_signal_is_heard_while_millions_of_tokens_are_drawn(alarm: None) -> None:
    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Heard):
        sampler.sample_n(ROW, 10**8)
    assert time.monotonic() - began < 10
    assert sampler.sample_n(ROW, 9) == Sampler(SamplingParams(seed=1), VOCAB).sample_n(ROW, 9)
    with pytest.raises(ValueError, match="n is 4294967295, but must be at most 268435456"):
        sampler.sample_n(ROW, 2**32 - 1)


def test_a_signal_is_heard_while_thousands_of_rows_of_logits_are_computed(alarm: None) -> None:
    head = gumball.Head(np.ones((2048, 4096), np.float32))
    hidden = np.ones((8000, 4096), np.float32)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Heard):
        head.logits(hidden)
    assert time.monotonic() - began < 20
    assert (head.logits(hidden[:130]) == 4096).all()


def test_a_signal_is_heard_while_a_call_waits_for_its_turn(alarm: None) -> None:
    sampler, inside, leave = Sampler(SamplingParams(seed=1), VOCAB), threading.Event(), threading.Event()

    def hook(logits: np.ndarray) -> None:
        inside.set()
        leave.wait(20)

    other = threading.Thread(target=lambda: sampler.sample(ROW, hook=hook))
    other.start()
    inside.wait()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Heard):
        sampler.sample(ROW)
    leave.set()
    other.join()
    assert sampler.position == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_inside_an_argument_comes_out_as_it_is(kind: type[BaseException]) -> None:
    class Raises:
        def fail(self, *_: Any, **__: Any) -> Any:
            raise kind

        __index__ = __float__ = __len__ = __iter__ = __dlpack__ = __dlpack_device__ = fail

    class Interface:
        @property
        def __array_interface__(self) -> Any:
            raise kind

        def __iter__(self) -> Iterator[int]:
            return iter([0])

    pool, sampler, bad = Pool(VOCAB, slots=1), Sampler(SamplingParams(), VOCAB), Raises()
    pool.admit(SamplingParams())
    calls: list[Callable[[], object]] = [
        lambda: sampler.sample(bad),
        lambda: sampler.sample(ROW, mask=bad),
        lambda: sampler.sample(ROW, forced=bad),
        lambda: sampler.sample_n(ROW, bad),
        lambda: sampler.reset(bad),
        lambda: pool.step(ROW, bad),
        lambda: pool.step(ROW, [bad]),
        lambda: pool.step(ROW, Interface()),
        lambda: pool.step(ROW, Batch([0], row_indices=Interface())),
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


def test_forced_tokens_may_stand_in_a_tuple_as_in_a_list() -> None:
    pool = Pool(VOCAB, slots=2)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in (1, 2)]
    assert pool.step(np.stack([ROW, ROW]), Batch(slots, forced=(3, None))).tolist()[0] == 3


def test_threads_beyond_their_range_are_refused_at_once() -> None:
    for threads in (0, 1025, 20_000, 2**31, 2**40):
        with pytest.raises(ValueError, match="threads is"):
            Pool(VOCAB, threads=threads)


# Sizes that the engine looks at before it takes memory for them. Each in a process of its own, which memory that is refused would end.
SIZES = {
    "slots": "Pool(64, slots=2**31 - 1)",
    "top_n": "Pool(64, top_n=2**31 - 1)",
    "top_n of 63 bits": "Pool(64, top_n=2**63 - 1)",
    "ids": "Pool(64, ids=2**31 - 1)",
    "ids of 62 bits": "Pool(64, ids=2**62)",
    "n": "Sampler(SamplingParams(), 64).sample_n(np.zeros(64, np.float32), 2**31)",
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_beyond_memory_is_refused(name: str) -> None:
    # A limit of its own makes the refusal certain: some systems lend more memory than they have.
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
import numpy as np
from gumball import Pool, Sampler, SamplingParams, UnavailableError
try:
    {SIZES[name]}
except (ValueError, UnavailableError):
    pass
else:
    raise AssertionError("taken")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_breaks_comes_out_as_an_exception() -> None:
    with pytest.raises(RuntimeError, match="the call broke off: on purpose.*please report it") as told:
        break_off("on purpose")
    assert isinstance(told.value, Exception)


def test_a_row_that_is_not_there_is_an_index_error() -> None:
    pool = Pool(VOCAB, slots=1, kept=True)
    out = pool.step(ROW, [pool.admit(SamplingParams(seed=1))])
    for row in (-1, 1, 2**70, -(2**70)):
        for call in (out.token, out.kept):
            with pytest.raises(IndexError, match=r"but must be in 0\.\.1"):
                call(row)
    with pytest.raises(TypeError):
        out.token("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dry", "mirostat", "dynamic_temperature", "logprobs"])
def test_a_part_of_the_parameters_of_another_type_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a gumball"):
        Sampler(SamplingParams(**{name: 5}), VOCAB)


def test_arrays_that_are_masked_or_ill_described_are_refused() -> None:
    class Described:
        def __init__(self, **more: Any) -> None:
            self.__array_interface__ = ROW.__array_interface__ | more

    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    with pytest.raises(TypeError, match="logits has masked elements"):
        sampler.sample(np.ma.masked_less(np.arange(VOCAB, dtype=np.float32), 3))
    assert sampler.sample(np.ma.masked_less(ROW, -1)) is not None
    with pytest.raises(TypeError, match="logits has a mask of its own"):
        sampler.sample(Described(mask=Described()))
    for strides in ((), (4, 4)):
        with pytest.raises(ValueError, match="strides, but must have one a dimension"):
            sampler.sample(Described(strides=strides))
