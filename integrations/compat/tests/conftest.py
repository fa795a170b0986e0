"""Takes what the tests of the integrations share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from package_tests import batch, device, pytest_report_header

__all__ = ["batch", "device", "pytest_report_header"]
