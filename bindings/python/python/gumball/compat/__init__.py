"""Gumball's functions under the names of other packages, for programs that call those.

Each module replaces one package. Importing this module imports neither torch nor those packages.
:mod:`gumball.compat.flashinfer`, :mod:`gumball.compat.tokenspeed` and :mod:`gumball.compat.vllm` import torch,
:mod:`gumball.compat.transformers` also transformers.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["flashinfer_path"]


def flashinfer_path() -> str:
    """Returns the folder with Gumball's package named `flashinfer`, to be put first in `sys.path` or `PYTHONPATH`.

    ::

        import sys, gumball.compat
        sys.path.insert(0, gumball.compat.flashinfer_path())
        import flashinfer                       # sampling and logits_processor, drawn by Gumball

    or, for an unchanged program::

        PYTHONPATH=$(python -c "import gumball.compat; print(gumball.compat.flashinfer_path())") python serve.py

    Nothing adds the folder to the path by itself. While it comes first, it hides an installed FlashInfer. The package
    has `flashinfer.sampling` and `flashinfer.logits_processor`, and what FlashInfer exports of them at its top level;
    nothing more.
    """
    return str(Path(__file__).parent.parent / "shims")
