"""`gumball`, the command that pip installs: its subcommands reach the code of the command in Rust, whose tests hold what they say; its exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gumball
from gumball import Sampler, SamplingParams
from gumball.__main__ import PACKAGES, main
from gumball._gumball import EMULATOR


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "-m", "gumball", *map(str, arguments)]
    return subprocess.run(called, capture_output=True, text=True, check=False, timeout=300)


def succeeds(*arguments: str | Path) -> str:
    done = command(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def row(batch: np.ndarray, tmp_path: Path) -> Path:
    path = tmp_path / "row.npy"
    np.save(path, batch[0])
    return path


def test_the_doctor_says_what_there_is_and_what_it_makes_possible() -> None:
    text = succeeds("doctor")
    for part in (f"gumball {gumball.__version__}  definition 1", "scalar draws the oracle's tokens", "NVRTC"):
        assert part in text, text
    [line] = [line for line in text.splitlines() if line.startswith("  numpy ")]
    assert line.split()[1] == np.__version__ and "arrays that are returned" in line, text
    # A model is the business of the command in Rust.
    assert "  model  " not in text
    report = json.loads(succeeds("doctor", "--json"))
    assert all(item["holds"] for item in report["self_test"])
    python, carried = report["python"], Path(gumball.__file__).parent.glob("kernels/*.bin")
    assert python["version"] == ".".join(map(str, sys.version_info[:3])) and python["emulator"] == EMULATOR
    assert Path(python["package"]) == Path(gumball.__file__).parent
    assert set(python["kernel_archs"]) == {file.name.split("-")[1] for file in carried}
    versions = {package["name"]: package["version"] for package in python["packages"]}
    assert list(versions) == [name for name, _ in PACKAGES] and versions["numpy"] == np.__version__


def test_inspect_sample_and_bench_come_to_the_samplers_tokens(row: Path, batch: np.ndarray, device: str) -> None:
    params = SamplingParams(seed=1, temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3)
    sampler = Sampler(params, len(batch[0]), prompt=[3, 7])
    sampler.collect_kept(True)
    flags = "--temperature 0.8 --top-k 20 --top-p 0.9 --repetition-penalty 1.3 --prompt-ids 3,7 --seed 1".split()
    trace = json.loads(succeeds("inspect", row, *flags, "--json"))
    assert trace["winner"]["id"] == sampler.sample(batch[0])
    assert trace["kept"]["end"] - trace["kept"]["first"] == len(sampler.kept)
    if device != "cpu":
        assert "comes to the same" in succeeds("inspect", row, "--device", device, "--top-p", "0.9")
        return
    file = row.with_name("params.json")
    file.write_text(json.dumps({"top_p": 0.9, "seed": 3}))
    assert succeeds("inspect", row, "--params", file) == succeeds("inspect", row, "--top-p", "0.9", "--seed", "3")
    lines = succeeds("sample", row, "--top-k", "20", "--seed", "5", "--draws", "4", "--json").splitlines()
    drawn = [Sampler(SamplingParams(seed=5, top_k=20), len(batch[0]), draw=draw).sample(batch[0]) for draw in range(4)]
    assert [json.loads(line)["token"] for line in lines] == drawn


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["inspect", "none.npy"], "no such file"),
        (["inspect", "--kind", "flat", "--top-p", "-1"], "top_p"),
        (["generate"], "unrecognized subcommand"),
        (["explore", "--model"], "the command in Rust, crate gumball-cli, has it"),
        (["explore"], "ci/explorer in Gumball's repository makes it"),
        ([], "Usage: python -m gumball"),
    ],
)
def test_a_mistake_is_said_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.returncode == 2 and reason in done.stderr and not done.stdout


def test_the_script_is_the_module() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert [script.load() for script in scripts if script.name.startswith("gumball")] == [main]
    for called in ([sys.executable, "-m", "gumball"], [Path(sys.executable).with_name("gumball")]):
        assert subprocess.check_output([*called, "--version"], text=True) == f"gumball {gumball.__version__}\n"
