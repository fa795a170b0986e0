"""What the tests share: the devices there are, and a batch of requests of every kind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Dry, LogprobsParams, Mirostat, SamplingParams
from gumball._gumball import EMULATOR

VOCAB = 900


def devices() -> list[str]:
    """The host, the emulated device if it is built in, and a GPU if there is one."""
    found = ["cpu"]
    for name in (["emulated"] if EMULATOR else []) + ["cuda:0"]:
        try:
            gumball.Pool(8, device=name, slots=1, rows=1)
        except gumball.UnavailableError:
            continue
        found.append(name)
    return found


DEVICES = devices()


def on(device: str, array: np.ndarray) -> Any:
    """An array on a device; the emulated one takes the host's memory for its own."""
    if not device.startswith("cuda"):
        return array
    torch, is_bf16 = pytest.importorskip("torch"), array.dtype.name == "bfloat16"
    there = torch.from_numpy(array.astype(np.float32) if is_bf16 else array)
    return there.to(device, torch.bfloat16 if is_bf16 else None)


class Heard(BaseException):
    """What the handler of the alarm raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Rings in a moment: a signal whose handler raises `Heard`."""

    def hear(*_: object) -> None:
        raise Heard

    before = signal.signal(signal.SIGALRM, hear)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def pytest_report_header() -> str:
    return f"gumball {gumball.__version__} on {', '.join(DEVICES)}"


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def requests() -> list[SamplingParams]:
    logprobs = [LogprobsParams(mode=mode, top_n=3, ids=[5, 890]) for mode in ("raw", "edited", "tempered", "processed")]
    return [
        SamplingParams(seed=1, logprobs=logprobs[0]),
        SamplingParams(seed=2, temperature=0, repetition_penalty=1.3, logprobs=logprobs[1]),
        SamplingParams(seed=3, temperature=0.8, top_k=20, top_p=0.9, logprobs=logprobs[3]),
        SamplingParams(seed=4, min_p=0.05, frequency_penalty=0.7, presence_penalty=0.4, logprobs=logprobs[2]),
        SamplingParams(seed=5, mirostat=Mirostat(3.0, 0.2), logprobs=logprobs[1]),
        SamplingParams(seed=6, typical_p=0.8, order=["typical_p"], dry=Dry(multiplier=0.8)),
        SamplingParams(seed=7, logit_bias={3: 4.0, 4: float("-inf")}, banned_ids=[10, 11], bad_words=[[3, 7]]),
    ]


@pytest.fixture
def batch() -> np.ndarray:
    """Seven rows of VOCAB logits with ties, in eighths, exact in every type that logits have."""
    z = np.random.default_rng(3).normal(0, 2, (7, VOCAB)) + 6 * (np.random.default_rng(4).random((7, VOCAB)) < 0.02)
    return (np.round(z * 8) / 8).astype(np.float32)
