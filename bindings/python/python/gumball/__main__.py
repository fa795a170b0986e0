"""``python -m gumball doctor|inspect``: what this machine offers, and what every stage does to a row of logits.

It is the ``gumball`` command's code, without its models, and says the same in the same words; ``gumball-py`` is another name for it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path

from . import _gumball, nvrtc

__all__ = ["main"]

# Packages that this one works with, and what each makes possible.
PACKAGES = (
    ("numpy", "arrays that are returned are numpy's; without it, lists and DLPack"),
    ("torch", "tensors go in and out without copies; gumball.torch for torch.compile"),
    ("transformers", "model.generate draws by gumball.transformers"),
    ("nvidia-cuda-nvrtc", "compiles kernels for GPUs that the package carries none for"),
    ("vllm", "samples by the plug-in gumball-vllm"),
    ("sglang", "samples by the plug-in gumball-sglang"),
    ("tokenspeed", "samples by the plug-in gumball-tokenspeed"),
    ("flashinfer-python", "its names are also those of gumball.compat.flashinfer"),
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
    given = sys.argv[1:] if arguments is None else arguments
    return _gumball.command(name, given, platform.python_version(), str(Path(__file__).parent), packages)


if __name__ == "__main__":
    sys.exit(main())
