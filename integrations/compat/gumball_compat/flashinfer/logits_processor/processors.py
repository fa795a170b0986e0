"""What callers put into a pipe. A parameter is given here, or by each call of the pipe under the same name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from . import operators
from .op import Op, ParameterizedOp
from .types import TensorType

__all__ = ["LogitsProcessor", "MinP", "Sample", "Softmax", "Temperature", "TopK", "TopP"]


class LogitsProcessor(ABC):
    """A processor: says which operators it is, for the type of tensor before it."""

    def __init__(self, **params: Any) -> None:
        self.params = params

    @abstractmethod
    def legalize(self, input_type: TensorType) -> list[Op]:
        """Its operators for tensors of this type; ValueError if it cannot take them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.params.items())})"


class _Known(LogitsProcessor):
    """A processor of this module. OPS: its operator for each type of tensor that it takes. NAME: what an error calls it."""

    OPS: dict[TensorType, type[ParameterizedOp]]
    NAME: str | None = None

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Its operator for tensors of this type; ValueError if it cannot take them."""
        if input_type in self.OPS:
            return [self.OPS[input_type](**self.params)]
        name, taken = self.NAME or type(self).__name__, list(self.OPS)
        if len(taken) == 1:
            raise ValueError(f"{name} can only be applied to {taken[0]}, got {input_type}")
        raise ValueError(f"{name} cannot be applied to {input_type}")


class Temperature(_Known):
    """Divides logits. Call with `temperature`, a positive float or [rows]."""

    OPS = {TensorType.LOGITS: operators.TemperatureOp}


class Softmax(_Known):
    """Makes probabilities of logits. enable_pdl changes nothing."""

    OPS = {TensorType.LOGITS: operators.SoftmaxOp}

    def __init__(self, enable_pdl: bool | None = None, **params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **params)


class TopK(_Known):
    """Keeps the k largest. Call with `top_k`, a positive int or [rows].

    joint_topk_topp: a TopP and a Sample that follow are fused with it into a draw in which both filters look at the
    whole row; only in a pipe that is compiled.
    """

    OPS = {TensorType.LOGITS: operators.LogitsTopKOp, TensorType.PROBS: operators.ProbsTopKOp}

    def __init__(self, joint_topk_topp: bool = False, **params: Any) -> None:
        super().__init__(joint_topk_topp=joint_topk_topp, **params)


class TopP(_Known):
    """Keeps the fewest that hold a share of the sum. Call with `top_p`, in (0, 1] or [rows]."""

    OPS = {TensorType.PROBS: operators.TopPOp}


class MinP(_Known):
    """Keeps what is at least a share of the largest. Call with `min_p`, in (0, 1] or [rows]."""

    OPS = {TensorType.PROBS: operators.MinPOp}


class Sample(_Known):
    """Draws a token of each row. Call with `indices` and `generator` if need be. deterministic changes nothing."""

    OPS, NAME = {TensorType.LOGITS: operators.LogitsSampleOp, TensorType.PROBS: operators.ProbsSampleOp}, "Sampling"

    def __init__(self, deterministic: bool = True, **params: Any) -> None:
        super().__init__(deterministic=deterministic, **params)
