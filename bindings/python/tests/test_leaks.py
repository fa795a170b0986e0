"""No memory and no references are lost over 10^5 calls: operators, hooks, graphs; numpy, torch, DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, DynamicTemperature, LogprobsParams, Mirostat, Pool, Sampler, SamplingParams, State, Step
from test_running import CALLS, holds

VOCAB = 16
Operator = Callable[[Any, Any], object]

# Each with rows and a column of integers, one for each row.
OPERATORS: dict[str, Operator] = {
    "softmax": lambda rows, column: gumball.softmax(rows, [0.7, 1.0]),
    "softmax in place": lambda rows, column: gumball.softmax(rows, 0.7, out=rows),
    "probabilities": lambda rows, column: gumball.probabilities(
        rows, top_k=column, order="joint", return_statuses=True
    ),
    "top_k_renorm_probs": lambda rows, column: gumball.top_k_renorm_probs(rows, column),
    "top_p_renorm_probs": lambda rows, column: gumball.top_p_renorm_probs(rows, 0.5),
    "min_p_renorm_probs": lambda rows, column: gumball.min_p_renorm_probs(rows, 0.1),
    "top_k_top_p_renorm_probs": lambda rows, column: gumball.top_k_top_p_renorm_probs(rows, column, 0.5),
    "mask_logits": lambda rows, column: gumball.mask_logits(rows, params=SamplingParams(banned_ids=[3], min_p=0.1)),
    "top_k_mask_logits": lambda rows, column: gumball.top_k_mask_logits(rows, column),
    "sampling_from_probs": lambda rows, column: gumball.sampling_from_probs(
        rows, column, seed=column, return_statuses=True
    ),
    "sampling_from_logits": lambda rows, column: gumball.sampling_from_logits(
        rows, n=3, temperature=0.5, dtype="int64"
    ),
}


class Lent:
    """Another library's array, by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_leak_nothing(name: str) -> None:
    rows, column, operator = np.full((2, VOCAB), 0.5, np.float32), np.array([1, 0]), OPERATORS[name]
    holds(lambda: operator(rows, column), rows, column)


@pytest.mark.parametrize("name", ["softmax", "sampling_from_probs", "top_k_mask_logits", "softmax in place"])
def test_operators_over_tensors_leak_nothing(name: str) -> None:
    torch = pytest.importorskip("torch")
    rows, column, operator = torch.full((2, VOCAB), 0.5), torch.tensor([1, 0]), OPERATORS[name]
    holds(lambda: operator(rows, column), rows, column)


def test_loans_by_dlpack_end() -> None:
    array = np.full((2, VOCAB), 0.5, np.float32)
    lent, pool = Lent(array), Pool(VOCAB, slots=2, threads=1)
    slots = [pool.admit(SamplingParams(seed=1)) for _ in range(2)]

    def work() -> None:
        gumball.softmax(lent, out=array[:])
        gumball.sampling_from_probs(lent, seed=1)
        pool.step(lent, slots)
        for slot in slots:
            pool.shorten([slot], [len(pool.output(slot))])

    holds(work, lent, array, pool, calls=CALLS // 2)


def test_chains_leak_nothing() -> None:
    q, p = np.full((2, 1, VOCAB), 0.5, np.float32), np.full((2, 2, VOCAB), 0.5, np.float32)
    drafts = np.zeros((2, 1), np.int32)
    holds(lambda: gumball.judge(q, drafts, p, seed=1), q, p, drafts)


def test_refused_operators_leak_nothing() -> None:
    rows, double, out = np.full((2, VOCAB), 0.5, np.float32), np.zeros((2, VOCAB)), np.zeros((3, VOCAB), np.float32)

    def refused(call: Callable[[], object]) -> None:
        try:
            call()
        except (TypeError, ValueError):
            return
        raise AssertionError("taken")

    def work() -> None:
        refused(lambda: gumball.softmax(double))
        refused(lambda: gumball.softmax(rows, out=out))
        refused(lambda: gumball.softmax(rows, [1.0, -1.0]))
        refused(lambda: gumball.sampling_from_probs(rows, [2]))

    holds(work, rows, double, out, calls=CALLS // 4)


def test_hooks_leak_nothing() -> None:
    sampler, pool, row = (
        Sampler(SamplingParams(seed=1), VOCAB),
        Pool(VOCAB, slots=2, threads=1),
        np.zeros((2, VOCAB), np.float32),
    )
    slots = [pool.admit(SamplingParams(seed=1)) for _ in range(2)]

    def hook(logits: np.ndarray) -> None:
        logits[3] = 9

    def fails(logits: np.ndarray) -> None:
        raise KeyError

    hooks = [hook, None]

    def work() -> None:
        sampler.sample(row[0], hook=hook)
        sampler.truncate(0)
        pool.step(row, Batch(slots, hooks=hooks))
        for slot in slots:
            pool.shorten([slot], [len(pool.output(slot))])
        for call in (
            lambda: sampler.sample(row[0], hook=fails),
            lambda: pool.step(row, Batch(slots, hooks=[fails] * 2)),
        ):
            try:
                call()
            except KeyError:
                pass

    holds(work, sampler, pool, row, hook, fails, hooks, calls=CALLS // 4)


def test_parts_of_samplers_and_pools_leak_nothing() -> None:
    params = SamplingParams(
        seed=1,
        dynamic_temperature=DynamicTemperature(0.5, 1.5),
        logprobs=LogprobsParams(top_n=2, ids=[3]),
        stop_ids=[1],
        min_tokens=1,
    )
    sampler, row = Sampler(params, VOCAB, prompt=[1]), np.zeros(VOCAB, np.float32)
    pool = Pool(VOCAB, slots=2, threads=1, top_n=2, ids=1, kept=True)
    slot = pool.admit(SamplingParams(seed=1, mirostat=Mirostat(3, 0.1)), [1])
    batch, work = Batch([slot]), [Step(row)]
    sampler.keep_ids(True)

    def calls() -> None:
        sampler.sample_n(row, 2)
        sampler.sample(row)
        assert sampler.logprobs is not None and sampler.kept and sampler.history and isinstance(sampler.state, State)
        sampler.fork(1)
        Sampler.resume(params, VOCAB, sampler.state)
        sampler.reset([1])
        pool.assign(batch)
        pool.enqueue(work)
        outputs = pool.fetch()
        assert outputs.tokens.size and outputs.kept(0).size and outputs.top_ids.size
        assert outputs.emitted() and outputs.request(0).tokens.size
        pool.shorten([slot], [len(pool.output(slot))])

    holds(calls, params, sampler, pool, row, batch, work, calls=CALLS // 10)


@pytest.mark.slow
def test_parts_leak_nothing_over_many_calls() -> None:
    for _ in range(10):
        test_parts_of_samplers_and_pools_leak_nothing()
