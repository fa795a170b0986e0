"""A plug-in of pytest that appends each skipped test to the file that ``GUMBALL_SKIPPED`` names, for the last line of ci/run.

A case that is never meant to run there begins its reason with "left out: " and is not counted.
"""

from __future__ import annotations

import os

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
