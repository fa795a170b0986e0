"""The command ``gumball``, also ``python -m gumball``: the subcommands of the command in Rust that need no model; their code is one."""

from __future__ import annotations

import importlib.metadata
import platform
import signal
import sys
from pathlib import Path

from . import _gumball, nvrtc

__all__ = ["main"]

# Packages that this one works with, and the use of each.
PACKAGES = (
    ("numpy", "arrays that are returned are numpy's; without it, lists and DLPack"),
    ("torch", "tensors go in and out without copies; gumball.torch for torch.compile"),
    ("transformers", "model.generate draws by the plug-in gumball-transformers"),
    ("nvidia-cuda-nvrtc", "compiles kernels for GPUs that the package carries none for"),
    ("nvidia-cuda-nvrtc-cu12", "does so for drivers of CUDA 12, too"),
    ("vllm", "samples by the plug-in gumball-vllm"),
    ("sglang", "samples by the plug-in gumball-sglang"),
    ("tokenspeed", "samples by the plug-in gumball-tokenspeed"),
    ("gumball-compat", "the names of FlashInfer, SGLang, TokenSpeed and llama.cpp"),
)


def version_of(name: str) -> str | None:
    """Returns the version of an installed package, None if it is not installed; imports nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line, the process's own by default; returns the exit code: 0 done, 1 found wanting, 2 a mistake."""
    nvrtc.locate()
    sys.stdout.flush()
    called = Path(sys.argv[0]).name
    name = "python -m gumball" if called == "__main__.py" else called
    packages = [(name, version_of(name), about) for name, about in PACKAGES]
    folder = Path(__file__).parent
    # sm_90 before sm_100.
    archs = sorted(
        {file.name.split("-")[1] for file in folder.glob("kernels/*.bin")}, key=lambda arch: (len(arch), arch)
    )
    if arguments is None:
        arguments = sys.argv[1:]
        # What runs is not Python: Ctrl-C ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _gumball.command(name, arguments, platform.python_version(), str(folder), archs, packages)


if __name__ == "__main__":
    sys.exit(main())
