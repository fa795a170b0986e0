"""Fixtures of the tests of `gumball`, which lie beside its sources, for the tests of other packages: devices and batches. Its modules can be imported then."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "bindings/python/tests"
sys.path.insert(0, str(TESTS))

_spec = importlib.util.spec_from_file_location("gumball_conftest", TESTS / "conftest.py")
assert _spec is not None and _spec.loader is not None
_package = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_package)

batch, device = _package.batch, _package.device
pytest_report_header = _package.pytest_report_header
