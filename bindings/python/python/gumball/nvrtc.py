"""Where CUDA's compiler is: kernels are compiled for the device found, once, and cached."""

from __future__ import annotations

import glob
import importlib.util
import os

__all__ = ["locate"]


def locate() -> str | None:
    """Lets GUMBALL_NVRTC name the NVRTC of a wheel (nvidia-cuda-nvrtc, which torch brings), unless it names one already.

    Returns its path, None if there is no such wheel: then the system's is taken.
    """
    named = os.environ.get("GUMBALL_NVRTC")
    if named:
        return named
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations or []) if package else []:
        for version in ("13", "12"):
            found = sorted(glob.glob(os.path.join(folder, "*", "lib", f"libnvrtc.so.{version}")))
            if found:
                os.environ["GUMBALL_NVRTC"] = found[0]
                return found[0]
    return None
