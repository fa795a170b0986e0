"""Drafts of n-grams, on recorded logits: the tokens are those without drafts, whatever is asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gumball
from gumball import LogprobsParams
from recorded_model import row_of
from test_recorded import (
    CASES,
    LENGTH,
    PROMPT,
    REASONING,
    alone,
    asked,
    end_at_repetitions,
    same_flat_logprobs,
    same_radii,
    tokens,
)

OPTIONS: dict[str, Any] = {
    "max_logprobs": 200,
    "reasoning_config": REASONING,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    },
}
# A text with a least length ends by itself.
CARRIED = [name for name, (theirs, _) in CASES.items() if "min_tokens" not in theirs]


def drafts(engine: Any) -> tuple[int, int]:
    """How many drafts were verified, and how many accepted."""
    counted = {
        metric.name: metric.value
        for metric in engine.get_metrics()
        if "spec_decode" in metric.name and hasattr(metric, "value")
    }
    return counted["vllm:spec_decode_num_draft_tokens"], counted["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.parametrize("name", CARRIED)
def test_drafts_change_no_token(engine: Any, recorded: Any, name: str) -> None:
    theirs, ours = CASES[name]
    seed = theirs.get("seed", 7)
    length = 3 * LENGTH
    wanted = alone(recorded, PROMPT, gumball.SamplingParams(**({"seed": seed} | ours)), length)
    assert tokens(engine, [PROMPT], [asked(theirs, seed, max_tokens=length)]) == [wanted]
    params = [asked(CASES[CARRIED[i % len(CARRIED)]][0], 1000 + i) for i in range(31)]
    prompts = [[5, 6, 7 + i, 8] * (1 + 30 * (i % 5 == 0)) for i in range(31)]
    params.insert(9, asked(theirs, seed, max_tokens=length))
    prompts.insert(9, PROMPT)
    before = drafts(engine)
    assert tokens(engine, prompts, params)[9] == wanted
    verified, accepted = (now - then for now, then in zip(drafts(engine), before, strict=True))
    assert verified > accepted > 0


def test_logprobs_beside_drafts_are_the_samplers(engine: Any, recorded: Any) -> None:
    given = asked({"temperature": 0.3, "logprobs": 3, "max_tokens": 60}, 7)
    other = asked({"temperature": 0, "logprobs": 1, "max_tokens": 60}, 7)
    plain = asked({"temperature": 0, "max_tokens": 60}, 7)
    before = drafts(engine)
    outs = engine.generate([{"prompt_token_ids": PROMPT}] * 3, [other, given, plain], use_tqdm=False)
    assert drafts(engine)[1] > before[1]
    params = gumball.SamplingParams(seed=7, temperature=0.3, logprobs=LogprobsParams(top_n=3))
    sampler = gumball.Sampler(params, recorded.shape[1], prompt=PROMPT)
    out = outs[1].outputs[0]
    assert len(out.token_ids) == len(out.logprobs) == 60 and outs[2].outputs[0].logprobs is None
    for token, found in zip(out.token_ids, out.logprobs, strict=True):
        assert sampler.sample(recorded[row_of(sampler.history[-1], len(recorded))]) == token
        ours = sampler.logprobs
        assert found[token].logprob == ours.token.logprob
        assert {one.id: one.logprob for one in ours.top}.items() <= {
            id: one.logprob for id, one in found.items()
        }.items()


def test_radii_beside_drafts_are_the_samplers(engine: Any, recorded: Any) -> None:
    before = drafts(engine)
    same_radii(engine, recorded)
    assert drafts(engine)[1] > before[1]


def test_flat_logprobs_beside_drafts_are_the_same_numbers(engine: Any, recorded: Any) -> None:
    before = drafts(engine)
    same_flat_logprobs(engine, recorded)
    assert drafts(engine)[1] > before[1]


@pytest.mark.parametrize("kind", [{"logprobs": 150}, {"logprob_token_ids": [5, 28, 338]}])
def test_longer_lists_and_named_tokens_beside_drafts(engine: Any, recorded: Any, kind: dict[str, Any]) -> None:
    chosen = {"temperature": 0.3, "max_tokens": 60}
    before = drafts(engine)
    (out,) = engine.generate([{"prompt_token_ids": PROMPT}], [asked(chosen | kind, 7)], use_tqdm=False)
    assert drafts(engine)[1] > before[1]
    line = list(out.outputs[0].token_ids)
    assert line == alone(recorded, PROMPT, gumball.SamplingParams(seed=7, temperature=0.3), 60)
    for last, token, found in zip([PROMPT[-1], *line], line, out.outputs[0].logprobs, strict=False):
        scores = torch.from_numpy(recorded[row_of(last, len(recorded))]).log_softmax(0)
        wanted = kind.get("logprob_token_ids", scores.topk(150).indices.tolist())
        assert {token, *wanted} == set(found)
        assert all(abs(found[id].logprob - scores[id]) < 1e-4 for id in found)


def test_vllms_scheduler_ends_repetitions_within_drafts(engine: Any, recorded: Any) -> None:
    before = drafts(engine)
    end_at_repetitions(engine, recorded)
    assert drafts(engine)[1] > before[1]
