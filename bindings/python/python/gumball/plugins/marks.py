"""The watermarks of a server, in each process of an engine, from two variables.

GUMBALL_WATERMARK_KEYS names a file of keys (:func:`gumball.add_watermark_keys`), which each process reads. GUMBALL_WATERMARK is the mark of requests that
name none: a JSON object with the fields of :class:`gumball.Watermark`, its `key` among them, and two more. `default_enabled` (default: true): whether requests
that say nothing are marked. `enforce_all` (default: false): whether no request may be without a mark.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import add_watermark_keys, detect
from .._gumball import shown_text
from ..errors import InvalidValueError, RefusedError
from ..flat import FLAT_NAMES, flat_params, read_flag
from ..params import SamplingParams

__all__ = ["SERVER", "SERVER_NAMES", "Server", "refuse_lone_key", "server_params"]

SERVER_NAMES = (*FLAT_NAMES, "watermark")
"""What a server reads of a request: the names of `gumball.flat`, and whether the text is to have a mark."""


@dataclasses.dataclass(frozen=True)
class Server:
    """The mark of a server's requests, under their flat names, and which of them have it."""

    mark: dict[str, Any]
    default_enabled: bool = True
    enforce_all: bool = False

    @classmethod
    def of_json(cls, text: str) -> Server:
        """Reads GUMBALL_WATERMARK. Raises InvalidValueError for a text that is none, and for a key that was not added."""
        name = "GUMBALL_WATERMARK"
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InvalidValueError(f"{name} is no JSON: {error}") from None
        if not isinstance(given, dict) or "key" not in given:
            raise InvalidValueError(f'{name} must be a JSON object with the number of a key as "key"')
        switches = {field: given.pop(field) for field in ("default_enabled", "enforce_all") if field in given}
        for field, value in switches.items():
            if not isinstance(value, bool):
                raise InvalidValueError(f"{name} has {field} = {shown_text(repr(value))}, but it must be true or false")
        mark = {f"watermark_{field}": value for field, value in given.items()}
        unknown = sorted(mark.keys() - {*FLAT_NAMES})
        if unknown:
            raise InvalidValueError(
                f"{name}: {shown_text(unknown[0].removeprefix('watermark_'))} is no field of a watermark"
            )
        try:
            detect([], flat_params(mark, name)["watermark"])
        except ValueError as error:
            raise InvalidValueError(f"{name}: {error}") from None
        return cls(mark, **switches)

    @property
    def marks_all(self) -> bool:
        """Whether requests that say nothing are marked."""
        return self.default_enabled or self.enforce_all


def server_params(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns `flat_params` of a request, with the server's mark where it asks for that, or where that is the default and it says nothing.

    A request says `watermark` true or false, or has fields of a mark, which stand before the server's. Raises RefusedError as `flat_params` does, for
    `watermark` of another type, of true where the server has no mark, of false where it marks all texts, and of false beside fields of a mark.
    """
    given = {name: value for name, value in given.items() if value is not None}
    wanted = read_flag("watermark", given.pop("watermark", None), source)
    fields = [name for name in given if name.startswith("watermark_")]
    if wanted is False and (fields or (SERVER is not None and SERVER.enforce_all)):
        why = f"also {fields[0]}; leave one of them out" if fields else "the server marks all texts (enforce_all)"
        raise RefusedError(f"{source} has watermark = false, but {why}")
    if wanted and SERVER is None and "watermark_key" not in fields:
        raise RefusedError(
            f"{source} has watermark = true, but the server has no GUMBALL_WATERMARK; give watermark_key"
        )
    if SERVER is not None and (wanted or fields or (wanted is None and SERVER.marks_all)):
        given = SERVER.mark | given
    return flat_params(given, source)


def refuse_lone_key(params: SamplingParams, *, samples_here: bool = False) -> None:
    """Raises RefusedError for a mark by a key that the sampling process lacks. Another process than this one has the keys of the file alone. samples_here: whether this process samples."""
    mark = params.watermark
    if mark and mark.key not in _SHARED:
        try:
            detect([], mark)
        except ValueError:
            here = ", and add_watermark_keys has added none" if samples_here else ""
            raise RefusedError(
                f"watermark_key is {mark.key}, but GUMBALL_WATERMARK_KEYS has no key of that number{here}"
            ) from None
        if samples_here:
            return
        raise RefusedError(
            f"watermark_key is {mark.key}, which only this process has; "
            "add the key to the file that GUMBALL_WATERMARK_KEYS names, which each process of the engine reads"
        )


def _read_keys() -> set[int]:
    """Adds the keys of the file, if one is named, and returns their numbers."""
    file = os.environ.get("GUMBALL_WATERMARK_KEYS")
    try:
        text = Path(file).read_text(encoding="utf-8") if file else ""
    except OSError as error:
        why = f"GUMBALL_WATERMARK_KEYS is {shown_text(file)}, but must be a file of keys: {error.strerror}"
        raise InvalidValueError(why) from None
    add_watermark_keys(text)
    # A line that adds no key is empty or a comment.
    return {int(line.split()[0]) for line in text.splitlines() if add_watermark_keys(line)}


_SHARED = _read_keys()

_MARK = os.environ.get("GUMBALL_WATERMARK")
SERVER = Server.of_json(_MARK) if _MARK else None
"""What GUMBALL_WATERMARK says in this process."""
