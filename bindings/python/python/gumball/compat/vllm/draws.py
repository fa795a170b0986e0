"""Tokens and logprobs of vLLM's batch, by the pool of its requests (model runner V1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..._gumball import Outputs
from .requests import Requests

__all__ = ["Drawn", "Listed", "biased", "draw", "verify"]


class Listed(NamedTuple):
    """Logprobs as vLLM's `LogprobsTensors` has them.

    ids, logprobs: [positions, 1 + n] int32 and float32; the position's own token first. ranks: [positions] int64, that token's.
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


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

    logits: [rows, vocab], float32, bfloat16 or float16. width: how many logprobs vLLM wants beside the token's own; None for no logprobs.
    A row without a token above -inf gets token 0, as vLLM's argmax gives it, and so does its sequence. This waits for a device: the next
    step draws behind that 0, and a request that leaves takes its tokens along.
    """
    slots = requests.slots(logits)
    pool = requests.pool
    assert pool is not None
    out = pool.step(logits, slots)
    requests.advance()
    tokens = out.tokens
    if tokens.min(initial=0) < 0:
        for row in np.flatnonzero(tokens < 0):
            if slots[row] >= 0:
                pool.push(slots[row], 0)
        tokens = np.maximum(tokens, 0)
    listed = None if width is None else _listed(requests, out, range(len(slots)), range(len(slots)), tokens, width)
    if listed is not None:
        listed = Listed(*(part.to(logits.device) for part in listed))
    return Drawn(torch.from_numpy(tokens).to(logits.device), listed)


def verify(
    requests: Requests, logits: torch.Tensor, counts: Sequence[int], drafts: Sequence[int], *, width: int | None = None
) -> Drawn:
    """Draws the tokens of each row of the batch while they equal its drafts, and one more (rule S3).

    logits: [rows + drafts, vocab], those of a row in turn. counts: the number of drafts of each row. drafts: those of all rows. The tokens
    are those of :func:`draw`, called once for each. Drafts of a request with mirostat are not looked at. Waits for a device.
    """
    slots = requests.slots(logits)
    pool = requests.pool
    assert pool is not None
    starts = np.cumsum([0, *counts]) + np.arange(len(counts) + 1)
    given: list[list[int]] = []
    indices: list[int] = []
    first = 0
    for row, count in enumerate(counts):
        request = requests.rows[row]
        taken = 0 if request is None or request.params.mirostat is not None else count
        given.append(list(drafts[first : first + taken]))
        indices += range(starts[row], starts[row] + taken + 1)
        first += count
    outcome = pool.verify(logits, slots, given, row_indices=indices)
    steps = 1 + max(counts)
    tokens = np.full((len(slots), steps), -1, np.int32)
    positions: list[int] = []
    places: list[int] = []
    for row, emitted in enumerate(outcome.tolist()):
        request = requests.rows[row]
        if request is not None:
            request.count += len(emitted)
        if emitted and emitted[-1] < 0:
            emitted[-1] = 0
            pool.push(slots[row], 0)
        tokens[row, : len(emitted)] = emitted
        place = outcome.places(row)
        positions += range(row * steps, row * steps + len(emitted))
        places += range(place.start, place.start + len(emitted))
    listed = None
    if width is not None:
        rows = [position // steps for position in positions]
        some = _listed(requests, outcome.outputs, rows, places, tokens.reshape(-1)[positions], width)
        listed = Listed(*(_spread(part, positions, tokens.size).to(logits.device) for part in some))
    return Drawn(torch.from_numpy(tokens).to(logits.device), listed)


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
