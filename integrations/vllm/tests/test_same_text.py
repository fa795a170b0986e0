"""The example that gets the text of each request alone out of batches, over an engine whose logits differ from batch to batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

import recorded_model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import same_text

COUNT, LENGTH = 12, 24


@pytest.mark.parametrize("setting", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}])
def test_texts_are_those_of_requests_alone(engine: Any, setting: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(recorded_model, "NOISE", 0.3)
    prompts = [[1, 4093, 338, 50 + number] for number in range(COUNT)]
    asked: dict[str, Any] = {"logprobs": 0, "max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}
    params = [SamplingParams(seed=seed, extra_args=same_text.RADII, **asked, **setting) for seed in range(COUNT)]
    alone = [list(same_text.generate(engine, [prompts[i]], [params[i]])[0].token_ids) for i in range(COUNT)]
    batch = [list(out.token_ids) for out in same_text.generate(engine, prompts, params)]
    assert batch != alone
    texts, again = same_text.same_texts(engine, prompts, params, 0.3001)
    assert texts == alone and 0 < again < COUNT * LENGTH / 2
    assert 0.1 < same_text.noise_of(engine, prompts, 4) <= 0.3001
