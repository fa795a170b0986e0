"""SGLang's fused softmax under its own names, those of its pull request 22166: temperature and softmax in one operator.

::

    from gumball.compat.sglang.fused_sampling import fused_temperature_softmax     # or from gumball.compat.sglang

For a program that imports it by SGLang's path, `register` makes :mod:`gumball.compat.sglang.fused_sampling` the module
`sglang.srt.layers.fused_sampling`. An installed SGLang stays as it is otherwise.
"""

from __future__ import annotations

import sys

from . import fused_sampling
from .fused_sampling import (
    fused_temperature_softmax,
    fused_temperature_softmax_inplace,
    warmup_fused_temperature_softmax,
)

__all__ = [
    "fused_temperature_softmax",
    "fused_temperature_softmax_inplace",
    "register",
    "warmup_fused_temperature_softmax",
]


def register() -> None:
    """Makes Gumball's functions what `from sglang.srt.layers.fused_sampling import ..` imports from now on.

    Call it before the program imports that module. SGLang itself need not be installed; if it is, nothing else of it changes.
    """
    sys.modules["sglang.srt.layers.fused_sampling"] = fused_sampling
