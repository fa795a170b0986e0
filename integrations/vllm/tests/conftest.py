"""The real vLLM on the CPU, with the default model of `gumball generate`; without one of them a test is skipped and says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# What the plug-ins' tests share.
sys.path.insert(0, str(Path(__file__).parents[2]))
# What vLLM is told before it is imported: a small cache, no binding of threads, the engine in this process.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # Threads that wait for each other are slow on a machine that has other work.
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
os.environ.update(SETTINGS)

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # vLLM asks what every module holds for its `__dict__`, which llvmlite's library answers with a function: no engine would start after one
    # that drafted by n-grams.
    from llvmlite.binding import ffi

    ffi.lib._fntab["__dict__"] = {}

from package_tests import device, pytest_report_header

__all__ = ["device", "pytest_report_header"]


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of the model."""
    import real_model

    return real_model.ready_or_skip()


@pytest.fixture(scope="session")
def recorded(model: Path) -> Any:
    """Recorded rows of logits, [rows, vocab] float32."""
    import numpy as np

    return np.load(model / "recorded.npy")


@pytest.fixture(scope="module")
def engine(request: Any, model: Path, tmp_path_factory: Any) -> Iterator[Any]:
    """An engine whose model gives recorded rows; a test module says in OPTIONS what else it is."""
    import torch

    import recorded_model

    folder = recorded_model.write(tmp_path_factory.mktemp("recorded"), model)
    # A C++ compiler takes fifteen seconds for vLLM's own count of ranks.
    with torch.compiler.set_stance("force_eager"):
        yield from closing(recorded_model.engine(folder, **getattr(request.module, "OPTIONS", {})))


def closing(made: Any) -> Iterator[Any]:
    """Yields an engine and then shuts it down."""
    import gc

    from vllm.distributed import cleanup_dist_env_and_memory

    yield made
    made.llm_engine.engine_core.shutdown()
    del made
    gc.collect()
    cleanup_dist_env_and_memory()
