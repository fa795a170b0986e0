"""Processors that remember: with drafts they are called as they are without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

import recorded_model
from calls import LENGTH, OURS, PROMPT, new
from recorded_model import PAD


class Remembers(LogitsProcessor):
    """Bans the tokens that were the likeliest in its calls before, and keeps the ids that it was called with."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.banned: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        scores = scores.index_fill(1, torch.tensor(self.banned, dtype=torch.int64), -float("inf"))
        self.banned.append(int(scores[0].argmax()))
        return scores


@pytest.mark.parametrize("drafts", ["an assistant", "n-grams"])
def test_a_processor_of_the_caller_is_called_once_for_each_token(recorded: Any, drafts: str) -> None:
    prompt = PROMPT * 3
    assistant = recorded_model.model(
        recorded.rows + torch.randn(recorded.rows.shape, generator=torch.Generator().manual_seed(1)) / 4
    )
    more: dict[str, Any] = (
        {"assistant_model": assistant} if drafts == "an assistant" else {"prompt_lookup_num_tokens": 4}
    )
    plain, drafted = Remembers(), Remembers()
    named = {"seed": 7, "temperature": 0.3, "repetition_penalty": 1.1}
    (text,) = new(recorded, [prompt], logits_processor=[plain], **named)
    assert new(recorded, [prompt], logits_processor=[drafted], **named, **more) == [text]
    assert drafted.seen == plain.seen == [prompt + text[:step] for step in range(len(text))]


def test_edits_of_transformers_own_reach_the_assistant(recorded: Any) -> None:
    # Beside a processor of the caller the bias stays transformers'; without it every draft of the assistant would be another token.
    bias = {100 + id: 60.0 for id in range(8)}
    twin = recorded_model.model(recorded.rows)
    twin.generation_config.assistant_confidence_threshold = 0.0
    named = {"seed": 7, "sequence_bias": [[[id], value] for id, value in bias.items()]}
    recorded.passes = 0
    found = new(recorded, [PROMPT], logits_processor=[Remembers()], assistant_model=twin, **named)
    assert recorded.passes < LENGTH
    assert found == new(recorded, [PROMPT], logits_processor=[Remembers()], **named)


@pytest.fixture(scope="module")
def small() -> Any:
    """A model whose logits depend on the whole text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("do_sample", [False, True])
def test_guidance_is_not_changed_by_drafts(small: Any, do_sample: bool) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8]])
    named = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 48, "guidance_scale": 1.5}
    named |= {"do_sample": do_sample, **OURS} | ({"seed": 7, "temperature": 0.7} if do_sample else {})
    without = small.generate(**named)
    if not do_sample:
        plain = {name: value for name, value in named.items() if name not in OURS}
        assert torch.equal(small.generate(**plain), without)
    assert not torch.equal(small.generate(**(named | {"guidance_scale": 1.0})), without)
    assert torch.equal(small.generate(**named, prompt_lookup_num_tokens=4), without)
    assert torch.equal(small.generate(**named, assistant_model=small), without)
