"""TokenSpeed's operators under their names: draws from pools, penalties, rows, and verification of drafts."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from float64 import kept64, softmax64
from gumball import Sampler, SamplingParams

torch = pytest.importorskip("torch")

from gumball_compat import tokenspeed

VOCAB, PLACES = 900, 6
OFF = 1 << 30


def pools() -> dict[str, Any]:
    return {
        "temperature_pool": torch.tensor([1.0, 0.5, 1.2, 0.0, 0.9, 2.0]),
        "top_k_pool": torch.tensor([OFF, 5, OFF, OFF, 40, 700], dtype=torch.int32),
        "top_p_pool": torch.tensor([1.0, 0.9, 0.8, 1.0, 0.95, 1.0]),
        "min_p_pool": torch.tensor([0.0, 0.0, 0.1, 0.0, 0.05, 0.2]),
        "seed_pool": torch.tensor([3, -7, 1 << 62, 5, 6, 7]),
        "offsets_pool": torch.tensor([0, 9, 100, 2, 77, 5], dtype=torch.int32),
    }


DRAWS = {
    "gumbel_sample_from_pools": [],
    "gumbel_sample_from_pools_compact": [],
    "gumbel_sample_min_p_from_pools": ["min_p"],
    "gumbel_sample_min_p_from_pools_parallel": ["min_p"],
    "gumbel_sample_top_p_parallel_from_pools": ["top_p"],
    "gumbel_sample_top_k_top_p_qrita_from_pools": ["top_k", "top_p"],
    "gumbel_sample_top_k_top_p_from_pools": ["top_k", "top_p", "min_p"],
    "gumbel_sample_from_pools_generic": ["top_k", "top_p", "min_p"],
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("each", [1, 3])
def test_a_draw_from_pools_is_that_of_a_request_with_this_seed_at_this_position(name: str, each: int) -> None:
    operator, held = getattr(tokenspeed, name), pools()
    index = torch.tensor([4, 1, 2, 5, 3], dtype=torch.int32)
    logits = torch.randn(5 * each, VOCAB, generator=torch.Generator().manual_seed(each)) * 3
    out = torch.full((20,), 77, dtype=torch.int32)
    given = {"logits": logits, "req_pool_indices": index, "out": out, "num_tokens_per_req": each} | held
    names = inspect.signature(operator).parameters
    needed = [key for key, value in names.items() if value.default is inspect.Parameter.empty or key in given]
    drawn = operator(**{key: given.get(key) for key in needed})
    assert drawn.data_ptr() == out.data_ptr() and drawn.shape == (5 * each,) and (out[5 * each :] == 77).all()
    for row, token in enumerate(drawn.tolist()):
        place = index[row // each]
        filters = {key: held[key + "_pool"][place].item() for key in DRAWS[name]}
        params = SamplingParams(
            temperature=held["temperature_pool"][place].item(), seed=held["seed_pool"][place].item() % 2**64, **filters
        )
        alone = Sampler(params, VOCAB)
        for _ in range(held["offsets_pool"][place] + row % each):
            alone.push(0)
        assert token == alone.sample(logits[row]), (row, place)


def test_offsets_above_all_positions_are_streams_of_their_own() -> None:
    held, logits = pools(), torch.zeros(1, VOCAB)
    index, out = torch.tensor([0], dtype=torch.int32), torch.empty(1, dtype=torch.int32)

    def draw(offset: int) -> int:
        offsets = torch.full((PLACES,), offset)
        shape = tokenspeed.gumbel_scratch_shape(1, VOCAB)
        scratch = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
        pair = held["temperature_pool"], held["seed_pool"]
        return int(tokenspeed.gumbel_sample_from_pools(logits, index, *pair, offsets, *scratch, out)[0])

    alone = Sampler(SamplingParams(seed=3), VOCAB, draw=1 << 8)
    assert draw((1 << 40) + 5) == [alone.sample(logits[0]) for _ in range(6)][5] != draw(5)
    assert tokenspeed.gumbel_scratch_shape(3, 1025) == (3, 2)
    empty = torch.full((1, VOCAB), -torch.inf)
    drawn = tokenspeed.gumbel_sample_from_pools_compact(
        empty, index, held["temperature_pool"], held["seed_pool"], held["offsets_pool"], out
    )
    assert drawn.tolist() == [0]


def test_scalars_are_gathered_and_repeated() -> None:
    held = pools()
    index = torch.tensor([4, 1])
    got = tokenspeed.gather_and_expand_scalars(
        index,
        temperature=held["temperature_pool"],
        top_k=held["top_k_pool"],
        top_p=held["top_p_pool"],
        offsets=held["offsets_pool"],
        n=2,
    )
    assert got[3] is None and got[4] is None and got[5] is not None and got[5].dtype == torch.int64
    assert [part.tolist() for part in got if part is not None] == [
        held[name][[4, 4, 1, 1]].tolist() for name in ("temperature_pool", "top_k_pool", "top_p_pool", "offsets_pool")
    ]


def test_rows_have_their_first_largest_logit_and_a_tokens_logprob(batch: np.ndarray) -> None:
    logits = torch.from_numpy(batch)
    assert tokenspeed.argmax(logits).tolist() == [int(np.flatnonzero(row == row.max())[0]) for row in batch]
    out = torch.empty(7, dtype=torch.int32)
    assert tokenspeed.argmax(logits, out=out) is out and out.tolist() == tokenspeed.argmax(logits).tolist()
    spoilt = torch.tensor([[torch.nan, 1.0, 3.0, 3.0], [-torch.inf, torch.nan, -torch.inf, torch.nan]])
    # Callers index with the ids, so each is in range.
    assert tokenspeed.argmax(spoilt).tolist() == [2, 0]
    assert tokenspeed.argmax_pair(spoilt).tolist() == [[3.0, 2.0], [-torch.inf, 0.0]]
    for dtype in (torch.int32, torch.int64):
        one = torch.empty((), dtype=dtype)
        assert tokenspeed.argmax(spoilt[0], out=one) is one and one == 2
        spread = torch.full((4,), 9, dtype=dtype)
        assert tokenspeed.argmax(spoilt, out=spread[::2]).tolist() == [2, 0] and spread.tolist() == [2, 9, 0, 9]
    assert tokenspeed.argmax(spoilt[1]).shape == () and int(tokenspeed.argmax(spoilt[1])) == 0
    assert tokenspeed.argmax(spoilt[:0]).shape == (0,)
    pair = torch.empty(7, 2)
    assert tokenspeed.argmax_pair(logits.bfloat16(), out=pair) is pair
    assert (pair[:, 0] == logits.amax(1)).all() and (pair[:, 1].int() == out).all()

    tokens = torch.tensor([0, 5, 899, 31, 7, 8, 9], dtype=torch.int32)
    wanted = torch.log_softmax(logits.double(), 1).gather(1, tokens.long().unsqueeze(1)).squeeze(1).float()
    for given, exact in ((logits, 2e-6), (logits.bfloat16(), 2e-6)):
        torch.testing.assert_close(tokenspeed.selected_token_logprobs(given, tokens), wanted, rtol=0, atol=exact)
    held = torch.zeros(9)
    found = tokenspeed.selected_token_logprobs(logits, torch.tensor([-1, 5, 900, 31, 7, 8, 9]), held)
    assert found.data_ptr() == held.data_ptr() and found.shape == (7,)
    assert found.isneginf().tolist() == [True, False, True, False, False, False, False]
    assert tokenspeed.selected_token_logprobs(spoilt, torch.tensor([0, 1])).tolist() == [-torch.inf] * 2
    far, second = torch.tensor([[0.0, -3e38]]), torch.tensor([1])
    assert tokenspeed.selected_token_logprobs(far, second).item() == far[0, 1]

    probs = torch.from_numpy(softmax64(batch).astype(np.float32))
    min_p = torch.tensor([0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
    for line, row, least in zip(tokenspeed.min_p_renorm_prob(probs, min_p), probs.numpy(), min_p, strict=True):
        np.testing.assert_allclose(line, kept64(row, min_p=least.item()), atol=1e-6)


def test_penalties_are_those_of_a_request_that_has_counted_as_much() -> None:
    rng = np.random.default_rng(5)
    counts = torch.zeros((PLACES, VOCAB + 3), dtype=torch.int32)
    outputs = [rng.integers(0, 40, 30).tolist() for _ in range(PLACES)]
    places = torch.tensor([place for place, ids in enumerate(outputs) for _ in ids], dtype=torch.int32)
    tokens = torch.tensor([token for ids in outputs for token in ids])
    ones = torch.ones(len(tokens), dtype=torch.int32)
    tokenspeed.accumulate_counts_inplace(counts, places, tokens, ones)
    tokenspeed.accumulate_counts_inplace(counts, places, tokens, ones * 0)
    tokenspeed.accumulate_counts_inplace(counts, places, tokens * 0 - 1, ones)
    assert [counts[place, token].item() for place, token in ((0, 3), (5, 8))] == [
        outputs[0].count(3),
        outputs[5].count(8),
    ]
    assert counts.sum().item() == len(tokens)

    bias = torch.zeros((PLACES, VOCAB + 3))
    bias[:, 11], bias[2, 12] = 1.5, -2.0
    freq = torch.tensor([0.0, 0.5, 0.7, 0.1, 0.0, 1.0])
    pres = torch.tensor([0.0, 0.25, 0.0, 0.3, 1.0, -1.0])
    rep = torch.tensor([1.0, 1.3, 0.8, 2.0, 1.1, 1.0])
    index = torch.tensor([5, 2, 1], dtype=torch.int32)
    logits = torch.from_numpy(rng.normal(0, 3, (6, VOCAB)).astype(np.float32))
    logits[0, outputs[5][0]] = -torch.inf
    before = logits.clone()
    same = tokenspeed.apply_penalties_logit_bias_inplace(
        logits, index, counts, bias, freq, pres, rep, num_tokens_per_req=2
    )
    assert same is logits
    for row in range(6):
        place = int(index[row // 2])
        seen: list[np.ndarray] = []
        params = SamplingParams(
            repetition_penalty=rep[place].item(),
            repetition_scope="output",
            frequency_penalty=freq[place].item(),
            presence_penalty=pres[place].item(),
            logit_bias={11: 1.5} | ({12: -2.0} if place == 2 else {}),
        )
        sampler = Sampler(params, VOCAB)
        for token in outputs[place]:
            sampler.push(token)
        sampler.sample(before[row].numpy(), hook=lambda edited: seen.append(edited.copy()))
        finite = np.isfinite(logits[row].numpy())
        np.testing.assert_array_equal(logits[row].numpy()[finite], seen[0][finite])
        assert finite.sum() == VOCAB - (row == 0)


def walked(candidates: np.ndarray, parents: np.ndarray, picks: np.ndarray) -> list[int]:
    """The accepted nodes of a tree, one after the other."""
    path = [0]
    while True:
        children = [i for i in range(1, len(parents)) if parents[i] == path[-1] and candidates[i] == picks[path[-1]]]
        if not children:
            return path
        path.append(children[0])


@pytest.mark.parametrize("nodes", [1, 2, 5, 17, 65])
def test_verification_goes_along_what_the_target_drew(nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    requests = 40
    candidates = rng.integers(0, 2, (requests, nodes))
    picks = rng.integers(0, 2, (requests, nodes))
    picks[::3] = 1
    candidates[::6] = 1
    above = np.array([[-1, *(rng.integers(max(0, i - 3), i) for i in range(1, nodes))] for _ in range(requests)])
    chain = np.tile(np.arange(-1, nodes - 1), (requests, 1))
    drafts, target = torch.tensor(candidates, dtype=torch.int32), torch.tensor(picks.ravel(), dtype=torch.int32)
    for parents, operator in ((chain, "chain"), (chain, "greedy"), (chain, "tree"), (above, "tree")):
        predicts = torch.full((requests * nodes + 1,), 99, dtype=torch.int32)
        index = torch.full((requests, nodes), -1, dtype=torch.int32)
        lengths = torch.full((requests,), 99, dtype=torch.int32)
        if operator == "tree":
            up = torch.tensor(parents, dtype=torch.int32)
            tokenspeed.verify_tree(predicts, lengths, index, drafts, up, target)
        elif operator == "chain":
            tokenspeed.verify_chain_target_sampled(predicts, index, lengths, drafts, target)
        else:
            tokenspeed.verify_chain_greedy(
                predicts=predicts,
                accept_index=index,
                accept_token_num=lengths,
                candidates=drafts,
                target_predict=target.view(requests, nodes),
                batch_size=requests,
                num_draft_tokens=nodes,
            )
        for i in range(requests):
            path = walked(candidates[i], parents[i], picks[i])
            line, base = predicts[i * nodes :][:nodes].tolist(), i * nodes
            assert line == [*picks[i][path], *[99] * (nodes - len(path))]
            if operator == "tree":
                assert lengths[i] == len(path) and index[i].tolist() == [*path, *[-1] * (nodes - len(path))]
            else:
                places = [base + node for node in path]
                assert lengths[i] == len(path) - 1 and index[i].tolist() == [*places, *[-1] * (nodes - len(path))]
        assert predicts[-1] == 99


def test_mistakes_are_named() -> None:
    held, logits = pools(), torch.zeros(4, VOCAB)
    index, out = torch.tensor([0, 1], dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    pair = held["temperature_pool"], held["seed_pool"], held["offsets_pool"]
    draw = tokenspeed.gumbel_sample_from_pools_compact
    ids = torch.zeros((2, 3), dtype=torch.int32)
    flat, few = torch.zeros(6, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    mistakes: list[tuple[str, Any]] = [
        ("logits has 1 dimensions", lambda: draw(logits[0], index, *pair, out)),
        ("num_tokens_per_req is 3", lambda: draw(logits, index, *pair, out, num_tokens_per_req=3)),
        (r"one element per request, 4", lambda: draw(logits, index, *pair, out)),
        (r"one element per row, 4", lambda: draw(logits, index, *pair, out[:3], num_tokens_per_req=2)),
        ("max_rows is -1", lambda: tokenspeed.gumbel_scratch_shape(-1, 5)),
        ("out is", lambda: tokenspeed.argmax(logits, out=out.float())),
        ("out is", lambda: tokenspeed.argmax_pair(logits, out=out)),
        ("tokens rows", lambda: tokenspeed.selected_token_logprobs(logits, index)),
        ("min_p have shapes", lambda: tokenspeed.min_p_renorm_prob(logits, torch.zeros(3))),
        ("elements", lambda: tokenspeed.accumulate_counts_inplace(ids, flat, few, flat)),
        ("accept_index has shape", lambda: tokenspeed.verify_chain_target_sampled(flat, ids[:1], few, ids, flat)),
        ("predicts has 2", lambda: tokenspeed.verify_chain_target_sampled(few, ids, few, ids, flat)),
        ("accept_token_num has 1", lambda: tokenspeed.verify_tree(flat, few[:1], ids, ids, ids, flat)),
        (r"\(2, 4\)", lambda: tokenspeed.verify_chain_greedy(flat, ids, few, ids, flat, 2, 4)),
    ]
    for text, mistake in mistakes:
        with pytest.raises(ValueError, match=text):
            mistake()


def test_the_fused_filters_are_top_k_then_top_p(batch: np.ndarray) -> None:
    probs = torch.from_numpy(softmax64(batch).astype(np.float32))
    top_ks = torch.tensor([1, 5, OFF, OFF, 127, 40, 3], dtype=torch.int32)
    top_ps = torch.tensor([1.0, 0.5, 0.9, 1.0, 0.99, 0.3, 0.7])
    sizes = [tokenspeed.fused_topk_topp_workspace_size(n, v) for n, v in ((1, 1), (1, VOCAB), (7, VOCAB), (7, 9000))]
    assert sizes[0] > 0 and sizes == sorted(set(sizes))
    room = torch.empty(tokenspeed.fused_topk_topp_workspace_size(7, VOCAB), dtype=torch.uint8)
    tokenspeed.fused_topk_topp_prepare("cpu")
    got = tokenspeed.fused_topk_topp_renorm(probs, top_ks, top_ps, room)
    for line, row, k, p in zip(got, probs.numpy(), top_ks.tolist(), top_ps.tolist(), strict=True):
        np.testing.assert_allclose(line, kept64(row, top_k=k, top_p=p), atol=1e-3)
    out = torch.empty_like(probs)
    assert tokenspeed.fused_topk_topp_renorm(probs, top_ks, top_ps, out=out) is out and (out == got).all()
    assert (gumball.probabilities(probs, kind="probabilities", top_k=top_ks, top_p=top_ps) == got).all()


REAL = Path(__file__).parent / "real" / "tokenspeed_kernels.py"


def test_the_real_operators_have_the_same_results() -> None:
    """TokenSpeed's own kernels, run by Triton's interpreter, beside ours."""
    if find_spec("triton") is None or find_spec("tokenspeed_kernel") is None:
        pytest.skip("needs triton and tokenspeed-kernel, which need not be able to run here")
    done = subprocess.run([sys.executable, str(REAL)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "verified": 3,
        "counts": 1,
        "logprobs": 1,
        "min_p": 1,
        "penalties": 1,
    }
