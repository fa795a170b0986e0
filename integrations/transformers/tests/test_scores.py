"""What comes back under return_dict_in_generate: scores as transformers' own processors make them, logits, and logprobs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, TopHLogitsWarper

import gumball
import gumball_transformers
import recorded_model
from calls import CASES, DRAWS, LENGTH, PROMPT, generate, new
from gumball_transformers import OUR_NAMES

THEIRS = [name for name, (theirs, _) in CASES.items() if not set(theirs) & {*OUR_NAMES, "repetition_scope"}]
ASKED = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def processors(model: Any, length: int, **named: Any) -> LogitsProcessorList:
    """The list that transformers makes for a call."""
    chosen = {name: value for name, value in (DRAWS | named).items() if value is not None}
    config, _ = model._prepare_generation_config(None, **chosen)
    config.eos_token_id = named.get("eos_token_id")
    model._prepare_special_tokens(config, True, device="cpu")
    return model._get_logits_processor(config, input_ids_seq_length=length, device="cpu")


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_scores_are_those_of_transformers_processors(recorded: Any, name: str, drafts: bool) -> None:
    theirs, _ = CASES[name]
    more = {"assistant_model": recorded_model.model(recorded.rows)} if drafts else {}
    out = generate(recorded, [PROMPT], seed=7, **theirs, **ASKED, **more)
    # Keeping scores changes no token.
    assert out.sequences[:, len(PROMPT) :].tolist() == new(recorded, [PROMPT], seed=7, **theirs)
    made = processors(recorded, len(PROMPT), **theirs)
    assert len(out.scores) == len(out.logits) == out.sequences.shape[1] - len(PROMPT)
    for step, (scores, logits) in enumerate(zip(out.scores, out.logits)):
        expected = made(out.sequences[:, : len(PROMPT) + step], logits.clone())
        assert torch.equal(scores.isfinite(), expected.isfinite()), step
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)


def test_scores_may_be_renormalised(recorded: Any) -> None:
    out = generate(recorded, [PROMPT], seed=7, top_p=0.9, renormalize_logits=True, **ASKED)
    for scores in out.scores:
        assert abs(scores.exp().sum().item() - 1) < 1e-5
    made = processors(recorded, len(PROMPT), top_p=0.9, renormalize_logits=True)
    torch.testing.assert_close(out.scores[0], made(out.sequences[:, : len(PROMPT)], out.logits[0].clone()))


def test_logprobs_are_those_of_scores(recorded: Any) -> None:
    named = {"top_k": 20, "repetition_penalty": 1.2, "temperature": 0.7, "seed": [7, 8]}
    out = generate(recorded, [PROMPT, PROMPT[:3]], **named, **ASKED, logprobs=4, logprobs_mode="processed")
    expected = recorded.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    torch.testing.assert_close(out.logprobs, expected, rtol=1e-5, atol=1e-5)
    assert out.top_ids.shape == out.top_logprobs.shape == (2, LENGTH, 4)
    top = torch.stack(out.scores, 1).log_softmax(-1).topk(4)
    torch.testing.assert_close(out.top_logprobs, top.values, rtol=1e-5, atol=1e-5)
    ids = out.sequences[:, len(PROMPT) :]
    known = (out.top_ids == ids[..., None]).nonzero()
    assert len(known) > LENGTH
    for row, step, place in known.tolist():
        assert out.ranks[row, step] == place + 1


def test_raw_logprobs_are_of_the_models_logits(recorded: Any) -> None:
    out = generate(recorded, [PROMPT], seed=7, repetition_penalty=1.3, temperature=0.5, logprobs=0, **ASKED)
    assert out.top_ids is None
    for step, logits in enumerate(out.logits):
        token = out.sequences[0, len(PROMPT) + step]
        assert math.isclose(out.logprobs[0, step], logits[0].double().log_softmax(0)[token], rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.parametrize("drafts", [False, True])
def test_logprobs_of_named_ids_are_those_of_the_models_logits(recorded: Any, drafts: bool) -> None:
    ids = [28, 4093, 7]
    more = {"assistant_model": recorded_model.model(recorded.rows)} if drafts else {}
    out = generate(recorded, [PROMPT], seed=7, top_p=0.9, logprob_ids=ids, **ASKED, **more)
    assert out.top_ids is None and out.id_ranks.dtype == torch.int64 and out.id_ranks.shape == (1, LENGTH, 3)
    listed = torch.stack(out.logits, 1).double().log_softmax(-1)
    torch.testing.assert_close(out.id_logprobs, listed[..., ids].float(), rtol=1e-5, atol=1e-5)
    better = (listed[..., None] > listed[..., None, ids]).sum(2)
    assert ((out.id_ranks - 1 - better).abs() <= 1).all()


def test_rows_may_name_ids_of_their_own(recorded: Any) -> None:
    asked = [gumball.LogprobsParams(ids=[28, 7], top_n=1), None, gumball.LogprobsParams(ids=[30])]
    params = [gumball.SamplingParams(seed=seed, logprobs=one) for seed, one in enumerate(asked)]
    ids = torch.tensor([PROMPT] * 3)
    named = {"max_new_tokens": 4, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    out = gumball_transformers.generate(recorded, params, inputs=ids, **named)
    listed = torch.stack(out.logits, 1).double().log_softmax(-1).float()
    torch.testing.assert_close(out.id_logprobs[0], listed[0][:, [28, 7]], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.id_logprobs[2, :, 0], listed[2][:, 30], rtol=1e-5, atol=1e-5)
    assert (
        (out.id_logprobs[1] == -math.inf).all() and (out.id_ranks[1] == 0).all() and (out.id_ranks[2, :, 1] == 0).all()
    )


def test_attentions_and_hidden_states_are_transformers_own(recorded: Any) -> None:
    asked = {"output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True}
    recorded.set_attn_implementation("eager")
    out = generate(recorded, [PROMPT], seed=7, **asked)
    theirs = generate(recorded, [PROMPT], do_sample=False, custom_generate=None, **asked)
    for mine, other in ((out.attentions, theirs.attentions), (out.hidden_states, theirs.hidden_states)):
        assert [len(step) for step in mine] == [len(step) for step in other]
        torch.testing.assert_close(mine[0], other[0])
        assert mine[1][0].shape == other[1][0].shape
    assert out.past_key_values.get_seq_length() == len(PROMPT) + LENGTH - 1


def test_a_cache_that_comes_back_goes_on(recorded: Any) -> None:
    whole = new(recorded, [PROMPT], seed=7)[0]
    out = generate(recorded, [PROMPT], seed=7, max_new_tokens=10, return_dict_in_generate=True)
    recorded.passes = 0
    more = new(
        recorded, out.sequences.tolist(), seed=7, past_key_values=out.past_key_values, max_new_tokens=LENGTH - 10
    )
    # A sequence that is resumed after its prompt has the same positions, so the same words.
    assert more[0] == whole[10:]


# By share, how many of all rows may have another set than transformers'. Its sums are rounded in f32, by vectors of the processor's width, which
# decides whether it keeps the last token at a share of 1, and a token near the cut below that.
OTHER_SETS = {0.1: 0.001, 0.4: 0.001, 0.7: 0.001, 0.9: 0.005, 0.99: 0.01, 1.0: 0.5}


@pytest.mark.parametrize("share", OTHER_SETS)
def test_top_h_keeps_what_transformers_keeps(share: float) -> None:
    random = torch.Generator().manual_seed(5)
    rows = torch.randn(2000, 1000, generator=random) * (0.3 + 3 * torch.rand(2000, 1, generator=random))
    raised = torch.randint(1000, (1000, 12), generator=random)
    rows[:1000].scatter_add_(1, raised, 10 * torch.rand(1000, 12, generator=random))
    wanted = TopHLogitsWarper(share)(None, rows).isfinite()
    found = torch.from_numpy(gumball.mask_logits(rows.numpy(), params=gumball.SamplingParams(top_h=share))).isfinite()
    other = (wanted != found).any(1)
    assert other.float().mean() <= OTHER_SETS[share]
    # In f64 the sums are exact enough for the rule itself.
    exact = TopHLogitsWarper(share)(None, rows.double()).isfinite()
    between = rows.softmax(1).where(exact != found, 0).sum(1)
    assert share == 1 or between.max() < 5e-5
    assert share == 1 or torch.equal(exact, found)
