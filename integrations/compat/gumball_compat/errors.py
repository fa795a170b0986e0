"""Errors of modules that stand in for another package's."""

from __future__ import annotations

from gumball.errors import Error, RefusedError

__all__ = ["CallerError", "RefusedError"]


class CallerError(Error, ValueError, AssertionError):
    """A caller's mistake, where the other package asserts that there is none."""
