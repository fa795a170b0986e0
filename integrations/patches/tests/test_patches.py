"""Each patch applied to the release of its engine that it names: it applies, and the engine's own sampler, imported from there, draws what `gumball.Sampler` draws."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "compat/tests/real"))
from releases import download

HERE = Path(__file__).parent
INTEGRATIONS = HERE.parents[1]
WHEELS = INTEGRATIONS.parent / "target/newest-wheels"
RELEASES = {"vllm": "0.33.0", "sglang": "0.5.23"}
MOST_LINES = 60


def patched(name: str, folder: Path) -> Path:
    """A release of an engine, which pip brings, without what is compiled, and patched."""
    patch = HERE.parent / f"{name}.patch"
    changed = [line for line in patch.read_text().splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) <= MOST_LINES
    WHEELS.mkdir(parents=True, exist_ok=True)
    try:
        wheel = download(WHEELS, f"{name}=={RELEASES[name]}")
    except subprocess.CalledProcessError:
        pytest.skip(f"pip cannot bring {name} {RELEASES[name]}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [path for path in archive.namelist() if not path.endswith(".so")])
    subprocess.run(["patch", "--silent", "--strip=1", "--fuzz=0", f"--input={patch}"], cwd=folder, check=True)
    return folder


def run(folder: Path, *command: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm(tmp_path: Path) -> None:
    run(patched("vllm", tmp_path), str(HERE / "draw_vllm.py"), VLLM_USE_GUMBALL_SAMPLER="1")


@pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed")
def test_sglang(tmp_path: Path) -> None:
    """By those tests of the plug-in that ask for nothing beyond what the patch gives."""
    tests = INTEGRATIONS / "sglang/tests/test_sampler.py"
    some = "samplers_draw_alone or without_seeds or sample_j_of_n or at_the_temperature"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tests.parents[1]), str(tests)]
    run(patched("sglang", tmp_path), *command, "-k", some, GUMBALL_SGLANG_PATCHED="1")
