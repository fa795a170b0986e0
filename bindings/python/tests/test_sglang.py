"""SGLang's names: the fused softmax of its pull request 22166, its warm-up, and the path it is imported by."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

from gumball.compat import sglang
from gumball.compat.sglang import fused_sampling

NAMES = ["fused_temperature_softmax", "fused_temperature_softmax_inplace", "warmup_fused_temperature_softmax"]


def test_the_names_and_parameters_are_sglangs() -> None:
    assert fused_sampling.__all__ == NAMES and set(NAMES) < set(sglang.__all__)
    for name in NAMES:
        assert getattr(sglang, name) is getattr(fused_sampling, name)
    given = [list(inspect.signature(getattr(sglang, name)).parameters) for name in NAMES]
    assert given == [["logits", "temperatures"]] * 2 + [["vocab_size", "device", "logits_dtype"]]


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
from gumball.compat import sglang
sglang.register()
from sglang.srt.layers.fused_sampling import fused_temperature_softmax as softmax
assert softmax is sglang.fused_temperature_softmax
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
