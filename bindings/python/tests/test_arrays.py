"""Arrays, lists and masks: every kind that goes in, strided and offset, and every mistake with them, which changes nothing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from array import array as array_of
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bad_arrays import BAD_ARRAYS, BAD_FOR_WORK
from gumball import Batch, Pool, Sampler, SamplingParams, Status, Step
from producers import Said

VOCAB = 900
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


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
    # Rows begin at addresses that are no multiple of more than an element.
    wide = np.full((16, VOCAB + 13), np.inf, dtype)
    wide[1:15:2, 5 : VOCAB + 5] = rows
    for given in (rows, wide[1:15:2, 5 : VOCAB + 5]):
        assert drawn(device, given) == wanted
    made, slots = pool(device, 1)
    assert made.step(rows[0], slots).tolist() == [
        Sampler(SamplingParams(seed=0, top_p=0.95), VOCAB, prompt=[1, 2]).sample(rows[0])
    ]
    assert made.step(rows[:0], []).tokens.shape == (0,)


def test_every_protocol(batch: np.ndarray, wanted: list[int], device: str) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    for versioned in (True, False):
        array = DLPack(np.tile(batch, 2)[:, :VOCAB], versioned)
        assert drawn(device, array) == wanted and array.asked == 1
    for buffer in (memoryview(batch), memoryview(np.repeat(batch, 2, 0))[::2]):
        assert drawn(device, buffer) == wanted
    sample = Sampler(SamplingParams(temperature=0), VOCAB).sample
    for row in (array_of("f", batch[0]), memoryview(batch[0].tobytes()).cast("f"), (ctypes.c_float * VOCAB)(*batch[0])):
        assert sample(row) == batch[0].argmax()
    for wrong, kind, text in (
        (array_of("d", batch[0]), TypeError, r"logits is of float64, .*; logits.astype\("),
        (
            batch[0].tolist(),
            TypeError,
            r"logits must be an array.*; numpy.asarray\(logits, \"float32\"\) makes one, not list",
        ),
        (b"bytes", TypeError, "logits is of uint8"),
        (array_of("f", batch[0][:-1]), ValueError, "logits has length 899, but must have 900"),
        (np.ma.masked_less(batch[0], 3), TypeError, "logits has masked elements"),
    ):
        with pytest.raises(kind, match=text):
            sample(wrong)
    assert sample(np.ma.masked_less(batch[0], -1e9)) == batch[0].argmax()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_an_array_of_any_integer_type_is_a_list_of_integers(dtype: type, batch: np.ndarray, device: str) -> None:
    def ids(*values: int) -> np.ndarray:
        return np.array(values, dtype)

    found = []
    for make in (lambda *values: list(values), lambda *values: values, ids, lambda *values: DLPack(ids(*values), True)):
        made = Pool(VOCAB, device=device, slots=2, rows=2)
        params = SamplingParams(seed=3, repetition_penalty=1.5, min_tokens=1, stop_ids=make(4))
        slots = make(*(made.admit(params, make(1, 2, 1)) for _ in range(2)))
        found.append([made.step(batch[:2], Batch(slots, row_indices=make(1, 0), forced=[None, 7])).tolist()])
        found[-1] += [
            made.step(batch[:2], Batch(slots, forced=make(9, 8))).tolist(),
            made.step(batch[:2], slots).tolist(),
        ]
    assert all(one == found[0] for one in found)
    made, slots = pool(device, 2)
    strided = np.repeat(ids(*slots), 2)[::2]
    assert made.step(batch[:2], strided).tolist() == drawn(device, batch)[:2]
    assert made.step(batch[:2], [-1, slots[1]]).tolist()[0] == -1


# What a pool sees besides: how it is made of good rows, the error, and what is said.
BAD_FOR_A_POOL = BAD_ARRAYS | {
    "few rows": (lambda rows: rows[:6], ValueError, "6"),
    "narrow": (lambda rows: rows[:, :-1], ValueError, "899"),
    "on a GPU": (lambda rows: Said(on_gpu=True), ValueError, "on cuda:0, but must be on cpu"),
    **BAD_FOR_WORK,
}


@pytest.mark.parametrize("name", BAD_FOR_A_POOL)
def test_a_bad_array_changes_nothing(name: str, device: str, batch: np.ndarray) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    make, kind, text = BAD_FOR_A_POOL[name]
    made, slots = pool(device)
    array, before = make(batch), [made.state(slot) for slot in slots]
    made.assign(slots)
    for call in (lambda: made.enqueue([Step(array)]), lambda: made.step(array, slots)):
        with pytest.raises(kind, match=text.format("rows")):
            call()
    assert [made.state(slot) for slot in slots] == before


WORDS = np.full((7, 29), -1, np.int32)
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (dict(masks=WORDS[:6]), ValueError, "masks has length 6"),
    (dict(masks=WORDS.astype(np.int64)), TypeError, "masks is of int64, but must be of int32 or uint32"),
    (
        dict(masks=np.ones((7, VOCAB), np.int32)),
        ValueError,
        "masks is 900, but must be less than 900: a bit for each",
    ),
    (dict(masks=WORDS, mask_present=[True]), ValueError, "mask_present has length 1"),
    (dict(mask_present=[True] * 7), ValueError, "there are no masks"),
    (dict(forced=[1]), ValueError, "forced has length 1"),
    (dict(forced=[VOCAB] + [None] * 6), ValueError, "forced is 900, but must be"),
    (dict(forced=[-2] * 7), ValueError, "forced is -2, but must be an id, or -1 for none"),
    (dict(forced="1234567"), TypeError, "forced must be a list of integers, not str"),
    (dict(row_indices=[0]), ValueError, "length"),
    (dict(row_indices=[0] * 6 + [7]), ValueError, "7"),
    (dict(row_indices=[-1] * 7), ValueError, "row_indices is -1, but must be in 0..2"),
    (dict(row_indices=[0.5] * 7), TypeError, "row_indices must be an integer, not float"),
    (dict(slots=[99] * 7), ValueError, "99"),
    (dict(slots=[*range(6), 0]), ValueError, "stands in a step once"),
    (dict(slots=[0.5] * 7), TypeError, "an integer"),
    (dict(slots=5), TypeError, "list"),
    (dict(slots=[2**31] * 7), ValueError, "slots"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD_OPTIONS)
def test_a_bad_list_or_mask_changes_nothing(
    options: dict, kind: Any, text: str, device: str, batch: np.ndarray
) -> None:
    made, slots = pool(device)
    with pytest.raises(kind) as raised:
        made.step(batch, Batch(**({"slots": slots} | options)))
    assert text in str(raised.value) and {made.state(slot).position for slot in slots} == {2}


def test_masks_of_both_layouts_allow_what_they_say_and_fail_closed(device: str, batch: np.ndarray) -> None:
    allowed = np.zeros((7, VOCAB), bool)
    allowed[:, [3, 77, 500]] = True
    words = np.packbits(np.pad(allowed, ((0, 0), (0, 28))), axis=1, bitorder="little").view(np.uint32)
    wide = np.zeros((7, 40), np.int32)
    wide[:, :29] = words.view(np.int32)
    for masks in (words, words.view(np.int32), wide[:, :29]):
        made, slots = pool(device)
        assert set(made.step(batch, Batch(slots, masks=masks)).tolist()) <= {3, 77, 500}
        # Missing words forbid.
        assert set(made.step(batch, Batch(slots, masks=masks[:, :3])).tolist()) <= {3, 77}
        present = made.step(batch, Batch(slots, masks=masks[:, :0], mask_present=[False] + [True] * 6))
        assert present.tolist()[0] >= 0 and present.tolist()[1:] == [-1] * 6
        assert present.statuses.tolist() == [0] + [Status.EMPTY] * 6
        made.assign(Batch(slots, masks=masks))
        made.enqueue([Step(batch)]) if not device.startswith("cuda") else made.step(batch, Batch(slots, masks=masks))
        scored = made.score(batch[:3], SamplingParams(), [1, 3, 77, 4], Batch(masks=masks[:3]))
        assert scored.statuses.tolist() == [0, 0, 0]
    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    for mask in (words[0, :0], words[:1, :0]):
        assert sampler.sample(batch[0], mask=mask) is None and sampler.status & Status.EMPTY
    assert sampler.sample(batch[0], mask=words[0]) in (3, 77, 500)
    for wrong, text in (
        (np.ones(VOCAB, np.int32), "mask's words is .*, but must be less than 900"),
        (np.ones((2, 29), np.int32), "mask's rows is 2, but must be 1"),
    ):
        with pytest.raises(ValueError, match=text):
            sampler.sample(batch[0], mask=wrong)


def test_arrays_without_numpy_say_what_brings_it() -> None:
    program = """
import array, sys
sys.modules["numpy"] = None
import gumball
pool = gumball.Pool(4, slots=1)
out = pool.step(array.array("f", [0, 1, 2, 3]), [pool.admit(gumball.SamplingParams())])
try:
    out.tokens
except ModuleNotFoundError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install "gumball[numpy]"' in said.stdout
