"""The rows of vLLM's batch as sequences of a pool: who came, went, moved, was preempted and came back (model runner V1).

vLLM tells its logits processors of each change of a batch, by row: removed, added, moved. The engine's own count of a request's output tokens
is the truth about its length: a token drawn of a prompt that is not read to its end, or thrown away for another reason, is not in it, and the
sequence is taken back to it. With asynchronous scheduling the engine counts tokens that it has not read yet, and nothing here waits for them.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumball import Pool, Shorten
from gumball.params import SamplingParams
from gumball.plugins.states import admit, seed_of, steered_by

from .batches import UNKNOWN, Batch, Chains
from .head_choice import AnyHead
from .listed import OnDevice, pool_of, warm_up
from .params import MODES, MOST_DEPARTED, TOP_LIMIT, asks_for_radii, params_of

__all__ = ["Request", "Requests"]


class Request:
    """A request in a batch.

    name: the engine's, which no other request of its time has. theirs: vLLM's parameters. output: the engine's own list of its tokens, which
    may lag behind its count of them. here: whether it is in the batch. slot: that in the pool, once it has drawn, or None. listed, names, radii: how many
    logprobs it asks for, the ids that it names, and whether it asks for radii.
    """

    def __init__(
        self, name: Hashable, theirs: Any, prompt: Sequence[int], output: list[int], params: SamplingParams
    ) -> None:
        self.name, self.theirs, self.prompt, self.output, self.params = name, theirs, prompt, output, params
        self.slot: int | None = None
        self.seed, self.here = 0, True
        listed = params.logprobs
        self.listed, self.names = (0, ()) if listed is None else (listed.top_n, listed.ids or ())
        self.radii = asks_for_radii(params)

    @functools.cached_property
    def prompt_hash(self) -> int:
        """Tells it from another prompt under the same name."""
        return hash(tuple(self.prompt))

    @functools.cached_property
    def apart(self) -> bool:
        """Whether the engine makes its logprobs, with `logprobs_mode` raw: a list that is too long for the pool."""
        theirs = self.theirs
        return self.params.logprobs is None and (theirs.logprobs is not None or bool(theirs.logprob_token_ids))


class _Departed(NamedTuple):
    """What is kept of a request that left the batch: its parameters, and the hash of its prompt, which may be long."""

    theirs: Any
    prompt: int


class Rows(Batch):
    """What stays as it is until a request comes, goes or moves, by row."""

    def __init__(self, requests: Sequence[Request | None]) -> None:
        self._requests = list(requests)
        self.slots: NDArray[np.int32] | None = None
        """The pool's, -1 for none; None until the batch draws."""
        self.counts: NDArray[np.int64]
        """The numbers of output tokens in the slots; less than 0 where only a device knows, and without a slot."""
        self.owners = np.arange(len(requests))

    @functools.cached_property
    def steered(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """The rows with mirostat or adaptive-p."""
        return np.array([one is not None and steered_by(one.params) is not None for one in self._requests], bool)

    @functools.cached_property
    def apart(self) -> NDArray[np.bool_]:
        """The rows whose logprobs the engine makes, with `logprobs_mode` raw."""
        return np.array([one is not None and one.apart for one in self._requests], bool)

    def listing(self) -> tuple[NDArray[np.int32], Sequence[Sequence[int]] | None, NDArray[np.bool_]]:
        """The logprobs and radii that the rows ask for."""
        counts = np.array([0 if one is None else one.listed for one in self._requests], np.int32)
        names = [() if one is None else one.names for one in self._requests]
        radii = np.array([one is not None and one.radii for one in self._requests], bool)
        return counts, names if any(names) else None, radii


class Requests:
    """The requests of a batch, by row, and the pool that has their sequences.

    rows: the most requests of a batch. most_drafts: the most drafts of a request. seed: the engine's, of which and of its
    name a request without one has its seed. logprobs_mode: the engine's. top_n: the most
    logprobs that a request may ask for. kept: whether steps tell kept sets. reasoning: the engine's `ReasoningConfig`. device: the pool's; None for that of
    the first logits.

    The sequence of a request that leaves stays in the pool, which has twice as many slots, until its slot is needed: a request that comes
    back goes on with tokens that the host may never have seen.
    """

    def __init__(
        self,
        *,
        rows: int,
        most_drafts: int = 0,
        seed: int = 0,
        logprobs_mode: str = "raw_logprobs",
        top_n: int = TOP_LIMIT,
        kept: bool = False,
        reasoning: Any = None,
        device: str | None = None,
    ) -> None:
        self.most_rows, self.most_drafts, self.logprobs_mode = rows, most_drafts, logprobs_mode
        self.top_n, self.kept, self.reasoning, self.device = top_n, kept, reasoning, device
        self.sets: Any = None
        """The kept sets of the last step, until the runner's output has them."""
        self.rows: list[Request | None] = []
        self.lengths: Callable[[int], NDArray[Any]] | None = None
        """The engine's numbers of output tokens of its first rows; None for the lengths of the requests' lists."""
        self.pool: Pool | None = None
        self.outputs: OnDevice
        self.on_host: bool
        """Whether the pool computes on the host, so that a step's tokens are known when it returns."""
        self.zero: torch.Tensor
        """0, where the logits lie."""
        self.head: AnyHead | None = None
        """The head that makes the logits, if the engine gives hidden states in their place."""
        self._engine_seed = seed
        self._departed: OrderedDict[Hashable, _Departed] = OrderedDict()
        # Slots of requests that left, the longest gone first.
        self._parked: OrderedDict[Hashable, int] = OrderedDict()
        self.batch = Rows(())
        # Requests that came without a slot since the batch last drew.
        self._fresh: list[Request] = []
        # The batch or chains that were assigned to the pool's next step, if that is known.
        self._assigned: Batch | Chains | None = None
        # The number of output tokens in each slot when the batch began.
        self._counts = np.zeros(2 * rows, np.int64)

    def listed_apart(self, every: bool) -> NDArray[np.bool_]:
        """Whose logprobs the engine makes of the logits as they came, by row. every: whether the logits of all rows were edited."""
        if self.logprobs_mode == "processed_logprobs":
            return np.zeros(len(self.rows), bool)
        return self.batch.apart | (every or self.logprobs_mode not in MODES)

    def update(
        self,
        removed: Iterable[int],
        added: Iterable[tuple[int, Hashable, Any, Sequence[int] | None, list[int]]],
        moved: Iterable[tuple[int, int, bool]],
        batch_size: int,
    ) -> None:
        """Takes over a change of the batch, in this order: removed rows, added requests, moved rows.

        added: row, the engine's name of the request, vLLM's parameters, prompt, the engine's list of output tokens. A request that was removed
        and is added again under its name, with the same object of parameters and the same prompt, goes on with its sequence, also with fewer tokens
        than it had. moved: from, to, and whether the two are swapped.
        """
        rows, arrived, slots = self.rows, [], self.batch.slots
        if slots is not None:
            self._counts[slots[slots >= 0]] = self.batch.counts[slots >= 0]
        for row in removed:
            self._depart(row)
        for row, name, theirs, prompt, output in added:
            self._depart(row)
            params = params_of(theirs, logprobs_mode=self.logprobs_mode, reasoning=self.reasoning)
            request = Request(name, theirs, prompt or (), output, params)
            rows.extend([None] * (row + 1 - len(rows)))
            rows[row] = request
            arrived.append(request)
        for one, other, swapped in moved:
            rows.extend([None] * (max(one, other) + 1 - len(rows)))
            if not swapped:
                self._depart(other)
            rows[one], rows[other] = rows[other], rows[one]
        for row in range(batch_size, len(rows)):
            self._depart(row)
        del rows[batch_size:]
        for request in arrived:
            self._arrive(request)
        self._fresh += [request for request in arrived if request.slot is None]
        self.batch = Rows(rows)

    def slots(self, logits: torch.Tensor) -> NDArray[np.int32]:
        """Returns the pool's slot of each row, with the sequences as long as the engine says they are.

        logits: rows of the batch, of which vocabulary and device count; with a head rows of hidden states.
        """
        if self.pool is None:
            self.make_pool(logits)
        batch = self.batch
        if batch.slots is None:
            for request in self._fresh:
                request.slot = self._admitted(request) if request.here else None
            self._fresh.clear()
            found = [-1 if request is None or request.slot is None else request.slot for request in self.rows]
            batch.slots = np.array(found, np.int32)
            batch.counts = np.where(batch.slots < 0, UNKNOWN, self._counts[batch.slots])
        surplus = batch.counts - self._lengths()
        if surplus.max(initial=0) > 0:
            self._take_back(batch.slots, np.maximum(surplus, 0))
        return batch.slots

    def to_assign(self, what: Batch | Chains, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        """The slots, if the pool's next step must be told them; none if it knows. what: the rows of the step."""
        known, self._assigned = self._assigned is what, what
        return () if known else (slots,)

    def advance(self, emitted: Any = 1) -> None:
        """Counts the tokens that the rows' sequences have got; UNKNOWN where only the device knows."""
        self.batch.counts += emitted

    def _lengths(self) -> NDArray[Any]:
        if self.lengths is not None:
            return self.lengths(len(self.rows))
        return np.array([0 if request is None else len(request.output) for request in self.rows], np.int64)

    def _take_back(self, slots: NDArray[np.int32], surplus: NDArray[np.int64]) -> None:
        """Takes the last tokens of sequences away; surplus: how many of each row."""
        assert self.pool is not None
        counts = self.batch.counts
        counts -= surplus
        if self.on_host:
            self.pool.shorten(slots[surplus > 0], surplus[surplus > 0])
            return
        for row in np.flatnonzero(surplus > 1):
            request = self.rows[row]
            if request is not None and steered_by(request.params) is not None:
                # A device has the last two limits or means, so this one starts again.
                self.pool.release(int(slots[row]))
                request.slot = slots[row] = self._admitted(request)
                counts[row], surplus[row] = self._counts[slots[row]], 0
        self.pool.assign(slots)
        self._assigned = None
        self.pool.enqueue([Shorten(surplus.tolist())])

    def make_pool(self, logits: torch.Tensor) -> None:
        """Makes the pool before its first batch. logits: as for :meth:`slots`."""
        vocab, place = logits.shape[1] if self.head is None else self.head.vocab, self.device or logits.device
        most, rows = 2 * self.most_rows, self.most_rows * (1 + self.most_drafts)
        self.pool = pool_of(vocab, place, most, rows, self.logprobs_mode, self.top_n, self.kept)
        self.outputs, self.on_host = OnDevice(self.pool), self.pool.device == "cpu"
        self.zero = torch.zeros(1, dtype=torch.int32, device=logits.device)

    def warm_up(self, logits: torch.Tensor) -> None:
        """Makes the pool, and the kernels of every request that may come. logits: a row, as for :meth:`slots`."""
        if self.pool is None:
            self.make_pool(logits)
        warm_up(self.outputs, logits, self.head, drafts=self.most_drafts > 0, kept=self.kept)
        self._assigned = None

    def _admitted(self, request: Request) -> int:
        pool = self.pool
        assert pool is not None
        if len(pool) == 2 * self.most_rows:
            _, vacated = self._parked.popitem(last=False)
            pool.release(vacated)
        output = list(request.output)
        slot = admit(pool, request.params, request.prompt, output, request.seed)
        self._counts[slot] = len(output)
        return slot

    def _arrive(self, request: Request) -> None:
        """Gives a request its seed, and the sequence that it had."""
        former, slot = self._departed.pop(request.name, None), self._parked.pop(request.name, None)
        # Another request may come under the same name; and after drafts only the engine's list says which tokens were kept.
        known = former is not None and former.theirs is request.theirs and former.prompt == request.prompt_hash
        if slot is not None:
            assert self.pool is not None
            if known and self._counts[slot] >= 0:
                request.slot = slot
            else:
                self.pool.release(slot)
        given = request.params.seed
        request.seed = seed_of(str(request.name), self._engine_seed) if given is None else given

    def _depart(self, row: int) -> None:
        """Takes a request out of its row, and keeps its sequence."""
        request = self.rows[row] if row < len(self.rows) else None
        if request is None:
            return
        self.rows[row], request.here = None, False
        self._departed[request.name] = _Departed(request.theirs, request.prompt_hash)
        if request.slot is not None:
            self._parked[request.name] = request.slot
        while len(self._departed) > MOST_DEPARTED:
            name, _ = self._departed.popitem(last=False)
            slot = self._parked.pop(name, None)
            if slot is not None:
                assert self.pool is not None
                self.pool.release(slot)
