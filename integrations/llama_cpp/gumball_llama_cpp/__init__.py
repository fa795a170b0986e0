"""llama-cpp-python whose tokens Gumball draws.

::

    from gumball_llama_cpp import Llama

    llama = Llama("model.gguf", n_ctx=2048)
    llama("The sky is", temperature=0.8, top_p=0.9, seed=7)
    with llama.gumball(xtc_probability=0.5, dry_multiplier=0.8):
        llama("The sky is", seed=7)

What it adapts is in :mod:`gumball.compat.llama_cpp`.
"""

from __future__ import annotations

from .llama import Llama

__all__ = ["Llama"]
