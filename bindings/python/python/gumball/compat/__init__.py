"""What other packages' callers know, under their names, over gumball. Each module here stands for one of them.

Importing this imports neither torch nor those packages; :mod:`gumball.compat.flashinfer` and
:mod:`gumball.compat.tokenspeed` import torch.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["flashinfer_path"]


def flashinfer_path() -> str:
    """The folder that holds a package named `flashinfer`, Gumball's, for the front of `sys.path` or of `PYTHONPATH`.

    ::

        import sys, gumball.compat
        sys.path.insert(0, gumball.compat.flashinfer_path())
        import flashinfer                       # sampling and logits_processor, drawn by Gumball

    or, for a program that stays as it is::

        PYTHONPATH=$(python -c "import gumball.compat; print(gumball.compat.flashinfer_path())") python serve.py

    It is not on the path by itself, and hides an installed FlashInfer while it comes first. It has
    `flashinfer.sampling` and `flashinfer.logits_processor`, and what the package itself exports of them; nothing else.
    """
    return str(Path(__file__).parent.parent / "shims")
