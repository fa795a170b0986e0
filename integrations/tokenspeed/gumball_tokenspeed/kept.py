"""Kept sets, radii and flat logprobs of requests, and the seeds that they drew by, in the answers of TokenSpeed's `Engine`; TokenSpeed has no names for them, so they have ours.

A server with GUMBALL_TOKENSPEED_KEPT=1 tells sets to requests with `return_kept` in `custom_params`, one with GUMBALL_TOKENSPEED_RADII=1 radii to those with `return_radii`. A step writes
them where it has its tokens, sets as bitmasks. Behind the step, and its graph, these are packed as ids, and their first words come to the host with the tokens; nothing waits for
them. Each set goes to the client with its request's last answer, in the smaller form.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumball.errors import RefusedError
from gumball.params import SamplingParams
from gumball.plugins.kept import Guess, PackedKept, lists_of, refuse_edits

from .params import RETURN_KEPT, RETURN_RADII

__all__ = [
    "RADII",
    "SWITCH",
    "Extras",
    "fetched",
    "is_on",
    "note_step",
    "refuse_unless_told",
    "telling",
    "extras_of",
    "unpack",
]

SWITCH = "GUMBALL_TOKENSPEED_KEPT"
"""The environment variable that, where it is 1, makes steps tell kept sets."""

RADII = "GUMBALL_TOKENSPEED_RADII"
"""The environment variable that, where it is 1, makes steps tell radii."""

# By the key in `custom_params`: its word in errors, and the variable that switches it on.
_NAMES = {RETURN_KEPT: ("kept sets", SWITCH), RETURN_RADII: ("radii", RADII)}

# Attributes: a step's extras, on the lengths of its tokens and on each request's state; and the extras of all tokens so far, on the state.
_OF_STEP, _OF_REQUEST = "gumball_step_extras", "gumball_extras"


class Extras(NamedTuple):
    """A step's kept sets and its radii, [rows] float32; None in the place of the sets or the radii if the server does not tell them.

    The sets are bitmasks, [rows, words] int32, while they lie where the tokens do; then a `PackedKept`; and of one request their lengths and words.
    """

    sets: Any
    radii: Any

    def __bool__(self) -> bool:
        return self.sets is not None or self.radii is not None


def is_on(switch: str = SWITCH) -> bool:
    """Whether this server tells kept sets, or radii. Raises ValueError if the variable is neither 0 nor 1."""
    value = os.environ.get(switch, "") or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{switch} is {value!r}, but must be 1, or 0 (the default)")
    return value == "1"


def fetched(
    tokens: torch.Tensor, lengths: torch.Tensor, extras: Extras, guess: Guess
) -> tuple[torch.Tensor, torch.Tensor]:
    """Begins to copy a step's tokens, lengths and extras to the host. The copied lengths have the extras as an attribute. guess: the same for all steps."""

    def copied(part: torch.Tensor) -> torch.Tensor:
        return part.to("cpu", non_blocking=True, copy=True)

    (sets, radii), count, on_host = extras, tokens.numel(), copied(lengths)
    sets = None if sets is None else PackedKept.of(sets[:count], guess).to_host()
    setattr(on_host, _OF_STEP, Extras(sets, None if radii is None else copied(radii[:count])))
    return copied(tokens), on_host


def extras_of(lengths: torch.Tensor) -> Extras:
    """Returns the extras that came with a step's lengths."""
    found: Extras = getattr(lengths, _OF_STEP, Extras(None, None))
    return found


def _asks(params: Any, name: str) -> bool:
    return bool((params.custom_params or {}).get(name))


def _asks_any(params: Any) -> bool:
    return any(_asks(params, name) for name in _NAMES)


def refuse_unless_told(params: Any, ours: SamplingParams) -> None:
    """Raises RefusedError for a request that asks for what its server does not tell, or for kept sets of logits that a set does not tell."""
    for name, (what, switch) in _NAMES.items():
        value = (params.custom_params or {}).get(name)
        if value not in (None, False, True):
            raise RefusedError(f"custom_params has {name} = {value!r}, but it must be true or false")
        if value and not is_on(switch):
            raise RefusedError(f"custom_params has {name}, but the server tells no {what}; start it with {switch}=1")
    if _asks(params, RETURN_KEPT):
        refuse_edits(ours, f"ask without {RETURN_KEPT}", repeatable=True)


def note_step(processor: Any, step: Any, results: Any) -> None:
    """Hands a step's extras to the states of its requests. processor: TokenSpeed's `OutputProcesser`, before it reads the tokens."""
    extras = extras_of(results.output_lengths)
    if not extras:
        return
    (sets, radii), asking = extras, list[tuple[Any, NDArray[np.int64]]]()
    at, extends = 0, step.num_extends()
    for i, (name, count) in enumerate(zip(step.request_ids, results.output_lengths.tolist(), strict=True)):
        state = processor.rid_to_state.get(name)
        if state is not None and _asks_any(state.sampling_params):
            rows = np.arange(at, at + count)
            setattr(state, _OF_STEP, Extras(None, None if radii is None else radii.numpy()[rows]))
            if _asks(state.sampling_params, RETURN_KEPT):
                asking.append((state, rows))
        at += count if processor.spec_num_tokens is None or i < extends else processor.spec_num_tokens
    if sets is None or not asking:
        return
    lengths, ids = sets.packed(np.concatenate([rows for _, rows in asking]))
    ends, at = np.cumsum([0, *lengths]), 0
    for state, rows in asking:
        part, at = slice(at, at + len(rows)), at + len(rows)
        own = lengths[part], ids[ends[part.start] : ends[part.stop]]
        setattr(state, _OF_STEP, getattr(state, _OF_STEP)._replace(sets=own))


def _unknown(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the extras of unknown tokens: empty sets, packed, and radii of NaN."""
    return np.zeros(count, np.int64), np.zeros(0, np.int32), np.full(count, np.nan, np.float32)


def _settled(state: Any) -> list[np.ndarray]:
    """Takes over the last step's extras of a request. Returns the sets, packed, and the radii of all its tokens."""
    parts = state.__dict__.setdefault(_OF_REQUEST, [_unknown(0)])
    step = state.__dict__.pop(_OF_STEP, Extras(None, None))
    new = len(state.output_ids) - sum(len(lengths) for lengths, *_ in parts)
    sets, radii_told = step
    told = min([new, *(len(part) for part in (sets and sets[0], radii_told) if part is not None)]) if step else 0
    if new > told:
        # Of tokens that another instance drew nothing is known.
        parts.append(_unknown(new - told))
    if told:
        lengths, ids, radii = _unknown(told)
        if sets is not None:
            lengths, ids = sets[0][:told], sets[1][: sets[0][:told].sum()]
        parts.append((lengths, ids, radii if radii_told is None else radii_told[:told]))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


class _Sender:
    """TokenSpeed's socket to clients, for one batch of outputs, in whose extra parts it puts seeds, logprobs, sets and radii."""

    def __init__(self, sender: Any, states: dict[str, Any]) -> None:
        self._sender, self._states = sender, states

    def send_pyobj(self, batch: Any) -> Any:
        """Sends a batch."""
        for name, info, reason in zip(batch.rids, batch.output_extra_infos, batch.finished_reasons, strict=True):
            state = self._states[name]
            info["seed_used"] = state.sampling_params.seed % 2**64
            if reason is not None and state.output_token_logprobs_val is not None:
                # Another instance that drew the first token may not have sent its logprob.
                told = state.output_token_logprobs_val
                info["logprobs"] = [math.nan] * (len(state.output_ids) - len(told)) + told
            if reason is not None and _asks_any(state.sampling_params):
                lengths, ids, radii = _settled(state)
                parts = {RETURN_KEPT: ("kept", (lengths, ids)), RETURN_RADII: ("radii", radii)}
                info |= dict(part for name, part in parts.items() if _asks(state.sampling_params, name))
        return self._sender.send_pyobj(batch)


def telling(original: Callable[..., Any], processor: Any, names: list[str], states: list[Any]) -> Any:
    """Calls TokenSpeed's method that sends outputs, which then have seeds, and with a request's last token its logprobs, sets and radii."""
    for state in states:
        if _asks_any(state.sampling_params):
            _settled(state)
    sender = processor.send_to_tokenizer
    processor.send_to_tokenizer = _Sender(sender, dict(zip(names, states, strict=True)))
    try:
        return original(processor, names, states)
    finally:
        processor.send_to_tokenizer = sender


def unpack(batch: Any) -> None:
    """Makes lists of the sets and radii in a batch of outputs, in the client's process."""
    for info in getattr(batch, "output_extra_infos", None) or ():
        if "kept" in info:
            info["kept"] = lists_of(*info["kept"])
        if "radii" in info:
            info["radii"] = info["radii"].tolist()
