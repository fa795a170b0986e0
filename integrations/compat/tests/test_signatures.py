"""Every argument of every name is that of the release whose name it is: `real/signatures.json` has what the releases take, and `real/releases.py` makes it."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

pytest.importorskip("torch")

from signatures import INTEGRATIONS, RECORDED, REQUESTS, assert_takes, named, recorded

from gumball_compat.flashinfer.logits_processor import operators
from gumball_compat.flashinfer.logits_processor.fusion_rules import get_default_fusion_rules

# Of FlashInfer a module has the place of each file. The plug-ins' own tests look at what these have of vLLM and TokenSpeed.
MODULES = {"flashinfer-python": "flashinfer.{}", "sglang": "sglang", "tokenspeed-kernel": "tokenspeed"}


# What pages call those that have no plug-in.
PAGES = {
    "compat": {"flashinfer-python": "FlashInfer", "tokenspeed-kernel": "`tokenspeed_kernel`"},
    "trainers": {"trl": "trl", "verl": "verl", "liger-kernel": "liger-kernel"},
}


def walk() -> list[tuple[str, str, str]]:
    """Each name of a release that stands in gumball_compat: the module here, the name there, its arguments."""
    return [
        (module.format(path.removesuffix(".py").replace("/", ".")), name, text)
        for package, module in MODULES.items()
        for path, name, text in recorded(package)
    ]


def of(module: str, name: str) -> Any:
    return named(importlib.import_module(f"gumball_compat.{module}"), name)


@pytest.mark.parametrize(("module", "name", "text"), walk(), ids=lambda value: None if " " in value else value)
def test_a_name_takes_what_the_release_takes(module: str, name: str, text: str) -> None:
    assert_takes(of(module, name), text)
    _, _, read = text.partition(" | ")
    if read and module.endswith("operators"):
        # What it takes out of a call's parameters, or of those that its processor was made with.
        assert set(read.split(", ")) <= set(of(module, name.split(".")[0]).TAKES)


def test_what_a_pipe_takes_does_not_depend_on_fusion() -> None:
    for rule in get_default_fusion_rules():
        assert all(issubclass(one, operators.ParameterizedOp) for one in rule.pattern)
        fused = rule.build([one() for one in rule.pattern])
        assert fused.TAKES == frozenset().union(*(one.TAKES for one in rule.pattern)), rule


@pytest.mark.parametrize(("name", "engine"), [(name, engine) for name in REQUESTS for engine in REQUESTS[name]])
def test_a_page_says_what_becomes_of_each_parameter_of_a_request(name: str, engine: str) -> None:
    page = (INTEGRATIONS / engine / "README.md").read_text()
    (text,) = (
        names[name]
        for release, files in RECORDED.items()
        for names in files.values()
        if name in names and release.replace("-cpp-python", "_cpp").startswith(f"{engine}==")
    )
    given = inspect.signature(eval(f"lambda {text}: None")).parameters
    said = {
        one for code in re.findall("`([^`\n]+)`", re.sub("(?s)```.*?```", "", page)) for one in re.findall(r"\w+", code)
    }
    assert [one for one in given if not one.startswith("_") and one != "self" and one not in said] == []


@pytest.mark.parametrize("release", RECORDED)
def test_the_releases_are_those_that_the_packages_name(release: str) -> None:
    package, version = release.split("==")
    for page, names in PAGES.items():
        if package in names:
            assert f"{names[package]} {version}" in (INTEGRATIONS / page / "README.md").read_text()
            return
    plug_in = package.replace("-cpp-python", "_cpp")
    source = (INTEGRATIONS / plug_in / f"gumball_{plug_in}/__init__.py").read_text()
    least, beyond = (tuple(map(int, one.split("."))) for one in re.findall(r'TRIED = \("(.+)", "(.+)"\)', source)[0])
    assert least <= tuple(map(int, version.split("."))) < beyond
