"""Of texts with and without vLLM's watermark `gumball.detect` gives the p-values of vLLM's own detector."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from vllm.v1.watermarking.gumbel import GumbelWatermarkDetector, GumbelWatermarker

import gumball
from gumball import Watermark

KEY = 0x0123456789ABCDEF


@pytest.mark.parametrize("context", [1, 4, 5])
def test_p_values_are_those_of_vllms_detector(context: int) -> None:
    gumball.add_watermark_keys(f"90 {KEY:#x}")
    theirs, marker = GumbelWatermarkDetector(KEY, context), GumbelWatermarker(KEY, context)
    words = np.random.default_rng(context)
    texts = [words.integers(most, size=words.integers(150)).tolist() for most in (20, 151936) * 50]
    for most in (20, 1000):
        marked: list[int] = []
        for _ in range(60):
            before = ([-1] * context + marked)[-context:]
            logits = torch.from_numpy(words.normal(size=(1, most)).astype(np.float32))
            marked.append(int(marker.sample(logits, torch.tensor([before])).token_ids))
        texts.append(marked)
    for ids in texts:
        wanted = theirs.detect(ids)
        found = gumball.detect(ids, Watermark(key=90, context=context), scheme="vllm")
        assert (found.tokens, found.tokens + found.skipped) == (wanted.num_scored_tokens, len(ids))
        assert math.isclose(found.p_value, wanted.p_value, rel_tol=1e-9)
    assert found.p_value < 1e-20
