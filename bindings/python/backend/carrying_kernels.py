"""Builds the package as maturin does, and lets the wheel carry compiled kernels where CUDA's compiler is there.

``GUMBALL_NVRTC`` names the compiler (``libnvrtc.so``), unless it is where the installed package will look for it: in a wheel of this environment, or where
the system's loader finds it. ``GUMBALL_KERNEL_ARCHS`` names
architectures (``sm_90 sm_120``), or ``all`` that a released wheel carries, or ``none``. By default they are those of this
machine's GPUs. A package without kernels compiles them when they are first used. pip hides what a build says, but shows the name of
the wheel, whose build tag is ``0_no_kernels`` or, say, ``1_kernels_sm_90``, with ``_emulator`` behind it if the feature of that name is on.

Pythons that the package is not made for, free-threaded ones and those of musl, are refused before anything is built.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import maturin
from maturin import (  # noqa: F401
    build_editable,
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PACKAGE = Path(__file__).resolve().parents[1]
KERNELS = PACKAGE / "python" / "gumball" / "kernels"


def refusal() -> str | None:
    """Why the package cannot be built for this Python, if so."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "this Python is free-threaded, and gumball is made for Pythons with the GIL; install it with one of those"
        )
    # Builds of Python name their C library in one of these variables.
    if any("musl" in str(sysconfig.get_config_var(name)) for name in ("SOABI", "HOST_GNU_TYPE")):
        return "this Python is one of musl (Alpine Linux), and gumball is made for Linux with glibc 2.17 or newer"
    return None


def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """What maturin requires, if there is anything to build; it is the first that pip asks."""
    reason = refusal()
    if reason:
        sys.exit(f"gumball: {reason}")
    return list(maturin.get_requires_for_build_wheel(config_settings))


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Compiles kernels if it can, then builds the wheel."""
    say(compile_kernels(os.environ.get("GUMBALL_KERNEL_ARCHS", "native").split()))
    name = str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
    arguments = maturin.get_maturin_pep517_args(config_settings)
    tagged = with_build_tag(name, KERNELS, any("emulator" in argument for argument in arguments))
    os.replace(Path(wheel_directory, name), Path(wheel_directory, tagged))
    return tagged


def with_build_tag(name: str, kernels: Path, emulator: bool) -> str:
    """A wheel's name that says for which architectures it carries the kernels of a folder, and whether it has the emulator."""
    archs = {file.name.split("-")[1] for file in kernels.glob("*.bin")}
    # sm_90 before sm_100.
    carried = "_".join(sorted(archs, key=lambda arch: (len(arch), arch)))
    distribution, version, tags = name.split("-", 2)
    tag = f"1_kernels_{carried}" if carried else "0_no_kernels"
    return f"{distribution}-{version}-{tag}{'_emulator' if emulator else ''}-{tags}"


def compile_kernels(archs: list[str]) -> str:
    """Fills the folder that the wheel carries. Returns what happened."""
    for old in KERNELS.glob("*") if archs == ["none"] else []:
        old.unlink()
    if archs == ["none"]:
        return "the wheel carries no compiled kernels, as GUMBALL_KERNEL_ARCHS asks"
    nothing_new = "the wheel carries no new compiled kernels, which are compiled when they are first used"
    compiler = located_compiler() or ""
    if os.path.isabs(compiler) and not os.path.exists(compiler):
        return f"{nothing_new}: GUMBALL_NVRTC leads to {compiler}, which is not there"
    # The profile is the wheel's, so that crates are built once.
    arguments = shlex.split(os.environ.get("MATURIN_PEP517_ARGS", ""))
    profile = arguments[arguments.index("--profile") + 1] if "--profile" in arguments else "release"
    cargo = f"cargo run --quiet --profile {profile} --package gumball-cuda --bin gumball-kernels --".split()
    command = [*cargo, str(KERNELS), *([] if archs == ["all"] else archs)]
    nothing = subprocess.DEVNULL
    done = subprocess.run(command, cwd=PACKAGE, stdin=nothing, stderr=subprocess.PIPE, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    if done.returncode:
        return f"{nothing_new}: {last}"
    return f"the wheel carries compiled kernels: {last}"


def located_compiler() -> str | None:
    """What GUMBALL_NVRTC names, or is made to name as in a process that imports the package."""
    spec = importlib.util.spec_from_file_location("nvrtc", PACKAGE / "python" / "gumball" / "nvrtc.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.locate()


def say(line: str) -> None:
    """Writes a line where pip shows it with ``--verbose``."""
    print(f"gumball: {line}", file=sys.stderr, flush=True)
