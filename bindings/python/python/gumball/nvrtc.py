"""Where libraries of CUDA are: NVRTC, which compiles kernels for the device found, once, and NCCL, which carries rows between GPUs."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import sysconfig

__all__ = ["locate"]

# The variable that names each library to Gumball, and its names in wheels, the newest first.
LIBRARIES = {
    "GUMBALL_NVRTC": ("libnvrtc.so.13", "libnvrtc.so.12"),
    "GUMBALL_NCCL": ("libnccl.so.2",),
}


def driver() -> int | None:
    """Returns the major version of CUDA that the driver supports, None if there is no driver."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return version.value // 1000


def locate() -> str | None:
    """Lets GUMBALL_NVRTC and GUMBALL_NCCL name the libraries of wheels (nvidia-cuda-nvrtc, nvidia-nccl, which torch brings), unless they name some.

    Of two releases of NVRTC it takes the newest that the driver runs the code of.

    Returns the path of NVRTC, None if there is no such wheel: then the system's is taken.
    """
    package = importlib.util.find_spec("nvidia")
    folders = list(package.submodule_search_locations or []) if package else []
    # Python finds packages in the current folder first. A library there is no installed package.
    folders = [folder for folder in folders if not os.path.samefile(os.path.dirname(folder), os.curdir)]
    # Pip builds packages where the environment's own are not imported.
    folders.append(os.path.join(sysconfig.get_path("purelib"), "nvidia"))
    for variable, names in LIBRARIES.items():
        if os.environ.get(variable):
            continue
        if variable == "GUMBALL_NVRTC" and (driver() or 13) < 13:
            names = names[::-1]
        patterns = [os.path.join(folder, "*", "lib", name) for folder in folders for name in names]
        found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
        if found:
            os.environ[variable] = found[0]
    return os.environ.get("GUMBALL_NVRTC") or None
