"""A request's parameters: what vLLM's `SamplingParams` says, in Gumball's words, or why it cannot be had.

Names of Gumball alone come in vLLM's `extra_args` (`vllm_xargs` of its OpenAI server) under flat names, since that field
holds numbers, strings and lists of them. Other keys there belong to others and are left alone, which a warning says once, unless one is a near
miss, or a parameter of vLLM's own, which it would not read there.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from gumball.errors import RefusedError
from gumball.flat import refuse_near_misses, refuse_outside
from gumball.params import FILTERS, LogprobsParams, SamplingParams, Section
from gumball.plugins.marks import SERVER_NAMES, server_params

from . import is_strict

__all__ = ["RETURN_RADII", "TOP_LIMIT", "asks_for_radii", "params_of", "refuse_misplaced", "say_once"]

# The largest list of most likely tokens that a pool makes; vLLM's own functions make longer ones.
TOP_LIMIT = 128

# The most ids that a request of vLLM may name for logprobs.
IDS = 128

RETURN_RADII = "return_radii"
"""The key of `extra_args` by which a client asks for radii."""

# How many requests that left are remembered; those that were preempted come back.
MOST_DEPARTED = 4096

# How many logits processors model runner V2 makes itself, whose work the pool does: bias, penalties, bad words.
BUILT_IN = 3

# What vLLM itself puts into `extra_args`, or reads there.
_VLLMS = ("kv_transfer_params", "ec_transfer_params", "session_id")

# The names of vLLM's processor for DeepSeek-OCR, `NGramPerReqLogitsProcessor`; the first switches it on.
_NGRAMS = ("ngram_size", "window_size", "whitelist_token_ids")

# The most names that are remembered as said: requests may bring any.
_MOST_SAID = 1000

# vLLM's modes, and ours. Of the other two vLLM hands out logits.
MODES = {"raw_logprobs": "raw", "processed_logprobs": "processed"}

# vLLM applies min-p before top-k and top-p, so that the mass of top-p excludes what min-p dropped.
_OTHERS = [name for name in FILTERS if name != "min_p"]
MIN_P_FIRST = (*_OTHERS[: _OTHERS.index("top_k")], "min_p", *_OTHERS[_OTHERS.index("top_k") :])


def params_of(
    theirs: Any, *, logprobs_mode: str = "raw_logprobs", vocab: int | None = None, reasoning: Any = None
) -> SamplingParams:
    """Returns a request's parameters.

    theirs: vLLM's `SamplingParams`, as its engine passes them on: verified, with stop ids and words as ids. Its seed counts modulo
    2^64. logprobs_mode: the engine's. vocab: if given, what depends on it is checked too. reasoning: the engine's `ReasoningConfig`, which has the ids of
    a `thinking_token_budget`. Without a seed ours has none either.

    Raises RefusedError for what Gumball has not, for a value outside its range, and for a key of `extra_args` that is nearly one of ours, or
    vLLM's own.
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
    if theirs.logit_bias:
        # vLLM penalises what the bias left.
        chosen["bias_first"] = True
        chosen["logit_bias"] = {int(id): float(bias) for id, bias in theirs.logit_bias.items()}
    extra = theirs.extra_args or {}
    try:
        refuse_misplaced(extra, theirs)
        if RETURN_RADII in extra:
            chosen["logprobs"] = _with_radii(chosen["logprobs"], theirs)
        chosen |= server_params({name: extra[name] for name in SERVER_NAMES if name in extra}, _SOURCE)
        if vocab is not None:
            refuse_outside(extra, vocab, _SOURCE)
        chosen |= _ngrams(extra)
        if theirs.thinking_token_budget is not None:
            chosen["section"] = _thinking(theirs.thinking_token_budget, chosen.get("section", Section()), reasoning)
        if "order" not in chosen and chosen["min_p"] > 0 and chosen["top_p"] < 1:
            chosen["order"] = MIN_P_FIRST
        made = SamplingParams(**chosen)
        if vocab is not None:
            made.validate(vocab)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"Gumball refuses the request: {error}") from error
    return made


# As programs call it, and as clients of the server do.
_SOURCE = "extra_args (vllm_xargs of the server)"


def refuse_misplaced(extra: Mapping[str, Any], theirs: Any) -> None:
    """Raises RefusedError for a key of `extra_args` that is nearly one of ours, or that is a parameter of vLLM's own, or nearly one where the server is strict.

    theirs: vLLM's `SamplingParams`. Warns, once for each, of other names that neither Gumball nor vLLM knows.
    """
    own = getattr(type(theirs), "__struct_fields__", None) or vars(theirs)
    extra = {name: value for name, value in extra.items() if value is not None}
    for name in extra:
        if name in own:
            raise RefusedError(
                f"{_SOURCE} has {name!r}, which is a parameter of vLLM's own; give it beside, not in there"
            )
    others = {name: value for name, value in extra.items() if name not in (*_NGRAMS, *SERVER_NAMES, RETURN_RADII)}
    refuse_near_misses(others, _SOURCE, peers=True, besides=own if is_strict() else ())
    for name in others:
        if name not in _VLLMS:
            say_once(name, "extra_args of a request: Gumball does not know it, and leaves it to others")


def _ngrams(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for the names of vLLM's processor for DeepSeek-OCR, whether the server has that processor or not."""
    size, window, ids = (extra.get(name) for name in _NGRAMS)
    if size is None:
        return {}
    window = 100 if window is None else window
    own = [name for name in extra if name.startswith("no_repeat_ngram") and extra[name] is not None]
    if own:
        raise RefusedError(f"{_SOURCE} has {own[0]} beside ngram_size; leave one of them out")
    for name, value in (("ngram_size", size), ("window_size", window)):
        if type(value) is not int or value <= 0:
            raise RefusedError(f"{_SOURCE} has {name} = {value!r}, but it must be a whole number above 0")
    return {
        "no_repeat_ngram": size,
        "no_repeat_ngram_scope": "output",
        "no_repeat_ngram_window": window,
        "no_repeat_ngram_exempt_ids": sorted(ids or ()),
    }


def _thinking(budget: int, own: Section, reasoning: Any) -> Section:
    """The section of a request with a `thinking_token_budget`, between the ids of the engine's `ReasoningConfig`. own: what `extra_args` say of one."""
    if reasoning is None or not reasoning.enabled:
        raise RefusedError(
            f"thinking_token_budget is {budget}, but the server has no ids of reasoning; start it with --reasoning-parser or --reasoning-config"
        )
    if own != Section(min=own.min):
        raise RefusedError(
            f"{_SOURCE} has a section of its own beside thinking_token_budget, of which section_min alone may stand there; leave one of them out"
        )
    return Section(
        open=reasoning.reasoning_start_token_ids,
        close=reasoning.natural_reasoning_end_token_ids,
        end=reasoning.reasoning_end_token_ids,
        # No text is as long as the largest budget.
        budget=min(budget, Section().budget),
        min=own.min,
    )


_said: set[str] = set()


def say_once(name: str, what: str) -> None:
    """Warns of a name in requests, the first time that it comes."""
    if name not in _said and len(_said) < _MOST_SAID:
        _said.add(name)
        logging.getLogger("gumball").warning("%r in %s", name[:100], what)


def _with_radii(made: LogprobsParams | None, theirs: Any) -> LogprobsParams | None:
    """Adds radii to a request's logprobs, if it asks for them. Raises RefusedError where there are none of ours, or as flat lists."""
    asks = theirs.extra_args[RETURN_RADII]
    if asks not in (None, False, True):
        raise RefusedError(f"{_SOURCE} has {RETURN_RADII} = {asks!r}, but it must be true or false")
    if not asks:
        return made
    if made is None or theirs.flat_logprobs:
        raise RefusedError(
            f"{_SOURCE} has {RETURN_RADII}, and radii stand beside the tokens' logprobs; ask for logprobs of 0 to {TOP_LIMIT}, of a mode of logprobs and not flat"
        )
    return dataclasses.replace(made, mode=[str(made.mode), "radius"])


def asks_for_radii(params: SamplingParams) -> bool:
    """Whether a request's parameters, in Gumball's words, ask for radii."""
    return params.logprobs is not None and "radius" in params.logprobs.mode


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
