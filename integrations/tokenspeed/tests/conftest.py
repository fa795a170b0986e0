"""TokenSpeed's own modules on a machine without a GPU.

Its kernels' package refuses to be imported there, so names of that package, of its Triton and of its scheduler stand for nothing here: modules
that have whatever is asked for. TokenSpeed's runtime is the real one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

import pytest

ABSENT = ("tokenspeed_kernel", "tokenspeed_triton", "tokenspeed_scheduler", "viztracer")


class Anything:
    """Stands for any name of a module: a class, a function, a decorator, a number, false."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *given: Any, **_: Any) -> Any:
        decorated = len(given) == 1 and callable(given[0])
        return given[0] if decorated else Anything()

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

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
    """Finds those modules."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Module:
        return Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


sys.meta_path.insert(0, Finder())


@pytest.fixture(scope="session")
def plugin() -> Any:
    """TokenSpeed's record of the plug-in, which it finds and loads itself."""
    from tokenspeed.runtime.plugins import ensure_loaded

    loaded = {found.name: found for found in ensure_loaded()}
    return loaded["gumball"]


@pytest.fixture(scope="session")
def arguments(plugin: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that makes TokenSpeed's arguments of a server of a command line."""
    from gumball_tokenspeed import places
    from tokenspeed.runtime.utils.server_args import prepare_server_args

    places.take_name()
    model = str(tmp_path_factory.mktemp("model"))
    return lambda *given: prepare_server_args(["--model", model, *given])


@pytest.fixture
def served(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes this process one of a server's whose arguments these are; without any, of the backend gumball's."""
    from tokenspeed.runtime.utils import env

    def make(*given: str) -> Any:
        made = arguments(*(given or ("--sampling-backend", "gumball")), "--enable-output-logprobs")
        # As a scheduler does it, and undone after the test.
        for name in env.global_server_args_dict:
            monkeypatch.setitem(env.global_server_args_dict, name, env.global_server_args_dict[name])
        env.global_server_args_dict_update(made)
        return made

    return make
