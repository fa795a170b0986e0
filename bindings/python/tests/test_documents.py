"""Each fragment of Python in the documents runs as it stands, alone, in an empty folder.

A fragment that needs a package which is not there is skipped, by the package's name. Where there is no GPU, one for "cuda:0" runs on the
emulated device, unless it is torch's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DEVICES

ROOT = Path(__file__).parents[3]
PAGES = ["*.md", "docs/**/*.md", "bindings/*/README.md", "integrations/*/README.md"]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# Packages besides Gumball's that a fragment may need; `ci/llama` has the ones of llama.cpp, and CuPy is there where a GPU is.
OTHERS = {"gumball_transformers", "sglang", "torch", "transformers", "vllm"}
ELSEWHERE = {"cupy", "gumball_llama_cpp", "llama_cpp"}


def fragments() -> list[tuple[str, str]]:
    """Where each fragment stands, and its text."""
    found = []
    for page in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match[1]))
    return found


FRAGMENTS = fragments()
# The fragments of the laws start whole engines.
CASES = [
    pytest.param(text, id=place, marks=[pytest.mark.slow] if "sampling-laws" in place else [])
    for place, text in FRAGMENTS
]


@pytest.mark.parametrize("text", CASES)
def test_a_fragment_runs_as_it_stands(text: str, tmp_path: Path) -> None:
    if '"cuda' in re.sub(r"#.*", "", text) and "cuda:0" not in DEVICES:
        if "torch" in text or "emulated" not in DEVICES:
            pytest.skip("left out: no GPU")
        text = text.replace("cuda:0", "emulated")
    for model in re.findall(r'"([^"]+\.gguf)"', text):
        found = next(Path(os.environ.get("GUMBALL_CACHE", Path.home() / ".cache/gumball")).rglob(model), None)
        if found is None:
            pytest.skip(f"no {model}")
        (tmp_path / model).symlink_to(found)
    (tmp_path / "fragment.py").write_text(text)
    # The laws are no part of the wheel, and nothing has to be built for them.
    path = os.pathsep.join([str(ROOT / "integrations/laws"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "fragment.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    lacks = re.search(r"^ModuleNotFoundError: No module named '(\w+)", done.stderr, re.M)
    if done.returncode and lacks and lacks[1] in OTHERS | ELSEWHERE:
        pytest.skip(f"{'left out: ' if lacks[1] in ELSEWHERE else ''}no {lacks[1]}")
    # A fragment may say which error it ends in.
    raises = re.search(r"^# prints (\w+Error): ", text, re.M)
    assert done.returncode == 0 or (raises and raises[1] in done.stderr), done.stderr


@pytest.mark.skipif(not FRAGMENTS, reason="the tests lie without the documents")
def test_the_fragments_are_found() -> None:
    pages = {place.split(":")[0] for place, _ in FRAGMENTS}
    assert {"README.md", "docs/python.md", "docs/scaling.md", "bindings/python/README.md"} <= pages
