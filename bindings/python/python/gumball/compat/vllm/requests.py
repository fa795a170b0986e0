"""The rows of vLLM's batch as sequences of a pool: who came, went, moved, was preempted and came back (model runner V1).

vLLM tells its logits processors of each change of a batch, by row: removed, added, moved. An added request brings its prompt
and the engine's own running list of its output, which is the truth about how many tokens it has: a token drawn of a
prompt that is not read to its end, or thrown away for another reason, is not in there, and the sequence is taken back to it.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..._gumball import Pool
from ...params import SamplingParams, State
from .params import MODES, TOP_LIMIT, bias_first, params_of

__all__ = ["Request", "Requests"]

# How many requests that left the batch are remembered; those that were preempted come back.
_MOST_DEPARTED = 4096
# The most tokens that a request with mirostat may have lost when it comes back, so that its limit is still known.
_MOST_DROPPED = 8
# The most ids that a request of vLLM may name for logprobs.
_IDS = 128


class Request:
    """A request in a batch.

    name: the engine's, which no other request of its time has. theirs: vLLM's parameters. output: the engine's own list of its tokens, which
    grows; a token that it does not know yet is -1 there. slot: that in the pool, once it has drawn. count: the number of output tokens in
    the pool. first: how many it had when it came into the pool. mus: mirostat's limit behind each of the last numbers of output tokens, of a
    request that comes back. bias: ids and values that are added to its logits before its penalties, or None.
    """

    def __init__(
        self, name: Hashable, theirs: Any, prompt: Sequence[int], output: list[int], params: SamplingParams
    ) -> None:
        self.name, self.theirs, self.prompt, self.output, self.params = name, theirs, prompt, output, params
        self.slot: int | None = None
        self.count = self.first = len(output)
        self.seed = 0
        self.mus: Mapping[int, float] = {}
        self.bias: tuple[torch.Tensor, torch.Tensor] | None = None
        if bias_first(theirs):
            ids, values = zip(*theirs.logit_bias.items(), strict=True)
            self.bias = torch.tensor(ids, dtype=torch.int64), torch.tensor(values, dtype=torch.float32)

    @property
    def has_long_logprobs(self) -> bool:
        """Whether it asks for logprobs that the pool does not list."""
        count = self.theirs.logprobs
        return (count is not None or bool(self.theirs.logprob_token_ids)) and self.params.logprobs is None


class _Departed(NamedTuple):
    """What is kept of a request that left the batch: its parameters, its seed, and mirostat's limits (see :class:`Request`)."""

    theirs: Any
    seed: int
    mus: Mapping[int, float]


class Requests:
    """The requests of a batch, by row, and the pool that has their sequences.

    rows: the most requests of a batch. most_drafts: the most drafts of a request. seed: the engine's; requests without a seed of their own
    draw theirs from it in the order in which they come, so that all ranks of an engine agree. logprobs_mode: the engine's. top_n: the most
    logprobs that a request may ask for. device: the pool's; None for that of the first logits.
    """

    def __init__(
        self,
        *,
        rows: int,
        most_drafts: int = 0,
        seed: int = 0,
        logprobs_mode: str = "raw_logprobs",
        top_n: int = TOP_LIMIT,
        device: str | None = None,
    ) -> None:
        self.most_rows, self.most_drafts, self.logprobs_mode = rows, most_drafts, logprobs_mode
        self.top_n = min(top_n, TOP_LIMIT) if top_n >= 0 else TOP_LIMIT
        self.device = device
        self.rows: list[Request | None] = []
        self.pool: Pool | None = None
        self._seeds = random.Random(seed)
        self._departed: OrderedDict[Hashable, _Departed] = OrderedDict()

    def update(
        self,
        removed: Iterable[int],
        added: Iterable[tuple[int, Hashable, Any, Sequence[int] | None, list[int]]],
        moved: Iterable[tuple[int, int, bool]],
        batch_size: int,
    ) -> None:
        """Takes over a change of the batch, in this order: removed rows, added requests, moved rows.

        added: row, the engine's name of the request, vLLM's parameters, prompt, the engine's list of output tokens. A request that was removed
        and is added again under its name, with the same object of parameters, keeps its seed and mirostat's limit, also with fewer tokens
        than it had. moved: from, to, and whether the two are swapped.
        """
        before = [request for request in self.rows if request is not None]
        rows: dict[int, Request] = {row: request for row, request in enumerate(self.rows) if request is not None}
        for row in removed:
            rows.pop(row, None)
        new = []
        for row, name, theirs, prompt, output in added:
            params = params_of(theirs, logprobs_mode=self.logprobs_mode)
            rows[row] = Request(name, theirs, prompt or (), output, params)
            new.append(rows[row])
        for one, other, swapped in moved:
            first, second = rows.pop(one, None), rows.pop(other, None)
            if first is not None:
                rows[other] = first
            if swapped and second is not None:
                rows[one] = second
        self.rows = [rows.get(row) for row in range(batch_size)]
        staying = {id(request) for request in self.rows}
        for request in before:
            if id(request) not in staying:
                self._depart(request)
        for request in new:
            self._arrive(request)

    def slots(self, logits: torch.Tensor) -> list[int]:
        """Returns the pool's slot of each row, with the sequences as long as the engine says they are.

        logits: rows of the batch, of which vocabulary and device count.
        """
        if self.pool is None:
            self.pool = self._made(logits)
        slots = []
        for request in self.rows:
            if request is None:
                slots.append(-1)
                continue
            if request.slot is None:
                request.slot = self._admitted(request)
            elif len(request.output) < request.count:
                request.count = len(request.output)
                self.pool.truncate(request.slot, request.count)
            slots.append(request.slot)
        return slots

    def advance(self) -> None:
        """Counts the token that each row's sequence has got in the pool."""
        for request in self.rows:
            if request is not None:
                request.count += 1

    def _made(self, logits: torch.Tensor) -> Pool:
        rows = self.most_rows * (1 + self.most_drafts)
        listed = self.logprobs_mode in MODES
        return Pool(
            logits.shape[1],
            device=self.device or logits.device,
            slots=self.most_rows,
            rows=rows,
            top_n=min(self.top_n, logits.shape[1]) if listed else 0,
            ids=_IDS if listed else 0,
        )

    def _admitted(self, request: Request) -> int:
        assert self.pool is not None
        request.count = request.first = len(request.output)
        if not request.output:
            return self.pool.admit(request.params.replace(seed=request.seed), request.prompt)
        mu = request.mus.get(request.count)
        if mu is None:
            mirostat = request.params.mirostat
            mu = 0.0 if mirostat is None else 2 * mirostat.tau if mirostat.mu is None else mirostat.mu
        output = list(request.output)
        position = (len(request.prompt) + len(output)) % 2**32
        state = State(request.prompt, output, seed=request.seed, position=position, mu=mu)
        return self.pool.resume(request.params, state)

    def _arrive(self, request: Request) -> None:
        """Gives a request its seed: that of its parameters, or that which it had, or a new one."""
        former = self._departed.pop(request.name, None)
        # A name may come again with another request.
        if former is not None and former.theirs is request.theirs:
            request.seed, request.mus = former.seed, former.mus
        elif request.params.seed is not None:
            request.seed = request.params.seed
        else:
            request.seed = self._seeds.getrandbits(64)

    def _depart(self, request: Request) -> None:
        """Takes a request out of the pool, and remembers what its parameters and tokens do not say."""
        mirostat = request.params.mirostat is not None
        if request.slot is not None:
            assert self.pool is not None
            if mirostat:
                request.mus = self._mus(request)
            self.pool.release(request.slot)
            request.slot = None
        if request.params.seed is not None and not mirostat:
            return
        self._departed[request.name] = _Departed(request.theirs, request.seed, request.mus)
        self._departed.move_to_end(request.name)
        while len(self._departed) > _MOST_DEPARTED:
            self._departed.popitem(last=False)

    def _mus(self, request: Request) -> dict[int, float]:
        """Mirostat's limits behind the last numbers of tokens, since the engine may drop those that it has not heard of yet."""
        assert self.pool is not None and request.slot is not None
        most = min(request.count, len(request.output))
        mus = {}
        for count in range(most, max(request.first, most - _MOST_DROPPED) - 1, -1):
            self.pool.truncate(request.slot, count)
            mus[count] = self.pool.state(request.slot).mu
        return mus
