"""Gumball under FlashInfer's name, for programs that use its sampling and logits processors alone.

:func:`gumball.compat.flashinfer_path` says how to put it on the path. The modules here are those of
:mod:`gumball.compat.flashinfer`, the same objects.
"""

# First, so that each is a module under this name too.
from . import logits_processor as _logits_processor
from . import sampling as _sampling
from gumball.compat.flashinfer import *
from gumball.compat.flashinfer import __all__ as __all__

# The release whose surface this is.
__version__ = "0.7.2"


def __getattr__(name: str) -> object:
    text = "this flashinfer is Gumball's, which has sampling and logits_processor alone"
    raise AttributeError(f"module 'flashinfer' has no attribute '{name}': {text}")
