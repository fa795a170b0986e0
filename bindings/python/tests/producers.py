"""Producers of arrays whose exports own their memory: legal by DLPack, and gone the moment that a loan ends."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

# DLPack's names of element types, by numpy's kind; V is ml_dtypes' bfloat16.
CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "b": 6}


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]
Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, Destructor]

# What capsules that are not freed yet are made of, by their address.
LENT: dict[int, tuple[Managed, np.ndarray, Any]] = {}


@Destructor
def end(capsule: int) -> None:
    """Ends a loan: its memory is overwritten, as its next owner would, and let go."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    _, array, _ = LENT.pop(get(capsule, b"dltensor"))
    array.view(np.uint8)[...] = 0xFF


class Fresh:
    """An array each of whose exports is a copy, which the capsule owns and poisons when it goes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array)
        self.copies: list[np.ndarray] = []
        self.shape = self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def reshape(self, *shape: Any) -> Fresh:
        return Fresh(self.array.reshape(*shape))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        array = self.array.copy()
        self.copies.append(array)
        return lent(array, array.ctypes.data, array.shape, Device(1, 0))


class Said:
    """Rows of float32 that claim an address, on the host or on a GPU, which nobody may read."""

    def __init__(self, shape: tuple[int, ...] = (7, 900), address: int | None = 1 << 40, on_gpu: bool = False) -> None:
        self.shape, self.address, self.device = shape, address, Device(2 if on_gpu else 1, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.kind, 0

    def __dlpack__(self, **_: Any) -> Any:
        return lent(np.zeros(1, np.float32), self.address, self.shape, self.device)


class Dangling:
    """An array whose DLPack structure has other pointers, numbers of dimensions or lengths than a tensor."""

    def __init__(self, **said: Any) -> None:
        self.said, self.shape = said, (7, 900)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        array = np.zeros(self.shape, np.float32)
        capsule = lent(array, array.ctypes.data, self.shape, Device(1, 0))
        managed, *_ = list(LENT.values())[-1]
        for name, value in self.said.items():
            if isinstance(value, tuple):
                value = (ctypes.c_int64 * len(value))(*value)
                self.kept = value
            elif name in ("shape", "strides"):
                value = ctypes.cast(value, ctypes.POINTER(ctypes.c_int64))
            setattr(managed.tensor, name, value)
        return capsule


def lent(array: np.ndarray, address: int | None, shape: tuple[int, ...], device: Device) -> Any:
    """A capsule of memory at an address, of the array's type."""
    lengths = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    kind = DataType(CODES[array.dtype.kind], 8 * array.itemsize, 1)
    managed = Managed(Tensor(address, device, len(shape), kind, lengths, None, 0), None, Deleter())
    LENT[ctypes.addressof(managed)] = managed, array, lengths
    return new_capsule(ctypes.addressof(managed), b"dltensor", end)
