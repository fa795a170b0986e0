"""The real transformers on the CPU, with the default model of `gumball generate`; without one of them a test is skipped and says so."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Modules that the plug-ins' tests share.
sys.path.insert(0, str(Path(__file__).parents[2]))
# Threads that wait for each other are slow on a machine that has other work. transformers copies a custom_generate folder into its home.
os.environ.update(OMP_NUM_THREADS="1", HF_HOME=tempfile.mkdtemp(), HF_HUB_OFFLINE="1")

if find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def folder() -> Path:
    """The folder of the real model."""
    import real_model

    return real_model.ready_or_skip()


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, padding_side="left")


@pytest.fixture(scope="session")
def recorded(folder: Path) -> Any:
    """A model whose logits are recorded rows."""
    import numpy as np
    import torch

    import recorded_model

    return recorded_model.model(torch.from_numpy(np.load(folder / "recorded.npy")))
