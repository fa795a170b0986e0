"""The releases of an engine that a plug-in was tried with: the warning for others, and that its code and its package name the same ones."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

import gumball
from gumball.releases import warn_if_untried

INTEGRATIONS = Path(__file__).parents[3] / "integrations"


@pytest.mark.parametrize(
    ("release", "tried"),
    [("5.19.0", True), ("5.24.9.dev3", True), ("5.18.4", False), ("5.25.0", False), ("6.0", False), ("unknown", False)],
)
def test_another_release_is_warned_of(monkeypatch: Any, caplog: Any, release: str, tried: bool) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: release)
    assert warn_if_untried("gumball-x", ("x",), "5.19", "5.25") == tried
    said = f"gumball-x was tried with x from 5.19 and below 5.25, but this is {release}: "
    assert [record.message.startswith(said) for record in caplog.records] == [True] * (not tried)


def test_the_first_name_that_is_installed_counts(monkeypatch: Any, caplog: Any) -> None:
    def version(name: str) -> str:
        if name == "x":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not warn_if_untried("gumball-x", ("x", "x-cpu"), "1.0", "2.0") and "with x-cpu from" in caplog.text
    # An engine that runs from its sources has no release.
    assert warn_if_untried("gumball-x", ("x",), "1.0", "2.0")


@pytest.mark.parametrize("name", ["transformers", "vllm", "sglang", "tokenspeed", "llama_cpp"])
def test_a_plug_in_and_its_package_say_the_same_releases(name: str) -> None:
    if not INTEGRATIONS.is_dir():
        pytest.skip("the plug-ins are not here")
    package, code = INTEGRATIONS / name, f"gumball_{name}"
    if name == "transformers":
        package, code = Path(__file__).parents[1], "python/gumball/transformers"
    said = (package / "pyproject.toml").read_text()
    bounds = re.findall(rf'"{name.replace("_", "-")}[a-z-]*>=([0-9.]+),<([0-9.]+)"', said)
    assert bounds and set(bounds) == set(
        re.findall(r'TRIED = \("(.+)", "(.+)"\)', (package / code / "__init__.py").read_text())
    )


def test_each_package_of_the_integrations_takes_gumball_of_this_minor_version() -> None:
    major, minor = map(int, gumball.__version__.split(".")[:2])
    for package in (*INTEGRATIONS.glob("*/pyproject.toml"), Path(__file__).parents[1] / "pyproject.toml"):
        bounds = re.findall(r'"(gumball|gumball-compat)>=([0-9.]+),<([0-9.]+)"', package.read_text())
        assert bounds and {one[1:] for one in bounds} == {(f"{major}.{minor}", f"{major}.{minor + 1}")}, package
        # What imports gumball_compat asks for it.
        uses = any("gumball_compat" in path.read_text() for path in package.parent.glob("gumball_*/*.py"))
        assert ("gumball-compat" in [name for name, *_ in bounds]) == uses or package.parent.name in (
            "compat",
            "python",
        )
