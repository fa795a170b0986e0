"""FlashInfer's own tests over Gumball under FlashInfer's name: `python flashinfer_suite.py FOLDER`, which `ci/gpu build-suite` makes.

They run as they are; then those with top-p again, with FlashInfer's later argument `is_deterministic` given to each pipe. Needs a GPU, torch and numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(FOLDER / "packages"))

import pytest

from gumball_compat.flashinfer.logits_processor import LogitsPipe, TopP

for name in [name for name in sys.modules if name.startswith("gumball_compat.flashinfer")]:
    sys.modules[name.removeprefix("gumball_compat.")] = sys.modules[name]


class Deterministic:
    """Gives each pipe with top-p the argument."""

    @pytest.fixture(autouse=True)
    def given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = LogitsPipe.__call__

        def call(self: LogitsPipe, x: Any, **kwargs: Any) -> Any:
            given = {"is_deterministic": True} if any(isinstance(one, TopP) for one in self.processors) else {}
            return plain(self, x, **kwargs, **given)

        monkeypatch.setattr(LogitsPipe, "__call__", call)


def main() -> int:
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={FOLDER}", "--maxfail=60", *sys.argv[2:]]
    tests = str(FOLDER / "test_logits_processor.py")
    status = int(pytest.main([*options, tests]))
    return status or int(pytest.main([*options, tests, "-k", "topp or top_p"], [Deterministic()]))


if __name__ == "__main__":
    sys.exit(main())
