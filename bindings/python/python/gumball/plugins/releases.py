"""Says of a release of an engine that its plug-in was not tried with it, or does not fit it."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["taking_places", "warn_if_untried"]


def warn_if_untried(plugin: str, names: tuple[str, ...], least: str, below: str) -> bool:
    """Warns if the installed release of an engine is none that its plug-in was tried with. Returns whether it was one.

    names: the names under which the engine is installed, of which the first that is there counts; without any nothing is said. least, below: the first
    release that was tried, and the first that was not.
    """
    for name in names:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _numbers(least) <= _numbers(found) < _numbers(below):
            return True
        logging.getLogger("gumball").warning(
            "%s was tried with %s from %s and below %s, but this is %s: install one of those, or try its tests first",
            *(plugin, name, least, below, found),
        )
        return False
    return True


@contextmanager
def taking_places(plugin: str, engine: str, tried: tuple[str, str], otherwise: str) -> Iterator[None]:
    """Says, where the code inside looks at a place of an engine that is missing, what to do about it: raises RuntimeError.

    tried: the first release that was tried, and the first that was not. otherwise: how to do without the plug-in.
    """
    try:
        yield
    except (ImportError, AttributeError, KeyError) as error:
        raise RuntimeError(
            f"{plugin} was tried with {engine} from {tried[0]} and below {tried[1]}, of which a place is missing here: {error!r}. "
            f"Install a release of both that fit, or {otherwise}"
        ) from error


def _numbers(release: str) -> list[int]:
    """The numbers at the beginning of a release's name: [0, 32, 1] of "0.32.1.dev3"."""
    leading = re.match(r"\d+(\.\d+)*", release)
    return [int(part) for part in leading[0].split(".")] if leading else []
