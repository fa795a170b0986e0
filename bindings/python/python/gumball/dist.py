"""One sampler over several processes, each of which has the logits of a part of the vocabulary.

::

    import torch.distributed
    from gumball import SamplingParams, dist

    torch.distributed.init_process_group("gloo")       # under torchrun
    pool = dist.join(vocab)                            # the ranks find each other through torch
    slot = pool.admit(SamplingParams(temperature=0.8, seed=7), prompt)
    start, end = pool.ranks.ids                         # the ids that this rank's head computes
    tokens = pool.step(logits[:, start:end], [slot]).tokens

Tokens, logprobs and the states of requests are those of one process with whole rows, bit for bit, whatever the layout, the
transport, the number of processes and the split: see docs/scaling.md. Rows lie in host memory, or with `device` on GPUs, which write
each other's memory or are joined by NCCL. This module needs neither numpy
nor torch; `join` uses `torch.distributed` if the program does, and ranks of several hosts exchange through its process group.

Without torch name where each rank listens: ``Pool(vocab, ranks=Ranks(rank, addresses_at("unix:/run/me/rank", world)))``.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from ._gumball import BrokenError, CorruptError, DisagreeError, DistError, LateError, LostError, Pool
from .errors import CallError, InvalidValueError, UnavailableError
from .params import Ranks

__all__ = [
    "BrokenError",
    "CorruptError",
    "DisagreeError",
    "DistError",
    "LateError",
    "LostError",
    "addresses_at",
    "join",
]


def addresses_at(address: str, world: int) -> list[str]:
    """Returns an address for each of `world` ranks of one host: "unix:PATH" stands for PATH.0, PATH.1 and so on.

    Raises ValueError for anything else.
    """
    if not address.startswith("unix:") or address == "unix:":
        raise InvalidValueError(f"address is {address!r}, but must be unix:PATH")
    return [f"{address}.{rank}" for rank in range(world)]


def join(
    vocab: int,
    *,
    group: Any = None,
    store: Any = None,
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    transport: str | None = None,
    timeout: float = 30.0,
    **options: Any,
) -> Pool:
    """Makes the pool of this rank, once the ranks have told each other where they are.

    They tell each other through one of these: address, as of `addresses_at`, where all ranks know what it says; store, a
    `torch.distributed.Store`, or anything with its `set` and `get`; otherwise a process group of torch, group or the default one,
    whose ranks are those of the pool. With a store or an address rank and world are needed, unless the environment has RANK and
    WORLD_SIZE, as under torchrun. A store serves one group: hand over a `PrefixStore` for another.

    Ranks of one host exchange through Unix sockets, in a folder that only this user can enter; ranks of several, or with
    ``transport="torch"``, through the process group: gloo's on CPUs, NCCL's on GPUs. After an error of an exchange that group is of
    no use either. options: all others of :class:`gumball.Ranks` and of :class:`gumball.Pool`.

    Raises ValueError without a rank or a world, RuntimeError where torch.distributed is not initialised, UnavailableError where no
    transport fits; and the errors of :class:`gumball.Pool`.
    """
    options |= {"transport": transport, "timeout": timeout}
    if address is not None:
        rank, world = _place(rank, world)
        return _made(vocab, options, rank=rank, addresses=addresses_at(address, world))
    ranks = None
    if store is not None:
        rank, world = _place(rank, world)
        tell = _through(store, rank, world)
    elif rank is not None or world is not None:
        raise InvalidValueError("rank and world go with store= or address=; those of torch's process group are known")
    else:
        ranks = _ranks_of_torch(group)
        rank = int(ranks.rank)
        tell = partial(ranks.agree, patience=timeout)
    wanted = transport or os.environ.get("GUMBALL_DIST_TRANSPORT", "auto")
    # Of one host are ranks with the same name that have been up since the same boot.
    homes = tell(f"{socket.gethostname()} {_boot()} {hasattr(socket, 'AF_UNIX')}")
    if len(set(homes)) == 1 and homes[0].endswith(" True") and wanted != "torch":
        folder = tempfile.mkdtemp(prefix="gumball-")
        try:
            addresses = tell(f"unix:{os.path.join(folder, str(rank))}")
            return _made(vocab, options, rank=rank, addresses=addresses)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if ranks is None:
        raise UnavailableError("no transport: ranks of several hosts take torch's process group, and no store")
    return _made(vocab, options, group=ranks)


def _made(vocab: int, options: dict[str, Any], **ranks: Any) -> Pool:
    ranks |= {name: options.pop(name) for name in Ranks.__dataclass_fields__ if name in options}
    return Pool(vocab, ranks=Ranks(**ranks), **options)


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    found = []
    for name, given, variable in (("rank", rank, "RANK"), ("world", world, "WORLD_SIZE")):
        text = os.environ.get(variable) if given is None else given
        if text is None:
            raise InvalidValueError(f"{name} is None, but must be given, or {variable} set in the environment")
        found.append(int(text))
    return found[0], found[1]


def _through(store: Any, rank: int, world: int) -> Callable[[str], list[str]]:
    """A way to tell all ranks a text, by a store; each call takes keys of its own."""
    turn = 0

    def tell(text: str) -> list[str]:
        nonlocal turn
        turn += 1
        store.set(f"gumball/{turn}/{rank}", text)
        got = [store.get(f"gumball/{turn}/{other}") for other in range(world)]
        return [each.decode() if isinstance(each, bytes) else str(each) for each in got]

    return tell


def _ranks_of_torch(group: Any) -> Any:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        raise CallError(
            "no process group of torch: call torch.distributed.init_process_group, or pass store=, or address="
        )
    from .torch_ranks import TorchRanks

    return TorchRanks(distributed.group.WORLD if group is None else group)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
