"""Logprobs after the filters, on recorded logits: those of a `gumball.Sampler`, also where the engine edits the logits first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vllm.exceptions import VLLMValidationError

import gumball
from gumball import LogprobsParams
from recorded_model import row_of
from test_recorded import PROMPT, asked

OPTIONS: dict[str, Any] = {"logprobs_mode": "processed_logprobs", "max_logprobs": -1}


@pytest.mark.parametrize("biased", [False, True])
def test_logprobs_after_the_filters_are_the_samplers(engine: Any, recorded: Any, biased: bool) -> None:
    bias = {100: 25.0, 338: 12.0} if biased else {}
    rows = recorded.copy()
    for id, value in bias.items():
        rows[:, id] += np.float32(value)
    chosen = {"top_p": 0.8, "temperature": 0.7, "repetition_penalty": 1.3}
    (out,) = engine.generate(
        [{"prompt_token_ids": PROMPT}], [asked(chosen | {"logit_bias": bias, "logprobs": 4}, 7)], use_tqdm=False
    )
    params = gumball.SamplingParams(seed=7, logprobs=LogprobsParams(mode="processed", top_n=4), **chosen)
    sampler = gumball.Sampler(params, recorded.shape[1], prompt=PROMPT)
    for token, found in zip(out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True):
        assert sampler.sample(rows[row_of(sampler.history[-1], len(rows))]) == token
        ours = sampler.logprobs
        assert found[token].logprob == ours.token.logprob
        assert all(found[one.id].logprob == one.logprob for one in ours.top if one.id >= 0)
        # Where the filters leave fewer than four, others fill the list.
        assert len(found) in (4, 5) and sum(np.isfinite(one.logprob) for one in found.values()) <= 5


def test_lists_of_all_tokens_are_refused(engine: Any) -> None:
    with pytest.raises(VLLMValidationError, match="at most 128"):
        engine.generate([{"prompt_token_ids": PROMPT}], [asked({"logprobs": -1}, 7)], use_tqdm=False)
