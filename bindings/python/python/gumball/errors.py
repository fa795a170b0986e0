"""Errors: one class above all that Gumball raises itself, each of which is one of Python's own kinds, too."""

from __future__ import annotations

__all__ = [
    "CallError",
    "DeviceLostError",
    "Error",
    "InvalidTypeError",
    "InvalidValueError",
    "RefusedError",
    "UnavailableError",
]


class Error(Exception):
    """What every error that Gumball raises is. An index beyond an output's rows is Python's IndexError alone."""


class InvalidValueError(Error, ValueError):
    """A value, length or combination that is not allowed: the text names the argument, its value and allowed ones. Nothing was changed."""


class InvalidTypeError(Error, TypeError):
    """An object of the wrong type: the text names the argument and the allowed types. Nothing was changed."""


class _Unnamed(Error):
    """What the extension module makes without the argument's name. PyO3 adds that as a note; the text begins with it then."""

    def add_note(self, note: str, /) -> None:
        self.args = (" ".join((note.split("'")[1], *self.args)),)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self).__bases__[1], self.args


class UnnamedValueError(_Unnamed, InvalidValueError):
    __doc__ = InvalidValueError.__doc__


class UnnamedTypeError(_Unnamed, InvalidTypeError):
    __doc__ = InvalidTypeError.__doc__


# Tracebacks show the class that callers know.
for _kind in (UnnamedValueError, UnnamedTypeError):
    _kind.__name__ = _kind.__qualname__ = _kind.__bases__[1].__name__


class RefusedError(Error, ValueError):
    """A request, written for another engine, asks for what cannot be given. The text says what to do."""


class CallError(Error, RuntimeError):
    """A call cannot run: another one uses the object, or what it was made from has changed or ended. Or Gumball itself broke, which the text says then."""


class UnavailableError(Error, RuntimeError):
    """The machine lacks something: a driver, a library, a device, memory. Nothing was changed."""


class DeviceLostError(UnavailableError):
    """A device is lost, with all that lies on it, and so is this process for it: a kernel read or wrote where it must not, or the device failed.
    The text names the first failure, the kernels that were launched before it and what the sequences had asked for. Each later call says the same.
    """


class DistError(Error, RuntimeError):
    """An exchange between ranks failed; no sequence of this rank was changed by that step. On devices that holds for the host's copies alone,
    which are as they were at the last fetch. The group is broken then: make new pools, and resume there from the states of one rank. rank is
    the rank that is spoken of, or None.
    """

    rank: int | None


class LostError(DistError):
    """A rank ended, or its connection broke."""


class LateError(DistError):
    """A rank did not answer in time."""

    waited: float


class DisagreeError(DistError):
    """A rank was started differently, or is at another step. what names what differs, ours and theirs are the two values."""

    what: str
    ours: str
    theirs: str


class CorruptError(DistError):
    """A rank sent what no rank of this version sends."""


class BrokenError(DistError):
    """An earlier exchange of this group failed; the text says how."""
