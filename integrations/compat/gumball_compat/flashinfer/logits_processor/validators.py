"""Rules that no pipe may break, over its operators before they are fused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from gumball.errors import RefusedError

from .op import Op, ParameterizedOp
from .operators import SoftmaxOp
from .types import TensorType

__all__ = [
    "CompileError",
    "ValidityCheck",
    "get_default_validity_checks",
    "refuse_without_effect",
    "validate_pipeline",
]

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


def refuse_without_effect(ops: list[Op], given: Iterable[str]) -> None:
    """Raises RefusedError for a parameter that none of the operators takes, of a call or of a processor.

    Operators of a caller's own may take any.
    """
    taken: set[str] = set()
    for op in ops:
        if not isinstance(op, ParameterizedOp) or op.TAKES is None:
            return
        taken |= op.TAKES
    names = set(given)
    for op in ops:
        made = getattr(op, "default_params", {})
        if made.get("joint_topk_topp"):
            raise RefusedError(
                "joint_topk_topp is True, but both filters look at the whole row only where TopK, TopP and Sample of probabilities "
                "follow each other in a pipe that is compiled; put them so, or leave it out"
            )
        names |= made.keys() - {"joint_topk_topp"}
    if unknown := sorted(names - taken):
        raise RefusedError(
            f"{unknown[0]} is given, but no operator of the pipe takes it; those take {', '.join(sorted(taken))}"
        )
