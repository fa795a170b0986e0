"""llama-cpp-python whose tokens Gumball draws.

::

    from gumball_llama_cpp import Llama

    llama = Llama("model.gguf", n_ctx=2048)
    llama("The sky is", temperature=0.8, top_p=0.9, seed=7)
    with llama.gumball(xtc_probability=0.5, dry_multiplier=0.8):
        llama("The sky is", seed=7)

What it adapts is in :mod:`gumball_compat.llama_cpp`.
"""

from __future__ import annotations

from gumball.plugins.releases import warn_if_untried

from .llama import Llama

__all__ = ["TRIED", "Llama"]

TRIED = ("0.3.36", "0.3.37")
"""The oldest release of llama-cpp-python that this was tried with, and the first above those."""

warn_if_untried("gumball-llama-cpp", ("llama-cpp-python",), *TRIED)
