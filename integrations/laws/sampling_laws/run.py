"""Runs the laws on an engine, and records what came out."""

from __future__ import annotations

import contextlib
import datetime
import io
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

from .engine import Engine, Request, engine
from .laws import LAWS, Law
from .session import Broken, NotApplicable, Session

#: The longest recorded output of a reproducer.
LONGEST = 400


def missing(law: Law, of: Engine) -> list[str]:
    """What a law needs that an engine does not have."""
    return sorted(law.needs - of.features)


def try_law(law: Law, of: Engine, name: str, seed: int = 1) -> dict[str, Any]:
    """Tries one law; returns its outcome, "holds", "broken" or "not applicable", with a message."""
    lacks = missing(law, of)
    if lacks:
        return {"outcome": "not applicable", "why": f"needs {', '.join(lacks)}"}
    session = Session(of, seed)
    try:
        law.body(session)
    except NotApplicable as reason:
        return {"outcome": "not applicable", "why": str(reason)}
    except Broken as found:
        return {"outcome": "broken", "why": str(found), **_again(session, name)}
    except Exception as error:
        return {"outcome": "broken", "why": f"{type(error).__name__}: {error}", **_again(session, name)}
    return {"outcome": "holds"}


def _again(session: Session, name: str) -> dict[str, str]:
    """The program that shows it, and its output."""
    program = session.program(name)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(program, {})  # It was put together above.
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    printed = out.getvalue().strip()
    return {"program": program, "prints": printed if len(printed) <= LONGEST else printed[:LONGEST] + " ..."}


def run(
    name: str, only: Sequence[str] = (), say: Callable[[str], None] = lambda _: None, seed: int = 1
) -> dict[str, Any]:
    """Tries the laws on the engine of a name; returns the record of the run.

    only: names of laws, all if there are none. say: called with a line for each law. seed: what requests without seeds are drawn from.
    """
    unknown = set(only) - {law.name for law in LAWS}
    if unknown:
        raise ValueError(
            f"no law is called {', '.join(sorted(unknown))}; known are {', '.join(law.name for law in LAWS)}"
        )
    of = engine(name)
    # An adapter that cannot make a call would seem to refuse rows where laws allow that.
    Session(of).token("[0, 1, 2]", Request())
    laws: dict[str, Any] = {}
    record = {
        "engine": of.name,
        "version": of.version,
        "remark": of.remark,
        "adapter": name,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "seed": seed,
        "logprobs": of.logprobs if "logprobs" in of.features else None,
        "laws": laws,
    }
    for law in LAWS:
        if only and law.name not in only:
            continue
        start = time.perf_counter()
        laws[law.name] = try_law(law, of, name, seed)
        took = time.perf_counter() - start
        why = laws[law.name].get("why", "")
        say(f"{laws[law.name]['outcome']:14}  {law.name:42} {took:5.1f} s  {why}".rstrip())
    return record
