"""Parameters of Gumball alone, under the flat names by which other engines' requests carry them.

An engine has a field for what it does not know, and that field holds numbers, strings and lists of them. So the parts of
`SamplingParams` that are objects (DRY, mirostat, a dynamic temperature, a section, loops, a watermark) come as several names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from ._gumball import nearest_name, shown_text
from .errors import RefusedError
from .params import Dry, DynamicTemperature, Loops, Mirostat, SamplingParams, Section, Watermark

__all__ = [
    "FLAT_NAMES",
    "PENALTY_NAMES",
    "flat_params",
    "is_neutral",
    "read_flag",
    "refuse_near_misses",
    "refuse_outside",
]

_Read = Callable[[Any], Any]


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list | tuple):
        raise TypeError("must be a list of ids")
    return [_whole(one) for one in value]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        # A form of HTTP has no integers of its own.
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise TypeError("must be a whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    return float(value)


def _flag(value: Any) -> bool:
    # A form of HTTP may have no truth values of its own.
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise TypeError("must be true or false, 1 or 0")
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be text")
    return value


def _order(value: Any) -> str | list[str]:
    if not isinstance(value, str | list | tuple):
        raise TypeError("must be text or a list of filters")
    names = value.split(",") if isinstance(value, str) else [_text(one) for one in value]
    return (
        names[0] if len(names) == 1 and names[0] in ("default", "joint", "none") else [name.strip() for name in names]
    )


# How a field of each type is read.
_READ: dict[str, _Read] = {
    "float": _number,
    "float | None": _number,
    "int": _whole,
    "bool": _flag,
    "str": _text,
    "Sequence[int]": _ids,
    "str | Sequence[str]": _order,
}

# Penalties that some engines have themselves.
_PENALTIES = {"frequency_penalty": _number, "presence_penalty": _number}

# The parameters that every engine has a field for.
_COMMON = {*_PENALTIES, "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "min_tokens", "stop_ids"}


def _readers(kind: Any) -> dict[str, _Read]:
    """How to read each field of a dataclass. Maps, lists of lists and other types that an engine's field does not hold are left out."""
    return {field.name: _READ[str(field.type)] for field in fields(kind) if field.type in _READ}


def _part(kind: Any, prefix: str) -> dict[str, tuple[str, _Read]]:
    return {f"{prefix}_{name}": (name, read) for name, read in _readers(kind).items()}


# Of `SamplingParams` itself.
_PLAIN = {name: read for name, read in _readers(SamplingParams).items() if name not in _COMMON}

# Of its parts: the part, its class, and for each flat name the field and how it is read.
_PARTS: dict[str, tuple[type[Any], dict[str, tuple[str, _Read]]]] = {
    "dry": (Dry, _part(Dry, "dry")),
    "mirostat": (Mirostat, _part(Mirostat, "mirostat")),
    "dynamic_temperature": (DynamicTemperature, _part(DynamicTemperature, "dynamic_temperature")),
    "section": (Section, _part(Section, "section")),
    "loops": (Loops, _part(Loops, "loops")),
    "watermark": (Watermark, _part(Watermark, "watermark")),
}

FLAT_NAMES = (*_PLAIN, *(name for _, names in _PARTS.values() for name in names))
"""The names of what most engines have not."""

PENALTY_NAMES = tuple(_PENALTIES)
"""The names of penalties that some engines have and others have not."""


_LISTS = [name for name, read in _PLAIN.items() if read is _ids]
_LISTS += [name for _, names in _PARTS.values() for name, (_, read) in names.items() if read is _ids]


def refuse_near_misses(
    given: Mapping[str, Any], source: str, *, peers: bool = False, besides: Collection[str] = ()
) -> None:
    """Raises RefusedError for a name that is none of `FLAT_NAMES` or `besides`, but nearly one. None is absent.

    source: where the names come from, for the text. peers: whether what other engines call one of them is refused, too. besides: other names that are read there.
    """
    for name, value in given.items():
        near = None if name in FLAT_NAMES or name in besides or value is None else _near(name, peers, besides)
        if near:
            raise RefusedError(f"{source} has {shown_text(name)!r}, which is no parameter; do you mean {near!r}?")


def _near(name: str, peers: bool, besides: Collection[str]) -> str | None:
    """The flat name that was meant by another."""
    if peers:
        # Other engines' names lead to a field of a part by its part.
        meant = (nearest_name(name, (*_PLAIN, *_PARTS), True) or "").replace(".", "_")
        if meant in FLAT_NAMES:
            return meant
    return nearest_name(name, (*FLAT_NAMES, *besides))


def refuse_outside(given: Mapping[str, Any], vocab: int, source: str) -> None:
    """Raises RefusedError for an id outside the vocabulary in a list under a flat name, whose lists :func:`flat_params` has read."""
    for name in _LISTS:
        for id in given.get(name) or ():
            if not 0 <= id < vocab:
                raise RefusedError(f"{source} has {name} with {id}, which is no id of a vocabulary of {vocab}")


def is_neutral(name: str, value: Any) -> bool:
    """Whether a flat name's value leaves everything as it is without it."""
    try:
        return SamplingParams(**flat_params({name: value}, "")) == SamplingParams()
    except (TypeError, ValueError):
        return False


def flat_params(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns arguments of `SamplingParams`. Names that are not of `FLAT_NAMES` or `PENALTY_NAMES` are left alone, and None is absent.

    source: where the names come from, for the text of an error. Raises RefusedError for a value of another type, for a part without what
    it needs, and for loops that nothing ends, as the status that tells of them reaches no caller of an engine.
    """
    chosen: dict[str, Any] = {}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        read = _PLAIN.get(name) or _PENALTIES.get(name)
        if read is not None:
            chosen[name] = _read(name, value, read, source)
    for part, (kind, names) in _PARTS.items():
        found = {
            field: _read(name, given[name], read, source) for name, (field, read) in names.items() if name in given
        }
        if found:
            missing = [f"{part}_{field}" for field in _needed(kind) if field not in found]
            if missing:
                raise RefusedError(f"{source} has {part}_{next(iter(found))} without {' and '.join(missing)}")
            chosen[part] = kind(**found)
    loops = chosen.get("loops")
    if loops is not None and not loops.close and not loops.end:
        raise RefusedError(f"{source} has loops without loops_close or loops_end")
    return chosen


def _needed(kind: Any) -> list[str]:
    """The fields that a part must have: the fields without a default, and the number of a key, since 0 is a key too."""
    return ["key"] if kind is Watermark else [field.name for field in fields(kind) if field.default is MISSING]


def read_flag(name: str, value: Any, source: str) -> bool | None:
    """Returns whether a value is true, as `flat_params` reads it; None if it is absent."""
    return None if value is None else _read(name, value, _flag, source)


def _read(name: str, value: Any, read: _Read, source: str) -> Any:
    try:
        return read(value)
    except TypeError as error:
        raise RefusedError(f"{source} has {name} = {shown_text(repr(value), name)}, but it {error}") from error
