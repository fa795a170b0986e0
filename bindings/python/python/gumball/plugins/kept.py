"""Packs kept sets for their way out of an engine, in the smaller of two forms, and refuses them beside edits of logits. Needs numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _gumball
from ..errors import RefusedError
from ..params import SamplingParams

__all__ = ["Guess", "PackedKept", "ids_of", "lists_of", "packed", "picked", "refuse_edits", "repacked", "unpacked"]

# The first word of a set whose other words are its bitmask.
_BITMASK = -1


def refuse_edits(params: SamplingParams, otherwise: str, *, repeatable: bool) -> None:
    """Raises RefusedError for a request whose kept sets do not let a trainer compute its logprobs.

    A dynamic temperature changes from token to token. Penalties, biases and DRY change logits; repeatable: whether by the rules of params, so that
    `gumball.torch.edited` does the same in the trainer. Bans are in the set. otherwise: what else the caller may do.
    """
    biases = dict(params.logit_bias).values()
    for name, value, is_on in (
        ("repetition_penalty", params.repetition_penalty, params.repetition_penalty != 1),
        ("frequency_penalty", params.frequency_penalty, params.frequency_penalty != 0),
        ("presence_penalty", params.presence_penalty, params.presence_penalty != 0),
        ("logit_bias", "given", any(bias not in (0, -np.inf) for bias in biases)),
        ("dry", params.dry.multiplier, params.dry.multiplier != 0),
        ("dynamic_temperature", "given", params.dynamic_temperature is not None),
    ):
        if is_on and (not repeatable or name == "dynamic_temperature"):
            raise RefusedError(
                f"{name} is {value}, which a kept set does not tell, so that logprobs over the set would be others; leave it out, or {otherwise}"
            )


def picked(sets: tuple[NDArray[np.int32], NDArray[np.int32]], rows: NDArray[np.int64]) -> tuple[Any, Any]:
    """Picks rows' sets, in the order of `rows`, from the lengths and ids that `Outputs.kept_sets` returns."""
    lengths, ids = sets
    if len(rows) == len(lengths) and (rows == np.arange(len(rows))).all():
        # A copy, since what a step fetched lies in memory that the next ones take again.
        return lengths.astype(np.int64), ids[: lengths.sum()].copy()
    some = lengths[rows].astype(np.int64)
    # How far the ids of each row move to the front.
    moved = np.cumsum(lengths, dtype=np.int64)[rows] - np.cumsum(some)
    return some, ids[np.repeat(moved, some) + np.arange(some.sum())]


class Guess:
    """How many words of each row's set are fetched before its length is known: twice as many as the last step had."""

    def __init__(self) -> None:
        self.words = 32


class PackedKept:
    """A step's kept sets, packed where they lie (:meth:`of`), and their first words on the host once :meth:`to_host` began to copy these.

    words: a torch tensor of int32, as :meth:`of` makes it. guess: the same for all steps of an engine.
    """

    def __init__(self, words: Any, guess: Guess, first: Any = None) -> None:
        self.words, self._guess, self._first = words, guess, first

    @classmethod
    def of(cls, bitmasks: Any, guess: Guess) -> PackedKept:
        """Packs sets without a wait. bitmasks: a torch tensor [rows, words] of 32 bits; on a GPU the words are a multiple of 4."""
        return cls(_gumball.pack_kept(bitmasks), guess)

    @property
    def lengths(self) -> Any:
        """How many ids each set has, [rows], where the sets lie."""
        return self.words.flatten()[: self.words.shape[0]]

    def to_host(self, copy: Callable[[Any], Any] = lambda words: words.to("cpu", non_blocking=True)) -> PackedKept:
        """Begins to copy them to the host, on the current stream, by `copy`."""
        rows, width = self.words.shape
        first = self.words.flatten()[: rows * min(width, 1 + self._guess.words)]
        return PackedKept(self.words, self._guess, copy(first))

    def packed(self, rows: NDArray[np.int64], bitmasks: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Packs rows' sets as :func:`packed` does; waits for the words that are not on the host."""
        count, words = self.words.shape[0], self._on_host
        return repacked(words[:count], words[count:], self.words.shape[1] - 1, rows, bitmasks)

    @cached_property
    def _on_host(self) -> NDArray[np.int32]:
        """All words that are written."""
        count, most = self.words.shape[0], self.words.shape[1] - 1
        words: NDArray[np.int32] = (self.words.flatten() if self._first is None else self._first).cpu().numpy()
        there = count + int(np.minimum(words[:count], most).sum())
        if there > len(words):
            words = self.words.flatten()[:there].cpu().numpy()
        self._guess.words = max(32, 2 * there // count)
        return words


def repacked(
    lengths: NDArray[np.int32], sets: NDArray[np.int32], most: int, rows: NDArray[np.int64], bitmasks: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Packs rows' sets as :func:`packed` does. sets: one after the other, of a row with more ids than `most` a bitmask of that many words."""
    taken = np.minimum(lengths, most)
    if (lengths[rows] <= most).all():
        return packed(picked((taken, sets), rows), bitmasks)
    parts = []
    for row, start in zip(rows.tolist(), (np.cumsum(taken, dtype=np.int64) - taken)[rows].tolist(), strict=True):
        part = sets[start : start + int(taken[row])]
        if lengths[row] <= most:
            parts.append(packed((lengths[row : row + 1], part), bitmasks)[1])
        else:
            parts.append(np.concatenate([np.full(1, _BITMASK, np.int32), part]) if bitmasks else _set_bits(part))
    return np.array([len(part) for part in parts], np.int64), np.concatenate(parts)


def packed(sets: Any, bitmasks: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Packs kept sets: how long each is, and the ids of each, ascending, one set after the other.

    sets: bitmasks, [rows, words] of 32 bits on the host, as `OnDevice.outputs("kept")` has them; or lengths and ids, as `Outputs.kept_sets` returns them.
    bitmasks: whether a set that is smaller as a bitmask becomes one, which :func:`ids_of` reads.
    """
    if not isinstance(sets, tuple):
        return _gumball.packed_sets(sets, bitmasks)
    lengths, ids = np.asarray(sets[0], np.int64), np.asarray(sets[1], np.int32)
    ends = np.cumsum(lengths)
    # The last id of a set, which is its largest, says how long its bitmask is.
    last = ids[ends[lengths > 0] - 1]
    if not bitmasks or (lengths[lengths > 0] <= 2 + last // 32).all():
        return lengths, ids
    lists = [_bits_of(part) if len(part) > 2 + part[-1:].sum() // 32 else part for part in np.split(ids, ends[:-1])]
    return np.array([len(part) for part in lists], np.int64), np.concatenate(lists)


def _bits_of(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns a set of ids as -1 and its bitmask."""
    bits = np.zeros((int(ids.max(initial=0)) // 32 + 1) * 32, np.uint8)
    bits[ids] = 1
    return np.concatenate([np.full(1, _BITMASK, np.int32), np.packbits(bits, bitorder="little").view("<i4")])


def ids_of(set: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the ids of one set that :func:`packed` packed."""
    if len(set) == 0 or set[0] != _BITMASK:
        return set
    return _set_bits(set[1:])


def _set_bits(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the ids of a bitmask."""
    return _gumball.packed_sets(np.ascontiguousarray(words).reshape(1, -1), False)[1]


def unpacked(lengths: NDArray[np.int64], ids: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Returns the lengths and ids of sets that :func:`packed` packed, without bitmasks."""
    ends = np.cumsum(lengths)
    begins = (ends - lengths)[lengths > 0]
    if not (ids[begins] == _BITMASK).any():
        return lengths, ids
    sets = [ids_of(part) for part in np.split(ids, ends[:-1])]
    return np.array([len(one) for one in sets], np.int64), np.concatenate(sets)


def lists_of(lengths: Sequence[int] | NDArray[np.int64], ids: NDArray[np.int32]) -> list[list[int]]:
    """Returns the ids of each set that :func:`packed` packed, as lists."""
    counts, plain = unpacked(np.asarray(lengths, np.int64), ids)
    return [part.tolist() for part in np.split(plain, np.cumsum(counts)[:-1])] if len(counts) else []
