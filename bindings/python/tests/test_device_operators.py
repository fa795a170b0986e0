"""Operators on a device, which the host emulates here: rows of the host are taken for its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from conftest import VOCAB
from gumball import Status, _gumball
from gumball.compat import sglang

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not _gumball.EMULATOR, reason="the emulated device is not built in")

TEMPERATURES = [1.0, 0.01, 100.0, 0.7, 0.0, 2.0, 1.3]


@pytest.fixture
def emulated() -> Iterator[None]:
    """What is handed in lies on the device, as far as the package can see."""
    _gumball.emulate(True)
    yield
    _gumball.emulate(False)


def on_host(work: Any) -> Any:
    _gumball.emulate(False)
    try:
        return work()
    finally:
        _gumball.emulate(True)


@pytest.fixture
def logits(batch: np.ndarray) -> Any:
    return torch.from_numpy(batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_softmax_is_the_hosts_bit_for_bit(emulated: None, logits: Any, dtype: str) -> None:
    rows = logits.to(getattr(torch, dtype))
    column = torch.tensor(TEMPERATURES)
    for given in (0.7, TEMPERATURES, tuple(TEMPERATURES), column, column.reshape(7, 1), column.double()):
        wanted = on_host(lambda: gumball.softmax(rows, given))
        got = gumball.softmax(rows, given)
        assert got.dtype == torch.float32 and torch.equal(got, wanted)
        place = rows.clone()
        assert gumball.softmax(place, given, out=place) is place
        assert torch.equal(place, wanted.to(rows.dtype))
    wide = torch.full((7, VOCAB + 5), 7.0, dtype=rows.dtype)
    wide[:, :VOCAB] = rows
    assert torch.equal(gumball.softmax(wide[:, :VOCAB], column), wanted)
    gumball.softmax(wide[:, :VOCAB], column, out=wide[:, :VOCAB])
    assert torch.equal(wide[:, :VOCAB], place) and (wide[:, VOCAB:] == 7).all()
    assert gumball.softmax(rows[0]).shape == (VOCAB,) and gumball.softmax(rows[:0]).shape == (0, VOCAB)


def test_a_number_in_a_tensor_is_not_looked_at(emulated: None, logits: Any) -> None:
    wanted = gumball.softmax(logits, 0.7)
    for one in (torch.tensor(0.7), torch.full((14,), 0.7)[::2], torch.full((1, 7), 0.7)):
        assert torch.equal(gumball.softmax(logits, one), wanted)
    # Nothing refuses what nobody sees: it counts as the nearest value that is allowed.
    assert torch.equal(gumball.softmax(logits, torch.full((7,), -1.0)), gumball.softmax(logits, 0))


def test_statuses_lie_beside_the_rows(emulated: None, logits: Any) -> None:
    logits[2], logits[4, 5] = -torch.inf, torch.nan
    got, statuses = gumball.softmax(logits, return_statuses=True)
    assert statuses.dtype == torch.int32 and statuses.tolist() == [0, 0, Status.EMPTY, 0, Status.NAN, 0, 0]
    assert (got[2] == 0).all()


def test_arrays_that_are_not_torchs_need_a_place(emulated: None, batch: np.ndarray) -> None:
    with pytest.raises(TypeError, match="out must be given"):
        gumball.softmax(batch)
    out = np.empty_like(batch)
    assert gumball.softmax(batch, 0.7, out) is out
    assert (out == on_host(lambda: gumball.softmax(batch, 0.7))).all()


def test_sglangs_names_work_there_too(emulated: None, logits: Any) -> None:
    temps = torch.linspace(0.5, 2, 7).reshape(7, 1)
    got = sglang.fused_temperature_softmax(logits, temps)
    assert torch.allclose(got, (logits / temps).softmax(-1), atol=1e-6)
    narrow = logits.to(torch.bfloat16)
    sglang.fused_temperature_softmax_inplace(narrow, temps)
    assert torch.equal(narrow, got.to(torch.bfloat16))


def test_mistakes_are_named_and_nothing_is_written(emulated: None, logits: Any) -> None:
    before = logits.clone()
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "temperature is -1, but must be 0", lambda: gumball.softmax(logits, -1.0, logits)),
        (ValueError, "temperature is NaN", lambda: gumball.softmax(logits, [np.nan] * 7, logits)),
        (ValueError, "temperature has length 2, but must have one per row, 7", lambda: gumball.softmax(logits, [1, 2])),
        (ValueError, "temperatures has length 2", lambda: gumball.softmax(logits, torch.ones(2))),
        (ValueError, "temperature has 3 dimensions", lambda: gumball.softmax(logits, torch.ones(7, 1, 1))),
        (TypeError, "temperature must be a number, not str", lambda: gumball.softmax(logits, "hot")),
        (TypeError, "temperature is of bool", lambda: gumball.softmax(logits, torch.ones(7) > 0)),
        (TypeError, "logits is of float64", lambda: gumball.softmax(logits.double())),
        (TypeError, "out is of int32", lambda: gumball.softmax(logits, out=torch.zeros(7, VOCAB, dtype=torch.int32))),
        (ValueError, "out.dtype is f16", lambda: gumball.softmax(logits, out=torch.zeros(7, VOCAB, dtype=torch.float16))),
        (ValueError, "out shares memory with logits", lambda: gumball.softmax(logits[:6], out=logits[1:])),
        (ValueError, "out has length 3", lambda: gumball.softmax(logits, out=torch.zeros(3, VOCAB))),
        (ValueError, "out.vocab is 5", lambda: gumball.softmax(logits, out=torch.zeros(7, 5))),
        (ValueError, "side by side", lambda: gumball.softmax(logits[:, ::2])),
        (ValueError, "3 dimensions", lambda: gumball.softmax(logits[None])),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()
    assert torch.equal(logits, before)


def test_a_stream_is_for_a_gpu(batch: np.ndarray) -> None:
    with pytest.raises(ValueError, match="stream is for rows on a GPU, but logits is on cpu"):
        gumball.softmax(batch, stream=0)
    with pytest.raises(TypeError, match="stream must be the handle"):
        gumball.softmax(batch, stream="mine")
    assert gumball.softmax(batch.astype(ml_dtypes.bfloat16)).dtype == np.float32
