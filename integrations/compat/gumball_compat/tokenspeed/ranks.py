"""The backend's pool over tensor-parallel ranks: each verifies its own requests, and all get what came out.

TokenSpeed hands every rank the whole rows of a part of the requests, `bucket_bs / tp_size` neighbours, and wants the results of all of
them. That is a :class:`gumball.Pool` over ranks with the layout "replicated". Steps for which every rank has all rows go the same way: a rank
takes those of its own requests.
"""

from __future__ import annotations

from typing import Any

import torch

from gumball import Batch, Drafts, Pool, Recorded, Shorten, Step, Verify, dist
from gumball.params import SamplingParams, State

__all__ = ["RankPool", "join_ranks"]

PADDING = -1


def join_ranks(topology: Any, vocab: int, **options: Any) -> Pool:
    """Makes the pool of this rank of TokenSpeed's tensor-parallel group, once all its ranks have come."""
    from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

    group = process_group_manager.get_device_process_group(topology.tp_group)
    return dist.join(vocab, group=group, **options)


class RankPool:
    """A pool over ranks that the calls of the backend reach.

    pool: one whose layout is "replicated", with owners in blocks. Batches are padded to a multiple of the ranks, so that each owns as many requests.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.device = pool.device
        # The slots of the assigned requests, with the padding, the tokens of each, and their plan.
        self._rows: list[int] = []
        self._width = 1
        self._plan: Any = None
        # What came out on the host.
        self._outputs: Any = None
        # A token on its way from a GPU, and what says that it has come.
        self._token: torch.Tensor | None = None
        self._came: Any = None

    def refuse_lost(self) -> None:
        """Raises the error of an exchange that failed, once its results have arrived. Waits for nothing on a GPU, so it may be steps late.

        A failed exchange leaves results of padding, in which no request has a token.
        """
        first = next((row for row, slot in enumerate(self._rows) if slot != PADDING), None)
        if first is None or self.device == "cpu":
            return
        token = torch.from_dlpack(self.pool.on_device().outputs("tokens"))[first * self._width]
        if not token.is_cuda:
            none = int(token) < 0
        else:
            held, came = self._token, self._came
            if held is None:
                held = self._token = torch.empty_like(token, device="cpu", pin_memory=True)
            arrived = came is None or came.query()
            none = came is not None and arrived and int(held) < 0
            if arrived:
                held.copy_(token, non_blocking=True)
                self._came = torch.cuda.Event()
                self._came.record()
        if none:
            # The error, if it was that; a row whose logits are all -inf has no token either.
            self.pool.fetch()

    def admit(self, params: SamplingParams, prompt: Any = ()) -> int:
        return self.pool.admit(params, prompt)

    def resume(self, params: SamplingParams, state: State) -> int:
        return self.pool.resume(params, state)

    def release(self, slot: int) -> None:
        self.pool.release(slot)

    def shorten(self, slots: list[int], counts: list[int]) -> None:
        self.pool.shorten(slots, counts)

    def enqueue_shorten(self, counts: Any) -> None:
        """Takes tokens of the assigned requests away; those of padding keep theirs."""
        if not isinstance(counts, torch.Tensor):
            counts = torch.tensor(counts, dtype=torch.int64, device=_place(self.device))
        self.pool.enqueue([Shorten(_padded(counts, len(self._rows)))])

    def _plan_of(self, rows: list[int], drafts: int) -> None:
        world = self.pool.ranks.world
        self._rows, self._width = rows + [PADDING] * (-len(rows) % world), drafts + 1
        self._plan = self.pool.plan(self._rows, drafts=drafts, step="verify" if drafts else "decode")

    def assign(self, rows: list[int], drafts: int = 0) -> None:
        """Assigns requests, each of which has as many drafts."""
        self._plan_of(rows, drafts)
        if self.device != "cpu":
            counts = [drafts] * len(self._rows) if drafts else None
            self.pool.assign(Batch(self._rows, counts=counts, plan=self._plan))

    def _own(self, logits: torch.Tensor, width: int) -> torch.Tensor:
        """Returns the rows of this rank's requests, of which there may be more than the batch has."""
        count = len(self._rows) // self.pool.ranks.world * width
        if logits.shape[0] == count:
            return logits
        own = logits[self.pool.ranks.rank * count :][:count]
        return _padded(own, count)

    def enqueue(self, logits: torch.Tensor, *, variant: str | None = None) -> Recorded | None:
        """Takes a step; on a device one with a variant is recorded."""
        own = self._own(logits, 1)
        if self.device != "cpu":
            return self._launch(Step(own), variant)
        self._outputs = self.pool.step(own, Batch(self._rows, plan=self._plan))
        return None

    def _launch(self, work: Step | Verify, variant: str | None) -> Recorded | None:
        if variant is not None:
            return self.pool.on_device().record([work], variant=variant)
        self.pool.enqueue([work])
        return None

    def enqueue_verify(
        self, logits: torch.Tensor, drafts: torch.Tensor, *, parents: Any = None, variant: str | None = None
    ) -> Recorded | None:
        own, requests = self._own(logits, drafts.shape[1] + 1), len(self._rows)
        above = None if parents is None else _padded(parents, requests, -1)
        return self._launch(Verify(own, Drafts(_padded(drafts, requests), parents=above)), variant)

    def verify(self, logits: torch.Tensor, rows: list[int], drafts: torch.Tensor, *, parents: Any = None) -> Any:
        self._plan_of(rows, drafts.shape[1])
        own, requests = self._own(logits, drafts.shape[1] + 1), len(self._rows)
        above = None if parents is None else _padded(parents, requests, -1)
        return self.pool.verify(
            own, Batch(self._rows, plan=self._plan), Drafts(_padded(drafts, requests), parents=above)
        )

    def fetch(self) -> Any:
        """Returns what came out on the host."""
        return self._outputs


def _place(device: str) -> str:
    return device if device.startswith("cuda") else "cpu"


def _padded(rows: torch.Tensor, count: int, value: int = 0) -> torch.Tensor:
    """Returns as many rows, of which those after the given ones have a value that no code reads."""
    missing = count - rows.shape[0]
    if missing == 0:
        return rows
    return torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), value)])
