"""The package itself: what importing it takes along, and whether its types are the stubs'."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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

row = array.array("f", [0.0, 3.0, 1.0])
assert gumball.Sampler(gumball.SamplingParams(temperature=0), 3).sample(row) == 1
pool = gumball.Pool(3, slots=1)
out = pool.step(row, [pool.admit(gumball.SamplingParams(temperature=0))])
assert out.tolist() == [1]
try:
    out.tokens
except ImportError:
    pass
else:
    raise AssertionError("an array without numpy")
"""
    run("-c", program, cwd=tmp_path)


def test_the_package_has_both_licences_and_says_who_made_it() -> None:
    distribution = importlib.metadata.distribution("gumball")
    texts = {file.name: file.read_text() for file in distribution.files or [] if file.parent.name == "licenses"}
    assert "Apache License" in texts["LICENSE-APACHE"] and "Gumball contributors" in texts["LICENSE-MIT"]
    said = distribution.metadata
    assert said["License-Expression"] == "Apache-2.0 OR MIT" and said["Author"] == "Gumball contributors"
    assert "Operating System :: POSIX :: Linux" in said.get_all("Classifier", [])


def test_other_packages_names_are_a_package_of_their_own() -> None:
    there = [str(path) for path in importlib.metadata.files("gumball") or [] if path.suffix == ".py"]
    assert len(there) < 25 and all(path.startswith("gumball/") for path in there), there


@pytest.fixture
def backend() -> Any:
    pytest.importorskip("maturin")
    path = Path(__file__).parents[1] / "backend" / "carrying_kernels.py"
    spec = importlib.util.spec_from_file_location("carrying_kernels", path)
    assert spec is not None and spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    return backend


def test_the_name_of_a_wheel_says_what_it_carries(backend: Any, tmp_path: Path) -> None:
    name = "gumball-0.1.0-cp310-abi3-linux_x86_64.whl"
    assert backend.with_build_tag(name, tmp_path, False) == "gumball-0.1.0-0_no_kernels-cp310-abi3-linux_x86_64.whl"
    wanted = "gumball-0.1.0-0_no_kernels_emulator-cp310-abi3-linux_x86_64.whl"
    assert backend.with_build_tag(name, tmp_path, True) == wanted
    for arch in ("sm_120", "sm_90", "sm_90"):
        (tmp_path / f"survey_{len(list(tmp_path.iterdir()))}-{arch}-0f0f.bin").touch()
    wanted = "gumball-0.1.0-1_kernels_sm_90_sm_120-cp310-abi3-linux_x86_64.whl"
    assert backend.with_build_tag(name, tmp_path, False) == wanted


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"Py_GIL_DISABLED": 1, "SOABI": "cpython-313t-x86_64-linux-gnu"}, "free-threaded"),
        ({"Py_GIL_DISABLED": 0, "SOABI": "cpython-312-x86_64-linux-musl"}, "musl"),
    ],
)
def test_a_python_that_it_is_not_made_for_is_refused(
    backend: Any, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], reason: str
) -> None:
    assert backend.refusal() is None
    monkeypatch.setattr(backend.sysconfig, "get_config_var", said.get)
    for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        with pytest.raises(SystemExit, match=f"gumball: this Python is .*{reason}"):
            hook()


def test_stubs_are_those_of_the_library_and_the_package_types_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    run("-m", "mypy.stubtest", "gumball._gumball", "gumball.params", cwd=tmp_path)
    settings = Path(__file__).parents[1] / "pyproject.toml"
    run("-m", "mypy", "--config-file", str(settings), "-p", "gumball", cwd=tmp_path)


def test_what_callers_write_types_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "call.py").write_text("""
from gumball import SamplingParams

params = SamplingParams(dry={"multiplier": 0.8}, logprobs=5, min_p=None, logit_bias={"5": 1.0}, watermark=False, seed=7)
multiplier: float = params.dry.multiplier
""")
    root = Path(__file__).parents[1]
    examples = sorted(map(str, (root / "examples").glob("*.py")))
    settings = ["--config-file", str(root / "pyproject.toml"), "--allow-subclassing-any"]
    run("-m", "mypy", *settings, "call.py", *examples, cwd=tmp_path)


def test_libraries_are_found_in_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumball import nvrtc

    for version in ("12", "13"):
        folder = tmp_path / "nvidia" / f"cu{version}" / "lib"
        folder.mkdir(parents=True)
        (folder / f"libnvrtc.so.{version}").touch()
    nccl = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.touch()
    # Set first, so that what `locate` sets is undone afterwards.
    monkeypatch.setenv("GUMBALL_NVRTC", "")
    monkeypatch.setenv("GUMBALL_NCCL", "")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    for driver, version in ((None, 13), (13, 13), (14, 13), (12, 12)):
        monkeypatch.setattr(nvrtc, "driver", lambda of=driver: of)
        monkeypatch.setenv("GUMBALL_NVRTC", "")
        found = nvrtc.locate()
        assert found == os.environ["GUMBALL_NVRTC"] == str(tmp_path / f"nvidia/cu{version}/lib/libnvrtc.so.{version}")
    assert os.environ["GUMBALL_NCCL"] == str(nccl)
    monkeypatch.setenv("GUMBALL_NVRTC", "mine")
    assert nvrtc.locate() == "mine"
    # Nor what lies in the current folder.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUMBALL_NVRTC", "")
    assert str(tmp_path) not in (nvrtc.locate() or "")


def test_a_build_looks_for_the_compiler_where_the_package_will(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumball import nvrtc

    library = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    # As pip builds: nothing of the environment can be imported.
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    for locate in (backend.located_compiler, nvrtc.locate):
        monkeypatch.setenv("GUMBALL_NVRTC", "")
        monkeypatch.setenv("GUMBALL_NCCL", "")
        assert locate() == str(library)


def test_everything_public_says_what_it_is() -> None:
    for name in gumball.__all__:
        thing = getattr(gumball, name)
        assert name.startswith("__") or (thing.__doc__ or "").strip(), name
        for member in vars(thing) if isinstance(thing, type) and thing.__module__ == "gumball" else ():
            if not member.startswith("_"):
                assert (getattr(thing, member).__doc__ or "").strip() or thing is gumball.Outputs, f"{name}.{member}"
