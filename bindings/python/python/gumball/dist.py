"""One sampler over several processes, each of which has the logits of a part of the vocabulary.

::

    import torch.distributed
    from gumball import SamplingParams, dist

    torch.distributed.init_process_group("gloo")       # under torchrun
    pool = dist.join(vocab)                            # the ranks find each other through torch
    slot = pool.admit(SamplingParams(temperature=0.8, seed=7), prompt)
    start, end = pool.ids                              # the ids that this rank's head computes
    tokens = pool.step(logits[:, start:end], [slot]).tokens

Tokens, logprobs and the states of requests are those of one process with whole rows, bit for bit, whatever the layout, the
transport, the number of processes and the split: see docs/scaling.md. Rows lie in host memory, or with `device` on GPUs of one
host that reach each other's memory. This module needs neither numpy
nor torch; `join` uses `torch.distributed` if the program does.

Without torch name where each rank listens: ``DistPool(vocab, rank=rank, addresses=addresses_at("tcp:host:29600", world))``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._gumball import (
    BrokenError,
    CorruptError,
    DisagreeError,
    DistError,
    DistGraph,
    DistPlan,
    DistPool,
    LateError,
    LostError,
)
from .errors import CallError, InvalidValueError

__all__ = [
    "BrokenError",
    "CorruptError",
    "DisagreeError",
    "DistError",
    "DistGraph",
    "DistPlan",
    "DistPool",
    "LateError",
    "LostError",
    "addresses_at",
    "join",
]


def addresses_at(address: str, world: int) -> list[str]:
    """Returns an address for each of `world` ranks of one host: the given one, with a number of its own for each rank.

    address: "tcp:HOST:PORT", whose ranks listen at PORT, PORT + 1 and so on; or "unix:PATH", at PATH.0, PATH.1 and so on. Raises
    ValueError for anything else, and for ports beyond 65535.
    """
    if address.startswith("unix:") and address != "unix:":
        return [f"{address}.{rank}" for rank in range(world)]
    place, _, port = address.rpartition(":")
    if not place.startswith("tcp:") or place == "tcp:" or not port.isdecimal() or int(port) + world > 65536:
        text = f"address is {address!r}, but must be unix:PATH, or tcp:HOST:PORT with {world} ports from PORT on"
        raise InvalidValueError(text)
    return [f"{place}:{int(port) + rank}" for rank in range(world)]


def join(
    vocab: int,
    *,
    group: Any = None,
    store: Any = None,
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    host: str | None = None,
    **options: Any,
) -> DistPool:
    """Makes the DistPool of this rank, once the ranks have told each other where they listen.

    They tell each other through one of these: address, as of `addresses_at`, where all ranks know what it says; store, a
    `torch.distributed.Store`, or anything with its `set` and `get`; otherwise torch.distributed, over group or the default process
    group. With a store or an address rank and world are needed, unless the environment has RANK and WORLD_SIZE, as under
    torchrun. A store serves one group: hand over a `PrefixStore` for another.

    Ranks of one host listen at Unix sockets in a folder that only this user can read; ranks of several, or with
    ``transport="tcp"``, at a free TCP port. host: the name or address by which other hosts reach this one; None: its host name.
    options: all others of :class:`DistPool`.

    Raises ValueError without a rank or a world, RuntimeError where torch.distributed is not initialised; and the errors of
    :class:`DistPool`.
    """
    if address is not None:
        rank, world = _place(rank, world)
        return DistPool(vocab, rank=rank, addresses=addresses_at(address, world), **options)
    if store is not None:
        rank, world = _place(rank, world)
        tell = _through(store, rank, world)
    else:
        torch_rank, torch_world, tell = _through_torch(group)
        rank, world = torch_rank if rank is None else rank, torch_world if world is None else world
    with _listening(options.get("transport"), rank, host, tell) as addresses:
        return DistPool(vocab, rank=rank, addresses=addresses, **options)


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


def _through_torch(group: Any) -> tuple[int, int, Callable[[str], list[str]]]:
    """This rank, the world, and a way to tell all ranks a text, by a process group of torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        raise CallError(
            "no process group of torch: call torch.distributed.init_process_group, or pass store=, or address="
        )

    def tell(text: str) -> list[str]:
        got: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(got, text, group=group)
        return got

    return distributed.get_rank(group), distributed.get_world_size(group), tell


@contextlib.contextmanager
def _listening(
    transport: str | None, rank: int, host: str | None, tell: Callable[[str], list[str]]
) -> Iterator[Sequence[str]]:
    """Finds a place to listen at, and yields those of all ranks. Folders of sockets are removed again."""
    wanted = transport or os.environ.get("GUMBALL_DIST_TRANSPORT", "auto")
    # Of one host are ranks with the same name that have been up since the same boot.
    homes = tell(f"{socket.gethostname()} {_boot()} {hasattr(socket, 'AF_UNIX') and wanted != 'tcp'}")
    if len(set(homes)) == 1 and homes[0].endswith(" True"):
        folder = tempfile.mkdtemp(prefix="gumball-")
        try:
            yield tell(f"unix:{os.path.join(folder, str(rank))}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    # The port is free until somebody else takes it, before this rank listens there: then that is an UnavailableError.
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    yield tell(f"tcp:{host or socket.gethostname()}:{port}")


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
