"""What functions of other packages' releases take, and whether ours take the same. `compat/tests/real/releases.py` records it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

INTEGRATIONS = Path(__file__).parent
# Of each release its files, of which each has the arguments of its names.
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads(
    (INTEGRATIONS / "compat/tests/real/signatures.json").read_text()
)
# What has another name here; and what packages call themselves alone: how they load kernels, build operators, send what came out.
RENAMED = {"SamplingBackend": "GumballSamplingBackend", "prepare_for_device": "fused_topk_topp_prepare"}
INNER = re.compile(
    "get_(blackwell_softmax|sampling)_(module|op)|joint_topk_topp_sampleprobs_guard|build_[a-z_]+|SamplingBackend.broadcast_verify_outputs"
)
# Parameters of requests, which stand on the plug-ins' pages.
REQUESTS = {"SamplingParams": ("vllm", "tokenspeed"), "Llama._init_sampler": ("llama_cpp",)}


def recorded(package: str) -> list[tuple[str, str, str]]:
    """The names of a package's release that stand here: its file, the name, its arguments."""
    return [
        (path, name, text)
        for release, files in RECORDED.items()
        if release.partition("==")[0] == package
        for path, names in files.items()
        for name, text in names.items()
        if name not in REQUESTS and not INNER.fullmatch(name)
    ]


def named(module: Any, name: str) -> Any:
    """What has this name of a release in a module of ours."""
    here = module
    for part in name.split("."):
        here = getattr(here, RENAMED.get(part, part))
    return here


def assert_takes(here: Any, text: str) -> None:
    """Fails unless ours takes the recorded arguments."""
    arguments, _, _ = text.partition(" | ")
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
