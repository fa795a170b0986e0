"""SGLang's names: the fused softmax of its pull request 22166, its warm-up, and the path it is imported by."""

from __future__ import annotations

import inspect
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from float64 import softmax64
from gumball import _gumball
from gumball_compat import sglang
from gumball_compat.sglang import fused_sampling

NAMES = ["fused_temperature_softmax", "fused_temperature_softmax_inplace", "warmup_fused_temperature_softmax"]


def test_the_names_and_parameters_are_sglangs() -> None:
    assert fused_sampling.__all__ == NAMES and set(NAMES) < set(sglang.__all__)
    for name in NAMES:
        assert getattr(sglang, name) is getattr(fused_sampling, name)
    given = [list(inspect.signature(getattr(sglang, name)).parameters) for name in NAMES]
    assert given == [["logits", "temperatures"]] * 2 + [["vocab_size", "device", "logits_dtype"]]


def test_they_are_the_softmax(batch: np.ndarray) -> None:
    temps = np.linspace(0.5, 2, 7, dtype=np.float32).reshape(7, 1)
    got = sglang.fused_temperature_softmax(batch, temps)
    np.testing.assert_allclose(got, softmax64(batch, temps), rtol=1e-5, atol=1e-5)
    narrow = batch.astype(ml_dtypes.bfloat16)
    assert sglang.fused_temperature_softmax_inplace(narrow, temps) is None
    assert (narrow == got.astype(ml_dtypes.bfloat16)).all()
    for wrong in (np.ones((7, 2), np.float32), np.ones(6, np.float32), [1.0] * 7, 0.7):
        with pytest.raises(ValueError, match=r"temperatures has shape \(.*\), but must have \(7, 1\)"):
            sglang.fused_temperature_softmax(batch, wrong)


@pytest.mark.parametrize("vocab", [32_000, 128_256, 151_936])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_is_division_and_softmax_in_the_rows_own_type(vocab: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    own = getattr(torch, dtype)
    # Every type divides by powers of two exactly, so that the softmaxes alone differ.
    exact, others = [2**-6, 0.5, 1, 64], [0.01, 0.7, 100]
    temps = torch.tensor([[t] for t in exact + others], dtype=torch.float32)
    logits = torch.randn(len(temps), vocab, generator=torch.Generator().manual_seed(1)) * 2
    logits[:, :20] += torch.linspace(6, 14, 20)
    logits = logits.to(own)
    got, in_place = sglang.fused_temperature_softmax(logits, temps), logits.clone()
    sglang.fused_temperature_softmax_inplace(in_place, temps)
    wanted = (logits.double() / temps.double()).softmax(-1)
    assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-30) and torch.equal(in_place, got.to(own))
    assert (got.sum(-1) - 1).abs().max() < 1e-5
    theirs = (logits[: len(exact)] / temps[: len(exact)].to(own)).softmax(-1)
    # torch's differences of logits / T are off by up to 6e-5; near 0 the spacing of the type's numbers is an absolute error.
    steps = {"rtol": max(2 * torch.finfo(own).eps, 2e-4), "atol": torch.finfo(own).tiny * torch.finfo(own).eps}
    assert torch.allclose(in_place[: len(exact)].double(), theirs.double(), **steps)


@pytest.mark.skipif(not _gumball.EMULATOR, reason="the emulated device is not built in")
def test_they_work_on_a_device(batch: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    logits, temps = torch.from_numpy(batch), torch.linspace(0.5, 2, 7).reshape(7, 1)
    narrow = logits.to(torch.bfloat16)
    _gumball.emulate(True)
    try:
        got = sglang.fused_temperature_softmax(logits, temps)
        sglang.fused_temperature_softmax_inplace(narrow, temps)
    finally:
        _gumball.emulate(False)
    assert torch.allclose(got, (logits / temps).softmax(-1), atol=1e-6)
    assert torch.equal(narrow, got.to(torch.bfloat16))


def test_a_warm_up_computes_a_row_of_every_type_and_changes_nothing(batch: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    temps = np.full((len(batch), 1), 0.7, np.float32)
    before = sglang.fused_temperature_softmax(batch, temps)
    for dtype in (None, torch.float32, torch.bfloat16, torch.float16):
        assert sglang.warmup_fused_temperature_softmax(900, device="cpu", logits_dtype=dtype) is None
    sglang.warmup_fused_temperature_softmax(900)
    assert (sglang.fused_temperature_softmax(batch, temps) == before).all()
    with pytest.raises(TypeError, match="float64"):
        sglang.warmup_fused_temperature_softmax(900, device="cpu", logits_dtype=torch.float64)


def test_registered_it_is_imported_by_sglangs_path() -> None:
    program = """
from gumball_compat import sglang
sglang.register()
from sglang.srt.layers.fused_sampling import fused_temperature_softmax as softmax
assert softmax is sglang.fused_temperature_softmax
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
