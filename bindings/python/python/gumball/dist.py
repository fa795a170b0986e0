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

Without torch name where each rank listens: ``Pool(vocab, ranks=Ranks(rank, [f"unix:/run/me/rank.{it}" for it in range(world)]))``.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from typing import Any

from ._gumball import Pool
from .errors import BrokenError, CallError, CorruptError, DisagreeError, DistError, LateError, LostError
from .params import Ranks

__all__ = [
    "BrokenError",
    "CorruptError",
    "DisagreeError",
    "DistError",
    "LateError",
    "LostError",
    "join",
]


def join(vocab: int, *, group: Any = None, transport: str | None = None, timeout: float = 30.0, **options: Any) -> Pool:
    """Makes the pool of this rank, once the ranks of torch's process group, `group` or the default one, have told each other where they are.

    Ranks of one host exchange through Unix sockets, in a folder that only this user can enter; ranks of several, or with
    ``transport="torch"``, through the process group: gloo's on CPUs, NCCL's on GPUs. The default group is left to the program: the ranks
    make one of their own by ``new_group``, which is ended with the pool. A `group` that is given is used as it is; after an error of an
    exchange it is ended, and of no use to the program either. options: all others of :class:`gumball.Ranks` and of :class:`gumball.Pool`.

    Raises RuntimeError where torch.distributed is not initialised; and the errors of :class:`gumball.Pool`.
    """
    ranks = _ranks_of_torch(group)
    options |= {"transport": transport, "timeout": timeout}
    wanted = transport or os.environ.get("GUMBALL_DIST_TRANSPORT", "auto")
    # Of one host are ranks with the same name that have been up since the same boot.
    homes = ranks.agree(f"{socket.gethostname()} {_boot()} {hasattr(socket, 'AF_UNIX')}", timeout)
    if len(set(homes)) > 1 or not homes[0].endswith(" True") or wanted == "torch":
        return _made(vocab, options, group=ranks.own(timeout) if group is None else ranks)
    folder = tempfile.mkdtemp(prefix="gumball-")
    try:
        addresses = ranks.agree(f"unix:{os.path.join(folder, str(ranks.rank))}", timeout)
        return _made(vocab, options, rank=ranks.rank, addresses=addresses)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(vocab: int, options: dict[str, Any], **ranks: Any) -> Pool:
    given = {name: options.pop(name) for name in Ranks.__dataclass_fields__ if name in options}
    return Pool(vocab, ranks=Ranks(**ranks, **given), **options)


def _ranks_of_torch(group: Any) -> Any:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        raise CallError(
            "no process group of torch: call torch.distributed.init_process_group, or make a Pool with ranks=Ranks(rank, addresses)"
        )
    from .torch_ranks import TorchRanks

    return TorchRanks(distributed.group.WORLD if group is None else group)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
