"""Gumball where transformers' `generate` draws: :func:`taken` reads transformers' list of logits processors, and :class:`Sequences` follows the rows
of a call with a pool. The loop around them is :func:`gumball.transformers.generate`. Importing this module imports torch and transformers.
"""

from __future__ import annotations

from gumball.errors import RefusedError
from gumball.transformers.calls import CACHE, no_token, prompts_of, stop_strings
from gumball.transformers.params import OUR_NAMES, taken
from gumball.transformers.sequences import MOST_DRAFTS, Drawn, Sequences, Words, words_of

__all__ = [
    "CACHE",
    "MOST_DRAFTS",
    "OUR_NAMES",
    "Drawn",
    "RefusedError",
    "Sequences",
    "Words",
    "no_token",
    "prompts_of",
    "stop_strings",
    "taken",
    "words_of",
]
