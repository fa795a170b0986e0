"""Kept sets of requests, and the seeds that they drew by, in the answers of TokenSpeed's `Engine`; TokenSpeed has no name for them, so they have ours.

A server with GUMBALL_TOKENSPEED_KEPT=1 tells them to requests with `return_kept` in `custom_params`. A step writes its sets where it has its tokens, as bitmasks; they come to the
host with the tokens, and go to the client with a request's last answer, each in the smaller form. Nothing waits for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gumball.errors import RefusedError
from gumball.params import SamplingParams
from gumball.plugins.kept import lists_of, packed, refuse_edits

from .params import RETURN_KEPT

__all__ = ["SWITCH", "fetched", "is_on", "note_step", "refuse_unless_told", "sets_of", "telling", "unpack", "words_of"]

SWITCH = "GUMBALL_TOKENSPEED_KEPT"
"""The environment variable that, where it is 1, makes steps tell kept sets."""

# What the lengths of a step's tokens have on the host, and what a request's state has: the sets of the last step, and those of its tokens.
_OF_STEP, _OF_REQUEST = "gumball_step_kept", "gumball_kept"


def is_on() -> bool:
    """Whether this server tells kept sets. Raises ValueError if the variable is neither 0 nor 1."""
    value = os.environ.get(SWITCH, "") or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{SWITCH} is {value!r}, but must be 1, or 0 (the default) for no kept sets")
    return value == "1"


def words_of(lists: Sequence[Any], width: int) -> torch.Tensor:
    """Returns sets of ids as bitmasks, [rows, width] int32."""
    bits = np.zeros((len(lists), 32 * width), np.uint8)
    for row, ids in zip(bits, lists, strict=True):
        row[ids] = 1
    return torch.from_numpy(np.packbits(bits, 1, "little").view("<i4"))


def fetched(tokens: torch.Tensor, lengths: torch.Tensor, sets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Begins to copy a step's tokens and their numbers to the host, and the sets of these tokens, which the numbers have then."""
    on_host = [part.to("cpu", non_blocking=True, copy=True) for part in (tokens, lengths, sets[: tokens.numel()])]
    setattr(on_host[1], _OF_STEP, on_host[2])
    return on_host[0], on_host[1]


def sets_of(lengths: torch.Tensor) -> torch.Tensor | None:
    """The sets that came with a step's numbers of tokens, as bitmasks; None for none."""
    found: torch.Tensor | None = getattr(lengths, _OF_STEP, None)
    return found


def _asks(params: Any) -> bool:
    return bool((params.custom_params or {}).get(RETURN_KEPT))


def refuse_unless_told(params: Any, ours: SamplingParams) -> None:
    """Raises RefusedError for a request that asks for kept sets of a server that tells none, or of logits that a set does not tell."""
    value = (params.custom_params or {}).get(RETURN_KEPT)
    if value not in (None, False, True):
        raise RefusedError(f"custom_params has {RETURN_KEPT} = {value!r}, but it must be true or false")
    if _asks(params):
        if not is_on():
            raise RefusedError(
                f"custom_params has {RETURN_KEPT}, but the server tells no kept sets; start it with {SWITCH}=1"
            )
        refuse_edits(ours, f"ask without {RETURN_KEPT}", repeatable=True)


def note_step(processor: Any, step: Any, results: Any) -> None:
    """Hands the states of a step's requests the sets of its tokens. processor: TokenSpeed's `OutputProcesser`, before it reads the tokens."""
    sets = sets_of(results.output_lengths)
    if sets is None:
        return
    words, at, extends = sets.numpy(), 0, step.num_extends()
    for i, (name, count) in enumerate(zip(step.request_ids, results.output_lengths.tolist(), strict=True)):
        state = processor.rid_to_state.get(name)
        if state is not None and _asks(state.sampling_params):
            setattr(state, _OF_STEP, words[at : at + count])
        at += count if processor.spec_num_tokens is None or i < extends else processor.spec_num_tokens


def _settled(state: Any) -> tuple[np.ndarray, np.ndarray]:
    """Takes over the sets of the tokens that a request got by the last step, and returns all of its sets, packed."""
    parts = state.__dict__.setdefault(_OF_REQUEST, [])
    step = state.__dict__.pop(_OF_STEP, None)
    known = sum(len(lengths) for lengths, _ in parts)
    new = len(state.output_ids) - known
    told = 0 if step is None else min(new, len(step))
    if new > told:
        # Of tokens that another instance drew nothing is known.
        parts.append((np.zeros(new - told, np.int64), np.zeros(0, np.int32)))
    if told:
        parts.append(packed(step[:told]))
    lengths, ids = zip(*parts, strict=True) if parts else ((), ())
    return np.concatenate([np.zeros(0, np.int64), *lengths]), np.concatenate([np.zeros(0, np.int32), *ids])


class _Sender:
    """TokenSpeed's socket to clients, for one batch of outputs, in whose extra parts it puts seeds and sets."""

    def __init__(self, sender: Any, states: dict[str, Any]) -> None:
        self._sender, self._states = sender, states

    def send_pyobj(self, batch: Any) -> Any:
        """Sends a batch."""
        for name, info, reason in zip(batch.rids, batch.output_extra_infos, batch.finished_reasons, strict=True):
            state = self._states[name]
            info["seed_used"] = state.sampling_params.seed % 2**64
            if reason is not None and _asks(state.sampling_params):
                info["kept"] = _settled(state)
        return self._sender.send_pyobj(batch)


def telling(original: Callable[..., Any], processor: Any, names: list[str], states: list[Any]) -> Any:
    """Calls TokenSpeed's method that sends outputs, which then have seeds, and with a request's last token its sets."""
    for state in states:
        if _asks(state.sampling_params):
            _settled(state)
    sender = processor.send_to_tokenizer
    processor.send_to_tokenizer = _Sender(sender, dict(zip(names, states, strict=True)))
    try:
        return original(processor, names, states)
    finally:
        processor.send_to_tokenizer = sender


def unpack(batch: Any) -> None:
    """Makes lists of the sets in a batch of outputs, where it comes to the client."""
    for info in getattr(batch, "output_extra_infos", None) or ():
        if "kept" in info:
            info["kept"] = lists_of(*info["kept"])
