"""Stands in for TokenSpeed's build of Triton: the installed Triton under its name.

That build is too large to carry. The kernels use nothing that the installed Triton has not. All modules take the other name, since a
module that is imported under it by itself would take its namesake's place in Triton, which torch imports too.
"""

import importlib
import sys

import triton

for name in (
    "experimental.gluon.language",
    "language.extra.cuda",
    "language.extra.libdevice",
    "profiler",
    "tools.tensor_descriptor",
):
    importlib.import_module(f"triton.{name}")
for name, module in list(sys.modules.items()):
    if name.startswith("triton."):
        sys.modules[name.replace("triton", __name__, 1)] = module
sys.modules[__name__] = triton
