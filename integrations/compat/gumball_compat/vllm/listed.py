"""A pool's outputs where they lie on its device, as vLLM hands out tokens and logprobs; nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from gumball import DeviceArray, Pool
from gumball.params import LogprobsParams

__all__ = ["Listed", "OnDevice", "listed_on_device", "merged", "named_ids", "upload"]


class Listed(NamedTuple):
    """Logprobs as vLLM's `LogprobsTensors` has them.

    ids, logprobs: [positions, 1 + n] int32 and float32; the position's own token first. ranks: [positions] int64, that token's.
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


def named_ids(asked: Sequence[LogprobsParams | None], lines: Iterable[int]) -> list[Sequence[int]]:
    """The ids whose logprobs each line asks for; an empty list if no request names any.

    asked: what each request asks for. lines: the request of each line.
    """
    if not any(one is not None and one.ids for one in asked):
        return []
    return [[] if (one := asked[request]) is None else list(one.ids or ()) for request in lines]


def merged(lists: Listed, others: Listed, lines: torch.Tensor) -> Listed:
    """Lists with the others in some lines, which ask for no more columns than the others have. lines: [positions] bool."""
    width, chosen = others.ids.shape[1], lines.unsqueeze(1)
    ids, logprobs = lists.ids.clone(), lists.logprobs.clone()
    ids[:, :width] = torch.where(chosen, others.ids.to(ids.dtype), ids[:, :width])
    logprobs[:, :width] = torch.where(chosen, others.logprobs, logprobs[:, :width])
    return Listed(ids, logprobs, torch.where(lines, others.ranks, lists.ranks))


class OnDevice:
    """A pool's outputs by name, where they lie on its device. The next step overwrites them.

    Their memory stays, so each becomes a tensor once for each place and shape; it is read on the stream on which the steps are enqueued.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._made: dict[tuple[int, tuple[int, ...], str], torch.Tensor] = {}

    def __call__(self, name: str) -> torch.Tensor:
        array = self.pool.outputs_on_device(name)
        assert isinstance(array, DeviceArray), "a pool on the host has its outputs in its steps' results"
        key = array.data_ptr, array.shape, array.dtype
        found = self._made.get(key)
        if found is None:
            found = torch.from_dlpack(array)
            # Torch does little with unsigned numbers.
            found = found.view(torch.int32) if found.dtype == torch.uint32 else found
            self._made[key] = found
        return found


def upload(values: Any, like: torch.Tensor, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Copies numbers of the host to where a tensor lies, without waiting for its device."""
    made = torch.as_tensor(values, dtype=dtype)
    return made.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else made


def listed_on_device(
    outputs: OnDevice,
    tokens: torch.Tensor,
    width: int,
    named: Sequence[Sequence[int]],
    lines: torch.Tensor | None = None,
) -> Listed:
    """The logprobs of lines of a pool's outputs.

    tokens: the token of each line, int32. width: how many logprobs are listed beside it. named: for each line the ids that its request asks
    for, none for the most likely ones; () if no request names any. lines: the numbers of the lines; None for the first ones, in turn.
    """

    def part(name: str) -> torch.Tensor:
        whole = outputs(name)
        return whole[: len(tokens)] if lines is None else whole[lines]

    def wide(values: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.nn.functional.pad(values[:, :width], (0, max(0, width - values.shape[1])), value=fill)

    ids, logprobs = wide(part("top_ids"), -1), wide(part("top_logprobs"), -torch.inf)
    if any(named):
        padded = upload([[*line, *[-1] * (width - len(line))] for line in named], tokens, torch.int32)
        says = padded[:, :1] >= 0
        ids = torch.where(says, padded, ids)
        logprobs = torch.where(says, wide(part("id_logprobs"), -torch.inf), logprobs)
        logprobs = logprobs.masked_fill(ids < 0, -torch.inf)
    return Listed(
        torch.cat([tokens.unsqueeze(1), _without_gaps(ids)], 1),
        torch.cat([part("logprobs").unsqueeze(1), logprobs], 1),
        part("ranks").to(torch.int64),
    )


def _without_gaps(ids: torch.Tensor) -> torch.Tensor:
    """Puts ids that a line has not in its places without one, -1, since vLLM keeps a line by its ids; their logprob is -inf."""
    width = ids.shape[1]
    if width == 0:
        return ids
    candidates = torch.arange(2 * width, dtype=ids.dtype, device=ids.device)
    taken = (ids.unsqueeze(2) == candidates).any(1)
    unused = taken.to(torch.int8).argsort(dim=1, stable=True)
    gaps = ids < 0
    place = (gaps.cumsum(1) - 1).clamp(min=0)
    return torch.where(gaps, unused.gather(1, place).to(ids.dtype), ids)
