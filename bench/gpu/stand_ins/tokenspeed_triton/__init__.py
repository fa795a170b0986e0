"""Stands in for TokenSpeed's build of Triton: the installed Triton under its name.

That build is too large to carry. The kernels use nothing that the installed Triton has not.
"""

import importlib
import sys

import triton

for name in (
    "experimental.gluon",
    "experimental.gluon.language",
    "language",
    "language.core",
    "language.extra.libdevice",
    "tools.tensor_descriptor",
):
    sys.modules[f"{__name__}.{name}"] = importlib.import_module(f"triton.{name}")
sys.modules[__name__] = triton
