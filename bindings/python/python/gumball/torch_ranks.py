"""Exchanges between ranks by the caller's own process group of torch: gloo's on CPUs, NCCL's on GPUs.

A message travels as a frame of a fixed length, which has its length and its first bytes, and then its other bytes, if it has more: most
exchanges are one frame each way. Pools of :mod:`gumball.dist` call this; it moves bytes and knows nothing of rows.

What torch does on NCCL may wait for a rank for ever, even to begin, and what it left on a device keeps everybody from freeing memory there. So it runs
on threads that are left to themselves after the timeout, and an error ends the group.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from .errors import CorruptError, DistError, InvalidValueError, LateError, LostError

#: The bytes of a frame, and of the length in front of it.
FRAME, LENGTH = 1024, 8
#: The first bytes of a message that its frame has room for.
FIRST = FRAME - LENGTH
#: The length in the frame of a rank that has closed its pool.
CLOSED = (1 << 64) - 1
#: The tag that no message has. A pool has two others: one for frames, one for the bytes after a frame, since gloo would take a frame for those
#: bytes and end the process if it is longer. The program's own messages have other tags.
NOTHING = 0x47554D00
#: How often a backend that cannot wait for so long and no longer is asked, in seconds.
MOMENT = 20e-6
#: How long the end of a group on NCCL is waited for, in seconds.
END = 0.2

#: "late", "lost" or "long"; which rank; what the system said, or the length of the message.
Failure = tuple[str, int, str]

#: The first tag of the last pool in this process, and of each process group what the pool that was closed last still sends.
_last = NOTHING
_farewells: dict[str, list[Any]] = {}
#: Groups that were made for pools which are closed, and still carry their farewells.
_closed: list[Any] = []
#: How many times a group has met in this process, by its name.
_meetings: dict[str, int] = {}


class TorchRanks:
    """One rank of a process group of torch: all ranks make the same calls in the same turn."""

    def __init__(self, group: Any, *, is_own: bool = False) -> None:
        """is_own: the group was made for this pool, and ends with it."""
        self._group, self._is_own = group, is_own
        self.rank: int = distributed.get_rank(group)
        if self.rank < 0:
            raise InvalidValueError("group is one that this process is not in, but must be one of its own")
        self.world: int = distributed.get_world_size(group)
        self._peers = [peer for peer in range(self.world) if peer != self.rank]
        self._global = [distributed.get_global_rank(group, peer) for peer in range(self.world)]
        # "nccl", or "cpu:gloo,cuda:nccl".
        names = [name.rpartition(":") for name in distributed.get_backend_config(group).split(",")]
        backends = {device or ("cuda" if name == "nccl" else "cpu"): name for device, _, name in names}
        self._is_gloo = backends.get("cpu") == "gloo"
        self._device = torch.device("cpu" if "cpu" in backends else f"cuda:{torch.cuda.current_device()}")
        self._tag = NOTHING
        self._waiters = ThreadPoolExecutor(max(1, 2 * len(self._peers)), "gumball-ranks")

    def agree(self, text: str, patience: float) -> list[str]:
        """Tells all ranks a text, returns that of each, and takes tags that no earlier pool on any of them had.

        Raises LateError or LostError for a rank that does not come within patience, in seconds, and CorruptError for one that says what none says.
        """
        global _last
        known = self._told_by_store(f"{_last} {text}", patience)
        tags = [tag_of(rank, each) for rank, each in enumerate(known)]
        self._tag = _last = 2 + max(tags)
        # All ranks have come here, so none waits for the pool before this one.
        _farewells.pop(self._group.group_name, None)
        while _closed:
            ended(_closed.pop())
        return [each[1] for each in known]

    def own(self, patience: float) -> TorchRanks:
        """Returns the ranks of a new group, of the same ranks as the default group: errors of a pool end that, and not the program's.

        Raises LateError or LostError for a rank that does not make it within patience, in seconds.
        """
        made: list[Any] = []

        def make() -> None:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            made.append(distributed.new_group(timeout=timedelta(seconds=max(1.0, patience))))

        end = time.monotonic() + patience
        error = Aside(make).failure(end)
        if made:
            return TorchRanks(made[0], is_own=True)
        raise raised(("late" if error is None else "lost", self._peers[0], told(error)), patience)

    def exchange(
        self, send: Sequence[bytearray], most: Sequence[int], patience: float
    ) -> tuple[list[bytearray | None], Failure | None]:
        """Sends each rank its message; returns that of each other rank, and what went wrong.

        most: the most bytes that the message of each rank may have. patience: how many seconds the ranks are waited for. Of a rank that
        a failure names the first bytes are returned, if they have come.
        """
        end = time.monotonic() + patience
        frames = {peer: bytearray(FRAME) for peer in self._peers}
        failure = self._move({peer: framed(send[peer]) for peer in self._peers}, frames, 0, end)
        received: list[bytearray | None] = [None] * self.world
        rests: dict[int, bytearray] = {}
        for peer, frame in frames.items():
            length = int.from_bytes(frame[:LENGTH], "little")
            if length == CLOSED:
                continue
            received[peer] = frame[LENGTH : LENGTH + min(length, most[peer])]
            if length > most[peer]:
                failure = failure or ("long", peer, str(length))
            elif length > FIRST and failure is None:
                received[peer] = rests[peer] = bytearray(length)
                rests[peer][:FIRST] = frame[LENGTH:]
        if failure is None:
            more = {peer: send[peer] for peer in self._peers if len(send[peer]) > FIRST}
            failure = self._move(more, rests, FIRST, end)
        return received, failure

    def _told_by_store(self, text: str, patience: float) -> list[list[str]]:
        """Tells all ranks a text by the store of the group, and returns that of each.

        NCCL has not connected them yet, and gloo ends the process for a message that is longer than what was expected.
        """
        name, end = self._group.group_name, time.monotonic() + patience
        store = distributed.distributed_c10d._get_process_group_store(self._group)
        _meetings[name] = _meetings.get(name, 0) + 1
        keys = [f"gumball/{name}/{_meetings[name]}/{rank}" for rank in range(self.world)]
        said: dict[int, str] = {self.rank: text}

        def meet() -> None:
            store.set(keys[self.rank], text)
            for peer in self._peers:
                # The store makes all time of none.
                store.wait([keys[peer]], timedelta(seconds=max(0.001, end - time.monotonic())))
                said[peer] = store.get(keys[peer]).decode(errors="replace")

        met = Aside(meet)
        failure = met.failure(end)
        if failure is None and len(said) == self.world:
            return [said[rank].split(" ", 1) for rank in range(self.world)]
        missing = min(peer for peer in self._peers if peer not in said)
        if failure is None or time.monotonic() >= end - 0.01:
            raise raised(("late", missing, ""), patience)
        raise raised(("lost", missing, told(failure)), patience)

    def leave(self) -> None:
        """Ends the connections of the group, so that no rank waits on, here or on another rank, nor a device."""
        if not self._is_gloo:
            abort = getattr(self._group, "abort", None) or getattr(
                self._group._get_backend(self._device), "abort", None
            )
            if abort is not None:
                Aside(abort).failure(time.monotonic() + END)
            return
        with contextlib.suppress(RuntimeError):
            # So gloo's waits end without a message.
            work = distributed.irecv(torch.empty(1), self._global[self._peers[0]], self._group, NOTHING)
            work.wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """Says to the other ranks that this one has closed its pool, if it came to one; waits for none."""
        self._waiters.shutdown(wait=False)
        if not distributed.is_initialized():
            return
        if self._is_gloo and self._tag != NOTHING:
            last = CLOSED.to_bytes(LENGTH, "little").ljust(FRAME)
            with contextlib.suppress(RuntimeError, ValueError):
                _farewells[self._group.group_name] = [self._isend(bytearray(last), 0, peer) for peer in self._peers]
        if self._is_own:
            _closed.append(self._group) if self._is_gloo else ended(self._group)

    def _move(
        self, send: Mapping[int, bytearray], receive: Mapping[int, bytearray], start: int, end: float
    ) -> Failure | None:
        """Sends each rank the bytes from `start` on, receives as much as there is room for, and waits until `end`."""
        places = {peer: self._place(buffer, start) for peer, buffer in receive.items()}
        if self._is_gloo:
            failure = self._by_gloo(send, places, start, end)
        else:
            failure = self._by_batch(send, places, start, end)
        if self._device.type != "cpu" and failure is None:
            for peer, place in places.items():
                torch.frombuffer(receive[peer], dtype=torch.uint8, offset=start).copy_(place)
        return failure

    def _place(self, buffer: bytearray, start: int) -> torch.Tensor:
        view = torch.frombuffer(buffer, dtype=torch.uint8, offset=start)
        return view if self._device.type == "cpu" else view.to(self._device)

    def _isend(self, buffer: bytearray, start: int, peer: int) -> Any:
        tag = self._tag + bool(start)
        return distributed.isend(self._place(buffer, start), self._global[peer], self._group, tag)

    def _by_gloo(
        self, send: Mapping[int, bytearray], places: Mapping[int, torch.Tensor], start: int, end: float
    ) -> Failure | None:
        """A thread waits for each message, as the end of one connection ends no wait for another."""
        waits: dict[Future[None], int] = {}
        sent: list[Any] = []

        def begin(peer: int, work: Any, frame: torch.Tensor | None) -> None:
            waits[self._waiters.submit(finish, work, end, frame)] = peer

        try:
            for peer, place in places.items():
                work = distributed.irecv(place, self._global[peer], self._group, self._tag + bool(start))
                begin(peer, work, None if start else place)
            for peer, buffer in send.items():
                work = self._isend(buffer, start, peer)
                # A frame has gone once that of its receiver has come.
                begin(peer, work, None) if start else sent.append(work)
            wait(waits, max(0, end - time.monotonic()) + 1, FIRST_EXCEPTION)
        except RuntimeError as error:
            return "lost", peer, told(error)
        except BaseException:
            self.leave()
            raise
        missing = [peer for future, peer in waits.items() if not future.done() or future.exception()]
        if not missing:
            return None
        if time.monotonic() >= end:
            return "late", min(missing), ""
        first, peer = next(each for each in waits.items() if each[0].done() and each[0].exception())
        return "lost", peer, told(first.exception())

    def _by_batch(
        self, send: Mapping[int, bytearray], places: Mapping[int, torch.Tensor], start: int, end: float
    ) -> Failure | None:
        """One group of messages, which NCCL takes at once. It has neither tags nor a wait that ends."""
        each = [(distributed.irecv, place, peer) for peer, place in places.items()]
        each += [(distributed.isend, self._place(buffer, start), peer) for peer, buffer in send.items()]
        if not each:
            return None
        sent = [distributed.P2POp(how, tensor, self._global[peer], self._group) for how, tensor, peer in each]
        works: list[Any] = []

        def begin() -> None:
            if self._device.type == "cuda":
                # A thread begins on device 0.
                torch.cuda.set_device(self._device)
            works.extend(distributed.batch_isend_irecv(sent))

        # The first batch of a group connects its ranks, and waits for all of them.
        begun, failure = Aside(begin), None
        try:
            error = begun.failure(end)
            while error is None and works and not all(work.is_completed() for work in works):
                if time.monotonic() >= end:
                    works.clear()
                time.sleep(MOMENT)
            if error is None and not works:
                failure = ("late", self._peers[0], "")
            elif error is not None:
                failure = ("lost", self._peers[0], told(error))
            else:
                for work in works:
                    work.wait()
        except RuntimeError as error:
            failure = ("lost", self._peers[0], told(error))
        except BaseException:
            self.leave()
            raise
        if failure is not None:
            self.leave()
        return failure


class Aside:
    """Work on a thread of its own, which nobody waits for once its time is over, nor at the end of the process."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="gumball-aside", daemon=True).start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error
        self._done.set()

    def failure(self, end: float) -> Exception | None:
        """Waits for the work until `end`; returns what it raised, None if it is not done by then."""
        while not self._done.wait(min(0.05, max(0, end - time.monotonic()))):
            # A wait for no time hears no signal.
            if time.monotonic() >= end:
                return None
        return self._error


def ended(group: Any) -> None:
    """Ends a group that was made for a pool; waits for NCCL no longer than END."""
    _farewells.pop(group.group_name, None)

    def end() -> None:
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            distributed.destroy_process_group(group)

    Aside(end).failure(time.monotonic() + END)


def tag_of(rank: int, known: Sequence[Any]) -> int:
    """The tag in what a rank says first: a number, and a text."""
    if len(known) == 2 and re.fullmatch(r"[0-9]{1,18}", str(known[0]), re.ASCII):
        return int(known[0])
    corrupt = CorruptError(f"rank {rank} sent what no rank says first")
    corrupt.rank = rank
    raise corrupt


def told(error: BaseException | None) -> str:
    """What torch says in an error, without the line of its source and its advice."""
    return re.sub(r"^\[[^]]*\] ", "", str(error)).split(". ")[0]


def finish(work: Any, end: float, frame: torch.Tensor | None) -> None:
    """Waits for a message until `end`; the frame of a rank that has closed its pool is an error."""
    # Gloo leaves out parts of a millisecond, and makes all time of none; so it gives up after the end and not before.
    work.wait(timedelta(seconds=max(0, end - time.monotonic()) + 0.002))
    if frame is not None and int.from_bytes(bytes(frame[:LENGTH].tolist()), "little") == CLOSED:
        raise RuntimeError("it has closed its pool")


def raised(failure: Failure, patience: float) -> DistError:
    """The error of a rank that did not come."""
    kind, rank, said = failure
    if kind == "late":
        late = LateError(f"rank {rank} sent nothing for {patience:g}s")
        late.rank, late.waited = rank, patience
        return late
    lost = LostError(f"rank {rank} is gone: {said}")
    lost.rank = rank
    return lost


def framed(message: bytearray) -> bytearray:
    """The frame of a message."""
    return (bytearray(len(message).to_bytes(LENGTH, "little")) + message[:FIRST]).ljust(FRAME)
