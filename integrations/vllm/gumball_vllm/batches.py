"""What a batch is made of while its requests stay, and where its drafts lie while their numbers stay: made once, not in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .listed import Asked, OnDevice, upload

__all__ = ["UNKNOWN", "Batch", "Chains"]

UNKNOWN = -(1 << 40)
"""The count of a sequence whose length only the device knows, since drafts of it were verified there; also with tokens added."""


class Batch:
    """A batch while it has the same requests. owners: their numbers. steered: those with mirostat or adaptive-p, whose drafts are not looked at."""

    owners: NDArray[np.int64]
    steered: NDArray[np.bool_]
    _asked: Asked | None = None
    _chains: Chains | None = None

    def listing(self) -> tuple[NDArray[np.int32], Sequence[Sequence[int]] | None, NDArray[np.bool_]]:
        """How many logprobs each request asks for, which ids each names, None if none does, and which ask for radii: see :class:`.Asked`."""
        raise NotImplementedError

    def asked(self, width: int) -> Asked:
        """The logprobs that the requests ask for. width: the most that are listed beside a token's own."""
        if self._asked is None or self._asked.width != width:
            self._asked = Asked(width, *self.listing())
        return self._asked

    def chains(self, counts: Any, like: torch.Tensor) -> Chains:
        """The batch's drafts. counts: how many each request has. like: a tensor where they lie."""
        if self._chains is None or not np.array_equal(self._chains.counts, counts):
            self._chains = Chains(counts, self.steered, like)
        return self._chains


class Chains:
    """The drafts of a batch.

    counts: how many each request has. looked_at: how many of these are verified. grown: what :meth:`.Requests.advance` is told of them.
    firsts: a request's first line of the pool's outputs. owners: the request of each line. rows: the engine's row of logits of each line.
    lines: [requests, steps + 1], the line of each token. drafts: which of the engine's drafts, one after the other, are verified.
    draft_rows: their rows of logits; rows_each: how many rows of logits each request has: on the device.
    """

    def __init__(self, counts: Any, skipped: NDArray[np.bool_], like: torch.Tensor) -> None:
        """skipped: the requests whose drafts are not looked at. like: a tensor where the batch lies."""
        self.counts = np.array(counts, np.int64)
        self.looked_at = np.where(skipped, 0, self.counts)
        self.firsts = np.cumsum(self.looked_at + 1) - self.looked_at - 1
        self.owners = np.repeat(np.arange(len(self.counts)), self.looked_at + 1)
        starts = np.cumsum(self.counts + 1) - self.counts - 1
        self.rows = np.arange(len(self.owners)) + (starts - self.firsts)[self.owners]
        behind = np.ones(len(self.rows), bool)
        behind[self.firsts] = False
        drafts = self.rows[behind]
        self.drafts = drafts - self.owners[behind] - 1
        self.grown = np.where(self.looked_at > 0, UNKNOWN, 1)
        # After a request's last line is another's.
        steps = np.arange(1 + self.counts.max(initial=0))
        self.lines = np.minimum(self.firsts[:, None] + steps, len(self.rows) - 1)
        self._all = not skipped.any()
        parts = (self.lines.ravel(), steps, drafts, self.rows)
        there = upload(np.concatenate(parts), like)
        lines, self._steps, self.draft_rows, self._rows = torch.split(there, [part.size for part in parts])
        self._lines = lines.view(self.lines.shape)
        self.rows_each = upload(self.counts + 1, like, torch.int32)

    def chosen(self, logits: torch.Tensor) -> torch.Tensor:
        """The rows of logits, or of hidden states, of the lines."""
        return logits if self._all else logits[self._rows]

    def emitted(self, outputs: OnDevice, zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, [requests, steps + 1] with -1 after the last one, and how many drafts were accepted. zero: 0, of the tokens' type."""
        rows, requests = len(self.rows), len(self.counts)
        accepted = outputs("accepted", rows, requests)
        # A row without a token gives token 0.
        picked = torch.maximum(outputs("tokens", rows)[self._lines], zero)
        return torch.where(self._steps <= accepted.unsqueeze(1), picked, -1), accepted
