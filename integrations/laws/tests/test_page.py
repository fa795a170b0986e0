"""The page and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sampling_laws import LAWS, files
from sampling_laws.__main__ import main
from sampling_laws.table import page, renewed

HERE = Path(__file__).parents[1]
PAGE = HERE.parents[1] / "docs" / "sampling-laws.md"
RECORDS = [json.loads(file.read_text()) for file in sorted((HERE / "records").glob("*.json"))]


def test_the_page_is_that_of_the_records() -> None:
    assert PAGE.read_text() == renewed(PAGE.read_text(), RECORDS), "sampling-laws table --into docs/sampling-laws.md"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["engine"])
def test_a_record_has_every_law_and_short_programs(record: dict) -> None:
    assert list(record["laws"]) == [law.name for law in LAWS]
    for law in record["laws"].values():
        assert law.get("program", "").count("\n") < 10


def test_programs_of_one_call_need_the_engines_own_package_alone() -> None:
    alone = {
        record["engine"]: [
            law["program"]
            for law in record["laws"].values()
            if "sampling_laws" not in law.get("program", "sampling_laws")
        ]
        for record in RECORDS
    }
    for engine in ("transformers", "vLLM V1", "SGLang"):
        assert len(alone[engine]) >= 3 and all(compile(program, engine, "exec") for program in alone[engine])


def test_the_package_types_strictly() -> None:
    pytest.importorskip("mypy")
    ran = [sys.executable, "-m", "mypy", "--config-file", str(HERE / "pyproject.toml"), "-p", "sampling_laws"]
    done = subprocess.run(ran, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_laws_have_names_of_their_own() -> None:
    assert len({law.name for law in LAWS}) == len({law.sentence for law in LAWS}) == len(LAWS)


def test_the_command_runs_an_adapter_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record.json"
    assert main(["run", "plain:Plain", "--law", "plain-draws", "--out", str(out)]) == 0
    assert "1 holds, 0 broken" in capsys.readouterr().out
    assert json.loads(out.read_text())["laws"] == {"plain-draws": {"outcome": "holds"}}


def test_the_command_draws_from_another_seed_and_says_when_it_ran(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    assert main(["run", "plain:Plain", "--law", "plain-draws", "--seed", "5", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["seed"] == 5 and len(record["date"]) == len("2026-11-23")
    assert f", {record['date']}: 1 of 1." in page([record])
    with pytest.raises(SystemExit):
        main(["run", "plain:Plain", "--seed", "-1"])


def test_the_command_names_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="no law is called nonsense"):
        main(["run", "plain:Plain", "--law", "nonsense"])


def test_a_program_of_a_broken_law_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(
        "from plain import Plain\nclass Faulty(Plain):\n    def __init__(self):\n        super().__init__('top-k keeps ties')\n"
    )
    paths = {"PYTHONPATH": f"{tmp_path}:{HERE}:{HERE / 'tests'}"}
    ran = [sys.executable, "-m", "sampling_laws", "run", "faulty:Faulty", "--law", "top-k-on-ties"]
    done = subprocess.run(ran, env=paths, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    program = done.stdout.split(": ", 2)[2].split("\n", 1)[1].rpartition("# prints")[0]
    again = subprocess.run([sys.executable, "-c", program], env=paths, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("["), again.stdout


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "nowhere"])
def test_an_output_is_refused_where_no_plain_file_lies(kind: str, tmp_path: Path) -> None:
    place, other = tmp_path / "out.json", tmp_path / "other"
    other.write_text("theirs")
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(other)
    else:
        place = tmp_path / "none" / "out.json"
    with pytest.raises(SystemExit, match="2"):
        main(["run", "gumball", "--out", str(place)])
    assert other.read_text() == "theirs"


def test_a_file_is_written_as_a_whole(tmp_path: Path) -> None:
    place = files.place(str(tmp_path / "out.json"))
    for text in ("one", "two"):
        files.write(place, text)
        assert [one.name for one in tmp_path.iterdir()] == ["out.json"] and place.read_text() == text
