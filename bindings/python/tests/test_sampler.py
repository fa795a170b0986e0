"""The sampler: one sequence, its history, seed and position, and what it says of the last row."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gumball import Logprobs, LogprobsParams, Pool, Sampler, SamplingParams, Status

VOCAB = 900


def test_tokens_join_the_history(batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(temperature=0.8, seed=7), VOCAB, prompt=[4, 5])
    tokens = [sampler.sample(row) for row in batch]
    assert sampler.output == tokens and sampler.history == [4, 5, *tokens]
    assert (sampler.position, sampler.seed, sampler.vocab) == (9, 7, VOCAB)
    again = Sampler(SamplingParams(temperature=0.8, seed=7), VOCAB, prompt=[4, 5], level="scalar")
    assert [again.sample(row.astype(ml_dtypes.bfloat16)) for row in batch] == tokens and again.level == "scalar"
    sampler.truncate(2)
    moved = Sampler.resume(SamplingParams(temperature=0.8), VOCAB, sampler.state)
    assert [moved.sample(row) for row in batch[2:]] == tokens[2:]
    sampler.reset([4, 5])
    assert sampler.sample(batch[0]) == tokens[0]
    sampler.push(9)
    assert sampler.output == [tokens[0], 9]


def test_seeds_that_are_not_given_are_fresh_and_readable() -> None:
    assert len({Sampler(SamplingParams(), 10).seed for _ in range(4)}) == 4


def test_forks_and_several_samples_have_draw_indices(batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(seed=7), VOCAB)
    several = sampler.sample_n(batch[0], 5)
    assert sampler.output == [] and len(set(several)) > 1
    assert sampler.fork(2).sample(batch[0]) == several[2]
    assert Sampler(SamplingParams(seed=7), VOCAB, draw=3).sample(batch[0]) == several[3]


def test_logprobs_are_a_value_of_lists(batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(seed=1, logprobs=LogprobsParams(top_n=4, ids=[0, 899])), VOCAB)
    token, found = sampler.sample(batch[0]), sampler.logprobs
    assert isinstance(found, Logprobs) and found.token.id == token
    z = batch[0].astype(np.float64)
    assert found.token.logprob == pytest.approx(z[token] - math.log(np.exp(z).sum()), abs=2e-6)
    assert [one.rank for one in found.top] == [1, 2, 3, 4] and [one.id for one in found.ids] == [0, 899]
    assert Sampler(SamplingParams(), VOCAB).logprobs is None


def test_what_the_row_had_to_say(batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(temperature=0.5, seed=1), VOCAB)
    assert sampler.status == 0
    assert sampler.sample(np.full(VOCAB, -np.inf, np.float32)) is None
    assert Status(sampler.status) == Status.EMPTY and sampler.output == []
    sampler.sample(batch[0])
    assert (sampler.status, sampler.temperature) == (0, 0.5)
    assert "Sampler(vocab=900, seed=1, position=1)" == repr(sampler)


def test_masks_and_forced_tokens() -> None:
    row = np.arange(64, dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0), 64)
    assert sampler.sample(row, mask=np.array([1 << 5, 0], np.uint32)) == 5
    assert sampler.sample(row, mask=np.array([-1], np.int32)) == 31
    assert sampler.sample(row, forced=3) == 3
    assert sampler.output == [5, 31, 3]


def test_mistakes_change_nothing() -> None:
    row = np.zeros(64, np.float32)
    sampler = Sampler(SamplingParams(seed=1), 64)
    for call, kind, text in [
        (lambda: sampler.sample(row[:63]), ValueError, "logits has length 63, but must have 64 elements"),
        (lambda: sampler.sample(np.zeros((2, 64), np.float32)), ValueError, "logits has length 2, but must have 1 row"),
        (lambda: sampler.sample(row, forced=64), ValueError, "forced is 64"),
        (lambda: sampler.sample(row, forced=-1), ValueError, "forced is -1, but must be in 0..2^32"),
        (lambda: sampler.sample(row, mask=np.zeros(2)), TypeError, "must be of int32 or uint32 words"),
        (lambda: sampler.sample(row, mask=np.zeros((2, 2), np.int32)), ValueError, "mask's rows is 2, but must be 1"),
        (lambda: sampler.truncate(1), ValueError, "output_len is 1, but must be in 0..=0"),
        (lambda: sampler.push(-1), ValueError, "id is -1"),
        (lambda: Sampler(SamplingParams(), 64, prompt="ab"), TypeError, "prompt must be a list of integers, not str"),
        (lambda: Sampler(SamplingParams(), 0), ValueError, "vocab is 0"),
        (lambda: Sampler(SamplingParams(), 64, level="mmx"), ValueError, 'level "mmx" is not known'),
        (lambda: Sampler(SamplingParams(), 64, route="x"), ValueError, 'route "x" is not known'),
        (lambda: Sampler(None, 64), TypeError, "params must be a gumball.SamplingParams, not NoneType"),
    ]:
        with pytest.raises(kind) as raised:
            call()
        assert text in str(raised.value)
    assert sampler.output == []


def test_a_sampler_keeps_tokens_in_their_order_and_outputs_by_id() -> None:
    row, params = np.array([0, 3, 9, 3, 1], np.float32), SamplingParams(top_k=3, seed=1)
    sampler, pool = Sampler(params, 5), Pool(5, slots=1, kept=True)
    sampler.keep_ids(True)
    sampler.sample(row)
    assert sampler.kept == [2, 1, 3]
    assert pool.step(row, [pool.admit(params)]).kept(0).tolist() == [1, 2, 3]
