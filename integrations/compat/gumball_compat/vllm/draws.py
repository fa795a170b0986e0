"""Tokens and logprobs of vLLM's batch, by the pool of its requests (model runner V1).

On a GPU nothing waits: tokens and logprobs stay there until the engine fetches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumball import Outputs

from .heads import over
from .listed import Listed, listed_on_device, named_ids, upload
from .requests import Requests

__all__ = ["Drawn", "Listed", "biased", "draw", "verify"]


class Drawn(NamedTuple):
    """Tokens of a batch, [rows] or [rows, steps + 1] int32, behind a row's last one -1; and logprobs, if they were asked for."""

    tokens: torch.Tensor
    logprobs: Listed | None


def biased(requests: Requests, logits: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
    """Returns float32 logits with the biases that come before penalties; the logits themselves if there are none.

    rows: for each row of the batch its row of logits; in turn if None.
    """
    edited = logits
    for row, request in enumerate(requests.rows):
        if request is not None and request.bias is not None:
            if edited is logits:
                edited = logits.to(torch.float32, copy=True)
            ids, values = (part.to(logits.device) for part in request.bias)
            edited[row if rows is None else rows[row], ids] += values
    return edited


def draw(requests: Requests, logits: torch.Tensor, *, width: int | None = None) -> Drawn:
    """Draws the token of each row of the batch.

    logits: [rows, vocab], float32, bfloat16 or float16; hidden states, [rows, width], if the requests have a head. width: how many logprobs
    vLLM wants beside the token's own; None for no logprobs.
    A row without a token above -inf gets token 0, as vLLM's argmax gives it. On the host its sequence gets that 0 too; on a device, where
    nothing is waited for, the next token is drawn as if the row had not been.
    """
    slots = requests.slots(logits)
    pool = requests.pool
    assert pool is not None
    if not requests.on_host:
        over(pool, requests.head, "enqueue")(logits, slots)
        requests.advance()
        drawn = requests.outputs("tokens")[: len(slots)].clamp(min=0)
        named = _named(requests, range(len(slots)))
        return Drawn(drawn, None if width is None else listed_on_device(requests.outputs, drawn, width, named))
    out = over(pool, requests.head, "step")(logits, slots)
    requests.advance()
    tokens = out.tokens
    if tokens.min(initial=0) < 0:
        for row in np.flatnonzero(tokens < 0):
            if slots[row] >= 0:
                pool.push(slots[row], 0)
        tokens = np.maximum(tokens, 0)
    listed = None if width is None else _listed(requests, out, range(len(slots)), range(len(slots)), tokens, width)
    return Drawn(torch.from_numpy(tokens), listed)


def verify(
    requests: Requests, logits: torch.Tensor, counts: Sequence[int], drafts: torch.Tensor, *, width: int | None = None
) -> Drawn:
    """Draws the tokens of each row of the batch while they equal its drafts, and one more (rule S3).

    logits: [rows + drafts, vocab], those of a row in turn; or hidden states, as for :func:`draw`. counts: the number of drafts of each row.
    drafts: those of all rows, int32 or int64, where the logits lie. The tokens are those of :func:`draw`, called once for each. Drafts of a request with mirostat are not looked at.
    """
    slots = requests.slots(logits)
    pool = requests.pool
    assert pool is not None
    looked_at = [
        0 if request is None or request.params.mirostat is not None else count
        for request, count in zip(requests.rows, counts, strict=True)
    ]
    starts = np.cumsum([0, *counts]) + np.arange(len(counts) + 1)
    rows = np.concatenate([np.arange(start, start + n + 1) for start, n in zip(starts, looked_at, strict=False)])
    if len(rows) < len(logits):
        logits = logits[upload(rows, logits)]
    if not requests.on_host:
        return _verify_on_device(requests, logits, slots, counts, looked_at, drafts, width)
    ids = iter(drafts.tolist())
    lines = [[next(ids) for _ in range(count)] for count in counts]
    given = [line[:taken] for line, taken in zip(lines, looked_at, strict=True)]
    outcome = over(pool, requests.head, "verify")(logits, slots, given)
    steps = 1 + max(counts)
    tokens = np.full((len(slots), steps), -1, np.int32)
    positions: list[int] = []
    places: list[int] = []
    requests.advance([len(emitted) for emitted in outcome.tolist()])
    for row, emitted in enumerate(outcome.tolist()):
        if emitted and emitted[-1] < 0:
            emitted[-1] = 0
            pool.push(slots[row], 0)
        tokens[row, : len(emitted)] = emitted
        place = outcome.places(row)
        positions += range(row * steps, row * steps + len(emitted))
        places += range(place.start, place.start + len(emitted))
    listed = None
    if width is not None:
        owners = [position // steps for position in positions]
        some = _listed(requests, outcome.outputs, owners, places, tokens.reshape(-1)[positions], width)
        listed = Listed(*(_spread(part, positions, tokens.size) for part in some))
    return Drawn(torch.from_numpy(tokens), listed)


def _verify_on_device(
    requests: Requests,
    logits: torch.Tensor,
    slots: NDArray[np.int32],
    counts: Sequence[int],
    looked_at: Sequence[int],
    drafts: torch.Tensor,
    width: int | None,
) -> Drawn:
    """:func:`verify` on a device. looked_at: the drafts of each row that are; logits are those of these and of one token more each."""
    pool = requests.pool
    assert pool is not None
    if sum(looked_at) < sum(counts):
        ends = np.cumsum(counts)
        kept = [np.arange(end - count, end - count + n) for end, count, n in zip(ends, counts, looked_at, strict=True)]
        drafts = drafts[upload(np.concatenate(kept), drafts)]
    pool.assign_drafts(slots, looked_at)
    over(pool, requests.head, "enqueue_verify")(logits, drafts)
    requests.advance([-1 if count else 1 for count in looked_at])
    starts = upload(np.cumsum([0, *looked_at[:-1]]) + np.arange(len(looked_at)), logits)
    steps = torch.arange(1 + max(counts), device=logits.device)
    lines = (starts.unsqueeze(1) + steps).clamp(max=len(logits) - 1)
    there = steps <= requests.outputs("accepted").unsqueeze(1)
    tokens = torch.where(there, requests.outputs("tokens")[lines].clamp(min=0), -1)
    if width is None:
        return Drawn(tokens, None)
    named = _named(requests, np.repeat(np.arange(len(counts)), 1 + max(counts)))
    return Drawn(
        tokens, listed_on_device(requests.outputs, tokens.flatten().clamp(min=0), width, named, lines.flatten())
    )


def _named(requests: Requests, rows: Iterable[int]) -> list[Sequence[int]]:
    return named_ids([None if request is None else request.params.logprobs for request in requests.rows], rows)


def _spread(part: torch.Tensor, positions: Sequence[int], count: int) -> torch.Tensor:
    """Puts lines at their positions among `count`; the others are 0, and are not read."""
    whole = part.new_zeros((count, *part.shape[1:]))
    whole[list(positions)] = part
    return whole


def _listed(
    requests: Requests, out: Outputs, rows: Sequence[int], places: Sequence[int], tokens: NDArray[np.int32], width: int
) -> Listed:
    """The logprobs of some lines of a pool's outputs. rows: the request of each. places: its line. tokens: its token."""
    index = np.asarray(places, np.int64)
    ids = np.zeros((len(index), 1 + width), np.int32)
    logprobs = np.full((len(index), 1 + width), -np.inf, np.float32)
    ids[:, 0] = tokens
    logprobs[:, 0] = out.logprobs[index]
    top_ids, top_logprobs = out.top_ids[index], out.top_logprobs[index]
    columns = min(width, top_ids.shape[1])
    ids[:, 1 : 1 + columns] = top_ids[:, :columns]
    logprobs[:, 1 : 1 + columns] = top_logprobs[:, :columns]
    for line, row in enumerate(rows):
        request = requests.rows[row]
        asked = None if request is None else request.params.logprobs
        if asked is not None and asked.ids:
            count = len(asked.ids)
            ids[line, 1 : 1 + count] = asked.ids
            logprobs[line, 1 : 1 + count] = out.id_logprobs[places[line], :count]
        elif asked is not None and (ids[line, 1 : 1 + asked.top_n] < 0).any():
            _name_others(ids[line, : 1 + asked.top_n])
    np.maximum(ids, 0, out=ids)
    ranks = out.ranks[index].astype(np.int64)
    return Listed(torch.from_numpy(ids), torch.from_numpy(logprobs), torch.from_numpy(ranks))


def _name_others(ids: NDArray[np.int32]) -> None:
    """Gives places without a token, -1, ids that the list has not, since vLLM keeps it by its ids; their logprob is -inf."""
    seen = set(ids.tolist())
    unused = (id for id in range(2 * len(ids)) if id not in seen)
    for place in np.flatnonzero(ids < 0):
        ids[place] = next(unused)
