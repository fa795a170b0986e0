"""Arrays: every kind that goes in, strided and offset, and every mistake with them, which changes nothing."""

from __future__ import annotations

import array
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gumball import Batch, Pool, Sampler, SamplingParams, Step

VOCAB = 900
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


class Interface:
    """An array with nothing but `__array_interface__`."""

    def __init__(self, array: np.ndarray) -> None:
        self.held = array
        self.__array_interface__ = array.__array_interface__


class DLPack:
    """An array with nothing but `__dlpack__`, of version 1 or before, that counts its loans."""

    def __init__(self, array: np.ndarray, versioned: bool) -> None:
        self.array, self.versioned, self.asked = array, versioned, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        if not self.versioned and "max_version" in keywords:
            raise TypeError("unexpected keyword argument 'max_version'")
        lent = self.array.__dlpack__(**(keywords if self.versioned else {}))
        self.asked += 1
        return lent


class Cuda:
    """What says that it lies on a GPU."""

    __cuda_array_interface__ = dict(version=3, shape=(7, VOCAB), typestr="<f4", data=(1 << 40, True), strides=None)


class Broken:
    """An array whose interface is wrong in some way."""

    def __init__(self, **interface: Any) -> None:
        whole = dict(version=3, typestr="<f4", shape=(7, VOCAB), data=(1 << 40, False)) | interface
        self.__array_interface__ = {name: value for name, value in whole.items() if value is not None}


class Refuses:
    """An array that will not lend its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("not today")


class NoCapsule(Refuses):
    """An array that lends something else."""

    def __dlpack__(self, **_: Any) -> Any:
        return 5


def pool(device: str, rows: int = 7) -> tuple[Pool, list[int]]:
    made = Pool(VOCAB, device=device, slots=8, rows=8)
    return made, [made.admit(SamplingParams(seed=seed, top_p=0.95), [1, 2]) for seed in range(rows)]


def drawn(device: str, logits: Any, **options: Any) -> list[int]:
    made, slots = pool(device)
    return made.step(logits, Batch(slots, **options)).tolist()


@pytest.fixture
def wanted(batch: np.ndarray) -> list[int]:
    return drawn("cpu", batch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_strided_and_offset(batch: np.ndarray, wanted: list[int], dtype: Any, device: str) -> None:
    rows = batch.astype(dtype)
    assert drawn(device, rows) == wanted
    wide = np.full((9, VOCAB + 13), np.inf, dtype)
    wide[1:8, 5 : VOCAB + 5] = rows
    # Rows begin at addresses that are no multiple of more than an element.
    assert drawn(device, wide[1:8, 5 : VOCAB + 5]) == wanted
    spread = np.full((14, VOCAB), np.inf, dtype)
    spread[::2] = rows
    assert drawn(device, spread[::2]) == wanted


def test_every_protocol(batch: np.ndarray, wanted: list[int], device: str) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    assert drawn(device, Interface(batch)) == wanted
    assert drawn(device, Interface(np.tile(batch, 2)[:, :VOCAB])) == wanted
    for versioned in (True, False):
        array = DLPack(batch, versioned)
        assert drawn(device, array) == wanted and array.asked == 1


def test_bf16_of_ml_dtypes_by_its_interface(batch: np.ndarray, wanted: list[int]) -> None:
    assert drawn("cpu", Interface(batch.astype(ml_dtypes.bfloat16))) == wanted


def test_lines_say_which_row_is_read(batch: np.ndarray, device: str) -> None:
    made, slots = pool(device)
    order = [3, 3, 0, 6, 1, 1, 3]
    for lines in (order, tuple(order), np.array(order), np.array(order, np.uint32), np.array(order * 2)[:7]):
        made, slots = pool(device)
        assert made.step(batch, Batch(slots, row_indices=lines)).tolist() == drawn("cpu", batch[order])
    with pytest.raises(ValueError, match="7"):
        made.step(batch, Batch(slots, row_indices=[0] * 6 + [7]))
    with pytest.raises(ValueError, match="row_indices is -1, but must be in 0..2"):
        made.step(batch, Batch(slots, row_indices=[-1] * 7))


def test_slots_in_every_form(batch: np.ndarray, wanted: list[int], device: str) -> None:
    made, slots = pool(device)
    forms = [slots, tuple(slots), np.array(slots, np.int32), np.array(slots, np.int64), range(7)]
    for form in forms:
        made, _ = pool(device)
        assert made.step(batch, form).tolist() == wanted
    made, slots = pool(device)
    slots[2] = -1
    assert made.step(batch, slots).tolist() == [*wanted[:2], -1, *wanted[3:]]


def bad_arrays() -> dict[str, tuple[Any, type[Exception], str]]:
    rows = np.zeros((7, VOCAB), np.float32)
    odd = np.frombuffer(bytearray(7 * VOCAB * 4 + 1), np.uint8)[1:].view(np.float32).reshape(7, VOCAB)
    return {
        "double": (
            rows.astype(np.float64),
            TypeError,
            "logits is of float64, but must be of float32, bfloat16 or float16",
        ),
        "int": (rows.astype(np.int32), TypeError, "logits is of int32, but must be of float32"),
        "swapped": (rows.astype(">f4"), TypeError, "byte order"),
        "list": ([[0.0]], TypeError, "logits must be an array: numpy's"),
        "none": (None, TypeError, "logits must be an array"),
        "narrow": (rows[:, :-1], ValueError, "899"),
        "columns": (np.zeros((7, 2 * VOCAB), np.float32)[:, ::2], ValueError, "2 apart in a row"),
        "transposed": (np.zeros((VOCAB, 7), np.float32).T, ValueError, "7 apart in a row"),
        "backwards": (rows[::-1], ValueError, "stride is -900, but must be positive"),
        "broadcast": (np.broadcast_to(rows[0], (7, VOCAB)), ValueError, "stride is 0, but must be at least"),
        "cube": (rows[None], ValueError, "logits has 3 dimensions, but must have 2"),
        "scalar": (np.float32(1), ValueError, "logits has 0 dimensions"),
        "no dimension": (np.array(1, np.float32), ValueError, "logits has 0 dimensions"),
        "few rows": (rows[:6], ValueError, "6"),
        "between bytes": (odd, ValueError, "a multiple of 4 bytes"),
        "no type": (Broken(typestr=None), TypeError, "logits cannot be read: 'typestr'"),
        "negative": (Broken(shape=(-7, VOCAB)), TypeError, "logits cannot be read"),
        "endless": (Broken(shape=(1 << 40, 1 << 40)), ValueError, "what fits in memory"),
        "nowhere": (Broken(data=(0, False)), TypeError, "logits has no memory"),
        "crooked": (Broken(strides=(901, 4)), ValueError, "no multiple of an element's 4"),
        "no lender": (Refuses(), TypeError, "logits cannot be read: not today"),
        "no capsule": (NoCapsule(), TypeError, "PyCapsule"),
        "on a GPU": (Cuda(), ValueError, "on cuda:0, but must be on cpu"),
    }


@pytest.mark.parametrize("name", bad_arrays())
def test_a_bad_array_changes_nothing(name: str, device: str, batch: np.ndarray) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    array, kind, text = bad_arrays()[name]
    made, slots = pool(device)
    before = [made.state(slot) for slot in slots]
    made.assign(slots)
    for call in (lambda: made.enqueue([Step(array)]), lambda: made.step(array, slots)):
        with pytest.raises(kind) as raised:
            call()
        assert text in str(raised.value)
    assert [made.state(slot) for slot in slots] == before
    assert made.step(batch, slots).tolist() == drawn("cpu", batch)


def test_bad_options_change_nothing(device: str, batch: np.ndarray) -> None:
    made, slots = pool(device)
    words = np.full((7, 29), -1, np.int32)
    before = [made.state(slot) for slot in slots]
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        (dict(masks=words[:6]), ValueError, "masks has length 6"),
        (dict(masks=words.astype(np.int64)), TypeError, "masks is of int64, but must be of int32 or uint32"),
        (dict(masks=words, mask_present=[True]), ValueError, "masks.present has length 1"),
        (dict(mask_present=[True] * 7), ValueError, "there are no masks"),
        (dict(forced=[1]), ValueError, "forced has length 1"),
        (dict(forced=[VOCAB] + [None] * 6), ValueError, "forced is 900, but must be"),
        (dict(forced=[-2] * 7), ValueError, "forced is -2, but must be an id, or -1 for none"),
        (dict(forced="1234567"), TypeError, "forced must be a list of integers, not str"),
        (dict(row_indices=[0]), ValueError, "length"),
        (dict(row_indices=[0.5] * 7), TypeError, "row_indices must be an integer, not float"),
    ]
    for options, kind, text in bad:
        with pytest.raises(kind) as raised:
            made.step(batch, Batch(slots, **options))
        assert text in str(raised.value)
    for wrong, text in (
        ([99] * 7, "99"),
        (slots[:6] + [0], "stands in a step once"),
        ([0.5] * 7, "an integer"),
        (5, "list"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            made.step(batch, wrong)
    with pytest.raises(ValueError, match="slots"):
        made.step(batch, [2**31] * 7)
    assert [made.state(slot) for slot in slots] == before


def test_no_rows_are_no_tokens(device: str) -> None:
    made, _ = pool(device)
    out = made.step(np.zeros((0, VOCAB), np.float32), [])
    assert out.tolist() == [] and out.tokens.shape == (0,)


def test_a_single_row_may_be_flat(batch: np.ndarray, device: str) -> None:
    made, slots = pool(device, 1)
    sampler = Sampler(SamplingParams(seed=0, top_p=0.95), VOCAB, prompt=[1, 2])
    assert made.step(batch[0], slots).tolist() == [sampler.sample(batch[0])]


def test_memory_of_ctypes() -> None:
    values = (ctypes.c_float * 4)(0, 1, 5, 2)
    assert Sampler(SamplingParams(temperature=0), 4).sample(np.ctypeslib.as_array(values)) == 2


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_an_array_of_any_integer_type_is_a_list_of_integers(dtype: type) -> None:
    def ids(*values: int) -> np.ndarray:
        return np.array(values, dtype)

    row = np.random.default_rng(3).normal(size=(2, VOCAB)).astype(np.float32)
    for other in (ids, lambda *values: memoryview(ids(*values)), lambda *values: Interface(ids(*values))):
        tokens = []
        for make in (lambda *values: list(values), other):
            pool = Pool(VOCAB, slots=2)
            params = SamplingParams(seed=3, repetition_penalty=1.5, min_tokens=1, stop_ids=make(4))
            slots = make(*(pool.admit(params, make(1, 2, 1)) for _ in range(2)))
            tokens += [pool.step(row, Batch(slots, row_indices=make(1, 0), forced=[None, 7])).tokens.tolist()]
            tokens[-1] += pool.step(row, Batch(slots, forced=make(9, 8))).tokens.tolist()
        assert tokens[0] == tokens[1]
    with pytest.raises(TypeError, match="prompt is of float64, but must be of integers"):
        Sampler(SamplingParams(), VOCAB, prompt=np.array([1.5]))


def test_rows_come_by_the_buffer_protocol() -> None:
    rows = np.random.default_rng(4).normal(size=(3, VOCAB)).astype(np.float32)
    expected = Sampler(SamplingParams(seed=5), VOCAB).sample(rows[0])
    for row in (array.array("f", rows[0]), memoryview(rows[0].tobytes()).cast("f"), (ctypes.c_float * VOCAB)(*rows[0])):
        assert Sampler(SamplingParams(seed=5), VOCAB).sample(row) == expected

    def drawn(logits: Any) -> list[int]:
        pool = Pool(VOCAB, slots=3)
        return pool.step(logits, [pool.admit(SamplingParams(seed=seed)) for seed in range(3)]).tokens.tolist()

    assert drawn(memoryview(rows)) == drawn(rows)
    assert drawn(memoryview(np.repeat(rows, 2, 0))[::2]) == drawn(rows)
    for wrong, kind, text in (
        (array.array("d", rows[0]), TypeError, "logits is of float64"),
        (b"bytes", TypeError, "logits is of uint8"),
        (array.array("f", rows[0][:-1]), ValueError, "logits has length 899, but must have 900"),
    ):
        with pytest.raises(kind, match=text):
            Sampler(SamplingParams(seed=5), VOCAB).sample(wrong)


def test_a_row_that_is_repeated_by_its_stride_is_refused_in_words_that_help() -> None:
    row = np.zeros(VOCAB, np.float32)
    pool = Pool(VOCAB, slots=3)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(3)]
    with pytest.raises(ValueError, match="logits' stride is 0, .* name it in row_indices"):
        pool.step(np.broadcast_to(row, (3, VOCAB)), slots)
    assert len(pool.step(row, Batch(slots, row_indices=[0] * 3)).tokens) == 3
