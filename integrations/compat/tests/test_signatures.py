"""Every argument of every name is that of the release whose name it is: `real/signatures.json` has what the releases take, and `real/releases.py` makes it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from gumball_compat.flashinfer.logits_processor import operators
from gumball_compat.flashinfer.logits_processor.fusion_rules import get_default_fusion_rules

INTEGRATIONS = Path(__file__).parents[2]
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parent / "real/signatures.json").read_text()
)
MODULES = {"sglang": "sglang", "tokenspeed": "tokenspeed", "tokenspeed-kernel": "tokenspeed", "vllm": "vllm"}
# What has another name here; and what packages call themselves alone: how they load kernels, build operators, send what came out.
RENAMED = {"SamplingBackend": "GumballSamplingBackend", "prepare_for_device": "fused_topk_topp_prepare"}
INNER = re.compile(
    "get_(blackwell_softmax|sampling)_(module|op)|joint_topk_topp_sampleprobs_guard|build_[a-z_]+|SamplingBackend.broadcast_verify_outputs"
)
# Parameters of requests, which stand on the plug-ins' pages.
REQUESTS = {"SamplingParams": ("vllm", "tokenspeed"), "Llama._init_sampler": ("llama_cpp",)}


def walk() -> list[tuple[str, str, str]]:
    """Each name of a release that stands in gumball_compat: the module here, the name there, its arguments."""
    found = []
    for release, files in RECORDED.items():
        package = release.partition("==")[0]
        for path, names in files.items():
            module = "flashinfer." + path.removesuffix(".py").replace("/", ".")
            module = MODULES.get(package, module)
            found += [
                (module, name, text)
                for name, text in names.items()
                if name not in REQUESTS and not INNER.fullmatch(name)
            ]
    return found


def of(module: str, name: str) -> Any:
    here: Any = importlib.import_module(f"gumball_compat.{module}")
    for part in name.split("."):
        here = getattr(here, RENAMED.get(part, part))
    return here


@pytest.mark.parametrize(("module", "name", "text"), walk(), ids=lambda value: None if " " in value else value)
def test_a_name_takes_what_the_release_takes(module: str, name: str, text: str) -> None:
    here = of(module, name)
    arguments, _, read = text.partition(" | ")
    if isinstance(here, property):
        here = here.fget
    if isinstance(here, type):
        fields = here._fields if hasattr(here, "_fields") else [one.name for one in dataclasses.fields(here)]
        assert ", ".join(fields) == arguments
        return
    ours = list(inspect.signature(here).parameters.values())
    theirs = list(inspect.signature(eval(f"lambda {arguments}: None")).parameters.values())
    if inspect.ismethod(here):
        del theirs[0]
    assert [(one.name, one.kind) for one in ours] == [(one.name, one.kind) for one in theirs]
    for one, their in zip(ours, theirs, strict=True):
        # A default that is no literal there has to be one here; what must be given there may be left out here.
        assert their.default in (one.empty, one.default) or (their.default is ... and one.default is not one.empty), one
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
    plug_in = {"tokenspeed-kernel": None, "flashinfer-python": None, "llama-cpp-python": "llama_cpp"}.get(
        package, package
    )
    if plug_in is None:
        page = (INTEGRATIONS / "compat/README.md").read_text()
        assert version in page or f"FlashInfer {'.'.join(version.split('.')[:2])}" in page
        return
    source = (INTEGRATIONS / plug_in / f"gumball_{plug_in}/__init__.py").read_text()
    least, beyond = (tuple(map(int, one.split("."))) for one in re.findall(r'TRIED = \("(.+)", "(.+)"\)', source)[0])
    assert least <= tuple(map(int, version.split("."))) < beyond
