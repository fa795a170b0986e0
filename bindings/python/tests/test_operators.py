"""Operators: every type and stride, columns, places for results, statuses, and mistakes that change nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from float64 import softmax64
from gumball import Batch, LogprobsParams, Pool, Probabilities, Sampler, SamplingParams, Status

VOCAB = 900
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
NONE = -1


@pytest.fixture
def probs(batch: np.ndarray) -> np.ndarray:
    return softmax64(batch).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softmax_is_that_of_float64(batch: np.ndarray, dtype: Any) -> None:
    logits = batch.astype(dtype)
    temperatures = [1.0, 0.01, 100.0, 0.7, 0.5, 2.0, 1.3]
    got = gumball.softmax(logits, temperatures)
    assert got.dtype == np.float32 and got.shape == batch.shape
    np.testing.assert_allclose(got, softmax64(logits, temperatures), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.sum(1, dtype=np.float64), 1, atol=1e-5)
    assert (gumball.softmax(logits, np.array(temperatures).reshape(-1, 1)) == got).all()
    place = logits.copy()
    assert gumball.softmax(place, temperatures, out=place) is place
    assert (place == got.astype(dtype)).all()
    padded = np.full((7, VOCAB + 5), 7, dtype)
    padded[:, :VOCAB] = logits
    assert (gumball.softmax(padded[:, :VOCAB], temperatures) == got).all()
    gumball.softmax(padded[:, :VOCAB], temperatures, out=padded[:, :VOCAB])
    assert (padded[:, :VOCAB] == place).all() and (padded[:, VOCAB:] == 7).all()


def test_statuses_come_beside_the_results(batch: np.ndarray, probs: np.ndarray) -> None:
    batch[2], batch[4, 5] = -np.inf, np.nan
    got, statuses = gumball.softmax(batch, return_statuses=True)
    assert statuses.dtype == np.uint32 and list(statuses) == [0, 0, Status.EMPTY, 0, Status.NAN, 0, 0]
    assert (got[2] == 0).all() and got[4, 5] == 0
    assert gumball.mask_logits(batch, top_k=3, return_statuses=True)[1].tolist() == statuses.tolist()
    probs[1], probs[3] = 0, np.nan
    drawn, statuses = gumball.sampling_from_probs(probs, seed=1, return_statuses=True)
    assert drawn[1] == drawn[3] == NONE and (drawn[[0, 2, 4, 5, 6]] >= 0).all()
    assert statuses[1] == Status.EMPTY and statuses[3] == Status.EMPTY | Status.NAN


@pytest.mark.parametrize("rows", [np.zeros((0, VOCAB), np.float32), np.zeros((0, 5), ml_dtypes.bfloat16)])
def test_no_rows_are_fine(rows: np.ndarray) -> None:
    assert gumball.softmax(rows).shape == rows.shape
    assert gumball.top_k_renorm_probs(rows, 3).shape == rows.shape
    assert gumball.mask_logits(rows, top_p=0.5).shape == rows.shape
    assert gumball.sampling_from_probs(rows, n=3, seed=1).shape == (0, 3)


def test_columns_are_lists_or_arrays_and_reach_their_rows(probs: np.ndarray) -> None:
    columns = {
        "top_k": (gumball.top_k_renorm_probs, [1, 5, 0, 40, 900, 3, 17]),
        "top_p": (gumball.top_p_renorm_probs, [0.9, 0.5, 1.0, 0.3, 0.7, 0.05, 0.99]),
        "min_p": (gumball.min_p_renorm_probs, [0.0, 0.1, 1.0, 0.5, 0.01, 0.2, 0.3]),
    }
    for name, (operator, column) in columns.items():
        got = operator(probs, column)
        for given in (np.array(column), np.array(column).reshape(7, 1)):
            assert (operator(probs, given) == got).all()
        assert (gumball.probabilities(probs, kind="probabilities", **{name: column}) == got).all()
        for row, value, line in zip(probs, column, got, strict=True):
            assert (operator(row, value) == line).all()
    top_k, top_p = columns["top_k"][1], columns["top_p"][1]
    for order in ("default", "joint"):
        got = gumball.top_k_top_p_renorm_probs(probs, top_k, top_p, order=order)
        wanted = gumball.probabilities(probs, kind="probabilities", top_k=top_k, top_p=top_p, order=order)
        assert (wanted == got).all()


def test_masks_come_in_the_type_of_their_rows() -> None:
    row = np.array([[1, 3, 2, 3, 2, 2, 0]], np.float32)
    for dtype in DTYPES:
        logits = row.astype(dtype)
        got = gumball.top_k_mask_logits(logits, 3)
        assert got.dtype == dtype and list(np.flatnonzero(got[0].astype(np.float32) > -np.inf)) == [1, 2, 3]
        assert gumball.mask_logits(logits, params=SamplingParams(banned_ids=[1]), out=logits) is logits
        assert logits[0, 1] == -np.inf and (logits[0, 2:] == row[0, 2:]).all()


def test_draws_are_those_of_samplers(batch: np.ndarray, probs: np.ndarray) -> None:
    lines = np.array([2, 0, 2, 6, 1] * 4)
    seeds = list(range(5, 25))
    top_k = [5, 0, 40, 1, 7, 9, 30]
    drawn = gumball.sampling_from_probs(
        probs, lines, top_k=top_k, top_p=0.9, seed=seeds, position=3, draw=2, dtype="int64"
    )
    assert drawn.dtype == np.int64
    for line, seed, token in zip(lines, seeds, drawn, strict=True):
        params = SamplingParams(top_k=top_k[line], top_p=0.9, seed=seed)
        sampler = Sampler(params, VOCAB, prompt=[1, 2, 3], draw=2)
        assert sampler.sample_probabilities(probs[line]) == token
    drawn = gumball.sampling_from_logits(batch, temperature=0.8, min_p=0.02, seed=list(range(7)), draw=0)
    assert drawn.dtype == np.int32
    for row, (logits, token) in enumerate(zip(batch, drawn, strict=True)):
        assert Sampler(SamplingParams(temperature=0.8, min_p=0.02, seed=row), VOCAB).sample(logits) == token
    several = gumball.sampling_from_probs(probs, n=4, seed=9)
    assert several.shape == (7, 4)
    assert (several.ravel() == gumball.sampling_from_probs(probs, np.repeat(np.arange(7), 4), seed=9)).all()
    out = np.zeros(7, np.int64)
    assert gumball.sampling_from_probs(probs, seed=9, out=out) is out and (out != 0).any()
    assert (gumball.sampling_from_logits(batch, temperature=0) == batch.argmax(1)).all()


@pytest.mark.parametrize("each", [1, 7])
def test_draws_from_pools_are_those_of_the_numbers_there(batch: np.ndarray, each: int) -> None:
    slots = [3, 0, 2, 2, 1, 4, 0] if each == 1 else [3]
    held: dict[str, Any] = {
        "seed": np.array([5, 6, 7, 2**63 - 1, 9]),
        "position": [0, 3, 2**32 - 2, 8, 1],
        "draw": [0, 1, 2, 3, 4],
        "temperature": np.array([1.0, 0.0, 0.7, 1.2, 0.5], np.float32),
        "top_k": [0, 5, 40, 7, 3],
        "top_p": [0.9, 1.0, 0.5, 0.99, 0.3],
    }
    of_rows = np.repeat(slots, each)
    gathered = {name: np.asarray(pool)[of_rows] for name, pool in held.items()}
    gathered["position"] = (gathered["position"].astype(np.int64) + np.arange(7) % each) % 2**32
    wanted = gumball.sampling_from_logits(batch, **gathered)
    got = gumball.sampling_from_pools(batch, slots, rows_per_slot=each, **held)
    assert got.tolist() == wanted.tolist()
    words = [draw << 32 | position for draw, position in zip(held.pop("draw"), held.pop("position"), strict=True)]
    got = gumball.sampling_from_pools(
        batch, np.array(slots), position=np.array(words), high_draws=True, rows_per_slot=each, **held
    )
    assert got.tolist() == wanted.tolist()
    mistakes: list[tuple[str, dict[str, Any]]] = [
        ("slots is 5", {"slots": [5]}),
        ("slots has length 2", {"slots": [1, 2]}),
        ("rows_per_slot is 3", {"rows_per_slot": 3}),
        ("seed must be a pool", {"seed": 1}),
        ("top_k has length 3", {"top_k": [1, 2, 3]}),
        ("high_draws conflicts with draw", {"high_draws": True, "draw": 1}),
    ]
    for text, mistake in mistakes:
        with pytest.raises(ValueError, match=text):
            gumball.sampling_from_pools(batch, **{"slots": [1], "rows_per_slot": 7, **held, **mistake})


def test_every_pool_steps_over_probabilities(device: str, batch: np.ndarray, probs: np.ndarray) -> None:
    pool, host = Pool(VOCAB, device=device, slots=7, rows=7), Pool(VOCAB, slots=7, rows=7)
    for made in (pool, host):
        assert [made.admit(SamplingParams(seed=seed, top_p=0.9, top_k=40), [1, 2]) for seed in range(7)] == [*range(7)]
    for rows in (Probabilities(probs), batch, Probabilities(probs)):
        assert pool.step(rows, range(7)).tolist() == host.step(rows, range(7)).tolist()
    for made in (pool, host):
        made.release(6)
        assert made.admit(SamplingParams(seed=1, temperature=0.7)) == 6
        with pytest.raises(ValueError, match="temperature"):
            made.step(Probabilities(probs), range(7))
        assert made.state(6).position == 0


def test_chains_come_back_with_their_counts(probs: np.ndarray) -> None:
    p = np.tile(probs[:3], (7, 1, 1))
    q, drafts = p[:, :2].copy(), p[:, :2].argmax(2)
    got = gumball.judge(q, drafts, p, seed=7, dtype="int64")
    assert got.tokens.shape == (7, 3) and got.tokens.dtype == np.int64
    assert (got.tokens[:, :2] == drafts).all() and (got.accepted == 2).all() and (got.accepted_alone == 2).all()
    assert got.accepted.dtype == got.accepted_alone.dtype == np.uint32 and got.rows is None
    # A drafter that was surer than the target is wrong now and then.
    q[:] = np.eye(VOCAB, dtype=np.float32)[drafts]
    got = gumball.judge(q, drafts.astype(np.int32), p, seed=list(range(7)))
    assert got.tokens.dtype == np.int32 and ((got.tokens != NONE).sum(1) == got.accepted + 1).all()
    assert (got.accepted_alone >= got.accepted).all() and (got.accepted < 2).any()
    # A row more, which nobody reads.
    more = gumball.judge(np.concatenate([q, np.full_like(p[:, :1], np.nan)], 1), drafts, p, seed=list(range(7)))
    assert (more.tokens == got.tokens).all() and (more.accepted_alone == got.accepted_alone).all()


def test_trees_come_back_with_the_rows_that_they_walked(probs: np.ndarray) -> None:
    target, drafts = np.tile(probs[0], (40, 3, 1)), np.tile(np.argsort(-probs[0])[:2].astype(np.int32), (40, 1))
    parents, seeds = np.tile(np.int32([-1, -1]), (40, 1)), list(range(40))
    got = gumball.judge(None, drafts, target, parents, seed=seeds)
    assert got.tokens.shape == (40, 3) and got.rows.dtype == np.int32 and got.accepted_alone is None
    assert ((got.rows != NONE).sum(1) == got.accepted + 1).all() and (got.rows[:, 0] == 0).all()
    took = got.accepted == 1
    assert took.any() and not took.all()
    assert (np.take_along_axis(drafts, got.rows[:, 1:2] - 1, 1)[took, 0] == got.tokens[took, 0]).all()
    for rule, q in (("rejection", target), ("block", target), ("threshold", None)):
        more = {"threshold_acc": 0.0} if rule == "threshold" else {}
        all_of_it = gumball.judge(q, drafts, target, rule=rule, dtype="int64", seed=3, **more)
        assert (all_of_it.accepted == 2).all() and all_of_it.tokens.dtype == np.int64
        assert (all_of_it.tokens[:, :2] == drafts).all()
    for text, arguments, more in (
        ('rule is "nucleus"', (None, drafts, target), {"rule": "nucleus"}),
        ("threshold_acc is 2", (None, drafts, target), {"rule": "threshold", "threshold_acc": 2.0}),
        ("parents is 1 for node 0 of tree 0", (None, drafts, target, parents + 2), {}),
        (
            "parents is -1 for node 1 of tree 0, but must be 0 in a chain",
            (None, drafts, target, parents),
            {"rule": "block"},
        ),
        (r"draft_token_ids has shape \(40, 1\)", (None, drafts[:, :1], target), {}),
    ):
        with pytest.raises(ValueError, match=text):
            gumball.judge(*arguments, **more)


class Cuda:
    """What says that it lies on a GPU."""

    shape = (7, VOCAB)
    __cuda_array_interface__ = dict(version=3, shape=(7, VOCAB), typestr="<f4", data=(1 << 40, True), strides=None)


def test_mistakes_are_named_and_nothing_is_written(batch: np.ndarray, probs: np.ndarray) -> None:
    before = batch.copy()
    locked = batch.copy()
    locked.flags.writeable = False
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "temperature is -1, but must be", lambda: gumball.softmax(batch, -1.0, batch)),
        (ValueError, "temperature has length 2, but must have one per row, 7", lambda: gumball.softmax(batch, [1, 2])),
        (ValueError, "temperature has length 0", lambda: gumball.softmax(batch, [])),
        (TypeError, "temperature must be a number, not str", lambda: gumball.softmax(batch, "hot")),
        (ValueError, "out is read-only", lambda: gumball.softmax(batch, out=locked)),
        (ValueError, "logits is read-only", lambda: gumball.softmax(locked, out=locked)),
        (ValueError, "out is on cuda:0, but must be on the host", lambda: gumball.top_k_renorm_probs(probs, 3, Cuda())),
        (ValueError, "temperature", lambda: gumball.probabilities(probs, kind="probabilities", temperature=0.5)),
        (ValueError, "kind is scores", lambda: gumball.probabilities(probs, kind="scores")),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()
    assert (batch == before).all()


def test_the_high_word_of_an_offset_moves_the_seed(batch: np.ndarray, probs: np.ndarray) -> None:
    offsets = np.array([5, 1 << 32 | 5, -(1 << 32) + 5, 7 << 32, 0, 1, (1 << 62) + 9])
    step = 0x9E3779B97F4A7C15
    seeds = [(40 + (int(offset) >> 32) * step) % 2**64 for offset in offsets]
    lows = [int(offset) % 2**32 for offset in offsets]
    for draw, rows in ((gumball.sampling_from_logits, batch), (gumball.sampling_from_probs, probs)):
        got = draw(rows, seed=40, position=offsets, offsets=True)
        assert (got == draw(rows, seed=seeds, position=lows)).all()
        with pytest.raises(ValueError, match="position"):
            draw(rows, seed=40, position=offsets)
    q, p, ids = probs[:4].reshape(2, 2, VOCAB), probs[:6].reshape(2, 3, VOCAB), np.zeros((2, 2), np.int32)
    chains = gumball.judge
    got = chains(q, ids, p, seed=40, position=offsets[1:3], offsets=True)
    assert (got.tokens == chains(q, ids, p, seed=seeds[1:3], position=lows[1:3]).tokens).all()


def test_zero_may_stand_for_no_token(probs: np.ndarray) -> None:
    probs[3] = 0
    logits = np.log(probs, where=probs > 0, out=np.full_like(probs, -np.inf))
    pools: dict[str, Any] = {"slots": np.arange(7), "seed": np.arange(7)}
    for work in (
        lambda **o: gumball.sampling_from_probs(probs, seed=1, **o),
        lambda **o: gumball.sampling_from_logits(logits, seed=1, **o),
        lambda **o: gumball.sampling_from_pools(logits, **pools, **o),
    ):
        wanted = work()
        assert wanted[3] == NONE and (work(zero_for_none=True) == np.where(wanted < 0, 0, wanted)).all()
    none, ids = np.zeros((1, 3, VOCAB), np.float32), np.array([[5, 6]], np.int32)
    for drafts in (none[:, :2], None):
        for zeros, token in ((False, NONE), (True, 0)):
            got = gumball.judge(drafts, ids, none, seed=1, zero_for_none=zeros)
            assert got.tokens.tolist() == [[token, NONE, NONE]]


def test_counts_of_chains_are_added_to_the_callers(probs: np.ndarray) -> None:
    q, p, ids = probs[:4].reshape(2, 2, VOCAB), probs[:6].reshape(2, 3, VOCAB), np.zeros((2, 2), np.int32)
    wanted = gumball.judge(q, ids, p, seed=3)
    added = np.array([10, 20], np.int32), np.array([30, 40], np.int32)
    got = gumball.judge(q, ids, p, seed=3, added=added)
    assert got.accepted is added[0] and got.accepted_alone is added[1] and got.statuses is None
    assert (got.tokens == wanted.tokens).all()
    assert (added[0] == wanted.accepted + [10, 20]).all() and (added[1] == wanted.accepted_alone + [30, 40]).all()
    for accepted, kind, text in (
        (np.zeros(3, np.int32), ValueError, "accepted has length 3, but must have one per tree, 2, side by side"),
        (np.zeros(4, np.int32)[::2], ValueError, "accepted has length 2"),
        (np.zeros(2, np.int64), TypeError, "accepted is of int64"),
    ):
        with pytest.raises(kind, match=text):
            gumball.judge(q, ids, p, seed=3, added=(accepted, added[1]))
    assert (added[1] == wanted.accepted_alone + [30, 40]).all()


def test_rows_are_counted_as_operators_read_them(batch: np.ndarray) -> None:
    count = gumball.operators.row_count
    assert (count(batch), count(batch[0]), count(batch[:0]), count(batch[::2, :5])) == (7, 1, 0, 4)
    with pytest.raises(TypeError, match="probs is of float64"):
        count(batch.astype(np.float64), "probs")
    with pytest.raises(ValueError, match="rows has 3 dimensions"):
        count(batch[None])


def test_torch_tensors_come_back_as_such(batch: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(batch)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        got = gumball.softmax(logits.to(dtype), torch.full((7, 1), 0.5))
        assert got.dtype == torch.float32
        assert torch.allclose(got, (logits / 0.5).softmax(-1), atol=1e-5)
        assert gumball.top_k_renorm_probs(got.to(dtype), torch.full((7,), 4)).dtype == dtype
    drawn = gumball.sampling_from_probs(got, torch.tensor([1, 1, 5]), seed=torch.tensor([-1, 2, 3]), dtype="int64")
    assert drawn.dtype == torch.int64 and drawn.shape == (3,)


def test_logprobs_of_tokens_come_with_ranks_and_statuses(batch: np.ndarray) -> None:
    batch[1], batch[2, 5] = -np.inf, np.nan
    tokens = [3, 4, 5, -1, 899, 7, 7]
    pool, asked = Pool(VOCAB, slots=7), SamplingParams(logprobs=LogprobsParams(mode="raw"))
    slots = [pool.admit(asked) for _ in range(7)]
    seen = pool.step(batch, Batch(slots, forced=[token if token >= 0 else None for token in tokens]))
    for rows, ids in ((batch, np.array(tokens)), (batch.astype(ml_dtypes.bfloat16), tokens)):
        found = gumball.selected_logprobs(rows, ids, return_ranks=True, return_statuses=True)
        assert [array.dtype for array in found] == [np.float32, np.uint32, np.uint32]
        there = np.array(tokens) >= 0
        np.testing.assert_array_equal(found[0][there], seen.logprobs[there])
        np.testing.assert_array_equal(found[1][there], seen.ranks[there])
        assert found[0][3] == -np.inf and found[1][3] == 0 and found[2][2] == Status.NAN
    weights = np.array([[1.0, 3.0, 0.0]], np.float32)
    found = gumball.selected_logprobs(weights, [1], kind="probabilities")
    np.testing.assert_allclose(found, np.log([0.75]), atol=1e-6)
    assert gumball.selected_logprobs(batch[0], [3]).shape == (1,) and gumball.selected_logprobs(
        batch[:0], []
    ).shape == (0,)
    for given, kind, text in (
        ([1, 2], ValueError, "tokens has length 2, but must have one per row, 7"),
        ([900] * 7, ValueError, r"tokens is 900, but must be an id in 0\.\.900, or -1"),
        ([-2] * 7, ValueError, "tokens is -2"),
        ([0.5] * 7, TypeError, "tokens must be an integer"),
    ):
        with pytest.raises(kind, match=text):
            gumball.selected_logprobs(batch, given)
