"""A request's parameters: what vLLM's `SamplingParams` says, in Gumball's words, or why it cannot be had.

Names of Gumball alone come in vLLM's `extra_args` (`vllm_xargs` of its OpenAI server) under flat names, since that field
holds numbers, strings and lists of them. Other keys there belong to others and are left alone, unless one is a near miss.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from ...params import Dry, DynamicTemperature, LogprobsParams, Mirostat, SamplingParams

__all__ = ["EXTRA_NAMES", "TOP_LIMIT", "RefusedError", "params_of"]

# The largest list of most likely tokens that a pool makes; vLLM's own functions make longer ones.
TOP_LIMIT = 128

# vLLM's modes, and ours. Of the other two vLLM hands out logits.
MODES = {"raw_logprobs": "raw", "processed_logprobs": "processed"}

# vLLM applies min-p before top-k and top-p, so that the mass of top-p excludes what min-p dropped.
MIN_P_FIRST = ("top_n_sigma", "min_p", "top_k", "typical_p", "top_p", "epsilon_cutoff", "eta_cutoff", "xtc")


class RefusedError(ValueError):
    """A request asks for what cannot be given. The text says what to do."""


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list | tuple):
        raise TypeError("must be a list of ids")
    return [_whole(one) for one in value]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        # A form of HTTP has no integers of its own.
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise TypeError("must be a whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    return float(value)


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise TypeError("must be true or false, 1 or 0")
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be text")
    return value


def _order(value: Any) -> str | list[str]:
    names = value.split(",") if isinstance(value, str) else [_text(one) for one in value]
    return (
        names[0] if len(names) == 1 and names[0] in ("default", "joint", "none") else [name.strip() for name in names]
    )


# Of `SamplingParams` itself.
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "typical_p": _number,
    "top_n_sigma": _number,
    "epsilon_cutoff": _number,
    "eta_cutoff": _number,
    "xtc_probability": _number,
    "xtc_threshold": _number,
    "no_repeat_ngram": _whole,
    "repetition_scope": _text,
    "penalty_scope": _text,
    "banned_ids": _ids,
    "order": _order,
    "temperature_last": _flag,
}

# Of its parts: the part, its class, and for each flat name the field and how it is read.
_PARTS: dict[str, tuple[type[Any], dict[str, tuple[str, Callable[[Any], Any]]], dict[str, Any]]] = {
    "dry": (
        Dry,
        {
            "dry_multiplier": ("multiplier", _number),
            "dry_base": ("base", _number),
            "dry_allowed_length": ("allowed_length", _whole),
            "dry_breakers": ("breakers", _ids),
        },
        {},
    ),
    "mirostat": (
        Mirostat,
        {
            "mirostat_tau": ("tau", _number),
            "mirostat_eta": ("eta", _number),
            "mirostat_mu": ("mu", _number),
        },
        {"eta": 0.1},
    ),
    "dynamic_temperature": (
        DynamicTemperature,
        {
            "dynamic_temperature_min": ("min", _number),
            "dynamic_temperature_max": ("max", _number),
            "dynamic_temperature_exponent": ("exponent", _number),
        },
        {},
    ),
}

EXTRA_NAMES = (*_PLAIN, *(name for _, fields, _ in _PARTS.values() for name in fields))
"""The names that `extra_args` may have."""


def params_of(theirs: Any, *, logprobs_mode: str = "raw_logprobs", vocab: int | None = None) -> SamplingParams:
    """Returns a request's parameters.

    theirs: vLLM's `SamplingParams`, as its engine passes them on: verified, with stop ids and words as ids. Its seed counts modulo
    2^64. logprobs_mode: the engine's. vocab: if given, what depends on it is checked too. Without a seed ours has none either.

    A logit bias beside a repetition penalty is left out: vLLM adds it before it divides, so it is for :func:`bias_first`.
    Raises RefusedError for what Gumball has not, for a value outside its range, and for a key of `extra_args` that is nearly one of ours.
    """
    greedy = theirs.temperature < 1e-5
    chosen: dict[str, Any] = {
        "temperature": 0.0 if greedy else theirs.temperature,
        "top_k": 0 if greedy else max(theirs.top_k, 0),
        "top_p": 1.0 if greedy else theirs.top_p,
        "min_p": 0.0 if greedy else theirs.min_p,
        "repetition_penalty": theirs.repetition_penalty,
        "frequency_penalty": theirs.frequency_penalty,
        "presence_penalty": theirs.presence_penalty,
        "allowed_ids": theirs.allowed_token_ids or None,
        "bad_words": theirs.bad_words_token_ids or (),
        "min_tokens": theirs.min_tokens,
        "stop_ids": sorted(theirs.all_stop_token_ids) if theirs.min_tokens else (),
        "seed": None if theirs.seed is None else theirs.seed % 2**64,
        "logprobs": _logprobs(theirs, logprobs_mode),
    }
    if theirs.logit_bias and not bias_first(theirs):
        chosen["logit_bias"] = {int(id): float(bias) for id, bias in theirs.logit_bias.items()}
    chosen |= _extra(theirs.extra_args or {})
    if "order" not in chosen and chosen["min_p"] > 0 and chosen["top_p"] < 1:
        chosen["order"] = MIN_P_FIRST
    try:
        made = SamplingParams(**chosen)
        if vocab is not None:
            made.validate(vocab)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"Gumball refuses the request: {error}") from error
    return made


def bias_first(theirs: Any) -> bool:
    """Whether a request's bias must be added before its penalties, since the two do not commute (vLLM's order)."""
    return bool(theirs.logit_bias) and theirs.repetition_penalty != 1.0


def _logprobs(theirs: Any, logprobs_mode: str) -> LogprobsParams | None:
    """None where no logprobs are asked for, or where vLLM's own functions make them."""
    ids, count = theirs.logprob_token_ids or (), theirs.logprobs
    if (not ids and count is None) or logprobs_mode not in MODES:
        return None
    if ids:
        return LogprobsParams(mode=MODES[logprobs_mode], ids=ids)
    if 0 <= count <= TOP_LIMIT:
        return LogprobsParams(mode=MODES[logprobs_mode], top_n=count)
    if logprobs_mode == "processed_logprobs":
        asked = "all" if count < 0 else count
        raise RefusedError(
            f"logprobs is {asked}, but with --logprobs-mode processed_logprobs Gumball lists at most {TOP_LIMIT}; "
            "ask for fewer, or start the server with raw_logprobs"
        )
    return None


def _extra(given: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if name not in EXTRA_NAMES:
            close = difflib.get_close_matches(name, EXTRA_NAMES, n=1, cutoff=0.85)
            if close:
                raise RefusedError(f"extra_args has {name!r}, which is no parameter; do you mean {close[0]!r}?")
        elif name in _PLAIN:
            chosen[name] = _read(name, value, _PLAIN[name])
    for part, (kind, fields, defaults) in _PARTS.items():
        found = {field: _read(name, given[name], read) for name, (field, read) in fields.items() if name in given}
        if found:
            try:
                chosen[part] = kind(**(defaults | found))
            except TypeError as error:
                missing = [name for name, (field, _) in fields.items() if field not in found | defaults]
                raise RefusedError(f"extra_args has {part} without {' or '.join(missing)}") from error
    return chosen


def _read(name: str, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except TypeError as error:
        raise RefusedError(f"extra_args has {name} = {value!r}, but it {error}") from error
