"""What no pipe may do, whatever its types say: rules over its operators before they are fused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from .op import Op
from .operators import SoftmaxOp
from .types import TensorType

__all__ = ["CompileError", "ValidityCheck", "get_default_validity_checks", "validate_pipeline"]

# Raises CompileError if the operators break its rule.
ValidityCheck = Callable[[list[Op]], None]


class CompileError(Exception):
    """Operators that cannot be a pipe."""


def single_softmax_rule(ops: list[Op]) -> None:
    """At most one softmax."""
    if sum(isinstance(op, SoftmaxOp) for op in ops) > 1:
        raise CompileError("Multiple Softmax operators found. Only one Softmax is allowed per pipeline.")


def indices_terminal_rule(ops: list[Op]) -> None:
    """Nothing after ids."""
    for op, after in pairwise(ops):
        if op.OUT == TensorType.INDICES:
            names = f"Found {type(after).__name__} after {type(op).__name__} which outputs Indices."
            raise CompileError(f"No operator may follow one that outputs Indices. {names}")


def get_default_validity_checks() -> list[ValidityCheck]:
    """The rules that hold for every pipe."""
    return [single_softmax_rule, indices_terminal_rule]


def validate_pipeline(ops: list[Op], custom_checks: list[ValidityCheck] | None = None) -> None:
    """Raises CompileError if the operators break a rule, one of the caller's included."""
    if not ops:
        raise CompileError("Pipeline cannot be empty")
    for check in [*get_default_validity_checks(), *(custom_checks or [])]:
        check(ops)
