"""A pool's outputs where they lie on its device, and a step's logprobs as vLLM asks for them; nothing here waits for the device."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import envs

from gumball import Batch, Dry, Outputs, Pool, SamplingParams, Shorten, Step, Verify
from gumball.plugins.kept import Guess, PackedKept
from gumball.plugins.states import admit

from .head_choice import AnyHead, rows_of
from .params import IDS, MODES, TOP_LIMIT

__all__ = ["Apart", "Asked", "Copied", "Lists", "OnDevice", "pool_of", "upload", "warm_up", "with_radii"]

# What lists are made of, in the order in which a step's copy has it; and if a request names ids, or asks for radii.
_PARTS = ("tokens", "logprobs", "ranks", "top_ids", "top_logprobs")
_NAMED, _RADII = "id_logprobs", "second_logprobs"

# The id of a last column that has radii in the place of logprobs, NaN for a request without; :func:`with_radii` takes it off.
_RADIUS = -2

_Arrays = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]


class Copied(NamedTuple):
    """What lists are made of, in one piece of int32. shapes: of each part, by name."""

    words: torch.Tensor
    shapes: Mapping[str, tuple[int, ...]]


def pool_of(vocab: int, device: Any, slots: int, rows: int, logprobs_mode: str, top_n: int, kept: bool) -> Pool:
    """Makes a pool with places for the logprobs that requests may ask for in this mode. top_n: the most of a request; -1 for all. kept: whether it tells kept sets."""
    listed = logprobs_mode in MODES
    most = min(top_n if top_n >= 0 else TOP_LIMIT, TOP_LIMIT, vocab)
    most, ids = (most, IDS) if listed else (0, 0)
    return Pool(vocab, device=device, slots=slots, rows=rows, top_n=most, ids=ids, kept=kept)


def warm_up(outputs: OnDevice, row: torch.Tensor, head: AnyHead | None, *, drafts: bool, kept: bool) -> None:
    """Loads or compiles the kernels of every step that a pool without requests may take over such rows, on all cores, and of what is made of its outputs.

    row: one row, of the type of those to come; a hidden state, if head makes the logits. drafts: whether steps verify some. kept: whether they tell kept sets. Raises the error that a first step would raise, without a compiler
    for instance. A pool on the host has no kernels.
    """
    pool = outputs.pool
    if pool.device == "cpu":
        return
    # A graph has the kernels of all requests; a request with edits brings those of its coming and going.
    edits = SamplingParams(
        repetition_penalty=1.1, frequency_penalty=0.1, dry=Dry(multiplier=0.8), logit_bias={0: 1.0}, seed=0
    )
    slot = admit(pool, edits, [0], [], 0)
    pool.assign([slot])
    pool.capture([Step(rows_of(row, head))])
    pool.enqueue([Step(rows_of(row, head)), Shorten([1])])
    if kept:
        outputs.kept(1)
    pool.release(slot)
    if drafts:
        pool.assign(Batch([-1], counts=[1]))
        pool.capture([Verify(rows_of(row.repeat(2, 1), head), torch.zeros(1, dtype=torch.int32, device=row.device))])


class OnDevice:
    """A pool's outputs by name, where they lie on its device. The next step overwrites them.

    Their memory stays, so each becomes a tensor once for each number of rows, and of requests with drafts; it is read on the stream on which
    the steps are enqueued.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._made: dict[tuple[str, int, int], torch.Tensor] = {}
        self._guess = Guess()
        self._parts: dict[tuple[int, Sequence[str]], tuple[list[torch.Tensor], dict[str, tuple[int, ...]]]] = {}

    def __call__(self, name: str, rows: int, requests: int = 0) -> torch.Tensor:
        """An output of a step. rows: how many it has. requests: how many, if it verified drafts."""
        found = self._made.get((name, rows, requests))
        if found is None:
            found = torch.from_dlpack(self.pool.on_device().outputs(name))
            # Torch does little with unsigned numbers.
            found = found.view(torch.int32) if found.dtype == torch.uint32 else found
            self._made[name, rows, requests] = found
        return found

    def column(self, rows: int) -> torch.Tensor:
        """The tokens, [rows, 1]."""
        found = self._made.get(("column", rows, 0))
        if found is None:
            found = self._made["column", rows, 0] = self("tokens", rows).unsqueeze(1)
        return found

    def kept(self, rows: int) -> PackedKept:
        """The kept sets, packed in memory of their own."""
        return PackedKept.of(self("kept", rows), self._guess)

    def copied(self, rows: int, asked: Asked) -> Copied:
        """A copy of what lists are made of."""
        found = self._parts.get((rows, asked.parts))
        if found is None:
            parts = {name: self(name, rows) for name in asked.parts}
            words = [part.view(torch.int32).flatten() for part in parts.values()]
            found = words, {name: tuple(part.shape) for name, part in parts.items()}
            self._parts[rows, asked.parts] = found
        words, shapes = found
        return Copied(torch.cat(words), shapes)


def upload(values: Any, like: torch.Tensor, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Copies numbers of the host to where a tensor lies, without waiting for its device."""
    made = torch.as_tensor(values, dtype=dtype)
    return made.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else made


class Asked:
    """What a batch asks of logprobs.

    width: how many are listed beside the token's own. counts: of each request, without the ids that it names. names: the ids that each one
    names; None if none does. radii: which ask for radii.
    """

    def __init__(
        self,
        width: int,
        counts: NDArray[np.int32],
        names: Sequence[Sequence[int]] | None,
        radii: NDArray[np.bool_],
    ) -> None:
        self.width, self.counts = width, counts
        # vLLM's front end in Rust knows logprobs alone.
        self.radii = radii if radii.any() and not envs.VLLM_USE_RUST_FRONTEND else None
        self.parts = (*_PARTS, *([] if names is None else [_NAMED]), *([] if self.radii is None else [_RADII]))
        # [requests, width], -1 after the ids of a request.
        self.named: NDArray[np.int32] | None = None
        if names is not None:
            self.named = np.full((len(names), width), -1, np.int32)
            for line, ids in zip(self.named, names, strict=True):
                line[: len(ids)] = ids


class Apart(NamedTuple):
    """Lists that the engine's own functions make for some requests of a batch.

    lists: vLLM's `LogprobsTensors`. lines: for each line of the pool's outputs the one of these, -1 where the pool's counts.
    """

    lists: Any
    lines: NDArray[np.int64]


class Lists:
    """A step's logprobs, with what vLLM's model runners call of its `LogprobsTensors`.

    A step copies its outputs in one piece where they are. They are laid out on the host, after the engine has copied that piece there.
    """

    def __init__(
        self,
        outputs: Outputs | Copied,
        asked: Asked,
        owners: NDArray[np.int64],
        *,
        lines: NDArray[np.int64] | None = None,
        bounds: list[int] | None = None,
    ) -> None:
        """owners: the request of each line of the outputs.

        lines: those that the engine's positions read, in turn; None for all. bounds: the first position of each request; None if the engine
        knows.
        """
        self._outputs, self._asked, self.owners = outputs, asked, owners
        self._lines, self._bounds = lines, bounds
        self.apart: Sequence[Apart] = ()
        """Lists of the engine's own, of which a later one counts."""

    def to_cpu_nonblocking(self) -> Lists:
        """Begins to copy them to the host, on the current stream."""
        if not isinstance(self._outputs, Copied) or not self._outputs.words.is_cuda:
            return self
        made = copy.copy(self)
        made._outputs = self._outputs._replace(words=self._outputs.words.to("cpu", non_blocking=True))
        made.apart = [Apart(one.lists.to_cpu_nonblocking(), one.lines) for one in self.apart]
        return made

    def filter(self, mask: Any) -> Lists:
        """Those at some of the engine's positions. mask: [positions] bool, on the host."""
        assert self._lines is not None
        made = copy.copy(self)
        made._lines = self._lines[np.asarray(mask)]
        return made

    def tolists(self, bounds: list[int] | None = None) -> Any:
        """vLLM's `LogprobsLists`; waits for what is not on the host. bounds: as at the start, where they are not known until now."""
        from vllm.v1.outputs import LogprobsLists

        return LogprobsLists(*self.laid_out(), self._bounds if bounds is None else bounds)

    def laid_out(self) -> _Arrays:
        """Ids and logprobs, [positions, 1 + width], the position's own token first; and that token's ranks, [positions]. Radii are one more column."""
        parts, width, counts = self._on_host(), self._asked.width, self._asked.counts
        lines = np.arange(len(self.owners)) if self._lines is None else self._lines
        owners = self.owners[lines]
        ids = np.full((len(lines), 1 + width), -1, np.int32)
        logprobs = np.full(ids.shape, -np.inf, np.float32)
        # A row without a token gives token 0.
        ids[:, 0], logprobs[:, 0] = np.maximum(parts["tokens"][lines], 0), parts["logprobs"][lines]
        columns = min(width, parts["top_ids"].shape[1])
        ids[:, 1 : 1 + columns] = parts["top_ids"][lines, :columns]
        logprobs[:, 1 : 1 + columns] = parts["top_logprobs"][lines, :columns]
        if self._asked.named is not None:
            named = self._asked.named[owners]
            some = named[:, 0] >= 0
            ids[some, 1:], logprobs[some, 1:] = named[some], parts[_NAMED][lines[some], :width]
        missing = (ids[:, 1:] < 0) & (np.arange(width) < counts[owners, None])
        for line in np.flatnonzero(missing.any(1)):
            _name_others(ids[line, : 1 + counts[owners[line]]])
        made: _Arrays = np.maximum(ids, 0), logprobs, parts["ranks"][lines].astype(np.int64)
        for one in self.apart:
            made = _joined(made, one.lists.tolists()[:3], one.lines[lines])
        if self._asked.radii is not None:
            (ids, logprobs, ranks), none = made, np.full((len(lines), 1), _RADIUS, np.int32)
            radii = np.where(self._asked.radii[owners], parts[_RADII][lines], np.float32(np.nan))
            made = np.hstack([ids, none]), np.hstack([logprobs, radii[:, None]]), ranks
        return made

    def _on_host(self) -> Mapping[str, NDArray[Any]]:
        if not isinstance(self._outputs, Copied):
            return {name: getattr(self._outputs, name) for name in self._asked.parts}
        words, parts, at = self._outputs.words.cpu().numpy(), {}, 0
        for name, shape in self._outputs.shapes.items():
            part = words[at : at + prod(shape)].reshape(shape)
            parts[name] = part.view(np.float32) if name.endswith("logprobs") else part
            at += part.size
        return parts


def with_radii(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the method of vLLM's `LogprobsProcessor` that takes over a step's logprobs in the client's process, where a token's `Logprob` gets a `radius`."""

    @functools.wraps(original)
    def _update_sample_logprobs(self: Any, lists: Any) -> None:
        ids, logprobs = lists.logprob_token_ids, lists.logprobs
        if ids.size == 0 or ids[0, -1] != _RADIUS:
            original(self, lists)
            return
        known = len(self.logprobs)
        original(self, lists._replace(logprob_token_ids=ids[:, :-1], logprobs=logprobs[:, :-1]))
        if not np.isnan(logprobs[0, -1]):
            for found, token, radius in zip(self.logprobs[known:], ids[:, 0].tolist(), logprobs[:, -1].tolist()):
                found[token].radius = radius

    return _update_sample_logprobs


def _joined(ours: _Arrays, theirs: Sequence[NDArray[Any]], lines: NDArray[np.int64]) -> _Arrays:
    """Lists with others in some lines. lines: for each line the one of the others, -1 for none."""
    some = lines >= 0
    (ids, logprobs, ranks), width = ours, theirs[0].shape[1]
    more = max(0, width - ids.shape[1])
    ids, logprobs = np.pad(ids, ((0, 0), (0, more))), np.pad(logprobs, ((0, 0), (0, more)), constant_values=-np.inf)
    ids[some, :width], logprobs[some, :width], ranks[some] = (part[lines[some]] for part in theirs)
    return ids, logprobs, ranks


def _name_others(ids: NDArray[np.int32]) -> None:
    """Gives places without a token, -1, ids that the list has not, since vLLM keeps it by its ids; their logprob is -inf."""
    seen = set(ids.tolist())
    unused = (id for id in range(2 * len(ids)) if id not in seen)
    for place in np.flatnonzero(ids < 0):
        ids[place] = next(unused)
