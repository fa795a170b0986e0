"""The packages of the integrations: what they take of `gumball` and of each other, their types, and which releases they name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gumball

INTEGRATIONS = Path(__file__).parents[2]
SOURCES = {
    path.relative_to(INTEGRATIONS): ast.parse(path.read_text()) for path in INTEGRATIONS.glob("*/gumball_*/**/*.py")
}


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


def test_importing_it_imports_neither_numpy_nor_torch() -> None:
    done = run("import gumball_compat, sys; assert not {'numpy', 'torch'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_vllms_names_say_where_they_are() -> None:
    with pytest.raises(ImportError, match="gumball-vllm"):
        import gumball_compat.vllm.params  # noqa: F401


def names_of(tree: ast.Module) -> set[str]:
    """The names that stand for `gumball`, its modules and what is in them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or "gumball" for one in node.names if one.name.split(".")[0] == "gumball"}
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "gumball":
            found |= {one.asname or one.name for one in node.names}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_it_takes_what_is_public_alone(path: Path) -> None:
    tree, private = SOURCES[path], []
    ours = names_of(tree)
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            root = ast.unparse(node).split(".")[0]
            private += [ast.unparse(node)] if root in ours and not node.attr.startswith("__") else []
        for module in modules:
            parts = module.split(".")
            if parts[0] == "gumball" and any(part.startswith("_") for part in parts):
                private.append(module)
    assert not private


@pytest.mark.parametrize("name", ["compat", "sglang", "tokenspeed", "vllm"])
def test_it_types_strictly(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    package = INTEGRATIONS / name
    settings, folder = package / "pyproject.toml", package / f"gumball_{name}"
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["transformers", "vllm", "sglang", "tokenspeed", "llama_cpp"])
def test_a_plug_in_and_its_package_say_the_same_releases(name: str) -> None:
    package = INTEGRATIONS / name
    said = (package / "pyproject.toml").read_text()
    bounds = re.findall(rf'"{name.replace("_", "-")}[a-z-]*>=([0-9.]+),<([0-9.]+)"', said)
    assert bounds and set(bounds) == set(
        re.findall(r'TRIED = \("(.+)", "(.+)"\)', (package / f"gumball_{name}/__init__.py").read_text())
    )


def test_each_package_of_the_integrations_takes_gumball_of_this_minor_version() -> None:
    major, minor = map(int, gumball.__version__.split(".")[:2])
    for package in INTEGRATIONS.glob("*/pyproject.toml"):
        bounds = re.findall(r'"(gumball|gumball-compat)>=([0-9.]+),<([0-9.]+)"', package.read_text())
        assert bounds and {one[1:] for one in bounds} == {(f"{major}.{minor}", f"{major}.{minor + 1}")}, package
        # A package that imports gumball_compat depends on it, and no other does: a user of one engine installs no other engine's names.
        uses = any("gumball_compat" in path.read_text() for path in package.parent.glob("gumball_*/*.py"))
        needs = re.findall("^dependencies = .*gumball-compat", package.read_text(), re.M)
        assert bool(needs) == uses or package.parent.name == "compat"
