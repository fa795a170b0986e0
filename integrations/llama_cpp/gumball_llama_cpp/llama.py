"""llama-cpp-python's `Llama` with another sampler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import llama_cpp

from gumball.compat.llama_cpp import params_of

from .steps import Steps

__all__ = ["Llama"]

if not hasattr(llama_cpp.Llama, "_init_sampler"):
    raise ImportError(
        f"llama-cpp-python {llama_cpp.__version__} makes its sampler elsewhere than in Llama._init_sampler; install 0.3.36"
    )

# What `_init_sampler` has if a caller leaves it out.
_DEFAULTS = {
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "temp": 0.80,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "mirostat_mode": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
}


class Llama(llama_cpp.Llama):
    """llama-cpp-python's `Llama`, whose tokens Gumball draws from the logits where llama.cpp has them.

    Its arguments, calls and answers are the same. A seed has 64 bits; 0xFFFFFFFF asks for another one each time, as in llama.cpp.
    """

    _ours: dict[str, Any] = {}

    @contextlib.contextmanager
    def gumball(self, **ours: Any) -> Iterator[Llama]:
        """While it lasts, calls have these parameters besides, under the names of `gumball.compat.llama_cpp.OUR_NAMES`.

        Raises RefusedError, a ValueError, for a name that is none of them, and for a value outside its range.
        """
        params_of(_DEFAULTS, seed=0, ours=ours)
        before, self._ours = self._ours, self._ours | ours
        try:
            yield self
        finally:
            self._ours = before

    def _init_sampler(self, *, logits_processor: Any = None, grammar: Any = None, **theirs: Any) -> Steps:
        params = params_of(_DEFAULTS | theirs, seed=self._seed, ours=self._ours)
        return Steps(self, params, logits_processor, grammar)
