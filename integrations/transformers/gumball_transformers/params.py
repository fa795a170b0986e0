"""What transformers' list of logits processors says, in Gumball's words.

`generate` makes a list of processors from its GenerationConfig, with the caller's among them, and runs it over the scores in turn. Gumball
takes its end over: the filters, the temperature, and the edits before them, as long as each has a counterpart and they stand in a sequence
that Gumball can follow. The first processor from the end without one stays, and so does every one before it; these run before the draw. So
the distribution is transformers' own, whatever the caller puts into the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformers.generation import logits_process as theirs

from gumball.errors import RefusedError
from gumball.flat import FLAT_NAMES, PENALTY_NAMES, flat_params
from gumball.params import FILTERS, SamplingParams

__all__ = ["CALL_NAMES", "LOGPROBS_NAMES", "OUR_NAMES", "refuse_names", "taken"]

# The filters that transformers has, too, each with its processor and the attribute that has its number.
_FILTERS_OF_BOTH: dict[str, tuple[type, str]] = {
    "top_h": (theirs.TopHLogitsWarper, "top_h"),
    "top_k": (theirs.TopKLogitsWarper, "top_k"),
    "top_p": (theirs.TopPLogitsWarper, "top_p"),
    "min_p": (theirs.MinPLogitsWarper, "min_p"),
    "typical_p": (theirs.TypicalLogitsWarper, "mass"),
    "epsilon_cutoff": (theirs.EpsilonLogitsWarper, "epsilon"),
    "eta_cutoff": (theirs.EtaLogitsWarper, "epsilon"),
}

# What transformers has itself, under these or other names.
_THEIRS = {*_FILTERS_OF_BOTH, "no_repeat_ngram", "banned_ids", "bias_first"}

OUR_NAMES = (*(name for name in FLAT_NAMES if name not in _THEIRS), *PENALTY_NAMES)
"""The names of parameters that `generate` of transformers has not."""

LOGPROBS_NAMES = ("logprobs", "logprobs_mode", "logprob_ids")

CALL_NAMES = (*OUR_NAMES, "seed", *LOGPROBS_NAMES)
"""What `generate` takes besides transformers' own parameters, by every door: an argument, a GenerationConfig of the call, and the model's."""

# Parameters of `SamplingParams` that a call says otherwise.
_OTHERWISE = {
    "allowed_ids": "prefix_allowed_tokens_fn",
    "bad_words": "bad_words_ids",
    "banned_ids": "suppress_tokens",
    "bias_first": "sequence_bias, which comes before the penalties,",
    "dry": "dry_multiplier, dry_base, dry_allowed_length, dry_breakers and dry_window",
    "dynamic_temperature": "dynamic_temperature_min and dynamic_temperature_max",
    "logit_bias": "sequence_bias",
    "loops": "loops_close, loops_end and the other names of its parts",
    "min_tokens": "min_new_tokens",
    "mirostat": "mirostat_tau and mirostat_eta",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "section": "section_open, section_close, section_end, section_budget and section_min",
    "stop_ids": "eos_token_id",
    "watermark": "watermark_key, watermark_context, watermark_scope and watermark_window",
}


def refuse_names(said: Mapping[str, Any]) -> None:
    """Raises RefusedError for a parameter of `SamplingParams` under a name that `generate` does not read, which a GenerationConfig would keep unread."""
    for name, otherwise in _OTHERWISE.items():
        if said.get(name) is not None:
            raise RefusedError(f"{name} is for SamplingParams; generate reads {otherwise} instead")


# How the names of edits start: greedy decoding makes use of them, too.
_OF_EDITS = ("frequency_", "presence_", "repetition_", "penalty_", "dry_", "no_repeat_ngram_", "section_", "loops_")

# Names that say how penalties and bans act, and these.
_OF_PENALTIES = {
    "repetition_scope": ("repetition_penalty",),
    "penalty_window": ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    "no_repeat_ngram_scope": ("no_repeat_ngram",),
    "no_repeat_ngram_window": ("no_repeat_ngram",),
    "no_repeat_ngram_exempt_ids": ("no_repeat_ngram",),
}

_Found = dict[str, Any]


class _Prompts(NamedTuple):
    """The length of a batch's prompts with padding, and how much of each is padding."""

    length: int
    padding: Sequence[int]


_Read = Callable[[Any, _Prompts], _Found | None]


def _filter(name: str, value: str) -> _Read:
    """Reads a filter. One that keeps more than a token, or masks by another value than -inf, is not Gumball's."""

    def read(one: Any, _: _Prompts) -> _Found | None:
        if getattr(one, "min_tokens_to_keep", 1) != 1 or one.filter_value != -float("inf"):
            return None
        return {name: float(getattr(one, value)) if name != "top_k" else one.top_k}

    return read


def _stops(one: Any, count: int) -> _Found | None:
    return {"min_tokens": max(count, 0), "stop_ids": sorted(one.eos_token_id.tolist())}


def _repetition(one: Any, prompts: _Prompts) -> _Found | None:
    # From another length on it counts what is neither prompt nor output.
    ignored = one.prompt_ignore_length
    if ignored is not None and not isinstance(ignored, int):
        counts = ignored.tolist() == list(prompts.padding)
    else:
        counts = not ignored
    return {"repetition_penalty": one.penalty} if counts else None


def _bias(one: Any, _: _Prompts) -> _Found | None:
    if any(len(ids) != 1 for ids in one.sequence_bias):
        return None
    return {"logit_bias": {int(ids[0]): float(bias) for ids, bias in one.sequence_bias.items()}}


def _bad_words(one: Any, _: _Prompts) -> _Found | None:
    return {"bad_words": [[int(id) for id in ids] for ids in one.sequence_bias]}


# For each processor its place, lowest first, and how it is read; None says that it has no counterpart. Within a place the list's own
# sequence is kept by `order`, or does not matter.
_EDITS, _BANS, _TEMPERATURE, _FILTERS = range(4)
_KNOWN: dict[type, tuple[int, _Read]] = {
    theirs.SequenceBiasLogitsProcessor: (_EDITS, _bias),
    theirs.RepetitionPenaltyLogitsProcessor: (_EDITS, _repetition),
    theirs.NoRepeatNGramLogitsProcessor: (_BANS, lambda one, _: {"no_repeat_ngram": one.ngram_size}),
    theirs.NoBadWordsLogitsProcessor: (_BANS, _bad_words),
    theirs.MinLengthLogitsProcessor: (_BANS, lambda one, prompts: _stops(one, one.min_length - prompts.length)),
    theirs.MinNewTokensLengthLogitsProcessor: (
        _BANS,
        lambda one, prompts: _stops(one, one.min_new_tokens) if one.prompt_length_to_skip == prompts.length else None,
    ),
    theirs.SuppressTokensLogitsProcessor: (_BANS, lambda one, _: {"banned_ids": one.suppress_tokens.tolist()}),
    theirs.TemperatureLogitsWarper: (_TEMPERATURE, lambda one, _: {"temperature": one.temperature}),
    **{one: (_FILTERS, _filter(name, value)) for name, (one, value) in _FILTERS_OF_BOTH.items()},
}


def taken(
    processors: Sequence[Any],
    *,
    length: int,
    padding: Sequence[int],
    do_sample: bool,
    ours: Mapping[str, Any],
    edits: bool = True,
) -> tuple[SamplingParams, list[Any]]:
    """Returns the parameters of all rows, and the processors that stay: the beginning of the list, to be run before the draw.

    processors: transformers' list. length: that of the prompts, padding included. padding: how much of each prompt that is.
    do_sample: False for greedy decoding, whose list has no filters. ours: parameters under the names of `OUR_NAMES`. edits: whether edits are
    taken over, too. No seed is set.

    Raises RefusedError for a value outside its range, and for parameters that do not go together.
    """
    left, found, prompts = len(processors), _Found(), _Prompts(length, padding)
    order: list[str] = []
    place = _FILTERS
    while left:
        one = processors[left - 1]
        if type(one) is theirs.LogitNormalization:
            # It changes no draw; a caller that returns scores must do it.
            left -= 1
            continue
        where, read = _KNOWN.get(type(one), (None, None))
        if where is None or read is None or where > place or (where < _TEMPERATURE and not edits):
            break
        more = read(one, prompts)
        if more is None or not _joins(found, more):
            break
        order = [name for name in more if name in _FILTERS_OF_BOTH] + order
        place, left = where, left - 1
    chosen = found | flat_params(ours, "generate")
    if not do_sample:
        drawn = [name for name in OUR_NAMES if name in ours and not name.startswith(_OF_EDITS)]
        if drawn:
            raise RefusedError(f"{drawn[0]} is given, but do_sample is False; pass do_sample=True, or leave it out")
        chosen["temperature"] = 0.0
    stays = any(isinstance(one, theirs.RepetitionPenaltyLogitsProcessor) for one in processors[:left])
    for name, penalties in _OF_PENALTIES.items():
        if name in ours and (stays or chosen.keys().isdisjoint(penalties)):
            raise RefusedError(
                f"{name} is given, but there is no {' or '.join(penalties)}, or a processor behind it that Gumball does not know; "
                "leave it out"
            )
    if "mirostat" in chosen and order:
        raise RefusedError(
            f"mirostat_tau stands in place of filters, but {order[0]} is {found[order[0]]}; switch the filters off, "
            "top_k=0 among them, which is 50 where nobody sets it"
        )
    if "order" not in chosen and len(order) > 1:
        others = [name for name in FILTERS if name not in _FILTERS_OF_BOTH]
        chosen["order"] = [others[0], *order, *others[1:]]
    try:
        return SamplingParams(**chosen), list(processors[:left])
    except (TypeError, ValueError) as error:
        raise RefusedError(f"Gumball refuses the request: {error}") from error


def _joins(found: _Found, more: _Found) -> bool:
    """Takes what an earlier processor says over, unless a later one says the same, or what it edits does not commute with it."""
    if "logit_bias" in more and "repetition_penalty" in found:
        # The bias would be added after the penalty.
        return False
    if "min_tokens" in more and found.get("stop_ids") == more["stop_ids"]:
        found["min_tokens"] = max(found["min_tokens"], more["min_tokens"])
        return True
    if any(name in found for name in more):
        return False
    found |= more
    return True
