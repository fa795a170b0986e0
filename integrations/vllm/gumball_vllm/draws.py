"""Tokens and logprobs of vLLM's batch, by the pool of its requests (model runner V1).

On a GPU nothing waits: tokens and logprobs stay there until the engine fetches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumball import Batch, Outputs, Step, Verify
from gumball.plugins.kept import PackedKept

from .head_choice import rows_of
from .listed import Copied, Lists, upload
from .requests import Requests

__all__ = ["Drawn", "draw", "verify"]


class Drawn(NamedTuple):
    """Tokens of a batch, [rows] or [rows, steps + 1] int32, after a row's last one -1; and logprobs, if they were asked for.

    kept: what has the kept sets, if the pool tells them. firsts: the first line of each request there.
    """

    tokens: torch.Tensor
    logprobs: Lists | None
    kept: Outputs | PackedKept | None
    firsts: NDArray[np.int64]


def draw(requests: Requests, logits: torch.Tensor, *, width: int | None = None) -> Drawn:
    """Draws the token of each row of the batch.

    logits: [rows, vocab], float32, bfloat16 or float16; hidden states, [rows, width], if the requests have a head. width: how many logprobs
    vLLM wants beside the token's own; None for no logprobs.
    A row without a token above -inf gets token 0, as vLLM's argmax gives it. On the host its sequence gets that 0 too; on a device, where
    nothing is waited for, the next token is drawn as if the row had not been.
    """
    slots, batch = requests.slots(logits), requests.batch
    pool = requests.pool
    assert pool is not None
    asked = None if width is None else batch.asked(width)
    if not requests.on_host:
        if requests.to_assign(batch, slots):
            pool.assign(slots)
        pool.enqueue([Step(rows_of(logits, requests.head))])
        requests.advance()
        drawn = requests.outputs("tokens", len(slots)).clamp(min=0)
        kept = requests.outputs.kept(len(slots)) if requests.kept else None
        lists = None
        if asked is not None:
            lists = Lists(requests.outputs.copied(len(slots), asked), asked, batch.owners)
        return Drawn(drawn, lists, kept, batch.owners)
    out = pool.step(rows_of(logits, requests.head), slots)
    requests.advance()
    tokens = out.tokens
    if tokens.min(initial=0) < 0:
        for row in np.flatnonzero(tokens < 0):
            if slots[row] >= 0:
                pool.push(slots[row], 0)
        tokens = np.maximum(tokens, 0)
    lists = None if asked is None else Lists(out, asked, batch.owners)
    return Drawn(torch.from_numpy(tokens), lists, out if requests.kept else None, batch.owners)


def verify(
    requests: Requests, logits: torch.Tensor, counts: Sequence[int], drafts: torch.Tensor, *, width: int | None = None
) -> Drawn:
    """Draws the tokens of each row of the batch while they equal its drafts, and one more (rule S3).

    logits: [rows + drafts, vocab], those of a row in turn; or hidden states, as for :func:`draw`. counts: the number of drafts of each row.
    drafts: those of all rows, int32 or int64, where the logits lie. The tokens are those of :func:`draw`, called once for each. Drafts of a request with mirostat or adaptive-p are not looked at.
    """
    slots, batch = requests.slots(logits), requests.batch
    pool = requests.pool
    assert pool is not None
    chains, asked = batch.chains(counts, logits), None if width is None else batch.asked(width)
    logits = chains.chosen(logits)
    if requests.on_host:
        ids = drafts.numpy()[chains.drafts]
        verified = pool.verify(rows_of(logits, requests.head), Batch(slots, counts=chains.looked_at), ids)
        emitted = verified.emitted()
        requests.advance([len(some) for some in emitted])
        tokens = np.full(chains.lines.shape, -1, np.int32)
        for row, some in enumerate(emitted):
            if some and some[-1] < 0:
                some[-1] = 0
                pool.push(slots[row], 0)
            tokens[row, : len(some)] = some
        drawn = torch.from_numpy(tokens)
        outputs: Outputs | Copied | None = verified
        kept: Outputs | PackedKept | None = verified if requests.kept else None
    else:
        if requests.to_assign(chains, slots):
            pool.assign(Batch(slots, counts=chains.looked_at))
        if len(chains.drafts) < len(drafts):
            drafts = drafts[upload(chains.drafts, drafts)]
        pool.enqueue([Verify(rows_of(logits, requests.head), drafts)])
        requests.advance(chains.grown)
        drawn, _ = chains.emitted(requests.outputs, requests.zero)
        outputs = None if asked is None else requests.outputs.copied(len(chains.rows), asked)
        kept = requests.outputs.kept(len(chains.rows)) if requests.kept else None
    lists = None
    if asked is not None and outputs is not None:
        lists = Lists(outputs, asked, chains.owners, lines=chains.lines.ravel())
    return Drawn(drawn, lists, kept, chains.firsts)
