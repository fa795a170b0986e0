"""Reads the arguments that transformers' `generate` hands to a loop that is not its own, and makes the stop strings, which it drops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from gumball.errors import CallError, InvalidValueError

__all__ = ["CACHE", "no_token", "prompts_of", "stop_strings"]

CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)}
)
"""The name of the model's cache among the arguments and the outputs of a model, and in what `generate` returns: `cache` from release 5.24 on."""


def prompts_of(ids: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]]:
    """Returns the prompts without padding.

    ids: [rows, length]. mask: the attention mask that transformers has prepared, which begins before the ids where a cache or embeddings
    stand for what came before; None where nothing is padding.
    """
    if mask is None or not ids.shape[1]:
        return [list(row) for row in ids.tolist()]
    mask = mask[:, -ids.shape[1] :].to(ids.device).bool()
    return [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]


def stop_strings(said: Mapping[str, Any], config: Any, tokenizer: Any) -> list[Any]:
    """Returns the criterion for stop strings, which transformers cannot make for a loop of another's, as it drops the tokenizer.

    said: what the call says. config: the model's GenerationConfig. Raises ValueError for stop strings without a tokenizer.
    """
    strings = said.get("stop_strings") or getattr(config, "stop_strings", None)
    if not strings:
        return []
    if tokenizer is None:
        raise InvalidValueError("stop_strings are given without a tokenizer; pass tokenizer= too")
    return [StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)]


def no_token(row: int, length: int) -> CallError:
    """The error for a row of which no token is above -inf."""
    return CallError(
        f"row {row} has no token above -inf behind {length} tokens: processors or bans left none, or the logits are NaN"
    )
