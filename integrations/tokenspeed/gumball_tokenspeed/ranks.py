"""What the backend's pool needs over tensor-parallel ranks: each verifies its own requests, and all get the outputs of all.

TokenSpeed hands every rank the whole rows of a part of the requests, `bucket_bs / tp_size` neighbours, and wants the results of all of
them. That is a :class:`gumball.Pool` over ranks with the layout "replicated". Steps for which every rank has all rows go the same way: a rank
takes those of its own requests.
"""

from __future__ import annotations

from typing import Any

import torch

from gumball import Pool, dist

__all__ = ["PADDING", "Watch", "gather_rows", "join_ranks", "padded"]

PADDING = -1


def join_ranks(topology: Any, vocab: int, **options: Any) -> Pool:
    """Makes the pool of this rank of TokenSpeed's tensor-parallel group, once all its ranks have come."""
    return dist.join(vocab, group=_group_of(topology), **options)


def gather_rows(topology: Any, own: torch.Tensor) -> torch.Tensor:
    """Returns the rows of all ranks of that group, in their order; each hands over as many. A graph of CUDA holds it."""
    whole = own.new_empty(topology.tp_size * len(own), *own.shape[1:])
    torch.distributed.all_gather_into_tensor(whole, own, group=_group_of(topology))
    return whole


def _group_of(topology: Any) -> Any:
    from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

    return process_group_manager.get_device_process_group(topology.tp_group)


class Watch:
    """Looks at a pool's exchanges without a wait. A failed exchange leaves results of padding, in which no request has a token."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        # A token on its way from a GPU, and the event after which it is there.
        self._token: torch.Tensor | None = None
        self._came: Any = None

    def refuse_lost(self, slots: list[int], width: int) -> None:
        """Raises the error of an exchange that failed, once its results have arrived. Waits for nothing on a GPU, so it may be steps late.

        slots: the assigned ones, of which each has as many rows as the width.
        """
        first = next((row for row, slot in enumerate(slots) if slot != PADDING), None)
        if first is None or self.pool.device == "cpu":
            return
        token = torch.from_dlpack(self.pool.on_device().outputs("tokens"))[first * width]
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
            # The error, if there was one; a row whose logits are all -inf has no token either.
            self.pool.fetch()


def padded(rows: torch.Tensor, count: int, value: int = 0) -> torch.Tensor:
    """Returns as many rows, of which those after the given ones have a value that no code reads."""
    missing = count - rows.shape[0]
    if missing == 0:
        return rows
    return torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), value)])
