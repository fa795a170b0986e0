"""`generate`: transformers' own, with every token drawn by Gumball."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode

from gumball.errors import RefusedError
from gumball.params import SamplingParams

from .assisted import assisted
from .calls import stop_strings
from .decoding import Asked, Call, decode
from .generation import SAMPLING, said_by, switched_off
from .heads import head_of
from .params import OUR_NAMES

__all__ = ["generate"]

_LEAVE = "leave it out, or generate without Gumball"

# What drafts by other means than a model of the same tokenizer, or n-grams of the prompt.
_OTHER_DRAFTS = ("use_mtp", "assistant_early_exit", "assistant_ensemble_weight", "speculation_type")


@torch.no_grad()
def generate(
    model: Any,
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    seed: int | Sequence[int] | None = None,
    logprobs: int | None = None,
    logprobs_mode: str = "raw",
    **arguments: Any,
) -> Any:
    """Does what ``model.generate(**arguments)`` does, with every token drawn by Gumball, and returns what it returns.

    params: how tokens are drawn. One for all rows makes them samples of one request, told apart by the draw index; or one for each row. What the
    model's own generation_config says of sampling, edits, beams and drafts does not count then: a token is a function of logits, params and prompt. Edits and processors
    of the call itself, loose or in its generation_config, act before the draw. Without a seed in params one is taken from torch's default generator.

    Without params they are what transformers' own arguments and generation_config say, with these besides: seed, one for the call, whose rows then have draw indices of
    their own, or a list with one for each prompt; without it one is taken from torch's default generator. logprobs: how many of the most likely tokens to
    list with the logprob of each token, at least 0; it needs return_dict_in_generate. logprobs_mode: "raw", "edited", "tempered" or "processed". And the names
    of `gumball_transformers.OUR_NAMES`.

    Under return_dict_in_generate a `GumballOutput` is returned, or a `GumballEncoderDecoderOutput`.

    If `replace_head` put a head into the model, tokens are drawn from hidden states, and the model's logits are not computed.

    Raises RefusedError, a ValueError, for what Gumball has not and for values outside their range; what `generate` raises; and RuntimeError
    for a row without a token above -inf.
    """
    ours = {name: arguments.pop(name, None) for name in OUR_NAMES}
    # A name of ours that is None is not given.
    ours = {name: value for name, value in ours.items() if value is not None}
    if arguments.get("cache_implementation") == "paged":
        raise RefusedError(
            "cache_implementation is 'paged', which is continuous batching: what it asks for tokens is not told whose they are; "
            + _LEAVE
        )
    said = said_by(arguments)
    if said.get("token_healing", getattr(model.generation_config, "token_healing", None)):
        raise RefusedError(f"token_healing is True, which needs a call of generate of its own; {_LEAVE}")
    if arguments.pop("assistant_tokenizer", None) is not None:
        raise RefusedError(f"assistant_tokenizer is given, but drafts must be of the model's own tokenizer; {_LEAVE}")
    if params is not None:
        mode = None if logprobs_mode == "raw" else logprobs_mode
        _refuse_beside_params(arguments | ours | {"seed": seed, "logprobs": logprobs, "logprobs_mode": mode})
        arguments |= switched_off(model.generation_config, said)
    stops = stop_strings(said, model.generation_config, arguments.pop("tokenizer", None))
    if stops:
        arguments["stop_strings"] = None
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or []), *stops])
    head = head_of(model)
    asked = Asked(params, ours, seed, logprobs, logprobs_mode, head)
    assistant_model, streamer = arguments.get("assistant_model"), arguments.get("streamer")
    # transformers hands this to none but its own loops.
    synced = model._extract_generation_mode_kwargs(None, {}, arguments.get("synced_gpus"), None, None)["synced_gpus"]

    def decoding(
        _model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        mode = _mode(generation_config, assistant_model)
        call = Call(
            model, asked, streamer, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
        )
        if mode != GenerationMode.ASSISTED_GENERATION:
            return decode(call, synced)
        if synced:
            raise RefusedError(f"processes must step together (synced_gpus), which does not go with drafts; {_LEAVE}")
        return assisted(call, assistant_model)

    with contextlib.nullcontext() if head is None else head.drawing():
        # The class's own, because an object's may be this function, where the folder lies beside the model's weights.
        return type(model).generate(model, **arguments, custom_generate=decoding)


def _refuse_beside_params(given: Mapping[str, Any]) -> None:
    # To sample is what params do anyway.
    said = {name: value for name, value in given.items() if value is not None and (name != "do_sample" or not value)}
    for name in (*SAMPLING, "do_sample", *OUR_NAMES, "seed", "logprobs", "logprobs_mode"):
        if name in said:
            raise RefusedError(
                f"{name} is {said[name]!r}, but params say how tokens are drawn; set it there, or leave params out"
            )


def _mode(config: Any, assistant_model: Any) -> Any:
    """The way of decoding that a GenerationConfig asks for. Raises RefusedError for one that Gumball has not."""
    if config.num_beams not in (None, 1):
        raise RefusedError(
            f"num_beams is {config.num_beams}, but beams choose between tokens themselves; set it to 1, or generate without Gumball"
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
