"""Operators against float64: values, ties, rows of nothing, types and strides, mistakes that change nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from gumball import LogprobsParams, Pool, Sampler, SamplingParams, Status
from gumball.compat import sglang

VOCAB = 900
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
NONE = -1


def softmax64(logits: np.ndarray, temperature: Any = 1.0) -> np.ndarray:
    z = logits.astype(np.float64) / np.asarray(temperature, np.float64).reshape(-1, 1)
    weights = np.exp(z - z.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def in_order(row: np.ndarray) -> np.ndarray:
    """Ids, larger first, of equal ones the lower first."""
    return np.argsort(-row.astype(np.float64), kind="stable")


def kept64(row: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    p = row.astype(np.float64)
    order = in_order(row)[: top_k if 0 < top_k < row.size else row.size]
    if top_p < 1:
        sums = np.cumsum(p[order])
        order = order[: int(np.searchsorted(sums, top_p * sums[-1])) + 1]
    out = np.zeros(row.size)
    stays = order[p[order] >= min_p * p[order].max()]
    out[stays] = p[stays] / p[stays].sum()
    return out


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


def test_a_softmax_of_a_large_row_meets_the_tight_bounds() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (3, 128_256)).astype(np.float32)
    got = gumball.softmax(logits)
    assert np.abs(got - softmax64(logits)).max() < 1e-8
    assert np.abs(got.sum(1, dtype=np.float64) - 1).max() < 2.5e-7


def test_a_softmax_at_temperature_0_is_one_hot_at_the_first_of_the_largest(batch: np.ndarray) -> None:
    batch[0, [3, 80]] = 50
    got = gumball.softmax(batch, 0)
    assert (got.argmax(1) == batch.argmax(1)).all() and (got.max(1) == 1).all() and (got.sum(1) == 1).all()


def test_huge_logits_stay_finite_and_equal_ones_equal() -> None:
    row = np.array([1e6, -1e6, 1e6, 999_999.9, -np.inf], np.float32)
    got = gumball.softmax(row, 0.01)
    assert np.isfinite(got).all() and got[0] == got[2] and abs(float(got.sum()) - 1) < 1e-6


def test_rows_of_nothing_say_so_and_disturb_no_other(batch: np.ndarray) -> None:
    clean = gumball.softmax(batch)
    batch[2] = -np.inf
    batch[4, 5] = np.nan
    got, statuses = gumball.softmax(batch, return_statuses=True)
    assert statuses.dtype == np.uint32 and list(statuses) == [0, 0, Status.EMPTY, 0, Status.NAN, 0, 0]
    assert (got[2] == 0).all() and got[4, 5] == 0
    others = [0, 1, 3, 5, 6]
    assert (got[others] == clean[others]).all()
    masked = gumball.mask_logits(batch, top_k=3)
    assert (masked[2] == -np.inf).all()


@pytest.mark.parametrize("rows", [np.zeros((0, VOCAB), np.float32), np.zeros((0, 5), ml_dtypes.bfloat16)])
def test_no_rows_are_fine(rows: np.ndarray) -> None:
    assert gumball.softmax(rows).shape == rows.shape
    assert gumball.top_k_renorm_probs(rows, 3).shape == rows.shape
    assert gumball.mask_logits(rows, top_p=0.5).shape == rows.shape
    assert gumball.sampling_from_probs(rows, n=3, seed=1).shape == (0, 3)


def test_renormalised_rows_are_those_of_float64(probs: np.ndarray) -> None:
    top_k, top_p, min_p = (
        [1, 5, 0, 40, 900, 3, 17],
        [0.9, 0.5, 1.0, 0.3, 0.7, 0.05, 0.99],
        [0.0, 0.1, 1.0, 0.5, 0.01, 0.2, 0.3],
    )
    columns = {
        gumball.top_k_renorm_probs: ("top_k", top_k),
        gumball.top_p_renorm_probs: ("top_p", top_p),
        gumball.min_p_renorm_probs: ("min_p", min_p),
    }
    for operator, (name, column) in columns.items():
        got = operator(probs, column)
        assert (operator(probs * np.float32(4), np.array(column)) == got).all(), "rows need not sum to 1"
        for row, value, line in zip(probs, column, got, strict=True):
            np.testing.assert_allclose(line, kept64(row, **{name: value}), atol=1e-3)
            assert abs(line.sum(dtype=np.float64) - 1) < 1e-5
    got = gumball.top_k_top_p_renorm_probs(probs, top_k, top_p)
    joint = gumball.top_k_top_p_renorm_probs(probs, top_k, top_p, order="joint")
    for row, k, p, line, both in zip(probs, top_k, top_p, got, joint, strict=True):
        np.testing.assert_allclose(line, kept64(row, k, p), atol=1e-3)
        stays = (kept64(row, top_k=k) > 0) & (kept64(row, top_p=p) > 0)
        np.testing.assert_allclose(both, row * stays / row[stays].sum(dtype=np.float64), atol=1e-3)
    assert (gumball.probabilities(probs, kind="probabilities", top_k=top_k, top_p=top_p) == got).all()


def test_masks_keep_lower_ids_of_ties_in_every_type() -> None:
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


def test_rows_without_a_probability_yield_none(probs: np.ndarray) -> None:
    probs[1], probs[3] = 0, np.nan
    drawn, statuses = gumball.sampling_from_probs(probs, seed=1, return_statuses=True)
    assert drawn[1] == drawn[3] == NONE and (drawn[[0, 2, 4, 5, 6]] >= 0).all()
    assert statuses[1] == Status.EMPTY and statuses[3] == Status.EMPTY | Status.NAN


def test_draws_follow_the_probabilities() -> None:
    p = np.random.default_rng(2).dirichlet(np.ones(111)).astype(np.float32)
    counts = np.bincount(gumball.sampling_from_probs(p, n=200_000, seed=3).ravel(), minlength=111)
    want = p.astype(np.float64) / p.sum(dtype=np.float64)
    chi2 = float(((counts - 200_000 * want) ** 2 / (200_000 * want)).sum())
    # The quantile of chi-square with 110 degrees at 1e-6.
    assert chi2 < 194


@pytest.mark.slow
def test_five_million_draws_from_one_row() -> None:
    p = gumball.softmax(np.random.default_rng(4).normal(0, 2, 128_256).astype(np.float32))
    counts = np.bincount(gumball.sampling_from_probs(p, n=5_000_000, seed=3).ravel(), minlength=p.size)
    assert counts @ p / np.linalg.norm(counts) / np.linalg.norm(p) > 0.99


def test_pools_step_over_probabilities_and_change_kind(batch: np.ndarray, probs: np.ndarray) -> None:
    pool = Pool(VOCAB, slots=7)
    slots = [pool.admit(SamplingParams(seed=seed, top_p=0.9), [1, 2]) for seed in range(7)]
    samplers = [Sampler(SamplingParams(seed=seed, top_p=0.9), VOCAB, prompt=[1, 2]) for seed in range(7)]
    for kind, rows in (("probabilities", probs), ("logits", batch), ("probabilities", probs)):
        tokens = pool.step(rows, slots, kind=kind).tolist()
        of = Sampler.sample if kind == "logits" else Sampler.sample_probabilities
        assert tokens == [of(sampler, row) for sampler, row in zip(samplers, rows, strict=True)]
    with pytest.raises(ValueError, match="kind is probs"):
        pool.step(probs, slots, kind="probs")
    hot = pool.admit(SamplingParams(temperature=0.7, seed=1)) if len(pool) < 7 else None
    assert hot is None
    with pytest.raises(ValueError, match="temperature"):
        Sampler(SamplingParams(temperature=0.7), VOCAB).sample_probabilities(probs[0])


def test_every_pool_steps_over_probabilities(device: str, batch: np.ndarray, probs: np.ndarray) -> None:
    pool, host = Pool(VOCAB, device=device, slots=7, rows=7), Pool(VOCAB, slots=7, rows=7)
    for made in (pool, host):
        assert [made.admit(SamplingParams(seed=seed, top_p=0.9, top_k=40), [1, 2]) for seed in range(7)] == [*range(7)]
    for kind, rows in (("probabilities", probs), ("logits", batch), ("probabilities", probs)):
        wanted = host.step(rows, range(7), kind=kind)
        assert pool.step(rows, range(7), kind=kind).tolist() == wanted.tolist()
    for made in (pool, host):
        made.release(6)
        assert made.admit(SamplingParams(seed=1, temperature=0.7)) == 6
        with pytest.raises(ValueError, match="temperature"):
            made.step(probs, range(7), kind="probabilities")
        assert made.position(6) == 0


def test_chains_accept_what_the_target_agrees_with_and_keep_its_distribution() -> None:
    rng = np.random.default_rng(5)
    chains, n, vocab = 40_000, 2, 8
    q = np.tile(rng.dirichlet(np.ones(vocab), (1, n)), (chains, 1, 1)).astype(np.float32)
    p = np.tile(rng.dirichlet(np.ones(vocab), (1, n + 1)), (chains, 1, 1)).astype(np.float32)
    drafts = np.stack([gumball.sampling_from_probs(q[:, j], seed=50 + j) for j in range(n)], 1)
    got = gumball.chain_speculative_sampling(q, drafts, p, seed=7)
    assert got.tokens.shape == (chains, n + 1) and (got.accepted >= got.emitted).all()
    assert ((got.tokens != NONE).sum(1) == got.emitted + 1).all()
    first = np.bincount(got.tokens[:, 0], minlength=vocab) / chains
    np.testing.assert_allclose(first, p[0, 0], atol=0.015)
    same = gumball.chain_speculative_sampling(p[:9, :n].copy(), drafts[:9], p[:9], seed=7, dtype="int64")
    assert same.tokens.dtype == np.int64 and (same.emitted == n).all() and (same.tokens[:, :n] == drafts[:9]).all()
    with pytest.raises(ValueError, match=r"draft_probs has shape \(40000, 1, 8\)"):
        gumball.chain_speculative_sampling(q[:, :1], drafts, p)
    with pytest.raises(TypeError, match="target_probs is of float16"):
        gumball.chain_speculative_sampling(q, drafts, p.astype(np.float16))


def test_trees_keep_the_distribution_and_say_which_rows_they_walked() -> None:
    rng = np.random.default_rng(6)
    trees, vocab = 20_000, 8
    q, p = rng.dirichlet(np.ones(vocab), 2).astype(np.float32)
    first, second = rng.integers(0, vocab, (2, trees))
    drafts = np.stack([first, second], 1).astype(np.int32)
    parents = np.tile(np.int32([-1, -1]), (trees, 1))
    target = np.tile(p, (trees, 3, 1))
    got = gumball.tree_speculative_sampling(None, drafts, parents, target, seed=8)
    assert got.tokens.shape == (trees, 3) and got.rows.dtype == np.int32
    assert ((got.rows != NONE).sum(1) == got.accepted + 1).all() and (got.rows[:, 0] == 0).all()
    took = got.accepted == 1
    assert (np.take_along_axis(drafts, got.rows[:, 1:2] - 1, 1)[took, 0] == got.tokens[took, 0]).all()
    counts = np.bincount(got.tokens[:, 0], minlength=vocab) / trees
    np.testing.assert_allclose(counts, p, atol=0.02)
    chain = np.stack([p, p, p])[None]
    drawn = np.tile(q, (1, 3, 1))
    for rule in ("rejection", "block"):
        same = gumball.tree_speculative_sampling(chain.copy(), drafts[:1], None, chain, rule=rule, seed=3)
        assert same.accepted[0] == 2 and (same.tokens[0, :2] == drafts[0]).all()
        gumball.tree_speculative_sampling(drawn, drafts[:1], None, chain, rule=rule, seed=3)
    all_of_it = gumball.tree_speculative_sampling(
        None, drafts[:9], None, target[:9], rule="threshold", threshold_acc=0.0, seed=1, dtype="int64"
    )
    assert (all_of_it.accepted == 2).all() and all_of_it.tokens.dtype == np.int64
    with pytest.raises(ValueError, match='rule is "nucleus"'):
        gumball.tree_speculative_sampling(None, drafts, None, target, rule="nucleus")
    with pytest.raises(ValueError, match="threshold_acc is 2"):
        gumball.tree_speculative_sampling(None, drafts, None, target, rule="threshold", threshold_acc=2.0)
    with pytest.raises(ValueError, match=r"parents is 1 for node 0 of tree 0"):
        gumball.tree_speculative_sampling(None, drafts, parents + 2, target)
    with pytest.raises(ValueError, match=r"draft_token_ids has shape \(20000, 1\)"):
        gumball.tree_speculative_sampling(None, drafts[:, :1], None, target)


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
        (TypeError, "logits is of float64", lambda: gumball.softmax(batch.astype(np.float64))),
        (ValueError, "out shares memory with logits", lambda: gumball.softmax(batch[:6], out=batch[1:])),
        (ValueError, "out is read-only", lambda: gumball.softmax(batch, out=locked)),
        (ValueError, "logits is read-only", lambda: gumball.softmax(locked, out=locked)),
        (ValueError, "out has length 3", lambda: gumball.softmax(batch, out=np.zeros((3, VOCAB), np.float32))),
        (ValueError, "side by side", lambda: gumball.softmax(batch[:, ::2])),
        (ValueError, "3 dimensions", lambda: gumball.softmax(batch[None])),
        (ValueError, "out is on cuda:0, but must be on the host", lambda: gumball.top_k_renorm_probs(probs, 3, Cuda())),
        (ValueError, "min_p is 2", lambda: gumball.min_p_renorm_probs(probs, 2.0)),
        (ValueError, "temperature", lambda: gumball.probabilities(probs, kind="probabilities", temperature=0.5)),
        (ValueError, "kind is scores", lambda: gumball.probabilities(probs, kind="scores")),
        (ValueError, "indices is 7, but must be a row in 0..7", lambda: gumball.sampling_from_probs(probs, [7])),
        (ValueError, "n conflicts with indices", lambda: gumball.sampling_from_probs(probs, [1], n=2)),
        (ValueError, "dtype is int8", lambda: gumball.sampling_from_probs(probs, dtype="int8")),
        (ValueError, "seeds has length 2", lambda: gumball.sampling_from_probs(probs, seed=[1, 2])),
        (ValueError, "out has length 3", lambda: gumball.sampling_from_probs(probs, out=np.zeros(3, np.int32))),
        (TypeError, "out is of float32", lambda: gumball.sampling_from_probs(probs, out=np.zeros(7, np.float32))),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()
    assert (batch == before).all()


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


def test_sglangs_names_are_the_softmax(batch: np.ndarray) -> None:
    temps = np.linspace(0.5, 2, 7, dtype=np.float32).reshape(7, 1)
    got = sglang.fused_temperature_softmax(batch, temps)
    np.testing.assert_allclose(got, softmax64(batch, temps), rtol=1e-5, atol=1e-5)
    narrow = batch.astype(ml_dtypes.bfloat16)
    assert sglang.fused_temperature_softmax_inplace(narrow, temps) is None
    assert (narrow == got.astype(ml_dtypes.bfloat16)).all()
    with pytest.raises(ValueError, match=r"temperatures has shape \(7, 2\), but must have \(7, 1\)"):
        sglang.fused_temperature_softmax(batch, np.ones((7, 2), np.float32))


def test_logprobs_of_tokens_are_those_that_a_pool_reports(batch: np.ndarray) -> None:
    batch = batch.copy()
    batch[1] = -np.inf
    batch[2, 5] = np.nan
    tokens = np.array([3, 4, 5, -1, 899, 7, 7])
    asked = SamplingParams(logprobs=LogprobsParams(mode="raw"))
    for dtype in (np.float32, ml_dtypes.bfloat16):
        rows = batch.astype(dtype)
        logprobs, ranks = gumball.selected_logprobs(rows, tokens, return_ranks=True)
        assert logprobs.dtype == np.float32 and ranks.dtype == np.uint32 and logprobs.shape == ranks.shape == (7,)
        pool = gumball.Pool(batch.shape[1], slots=7)
        slots = [pool.admit(asked) for _ in range(7)]
        seen = pool.step(rows, slots, forced=[int(token) if token >= 0 else None for token in tokens])
        there = tokens >= 0
        np.testing.assert_array_equal(logprobs[there], seen.logprobs[there])
        np.testing.assert_array_equal(ranks[there], seen.ranks[there])
        assert np.isneginf(logprobs[[1, 2, 3]]).all() and ranks[[1, 2, 3]].tolist() == [0, 0, 0]
    exact = np.log(softmax64(batch.astype(np.float32)[[0, 4]]))
    np.testing.assert_allclose(gumball.selected_logprobs(batch[[0, 4]], [3, 899]), exact[[0, 1], [3, 899]], atol=1e-6)
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
