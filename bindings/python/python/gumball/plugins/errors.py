"""Errors of modules that stand in for another package's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Error, RefusedError

__all__ = ["CallerError", "refuse_unless"]


class CallerError(Error, ValueError, AssertionError):
    """A caller's mistake, where the other package asserts that there is none."""


def refuse_unless(harmless: object, given: Mapping[str, Any], remedy: str) -> None:
    """Raises RefusedError for an argument that would have no effect here.

    harmless: the only value that asks for nothing. given: arguments by name. remedy: what to do instead, for the text.
    """
    for name, value in given.items():
        if harmless is None and value is not None:
            raise RefusedError(f"{name} is given, but must be None here; {remedy}")
        if value != harmless:
            raise RefusedError(f"{name} is {value!r}, but must be {harmless!r} here; {remedy}")
