"""Modules that stand for packages which a machine lacks and nothing there calls."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__all__ = ["stand_in"]


class Anything:
    """Stands for any name of a module: a class, a function, a decorator, a number, false."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    # TokenSpeed looks for enable_pdl among the parameters of functions.
    def __call__(self, *given: Any, enable_pdl: Any = None, **_: Any) -> Any:
        decorated = len(given) == 1 and callable(given[0])
        return given[0] if decorated else Anything()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __gt__(self, other: Any) -> bool:
        return False

    __lt__ = __ge__ = __le__ = __gt__

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return 0


class Module(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of these packages."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if any(name == one or name.startswith(f"{one}.") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Module:
        return Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def stand_in(*names: str) -> None:
    """Lets every import of these packages find modules that have whatever is asked for."""
    sys.meta_path.insert(0, Finder(names))
