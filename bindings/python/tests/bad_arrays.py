"""Arrays that no call takes: how each is made of good rows, the error, and what is said of it; {} is the argument's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from producers import Dangling, Said

Bad = dict[str, tuple[Callable[[np.ndarray], Any], type[Exception], str]]


class Refuses:
    """An array that will not lend its memory, or lends something else."""

    def __init__(self, lends: Any = None) -> None:
        self.lends = lends

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        if self.lends is None:
            raise BufferError("not today")
        return self.lends


def misaligned(array: np.ndarray) -> np.ndarray:
    """The array, a byte beyond where its elements may lie."""
    raw = np.zeros(array.nbytes + 16, np.uint8)
    first = -raw.ctypes.data % 8 + 1
    moved = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[:] = array
    return moved


def tensor(change: Callable[[Any], Any]) -> Callable[[np.ndarray], Any]:
    return lambda rows: change(pytest.importorskip("torch").from_numpy(rows.copy()))


BAD_ARRAYS: Bad = {
    "float64": (lambda rows: rows.astype(np.float64), TypeError, "{} is of float64, but must be of float32"),
    "int32": (lambda rows: rows.astype(np.int32), TypeError, "{} is of int32, but must be of float32"),
    "bool": (lambda rows: rows > 0, TypeError, "{} is of bool"),
    "complex": (lambda rows: rows.astype(np.complex64), TypeError, "{} is of another type"),
    "objects": (lambda rows: rows.astype(object), TypeError, "{} is of another type"),
    "big-endian": (lambda rows: rows.astype(">f4"), TypeError, "{} is of elements in another byte order"),
    "a list": (lambda rows: rows.tolist(), TypeError, "{} must be an array: numpy's"),
    "None": (lambda rows: None, TypeError, "{} must be an array"),
    "three dimensions": (lambda rows: rows[None], ValueError, "{} has 3 dimensions, but must have 2"),
    "a number": (lambda rows: np.float32(3), ValueError, "{} has 0 dimensions"),
    "every other element": (lambda rows: np.repeat(rows, 2, 1)[:, ::2], ValueError, "{} has elements 2 apart in a row"),
    "backwards": (lambda rows: rows[:, ::-1], ValueError, "{} has elements -1 apart in a row"),
    "upside down": (lambda rows: rows[::-1], ValueError, "{}'s stride is -[0-9]+, but must be positive"),
    "misaligned": (misaligned, ValueError, "{}'s address is .*, but must be a multiple of 4 bytes"),
    "endless": (lambda rows: Said((1 << 40, 1 << 40)), ValueError, "what fits in memory"),
    "nowhere": (lambda rows: Said(address=None), TypeError, "{} has no memory"),
    "without lengths": (
        lambda rows: Dangling(shape=None),
        ValueError,
        "{} cannot be read: DLPack's shape is NULL, .* address of 2 numbers",
    ),
    "without the length of a row": (lambda rows: Dangling(shape=None, ndim=1), ValueError, "DLPack's shape is NULL"),
    "misaligned lengths": (lambda rows: Dangling(shape=1 << 40 | 1), ValueError, "DLPack's shape is misaligned"),
    "misaligned strides": (lambda rows: Dangling(strides=4), ValueError, "DLPack's strides is misaligned"),
    "lengths below 0": (lambda rows: Dangling(shape=(7, -900)), ValueError, "DLPack's shape is -900, .* at least 0"),
    "dimensions below 0": (lambda rows: Dangling(ndim=-1), ValueError, "DLPack's ndim is -1"),
    "crooked": (
        lambda rows: np.ndarray((2, 3), "f4", bytes(64), strides=(13, 4)),
        ValueError,
        "no multiple of an element's 4",
    ),
    "no lender": (lambda rows: Refuses(), TypeError, "{} cannot be read: not today"),
    "no capsule": (lambda rows: Refuses(5), TypeError, "PyCapsule"),
    "a tensor of doubles": (tensor(lambda rows: rows.double()), TypeError, "{} is of float64"),
    "a tensor transposed": (tensor(lambda rows: rows.T.contiguous().T), ValueError, "[47] apart in a row"),
    "a sparse tensor": (tensor(lambda rows: rows.to_sparse()), TypeError, "{} cannot be read"),
    "a tensor without memory": (tensor(lambda rows: rows.to("meta")), TypeError, "{} cannot be read"),
}
# What the engine sees, and what only counting rows does not.
BAD_FOR_WORK: Bad = {
    "one row over and over": (lambda rows: np.broadcast_to(rows[0], rows.shape), ValueError, "stride is 0"),
}
