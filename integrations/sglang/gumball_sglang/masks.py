"""Sampling masks of SGLang (`return_sampling_mask`, `sampling_logprobs_mode`): the tokens that the filters of Gumball's draw keep, and logprobs over them.

Masks are packed as ids on the device; a step copies their first words beside its tokens, for which nothing waits, and the scheduler hands each to the server as the smaller of a list
and a bitmask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import SamplingMaskOutput, SamplingMaskStatus
from sglang.srt.runtime_context import get_exec, get_spec

from gumball import operators
from gumball.plugins import kept
from gumball.torch import logprobs

from .draws import filters
from .penalties import penalties_of

__all__ = ["any_top_k", "masks_of", "read", "refuse_edits", "unpacked"]

# The most ids that `gumball.torch.logprobs` takes of a row at once.
_AT_ONCE = 1024


def refuse_edits(manager: Any, request: Any, *_: Any) -> None:
    """Refuses a request for a mask that has penalties, which a trainer cannot repeat, when the request enters SGLang. Raises ValueError, which its server answers with 400.

    SGLang applies a repetition penalty after the other two, Gumball's rules before; and beside drafts it does not say what it counted.
    """
    if not request.return_sampling_mask or get_exec().kernel.sampling_backend != "gumball":
        return
    edits, drafts = penalties_of(request.sampling_params or {}), get_spec().speculative_algorithm is not None
    if drafts or edits.repetition_penalty != 1 and (edits.frequency_penalty != 0 or edits.presence_penalty != 0):
        otherwise = "start the server without drafts" if drafts else "give no other penalty beside it"
        kept.refuse_edits(edits, f"{otherwise}, or ask without return_sampling_mask", repeatable=False)


class _Any(int):
    """A top-k that SGLang's check of requests takes to be below its limit, which is for its own kernels."""

    def __le__(self, other: int) -> bool:
        return True


def any_top_k(original: Callable[..., Any], scheduler: Any, request: Any, *rest: Any, **named: Any) -> Any:
    """Around the scheduler's method that takes in a request: lets any top-k pass beside a mask, also none, unless SGLang judges drafts."""
    params = request.sampling_params
    if (
        not request.return_sampling_mask
        or get_exec().kernel.sampling_backend != "gumball"
        or not scheduler.spec_algorithm.is_none()
    ):
        return original(scheduler, request, *rest, **named)
    params.top_k = _Any(params.top_k)
    try:
        return original(scheduler, request, *rest, **named)
    finally:
        params.top_k = int(params.top_k)


class _Masks(SamplingMaskOutput):
    """SGLang's masks of a step, of which only the words that are expected are copied to the host."""

    sets: kept.PackedKept
    selected_logprobs: Any
    statuses: Any
    support_logprobs: Any

    # Its tensors have no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def map_device_tensors(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Begins to copy, by `fn`."""
        self.sets = self.sets.to_host(fn)
        self.selected_logprobs, self.statuses = fn(self.selected_logprobs), fn(self.statuses)
        if self.support_logprobs is not None:
            self.support_logprobs = fn(self.support_logprobs)


def masks_of(logits: torch.Tensor, tokens: torch.Tensor, info: Any, most: int, guess: kept.Guess) -> SamplingMaskOutput:
    """Returns the masks of the rows that ask for one, packed in the place of SGLang's ids.

    logits, info: as for :func:`.draws.draw`. tokens: what was drawn of each row. most: the longest mask; a longer one is SGLang's overflow. guess: the same
    for all steps.
    """
    rows, chosen = info.sampling_mask_batch_indices, filters(info)
    if len(rows) < len(logits):
        logits, tokens = logits[rows], tokens[rows]
        chosen = {name: value[rows] if isinstance(value, torch.Tensor) else value for name, value in chosen.items()}
    vocab, temperature = logits.shape[1], chosen["temperature"]
    keeps = operators.mask_logits(logits, **chosen) > -torch.inf
    # A byte is the sum of its bits; words are packed by fours.
    bits = torch.nn.functional.pad(keeps, (0, -vocab % 128)).view(len(logits), -1, 8)
    places = torch.bitwise_left_shift(1, torch.arange(8, dtype=torch.uint8, device=logits.device))
    words = (bits * places).sum(2, dtype=torch.uint8).view(torch.int32)
    selected = logprobs(logits, tokens, temperature=temperature, kept=words)
    sets = kept.PackedKept.of(words, guess)
    lengths = sets.lengths
    statuses = torch.where(lengths > most, int(SamplingMaskStatus.OVERFLOW), int(SamplingMaskStatus.OK))
    statuses = torch.where(selected.isinf(), int(SamplingMaskStatus.INVALID), statuses).to(torch.int32)
    support, some = None, info.sampling_support_logprobs_capture_indices
    if some is not None:
        width = min(most, vocab, max(info.sampling_mask_top_ks))
        keeps, places = keeps[some], keeps[some].cumsum(1) - 1
        ids = torch.full((len(some), width + 1), -100, device=logits.device)
        # What has no place goes to one more, which is cut off.
        every = torch.arange(vocab, device=logits.device).expand_as(keeps)
        ids.scatter_(1, torch.where(keeps, places.clamp(max=width), width), every)
        ids = ids[:, :width]
        asked = logits[some], temperature[some], words[some]
        support = torch.cat([_of_part(part, *asked) for part in ids.split(_AT_ONCE, 1)], 1)
    made = _Masks(sets.words, lengths, selected, support, statuses)
    made.sets = sets
    return made


def _of_part(ids: torch.Tensor, logits: torch.Tensor, temperature: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(logprobs(logits, ids.contiguous(), temperature=temperature, kept=words))


def read(original: Callable[..., Any], requests: list[Any], output: Any) -> None:
    """Around the scheduler's method that reads a step's masks on the host: reads those of :func:`masks_of`, as lists, or bitmasks where these are smaller."""
    masks = None if output is None else output.sampling_mask_output
    if masks is None or masks.num_accept_tokens is not None or get_exec().kernel.sampling_backend != "gumball":
        # Those of drafts are SGLang's own.
        original(requests, output)
        return
    asking = [i for i, request in enumerate(requests) if request.return_sampling_mask]
    # The logprobs of a support are as many as its ids.
    listed = np.array([requests[i].sampling_logprobs_mode == "support" for i in asking], bool)
    # From another stage of a pipeline come whole tensors alone.
    sets = masks.sets if isinstance(masks, _Masks) else kept.PackedKept(masks.token_ids, kept.Guess())
    selected = masks.selected_logprobs.cpu().numpy()
    support = None if masks.support_logprobs is None else iter(masks.support_logprobs.cpu().numpy())
    ids: list[Any] = [None] * len(asking)
    for some, bitmasks in ((listed, False), (~listed, not envs.SGLANG_RUST_SERVER.get())):
        lengths, flat = sets.packed(np.flatnonzero(some), bitmasks)
        for at, length, end in zip(np.flatnonzero(some), lengths, np.cumsum(lengths), strict=True):
            ids[at] = flat[end - length : end]
    statuses: list[Any] = [None] * len(requests)
    output.next_token_sampling_mask_idx = [None] * len(requests)
    output.next_token_sampling_logprobs = [None] * len(requests)
    for nth, (i, status) in enumerate(zip(asking, masks.statuses.tolist(), strict=True)):
        logprobs_of = next(support)[: len(ids[nth])] if listed[nth] and support is not None else selected[nth : nth + 1]
        statuses[i] = status
        if status == SamplingMaskStatus.OK:
            output.next_token_sampling_mask_idx[i], output.next_token_sampling_logprobs[i] = ids[nth], logprobs_of
    output.next_token_sampling_mask_status = statuses
    output.sampling_mask_output = None


def unpacked(original: Callable[..., Any], chunk: Any, support_logprobs: bool) -> Any:
    """Around the server's method that makes lists of a request's masks: reads bitmasks, too."""
    if support_logprobs:
        return original(chunk, support_logprobs)
    return kept.lists_of(chunk.lengths.tolist(), chunk.token_ids), chunk.logprobs.tolist()
