"""SGLang's fused softmax and its judgement of drafts under its own names.

The softmax has the names of its pull request 22166: temperature and softmax in one operator.

::

    from gumball_compat.sglang.fused_sampling import fused_temperature_softmax     # or from gumball_compat.sglang

For a program that imports it by SGLang's path, `register` makes :mod:`gumball_compat.sglang.fused_sampling` the module
`sglang.srt.layers.fused_sampling`. An installed SGLang stays as it is otherwise.

:mod:`.speculative` has the operators that judge drafts, and :mod:`.eagle` a replacement for `eagle_sample`, of release 0.5.23. They need
torch, which is imported when one of their names is first asked for. To use one, put it in the place of SGLang's before the modules that
call it are imported::

    import gumball_compat.sglang as ours
    import sglang.srt.speculative.eagle_utils as theirs
    theirs.eagle_sample = ours.eagle_sample
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from . import fused_sampling
from .fused_sampling import (
    fused_temperature_softmax,
    fused_temperature_softmax_inplace,
    warmup_fused_temperature_softmax,
)

_NEED_TORCH = {
    "chain_speculative_sampling_target_only": "speculative",
    "chain_speculative_sampling_triton": "speculative",
    "eagle_sample": "eagle",
    "tree_speculative_sampling_target_only": "speculative",
    "verify_tree_greedy": "speculative",
}

__all__ = [
    "chain_speculative_sampling_target_only",
    "chain_speculative_sampling_triton",
    "eagle_sample",
    "fused_temperature_softmax",
    "fused_temperature_softmax_inplace",
    "register",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
    "warmup_fused_temperature_softmax",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f".{_NEED_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Makes Gumball's functions what `from sglang.srt.layers.fused_sampling import ..` imports from now on.

    Call it before the program imports that module. SGLang itself need not be installed; if it is, nothing else of it changes.
    """
    sys.modules["sglang.srt.layers.fused_sampling"] = fused_sampling
