"""Lets `model.generate` of transformers draw its tokens with Gumball.

::

    from gumball_transformers import FOLDER

    ids = model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, do_sample=True, top_p=0.9, seed=7)

What it adapts is in :mod:`gumball.compat.transformers`; here is the loop that transformers hands the decoding to.
"""

from __future__ import annotations

from pathlib import Path

from gumball.compat.releases import warn_if_untried

from .entry import generate
from .outputs import GumballOutput

__all__ = ["FOLDER", "TRIED", "GumballOutput", "generate"]

TRIED = ("5.19", "5.25")
"""The oldest release of transformers that this was tried with, and the first above those."""

warn_if_untried("gumball-transformers", ("transformers",), *TRIED)

FOLDER = str(Path(__file__).parent / "folder")
"""The folder for `custom_generate`. It may be copied beside a model's weights, too."""
