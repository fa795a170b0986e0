"""Which neighbours become one operator: patterns of types, a condition, what is built, and which rule comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .op import Op
from .operators import (
    FusedProbsMinPSampleOp,
    FusedProbsTopKSampleOp,
    FusedProbsTopKTopPSampleOp,
    FusedProbsTopPSampleOp,
    FusedTemperatureSoftmaxOp,
    MinPOp,
    ProbsSampleOp,
    ProbsTopKOp,
    SoftmaxOp,
    TemperatureOp,
    TopPOp,
)

__all__ = ["FusionRule", "get_default_fusion_rules"]


class FusionRule(NamedTuple):
    """Operators of the types in `pattern`, side by side and with guard(them), become build(them). Larger `prio` is
    tried first.
    """

    pattern: tuple[type, ...]
    guard: Callable[[list[Op]], bool]
    build: Callable[[list[Op]], Op]
    prio: int = 0


def _given(op: Op, name: str, default: Any) -> Any:
    return getattr(op, "default_params", {}).get(name, default)


def _always(window: list[Op]) -> bool:
    return True


def _carried(window: list[Op], *own: str) -> dict[str, Any]:
    """What the operators of a window were made with, for the one that stands for them."""
    merged: dict[str, Any] = {}
    for op in window:
        merged |= getattr(op, "default_params", {})
    return {name: value for name, value in merged.items() if name not in own}


def get_default_fusion_rules() -> list[FusionRule]:
    """Temperature with softmax; top-k, top-p or min-p with a draw; joint top-k and top-p with a draw."""

    def softmax(window: list[Op]) -> Op:
        pdl = _given(window[1], "enable_pdl", None)
        return FusedTemperatureSoftmaxOp(pdl, **_carried(window, "enable_pdl"))

    def draw(fused: Callable[..., Op]) -> Callable[[list[Op]], Op]:
        def build(window: list[Op]) -> Op:
            deterministic = _given(window[-1], "deterministic", True)
            return fused(deterministic, **_carried(window, "deterministic", "joint_topk_topp"))

        return build

    def joint(window: list[Op]) -> bool:
        return bool(_given(window[0], "joint_topk_topp", False))

    return [
        FusionRule((TemperatureOp, SoftmaxOp), _always, softmax, 100),
        FusionRule((ProbsTopKOp, TopPOp, ProbsSampleOp), joint, draw(FusedProbsTopKTopPSampleOp), 100),
        FusionRule((ProbsTopKOp, ProbsSampleOp), _always, draw(FusedProbsTopKSampleOp), 10),
        FusionRule((TopPOp, ProbsSampleOp), _always, draw(FusedProbsTopPSampleOp), 10),
        FusionRule((MinPOp, ProbsSampleOp), _always, draw(FusedProbsMinPSampleOp), 10),
    ]
