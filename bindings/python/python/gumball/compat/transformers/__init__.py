"""Gumball where transformers' `generate` draws, for the package `gumball-transformers`.

:func:`taken` reads transformers' list of logits processors, and :class:`Sequences` follows the rows of a call of `generate` with a pool. The
loop around them is in the package `gumball-transformers`. Importing this module imports torch and transformers. To put Gumball behind an
unchanged `generate`, without a folder of code that it trusts, see :mod:`gumball.transformers`.
"""

from __future__ import annotations

from ..errors import RefusedError
from .calls import CACHE, no_token, prompts_of, stop_strings
from .params import OUR_NAMES, taken
from .sequences import MOST_DRAFTS, Drawn, Sequences, words_of

__all__ = [
    "CACHE",
    "MOST_DRAFTS",
    "OUR_NAMES",
    "Drawn",
    "RefusedError",
    "Sequences",
    "no_token",
    "prompts_of",
    "stop_strings",
    "taken",
    "words_of",
]
