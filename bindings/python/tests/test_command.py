"""`gumball`, the command that pip installs, which needs no Rust: its subcommands, and its exit codes."""

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
    for part in (f"gumball {gumball.__version__}  definition 1", "SIMD", "scalar draws the oracle's tokens", "NVRTC"):
        assert part in text, text
    [line] = [line for line in text.splitlines() if line.startswith("  numpy ")]
    assert line.split()[1] == np.__version__ and "arrays that are returned" in line, text
    # A model is the business of the command in Rust.
    assert "  model  " not in text


def test_the_doctor_writes_json() -> None:
    report = json.loads(succeeds("doctor", "--json"))
    assert all(item["holds"] for item in report["self_test"])
    python = report["python"]
    assert python["version"] == ".".join(map(str, sys.version_info[:3]))
    assert Path(python["package"]) == Path(gumball.__file__).parent
    assert python["emulator"] == EMULATOR
    carried = Path(gumball.__file__).parent.glob("kernels/*.bin")
    assert set(python["kernel_archs"]) == {file.name.split("-")[1] for file in carried}
    assert [package["name"] for package in python["packages"]] == [name for name, _ in PACKAGES]
    versions = {package["name"]: package["version"] for package in python["packages"]}
    assert versions["numpy"] == importlib.metadata.version("numpy")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_inspect_comes_to_the_token_of_the_sampler(row: Path, batch: np.ndarray, seed: int) -> None:
    params = SamplingParams(seed=seed, temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3)
    sampler = Sampler(params, len(batch[0]), prompt=[3, 7])
    sampler.keep_ids(True)
    expected = sampler.sample(batch[0])
    flags = "--temperature 0.8 --top-k 20 --top-p 0.9 --repetition-penalty 1.3 --prompt-ids 3,7 --json --seed".split()
    trace = json.loads(succeeds("inspect", row, *flags, str(seed)))
    assert trace["winner"]["id"] == expected
    assert [stage["name"] for stage in trace["filters"]] == ["top_k", "top_p"]
    assert trace["kept"]["end"] - trace["kept"]["first"] == len(sampler.kept)


def test_inspect_says_in_words_what_each_stage_kept_and_why(row: Path) -> None:
    text = succeeds("inspect", row, "--top-k", "20", "--top-p", "0.9", "--seed", "1")
    for part in (str(row), "order", "top_k 20", "keeps 20 of 900", "the shortest prefix", "draw", "seed 1, position 0"):
        assert part in text, text
    assert "\x1b" not in text


def test_the_kinds_of_files_say_the_same(row: Path, batch: np.ndarray) -> None:
    flags = ["--json", "--seed", "5", "--min-p", "0.02"]
    wanted = json.loads(succeeds("inspect", row, *flags))
    path = row.with_suffix(".json")
    path.write_text(json.dumps([batch[0].tolist(), batch[1].tolist()]))
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [1, len(batch[0])], "data_offsets": [0, batch[0].nbytes]}}
    ).encode()
    tensors = row.with_suffix(".safetensors")
    tensors.write_bytes(len(header).to_bytes(8, "little") + header + batch[0].tobytes())
    for arguments in ([path, "--rows", "0"], [tensors]):
        trace = json.loads(succeeds("inspect", *arguments, *flags))
        assert trace.pop("source") != wanted["source"]
        assert trace == {name: value for name, value in wanted.items() if name != "source"}


def test_the_parameters_may_stand_in_a_file(row: Path) -> None:
    params = row.with_name("params.json")
    params.write_text(json.dumps({"top_p": 0.9, "seed": 3}))
    assert succeeds("inspect", row, "--params", params) == succeeds("inspect", row, "--top-p", "0.9", "--seed", "3")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["inspect", "none.npy"], "no such file"),
        (["inspect", "--kind", "flat", "--top-p", "-1"], "top_p"),
        (["inspect", "--kind", "flat", "--topp", "1"], "--topp"),
        (["inspect"], "name a file of logits"),
        (["generate"], "unrecognized subcommand"),
        (["explore"], "ci/explorer in Gumball's repository makes it"),
        ([], "Usage: python -m gumball"),
    ],
)
def test_a_mistake_is_said_in_one_line_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.returncode == 2
    assert reason in done.stderr and not done.stdout


def test_a_device_comes_to_the_same(row: Path, device: str) -> None:
    if device != "cpu":
        assert "comes to the same" in succeeds("inspect", row, "--device", device, "--top-p", "0.9")


def test_the_script_is_the_module() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert [script.load() for script in scripts if script.name.startswith("gumball")] == [main]
    for called in ([sys.executable, "-m", "gumball"], [Path(sys.executable).with_name("gumball")]):
        assert subprocess.check_output([*called, "--version"], text=True) == f"gumball {gumball.__version__}\n"


def test_sample_draws_the_tokens_of_the_sampler(row: Path, batch: np.ndarray) -> None:
    sampler = Sampler(SamplingParams(seed=5, top_k=20), len(batch[0]))
    lines = succeeds(
        "sample", row, "--rows", "0", "--top-k", "20", "--seed", "5", "--draws", "4", "--json"
    ).splitlines()
    assert [json.loads(line)["token"] for line in lines] == sampler.sample_n(batch[0], 4)


def test_bench_measures_a_token_and_a_reading_of_its_row() -> None:
    flags = "--kind flat --vocab 5000 --level scalar --top-k 20 --json".split()
    [measure] = json.loads(succeeds("bench", *flags))
    assert measure["vocab"] == 5000 and measure["token_us"] > measure["floor_us"] > 0


def test_explore_says_where_the_page_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "target" / "explorer" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    monkeypatch.chdir(tmp_path)
    assert succeeds("explore") == f"{page}\n"
