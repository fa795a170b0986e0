"""Functions that the tests of the real `generate` share: calls, and the draws of a sampler of Gumball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import gumball
from gumball import Dry, DynamicTemperature, Mirostat, Section
from gumball_transformers import FOLDER, OUR_NAMES
from recorded_model import EOS, PAD, row_of

PROMPT, LENGTH = [1, 4093, 338, 264, 1123], 24
OURS = {"custom_generate": FOLDER, "trust_remote_code": True}
# Off where a test does not say otherwise; top_k would be 50.
DRAWS = {"do_sample": True, "top_k": 0, "max_new_tokens": LENGTH}

# Filters that transformers has not, each at a value.
OUR_FILTERS = {
    name: getattr(gumball.SamplingParams(), name) is False or 0.5 for name in gumball.FILTERS if name in OUR_NAMES
}

# The arguments of a call of generate, and the parameters here. It ends by EOS only where one is named.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "greedy": ({"do_sample": False}, {"temperature": 0}),
    "the default top-k": ({"top_k": None}, {"top_k": 50}),
    "top-k, top-p": ({"temperature": 0.8, "top_k": 50, "top_p": 0.9}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9}),
    "filters in their order": (
        {"top_k": 60, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.8, "epsilon_cutoff": 3e-3, "eta_cutoff": 2e-3},
        {"top_k": 60, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.8, "epsilon_cutoff": 3e-3, "eta_cutoff": 2e-3}
        | {"order": ["top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"]},
    ),
    "what transformers reads as off": (
        {"top_p": 50.0, "typical_p": 1.5, "epsilon_cutoff": 2.0, "eta_cutoff": -1.0}
        | {"no_repeat_ngram_size": -2, "min_new_tokens": -3, "min_length": -3},
        {},
    ),
    "top-H": ({"top_h": 0.4}, {"top_h": 0.4}),
    "top-H before top-k": (
        {"top_h": 0.9, "top_k": 9, "temperature": 1.5},
        {"top_h": 0.9, "top_k": 9, "temperature": 1.5},
    ),
    "repetition penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "greedy with edits": (
        {"do_sample": False, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
        {"temperature": 0, "repetition_penalty": 1.2, "no_repeat_ngram": 2},
    ),
    "bad words": (
        {"bad_words_ids": [[28], [284, 253], [1123, 28]], "temperature": 0.4},
        {"bad_words": [[28], [284, 253], [1123, 28]], "temperature": 0.4},
    ),
    "suppressed": ({"suppress_tokens": [28, 30, 253]}, {"banned_ids": [28, 30, 253]}),
    "bias": ({"sequence_bias": [[[100], 9.0], [[7], -100.0]]}, {"logit_bias": {100: 9.0, 7: -100.0}}),
    "min new tokens": (
        {"min_new_tokens": 12, "sequence_bias": [[[EOS], 20.0]], "eos_token_id": EOS},
        {"min_tokens": 12, "logit_bias": {EOS: 20.0}, "stop_ids": [EOS]},
    ),
    "min length": (
        {"min_length": 12, "sequence_bias": [[[EOS], 20.0]], "eos_token_id": EOS},
        {"min_tokens": 12 - len(PROMPT), "logit_bias": {EOS: 20.0}, "stop_ids": [EOS]},
    ),
    "several ends": (
        {"min_new_tokens": 9, "sequence_bias": [[[EOS], 20.0], [[5], 20.0]], "eos_token_id": [5, EOS]},
        {"min_tokens": 9, "logit_bias": {EOS: 20.0, 5: 20.0}, "stop_ids": [EOS, 5]},
    ),
    "dry": (
        {"temperature": 0.5, "dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_breakers": [28]},
        {"temperature": 0.5, "dry": Dry(2.0, allowed_length=1, breakers=(28,))},
    ),
    "a section": (
        {"section_open": [28], "section_close": [30], "section_end": [588, 30], "section_budget": 3},
        {"section": Section(open=[28], close=[30], end=[588, 30], budget=3)},
    ),
    "a greedy section": (
        {"do_sample": False, "section_close": [28, 30], "section_budget": 9, "sequence_bias": [[[30], 9.0]]}
        | {"section_min": 5},
        {"temperature": 0, "section": Section(close=[28, 30], budget=9, min=5), "logit_bias": {30: 9.0}},
    ),
    "xtc": ({"xtc_probability": 0.7, "xtc_threshold": 0.05}, {"xtc_probability": 0.7, "xtc_threshold": 0.05}),
    "xtc behind top-p and min-p": (
        {"xtc_probability": 0.7, "top_p": 0.9, "min_p": 0.01},
        {"xtc_probability": 0.7, "top_p": 0.9, "min_p": 0.01},
    ),
    "mirostat": ({"mirostat_tau": 3.0}, {"mirostat": Mirostat(3.0, 0.1)}),
    "other penalties": (
        {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2, "repetition_scope": "output"},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2, "repetition_scope": "output"},
    ),
    "dynamic temperature": (
        {"dynamic_temperature_min": 0.3, "dynamic_temperature_max": 1.5},
        {"dynamic_temperature": DynamicTemperature(0.3, 1.5)},
    ),
    **{name: ({name: value}, {name: value}) for name, value in OUR_FILTERS.items()},
    "an order of ours": (
        {"top_p": 0.8, "min_p": 0.1, "order": "min_p,top_p", "temperature": 1.7, "temperature_last": True},
        {"top_p": 0.8, "min_p": 0.1, "order": ["min_p", "top_p"], "temperature": 1.7, "temperature_last": True},
    ),
}


def generate(model: Any, prompts: Sequence[Sequence[int]], **named: Any) -> Any:
    """Calls the real `generate` with Gumball, for prompts that are padded on the left. A text ends by EOS only where one is named."""
    chosen = DRAWS | {"eos_token_id": None} | OURS | named
    chosen = {name: value for name, value in chosen.items() if value is not None or name == "eos_token_id"}
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    ends, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
    try:
        return model.generate(input_ids=ids, attention_mask=mask, **chosen)
    finally:
        model.generation_config.eos_token_id = ends


def new(model: Any, prompts: Sequence[Sequence[int]], **named: Any) -> list[list[int]]:
    """The new tokens of each row, without padding after its end."""
    out = generate(model, prompts, **named)
    out = out if isinstance(out, torch.Tensor) else out.sequences
    stops = named.get("eos_token_id")
    stops = [] if stops is None else [stops] if isinstance(stops, int) else stops
    rows = out[:, max(map(len, prompts)) :].tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in stops), len(row))] for row in rows]


def alone(
    rows: torch.Tensor, prompt: Sequence[int], length: int, *, stops: Any = None, draw: int = 0, **params: Any
) -> list[int]:
    """The tokens that a sampler of Gumball draws, each from the row after its own tokens."""
    stops = [] if stops is None else [stops] if isinstance(stops, int) else stops
    sampler = gumball.Sampler(gumball.SamplingParams(**params), rows.shape[1], prompt=list(prompt), draw=draw)
    while len(sampler.output) < length and (not sampler.output or sampler.output[-1] not in stops):
        sampler.sample(rows[row_of(sampler.history[-1], len(rows))])
    return sampler.output
