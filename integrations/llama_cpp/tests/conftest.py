"""The real llama.cpp through llama-cpp-python, with the default model of `gumball generate`; without one of them a test is skipped and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# What the plug-ins' tests share.
sys.path.insert(0, str(Path(__file__).parents[2]))
REPOSITORY = Path(__file__).parents[3]

if find_spec("llama_cpp") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The file of the real model."""
    import real_model

    return real_model.gguf_or_skip()


@pytest.fixture(scope="session")
def llama(gguf: Path) -> Iterator[Any]:
    """A model that keeps the logits of every token."""
    from gumball_llama_cpp import Llama

    made = Llama(str(gguf), n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    yield made
    made.close()


@pytest.fixture(scope="session")
def program(tmp_path_factory: Any) -> Callable[..., list[str]]:
    """Runs the program in C and returns its lines. GUMBALL_LIBRARY names the folder with libgumball, which `cargo build -p gumball-c` makes."""
    import llama_cpp

    library = os.environ.get("GUMBALL_LIBRARY")
    if library is None:
        pytest.skip("GUMBALL_LIBRARY names no folder with libgumball (`cargo build -p gumball-c` makes one)")
    # The package has llama.cpp's headers and libraries beside it.
    site = Path(llama_cpp.__file__).parents[1]
    c, libraries = REPOSITORY / "bindings/c", site / "llama_cpp/lib"
    made = tmp_path_factory.mktemp("c") / "generate"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-DGUMBALL_WITH_LLAMA"]
    command += ["-I", str(c / "include"), "-I", str(c / "examples"), "-isystem", str(site / "include")]
    command += [str(REPOSITORY / "integrations/llama_cpp/c/generate.c"), str(c / "examples/llama_sampler.c")]
    command += ["-o", str(made)]
    for folder, names in ((library, ["gumball"]), (str(libraries), ["llama", "ggml", "ggml-base"])):
        command += ["-L", folder, f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in names)]
    built = subprocess.run([*command, "-lm"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr

    def run(*words: Any) -> list[str]:
        done = subprocess.run([str(made), *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run
