"""The sampler: one sequence, its history, seed and position, what it says of the last row, and mistakes that change nothing."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gumball import Logprobs, LogprobsParams, Sampler, SamplingParams, Status

VOCAB = 900


def test_tokens_join_the_history(batch: np.ndarray) -> None:
    params = SamplingParams(temperature=0.8, seed=7)
    sampler = Sampler(params, VOCAB, prompt=[4, 5])
    tokens = [sampler.sample(row) for row in batch]
    assert sampler.output == tokens and sampler.history == [4, 5, *tokens]
    assert (sampler.position, sampler.seed, sampler.vocab) == (9, 7, VOCAB)
    assert "Sampler(vocab=900, seed=7, position=9)" == repr(sampler)
    again = Sampler(params, VOCAB, prompt=[4, 5], level="scalar")
    assert [again.sample(row.astype(ml_dtypes.bfloat16)) for row in batch] == tokens and again.level == "scalar"
    sampler.shorten(len(tokens) - 2)
    moved = Sampler.resume(SamplingParams(temperature=0.8), VOCAB, sampler.state)
    assert [moved.sample(row) for row in batch[2:]] == tokens[2:]
    sampler.reset([4, 5])
    sampler.push(9)
    assert sampler.output == [9] and len({Sampler(SamplingParams(), 10).seed for _ in range(4)}) == 4
    params = SamplingParams(temperature=3, seed=7)
    several = [Sampler(params, VOCAB, draw=draw).sample(batch[0]) for draw in range(5)]
    assert len(set(several)) > 1 and Sampler(params, VOCAB).fork(2).sample(batch[0]) == several[2]


def test_what_the_last_row_had_to_say(batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(seed=1, top_k=3, logprobs=LogprobsParams(top_n=4, ids=[0, 899])), VOCAB)
    sampler.collect_kept(True)
    assert (sampler.status, sampler.sample(np.full(VOCAB, -np.inf, np.float32)), sampler.output) == (0, None, [])
    assert Status(sampler.status) == Status.EMPTY
    token, found, z = sampler.sample(batch[0]), sampler.logprobs, batch[0].astype(np.float64)
    assert (sampler.status, sampler.temperature, sampler.mu) == (0, 1, 0)
    assert isinstance(found, Logprobs) and found.token.id == token
    assert found.token.logprob == pytest.approx(z[token] - math.log(np.exp(z).sum()), abs=2e-6)
    assert [one.rank for one in found.top] == [1, 2, 3, 4] and [one.id for one in found.ids] == [0, 899]
    # In the order of tokens, not by id.
    assert sampler.kept == np.argsort(-z, kind="stable")[:3].tolist()
    assert Sampler(SamplingParams(), VOCAB).logprobs is None


def test_mistakes_change_nothing() -> None:
    row = np.arange(64, dtype=np.float32)
    sampler = Sampler(SamplingParams(seed=1, temperature=0), 64)
    for call, kind, text in [
        (lambda: sampler.sample(row[:63]), ValueError, "logits has length 63, but must have 64 elements"),
        (lambda: sampler.sample(np.zeros((2, 64), np.float32)), ValueError, "logits has length 2, but must have 1 row"),
        (lambda: sampler.sample(row, forced=64), ValueError, "forced is 64"),
        (lambda: sampler.sample(row, forced=-1), ValueError, "forced is -1, but must be in 0..2^32"),
        (lambda: sampler.sample(row, mask=np.zeros(2)), TypeError, "must be of int32 or uint32 words"),
        (lambda: sampler.shorten(1), ValueError, "count is 1, but must be in 0..=0"),
        (lambda: sampler.push(-1), ValueError, "id is -1"),
        (lambda: Sampler(SamplingParams(), 64, prompt="ab"), TypeError, "prompt must be a list of integers, not str"),
        (
            lambda: Sampler(SamplingParams(), 64, prompt=np.array([1.5])),
            TypeError,
            "prompt is of float64, but must be of",
        ),
        (lambda: Sampler(SamplingParams(), 0), ValueError, "vocab is 0"),
        (lambda: Sampler(SamplingParams(), 64, level="mmx"), ValueError, 'level "mmx" is not known'),
        (lambda: Sampler(SamplingParams(), 64, route="x"), ValueError, 'route "x" is not known'),
        (lambda: Sampler(None, 64), TypeError, "params must be a gumball.SamplingParams, not NoneType"),
    ]:
        with pytest.raises(kind) as raised:
            call()
        assert text in str(raised.value)
    assert sampler.output == [] and sampler.sample(row, mask=np.array([1 << 5], np.uint32), forced=None) == 5
    assert sampler.sample(row, forced=3) == 3
