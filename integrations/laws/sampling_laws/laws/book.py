"""The book of laws: each is a function that takes a session and raises `Broken`; its docstring begins with the law in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

from ..session import Session

Body = Callable[[Session], None]


class Law(NamedTuple):
    """A law: its chapter, its name, what an engine must be able to do, and the body that tries it."""

    chapter: str
    name: str
    needs: frozenset[str]
    body: Body

    @property
    def sentence(self) -> str:
        return inspect.cleandoc(self.body.__doc__ or "").partition("\n\n")[0].replace("\n", " ")

    @property
    def remark(self) -> str:
        return inspect.cleandoc(self.body.__doc__ or "").partition("\n\n")[2].replace("\n", " ")


LAWS: list[Law] = []


def law(chapter: str, *needs: str) -> Callable[[Body], Body]:
    """Enters a function into the book."""

    def enter(body: Body) -> Body:
        LAWS.append(Law(chapter, body.__name__.replace("_", "-"), frozenset(needs), body))
        return body

    return enter
