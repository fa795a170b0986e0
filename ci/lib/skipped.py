"""A plug-in of pytest that appends each skipped test to the file that ``GUMBALL_SKIPPED`` names, for the last line of ci/run.

A case that is never meant to run there begins its reason with "left out: " and is not counted. Where ``GUMBALL_NEWEST`` names a release of an engine,
a test that fails is there, too, by the last place of a plug-in in its traceback.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    tell(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    tell(report)


def tell(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = os.environ.get("GUMBALL_SKIPPED")
    if not file or not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = " ".join(str(report.longrepr[2]).removeprefix("Skipped: ").split())
    if not reason.startswith("left out: "):
        with open(file, "a", encoding="utf-8") as skipped:
            skipped.write(f"test\t{report.nodeid}\t{reason}\n")


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[object],
    report: pytest.TestReport | pytest.CollectReport,
) -> None:
    file, release = os.environ.get("GUMBALL_SKIPPED"), os.environ.get("GUMBALL_NEWEST")
    if not file or not release or call.excinfo is None:
        return
    error = call.excinfo.value
    frames = traceback.extract_tb(error.__traceback__)
    # Where a place is missing, the plug-in's own error is raised from the error at that place.
    while error.__cause__ is not None:
        error = error.__cause__
        frames += traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).parent.name.startswith("gumball_")]
    place = node.nodeid.rpartition("/")[2]
    if ours:
        place = f"{'/'.join(Path(ours[-1].filename).parts[-2:])}: {ours[-1].name}"
    said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    with open(file, "a", encoding="utf-8") as moved:
        moved.write(f"moved\t{os.environ.get('GUMBALL_PART', '?')}\t{release}: {place}: {said}\n")
