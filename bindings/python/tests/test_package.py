"""The package itself: what importing it takes along, and whether its types are those of its stubs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gumball


def run(*args: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_it_imports_neither_numpy_nor_torch(tmp_path: Path) -> None:
    run("-c", "import gumball, sys; assert not {'numpy', 'torch'} & set(sys.modules)", cwd=tmp_path)


def test_it_works_without_numpy(tmp_path: Path) -> None:
    program = """
import array, sys
sys.modules["numpy"] = None  # An import of it fails.
import gumball

class Row:
    def __init__(self, values):
        self.values = array.array("f", values)
        address, count = self.values.buffer_info()
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": (count,), "data": (address, False)}

row = Row([0.0, 3.0, 1.0])
assert gumball.Sampler(gumball.SamplingParams(temperature=0), 3).sample(row) == 1
pool = gumball.Pool(3, slots=1)
out = pool.step(row, [pool.admit(gumball.SamplingParams(temperature=0))])
assert out.tolist() == [1] and out.token(0) == 1
try:
    out.tokens
except ImportError:
    pass
else:
    raise AssertionError("an array without numpy")
"""
    run("-c", program, cwd=tmp_path)


def test_stubs_are_those_of_the_library(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    run("-m", "mypy.stubtest", "gumball._gumball", "gumball.params", cwd=tmp_path)


def test_the_package_types_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    settings = Path(__file__).parents[1] / "pyproject.toml"
    run("-m", "mypy", "--config-file", str(settings), "-p", "gumball", cwd=tmp_path)


def test_nvrtc_is_found_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumball import nvrtc

    for version in ("12", "13"):
        folder = tmp_path / "nvidia" / f"cu{version}" / "lib"
        folder.mkdir(parents=True)
        (folder / f"libnvrtc.so.{version}").touch()
    # Set first, so that what `locate` sets is undone afterwards.
    monkeypatch.setenv("GUMBALL_NVRTC", "")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    found = nvrtc.locate()
    assert found == os.environ["GUMBALL_NVRTC"] == str(tmp_path / "nvidia/cu13/lib/libnvrtc.so.13")
    monkeypatch.setenv("GUMBALL_NVRTC", "mine")
    assert nvrtc.locate() == "mine"


def test_everything_public_says_what_it_is() -> None:
    for name in gumball.__all__:
        thing = getattr(gumball, name)
        assert name.startswith("__") or (thing.__doc__ or "").strip(), name
        for member in vars(thing) if isinstance(thing, type) and thing.__module__ == "gumball" else ():
            if not member.startswith("_"):
                assert (getattr(thing, member).__doc__ or "").strip() or thing is gumball.Outputs, f"{name}.{member}"
