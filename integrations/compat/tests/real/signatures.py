"""The parameters of functions, also in files that cannot be imported."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any


def parameters(path: Path, name: str) -> list[tuple[str, str, str | None]]:
    """The parameters of a function in a file that is not loaded: names, kinds and defaults."""
    nodes = ast.parse(path.read_text()).body
    (found,) = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name)
    return parameters_of(found)


def parameters_of(function: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """The parameters of a function that is not loaded: names, kinds and defaults."""
    stripped = function.args
    for argument in (*stripped.args, *stripped.kwonlyargs):
        argument.annotation = None
    return signature(eval(f"lambda {ast.unparse(stripped)}: None"))


def signature(function: Any) -> list[tuple[str, str, str | None]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, str(p.kind), None if p.default is p.empty else repr(p.default)) for p in found]
