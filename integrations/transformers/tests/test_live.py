"""The real model: a sampler draws its texts from its logits, and where a text differs, the model's own logits differed first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from real_model import PROMPTS
from transformers import AutoModelForCausalLM

import gumball
from calls import OURS

# A count of how often logits differ takes longer texts.
LENGTH = 64 if os.environ.get("GUMBALL_TRANSFORMERS_COUNTS") else 12
ASKED = {
    "do_sample": True,
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 0,
    "max_new_tokens": LENGTH,
    "eos_token_id": None,
}
KEPT = {"return_dict_in_generate": True, "output_logits": True}


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    yield model


def texts(live: Any, tokenizer: Any, prompts: list[str], **named: Any) -> list[list[tuple[int, bytes]]]:
    """For each prompt its new tokens, each with a digest of the logits that it was drawn from."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    out = live.generate(**inputs, **ASKED, **KEPT, **OURS, **named)
    length = inputs.input_ids.shape[1]
    digests = [[hashlib.sha256(row.numpy().tobytes()).digest() for row in step] for step in out.logits]
    rows = out.sequences[:, length:].tolist()
    return [[(token, digests[step][row]) for step, token in enumerate(rows[row])] for row in range(len(rows))]


def test_a_text_is_what_a_sampler_draws_from_the_models_logits(live: Any, tokenizer: Any) -> None:
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    asked = ASKED | {"repetition_penalty": 1.1, "min_p": 0.02}
    out = live.generate(**inputs, **asked, **KEPT, **OURS, seed=7)
    params = gumball.SamplingParams(temperature=0.9, top_p=0.95, min_p=0.02, repetition_penalty=1.1, seed=7)
    sampler = gumball.Sampler(params, out.logits[0].shape[1], prompt=inputs.input_ids[0].tolist())
    for row in out.logits:
        sampler.sample(row[0])
    assert out.sequences[0, inputs.input_ids.shape[1] :].tolist() == sampler.output


def test_each_difference_of_text_follows_one_of_logits(live: Any, tokenizer: Any) -> None:
    seeds = list(range(len(PROMPTS)))
    batched = texts(live, tokenizer, PROMPTS, seed=seeds)
    counts: dict[str, int] = {}
    for row, prompt in enumerate(PROMPTS):
        (alone,) = texts(live, tokenizer, [prompt], seed=row)
        (looked_up,) = texts(live, tokenizer, [prompt], seed=row, prompt_lookup_num_tokens=3)
        for name, others in (("batched", batched[row]), ("with drafts", looked_up)):
            for step, (one, other) in enumerate(zip(alone, others, strict=True)):
                counts[f"rows {name}"] = counts.get(f"rows {name}", 0) + 1
                counts[f"rows that differ {name}"] = counts.get(f"rows that differ {name}", 0) + (one[1] != other[1])
                if one[0] != other[0]:
                    counts[f"texts that differ {name}"] = counts.get(f"texts that differ {name}", 0) + 1
                    assert one[1] != other[1], f"{prompt!r} draws another token at {step} from the same logits, {name}"
                    break
    print(json.dumps(counts))
    if "GUMBALL_TRANSFORMERS_COUNTS" in os.environ:
        Path(os.environ["GUMBALL_TRANSFORMERS_COUNTS"]).write_text(json.dumps(counts))
    assert counts["rows batched"] > LENGTH < counts["rows with drafts"]
