"""The examples run. Each fragment of Python in the documents runs as it stands, alone, in an empty folder, and prints the text right after it, if there is one.

A fragment that needs a package which is not there is skipped, by the package's name. Where there is no GPU, one for "cuda:0" runs on the
emulated device, unless it is torch's. Each link between files resolves, and each picture is what its script draws.
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
FENCE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
# Packages besides Gumball's that a fragment may need; `ci/plugin` installs the plug-ins' packages, and machines with a GPU have CuPy.
OTHERS = {"sglang", "torch", "transformers", "vllm"}
ELSEWHERE = {"cupy", "gumball_llama_cpp", "gumball_transformers", "llama_cpp"}


LINK = re.compile(r"\]\(([^)\s:]+)\)|src=\"([^\":]+)\"")


def fragments() -> list[tuple[str, str, str | None]]:
    """The place of each fragment, its text, and its output as the page shows it, or None."""
    found = []
    for page in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match[1], match[2]))
    return found


FRAGMENTS = fragments()
# The fragments of the laws start whole engines, and the plug-in's tests run those of transformers.
SLOW = re.compile("sampling-laws|integrations/transformers")
CASES = [
    pytest.param(text, prints, id=place, marks=[pytest.mark.slow] if SLOW.search(place) else [])
    for place, text, prints in FRAGMENTS
]


@pytest.mark.parametrize(("text", "prints"), CASES)
def test_a_fragment_runs_as_it_stands(text: str, prints: str | None, tmp_path: Path) -> None:
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
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "fragment.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    lacks = re.search(r"^ModuleNotFoundError: No module named '(\w+)", done.stderr, re.M)
    if done.returncode and lacks and lacks[1] in OTHERS | ELSEWHERE:
        pytest.skip(f"{'left out: ' if lacks[1] in ELSEWHERE else ''}no {lacks[1]}")
    # A fragment may say which error it ends in.
    raises = re.search(r"^# prints (\w+Error): ", text, re.M)
    assert done.returncode == 0 or (raises and raises[1] in done.stderr), done.stderr
    assert prints is None or done.stdout == prints


@pytest.mark.skipif(not FRAGMENTS, reason="the tests lie without the documents")
def test_the_fragments_are_found() -> None:
    pages = {place.split(":")[0] for place, *_ in FRAGMENTS}
    assert {"README.md", "docs/python.md", "docs/scaling.md", "bindings/python/README.md"} <= pages


def anchors(page: Path) -> set[str]:
    """The anchors of a page: GitHub's for its headings, and its own."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(next(n for n in (name, *(f"{name}-{i}" for i in range(1, 99))) if n not in found))
    return found


@pytest.mark.skipif(not FRAGMENTS, reason="the tests lie without the documents")
def test_every_link_between_files_resolves() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("left out: no checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    broken, count = [str(file) for file in files if file.is_symlink() and not file.exists()], 0
    for page in (file for file in files if file.suffix == ".md"):
        for match in LINK.finditer(re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)):
            path, _, anchor = (match[1] or match[2]).partition("#")
            target = (page.parent / path).resolve() if path else page
            count += 1
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {match[1] or match[2]}")
    assert not broken and count > 300, broken


@pytest.mark.skipif(not FRAGMENTS, reason="the tests lie without the documents")
@pytest.mark.parametrize(
    "script",
    [*(f"docs/pictures/{name}.py" for name in ("row", "speed", "batch", "rollouts")), "proof/bench/gpu/document"],
)
def test_a_picture_is_what_its_script_draws(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    if "import torch" in example.read_text():
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
