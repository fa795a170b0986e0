"""`generate`: transformers' own, with every token drawn by Gumball."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode

from gumball.errors import InvalidTypeError, RefusedError
from gumball.params import SamplingParams

from .assisted import assisted
from .calls import stop_strings
from .decoding import Asked, Call, decode
from .generation import SAMPLING, configs_of, has_own_generate, said_by, switched_off
from .heads import held_head
from .params import CALL_NAMES, refuse_names

__all__ = ["from_folder", "generate"]

_LEAVE = "leave it out, or generate without Gumball"

# What drafts by other means than a model of the same tokenizer, or n-grams of the prompt.
_OTHER_DRAFTS = ("use_mtp", "assistant_early_exit", "assistant_ensemble_weight", "speculation_type")


@torch.no_grad()
def generate(model: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, **arguments: Any) -> Any:
    """Does what ``model.generate(**arguments)`` does, with every token drawn by Gumball, and returns what it returns.

    params: how tokens are drawn. One for all rows makes them samples of one request, told apart by the draw index; or one for each row. What the
    model's own generation_config says of sampling, edits, beams and drafts does not count then: a token is a function of logits, params and prompt. Edits and processors
    of the call itself, loose or in its generation_config, act before the draw. Without a seed in params one is taken from torch's default generator.

    Without params they are what transformers' own arguments and generation_config say, with these besides, as arguments or in a generation_config of the call or
    the model; an argument that is None switches off what those say. seed: one for the call, whose rows then have draw indices of
    their own, or a list with one for each prompt; without it one is taken from torch's default generator. logprobs: how many of the most likely tokens to
    list with the logprob of each token, at least 0. logprob_ids: ids whose logprobs to list besides. Both need return_dict_in_generate. logprobs_mode: "raw", which it is if absent,
    "edited", "tempered" or "processed", or two of them: `second_logprobs` has the tokens' in the second. And the names of `gumball_transformers.OUR_NAMES`.

    A class whose `generate` decodes several times in one call, as Whisper's does for each window and each fallback, has seeds of its own for each
    decoding but the first: `gumball.prompt_seed(seed, 0, n)` for the n-th behind it.

    Under return_dict_in_generate a `GumballOutput` is returned, or a `GumballEncoderDecoderOutput`.

    If `replace_head` put a head into the model, tokens are drawn from hidden states, and the model's logits are not computed.

    Raises RefusedError, a ValueError, for what Gumball has not, for values outside their range, and for a class whose `generate` has a loop of its own; InvalidTypeError, a
    TypeError, for another object in the place of model or params; what `generate` raises; and RuntimeError for a row without a token above -inf.
    """
    # The class's own, because an object's may be this function, where the folder lies beside the model's weights.
    return _drawing(model, params, arguments, getattr(type(model), "generate", None))


def from_folder(model: Any, function: Any, **arguments: Any) -> Any:
    """What `custom_generate/generate.py` calls. function: its own, which is the object's `generate` if the folder lies beside the model's weights.

    Otherwise transformers' `generate` has called it, from that of the model's class if there is one, which has prepared the arguments.
    """
    if getattr(vars(model).get("generate"), "func", None) is function:
        if arguments.pop("custom_generate", None) is not None:
            raise RefusedError("custom_generate is given, but the model's generate is Gumball's already; leave it out")
        arguments.pop("trust_remote_code", None)
        return generate(model, **arguments)
    if has_own_generate(model) and _said("seed", arguments, model.generation_config) is not None:
        raise RefusedError(
            f"seed is given, but the generate of {type(model).__name__} may decode several times, and would call this with one seed each time; "
            "write gumball_transformers.generate(model, seed=.., ..) instead of custom_generate"
        )
    return _drawing(model, None, arguments, GenerationMixin.generate)


def _said(name: str, arguments: Mapping[str, Any], config: Any) -> Any:
    """What a call says of a name: its argument, or what its generation_config has, or the model's."""
    if name in arguments:
        return arguments[name]
    of_call = getattr(arguments.get("generation_config"), name, None)
    return getattr(config, name, None) if of_call is None else of_call


def _drawing(model: Any, params: Any, arguments: dict[str, Any], generate: Any) -> Any:
    """Calls transformers' `generate`, or the `generate` of the model's class, with the loop of this package."""
    _check_types(model, params, arguments, generate)
    ours = {name: arguments.pop(name) for name in CALL_NAMES if name in arguments}
    if arguments.get("cache_implementation") == "paged":
        raise RefusedError(
            "cache_implementation is 'paged', which is continuous batching: what it asks for tokens is not told whose they are; "
            + _LEAVE
        )
    said, configs = said_by(arguments), configs_of(model)
    refuse_names(said)
    if said.get("token_healing", any(getattr(one, "token_healing", None) for one in configs)):
        raise RefusedError(f"token_healing is True, which needs a call of generate of its own; {_LEAVE}")
    if arguments.pop("assistant_tokenizer", None) is not None:
        raise RefusedError(f"assistant_tokenizer is given, but drafts must be of the model's own tokenizer; {_LEAVE}")
    if params is not None:
        _refuse_beside_params(arguments | ours)
        arguments |= switched_off(configs, said)
    stops = stop_strings(said, model.generation_config, arguments.pop("tokenizer", None))
    if stops:
        arguments["stop_strings"] = None
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or []), *stops])
    assistant_model, streamer = arguments.get("assistant_model"), arguments.get("streamer")
    # transformers hands this to none but its own loops.
    synced = model._extract_generation_mode_kwargs(None, {}, arguments.get("synced_gpus"), None, None)["synced_gpus"]
    decodings = 0

    def decoding(
        part: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        # `part` is the model, or a part of it whose `generate` the model's own calls.
        nonlocal decodings
        if type(part)._sample is not GenerationMixin._sample:
            raise RefusedError(f"{type(part).__name__} has a loop of its own, which Gumball does not know; {_LEAVE}")
        mode = _mode(generation_config, assistant_model)
        if params is None:
            refuse_names(vars(generation_config))
            named = {name: _said(name, ours, generation_config) for name in CALL_NAMES}
            named = {name: value for name, value in named.items() if value is not None}
        with held_head(part) as head:
            asked = Asked(params, {} if params is not None else named, decodings, head)
            decodings += 1
            call = Call(
                part, asked, streamer, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
            )
            if mode != GenerationMode.ASSISTED_GENERATION:
                return decode(call, synced)
            if synced:
                raise RefusedError(
                    f"processes must step together (synced_gpus), which does not go with drafts; {_LEAVE}"
                )
            return assisted(call, assistant_model)

    found = generate(model, **arguments, custom_generate=decoding)
    if not decodings:
        raise RefusedError(
            f"the generate of {type(model).__name__} has drawn its tokens by itself, as it knows no custom_generate; {_LEAVE}"
        )
    return found


def _check_types(model: Any, params: Any, arguments: Mapping[str, Any], generate: Any) -> None:
    if not callable(generate) or not hasattr(model, "generation_config"):
        raise InvalidTypeError(f"model must be a model of transformers with a generate, not {type(model).__name__}")
    taken = inspect.signature(generate).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD or one.name == "custom_generate" for one in taken):
        raise RefusedError(
            f"the generate of {type(model).__name__} has a loop of its own, which Gumball does not know; {_LEAVE}"
        )
    if params is None or isinstance(params, SamplingParams):
        return
    if isinstance(params, list | tuple):
        for place, one in enumerate(params):
            if not isinstance(one, SamplingParams):
                raise InvalidTypeError(f"params[{place}] must be a SamplingParams, not {type(one).__name__}")
        return
    hint = ""
    if isinstance(params, GenerationConfig):
        hint = "; pass it as generation_config="
    elif isinstance(params, Mapping):
        hint = "; write **params for the arguments of generate, or SamplingParams(**params)"
    elif hasattr(params, "shape"):
        hint = "; pass the prompt as inputs= or input_ids="
    raise InvalidTypeError(f"params must be a SamplingParams or a list of them, not {type(params).__name__}{hint}")


def _refuse_beside_params(given: Mapping[str, Any]) -> None:
    # To sample is what params do anyway.
    said = {name: value for name, value in given.items() if value is not None and (name != "do_sample" or not value)}
    for name in (*SAMPLING, "do_sample", *CALL_NAMES):
        if name in said:
            raise RefusedError(
                f"{name} is given, but params say how tokens are drawn; set it there, or leave params out"
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
