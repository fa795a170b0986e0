"""Errors that are both ours and another package's."""

from __future__ import annotations

__all__ = ["CallerError"]


class CallerError(ValueError, AssertionError):
    """A caller's mistake, where the other package asserts that there is none."""
