"""The plug-in of TokenSpeed that adds the sampling backend `gumball`.

TokenSpeed calls :func:`register` in each of its processes, by the entry point `tokenspeed.plugins`. Without `--sampling-backend gumball` nothing
changes. Its command line refuses the name, so the server is started by ``python -m gumball_tokenspeed``.
"""

from __future__ import annotations

__all__ = ["BACKEND", "TRIED", "register"]

TRIED = ("0.1.1", "0.1.2")
"""The oldest release of TokenSpeed that this was tried with, and the first above those."""

BACKEND = "gumball"
"""What `--sampling-backend` calls it."""


def register() -> None:
    """Adds the backend, and the checks of its requests. Warns of a release that this was not tried with.

    Raises RuntimeError if the release lacks one of the places where they go; none is taken then.
    """
    from gumball.plugins.releases import warn_if_untried

    from . import places

    warn_if_untried("gumball-tokenspeed", ("tokenspeed",), *TRIED)
    places.take()
