"""`generate` as transformers calls it for a `custom_generate` folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import is_deepspeed_zero3_enabled, is_fsdp_managed_module

from gumball.compat.transformers import OUR_NAMES, RefusedError, stop_strings
from gumball.generation import said_by

from .assisted import assisted
from .decoding import Call, decode

__all__ = ["generate"]

_LEAVE = "leave it out, or leave custom_generate out"

# What drafts by other means than a model of the same tokenizer, or n-grams of the prompt.
_OTHER_DRAFTS = ("use_mtp", "assistant_early_exit", "assistant_ensemble_weight", "speculation_type")


@torch.no_grad()
def generate(
    inputs: torch.Tensor | None = None,
    generation_config: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    prefix_allowed_tokens_fn: Any = None,
    synced_gpus: bool | None = None,
    assistant_model: Any = None,
    streamer: Any = None,
    *,
    model: Any,
    seed: int | Sequence[int] | None = None,
    logprobs: int | None = None,
    logprobs_mode: str = "raw",
    **arguments: Any,
) -> Any:
    """Does what `model.generate` does with these arguments, with every token drawn by Gumball.

    Besides those of `generate` there are: seed, one for the call, whose rows then have draw indices of their own, or a list with one for each
    prompt; without it one is taken from torch's default generator. logprobs: how many of the most likely tokens to list with the logprob of
    each token, at least 0; it needs return_dict_in_generate. logprobs_mode: "raw", "edited", "tempered" or "processed". And the names
    of `gumball.compat.transformers.OUR_NAMES`.

    Returns what `generate` returns; under return_dict_in_generate a `GumballOutput`.

    Raises RefusedError, a ValueError, for what Gumball has not and for values outside their range; what `generate` raises; and RuntimeError
    for a row without a token above -inf.
    """
    ours = {name: arguments.pop(name) for name in OUR_NAMES if name in arguments}
    # A name of ours that is None is not given.
    ours = {name: value for name, value in ours.items() if value is not None}
    if arguments.get("cache_implementation") == "paged":
        raise RefusedError(
            "cache_implementation is 'paged', which is continuous batching: what it asks for tokens is not told whose they are. "
            "Leave it out, or leave custom_generate out"
        )
    if model.config.is_encoder_decoder:
        raise RefusedError("the model has an encoder, which Gumball's loop does not run; leave custom_generate out")
    if synced_gpus or is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model):
        raise RefusedError(
            "the model is spread over processes that must step together (synced_gpus); leave custom_generate out"
        )
    said = said_by(arguments | {"generation_config": generation_config})
    if said.get("token_healing", getattr(model.generation_config, "token_healing", None)):
        raise RefusedError(f"token_healing is True, which needs a call of generate of its own; {_LEAVE}")
    tokenizer = arguments.pop("tokenizer", None)
    if arguments.pop("assistant_tokenizer", None) is not None:
        raise RefusedError(f"assistant_tokenizer is given, but drafts must be of the model's own tokenizer; {_LEAVE}")
    stops = stop_strings(said, model.generation_config, tokenizer)
    if stops:
        arguments["stop_strings"] = None
    call = Call(model, ours, seed, logprobs, logprobs_mode, streamer)

    def decoding(
        _model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        mode = _mode(generation_config, assistant_model)
        call.start(input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        return assisted(call, assistant_model) if mode == GenerationMode.ASSISTED_GENERATION else decode(call)

    # The class's own, because an object's may be this function, where the folder lies beside the model's weights.
    return type(model).generate(
        model,
        inputs,
        generation_config=generation_config,
        logits_processor=logits_processor,
        stopping_criteria=StoppingCriteriaList([*(stopping_criteria or []), *stops]),
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        assistant_model=assistant_model,
        streamer=streamer,
        custom_generate=decoding,
        **arguments,
    )


def _mode(config: Any, assistant_model: Any) -> Any:
    """The way of decoding that a GenerationConfig asks for. Raises RefusedError for one that Gumball has not."""
    if config.num_beams not in (None, 1):
        raise RefusedError(
            f"num_beams is {config.num_beams}, but beams choose between tokens themselves; set it to 1, or leave custom_generate out"
        )
    for name in _OTHER_DRAFTS:
        if getattr(config, name, None):
            raise RefusedError(
                f"{name} is {getattr(config, name)}, which drafts in a way that Gumball does not know; {_LEAVE}"
            )
    mode = config.get_generation_mode(assistant_model)
    known = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION)
    if mode not in known:
        raise RefusedError(
            f"the generation mode is {mode.value}, but Gumball has {', '.join(one.value for one in known)}; {_LEAVE}"
        )
    return mode
