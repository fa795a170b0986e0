"""What callers put into a pipe. A parameter is given here, or by each call of the pipe under the same name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from . import operators
from .op import Op
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


class Temperature(LogitsProcessor):
    """Divides logits. Call with `temperature`, a positive float or [rows]."""

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Logits to logits."""
        if input_type != TensorType.LOGITS:
            raise ValueError(f"Temperature can only be applied to LOGITS, got {input_type}")
        return [operators.TemperatureOp(**self.params)]


class Softmax(LogitsProcessor):
    """Makes probabilities of logits. enable_pdl changes nothing."""

    def __init__(self, enable_pdl: bool | None = None, **params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **params)

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Logits to probabilities."""
        if input_type != TensorType.LOGITS:
            raise ValueError(f"Softmax can only be applied to LOGITS, got {input_type}")
        return [operators.SoftmaxOp(**self.params)]


class TopK(LogitsProcessor):
    """Keeps the k largest. Call with `top_k`, a positive int or [rows].

    joint_topk_topp: a TopP and a Sample that follow are fused with it into a draw in which both filters look at the
    whole row; only in a pipe that is compiled.
    """

    def __init__(self, joint_topk_topp: bool = False, **params: Any) -> None:
        super().__init__(joint_topk_topp=joint_topk_topp, **params)

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Logits to logits, or probabilities to probabilities."""
        if input_type == TensorType.LOGITS:
            return [operators.LogitsTopKOp(**self.params)]
        if input_type == TensorType.PROBS:
            return [operators.ProbsTopKOp(**self.params)]
        raise ValueError(f"TopK cannot be applied to {input_type}")


class TopP(LogitsProcessor):
    """Keeps the fewest that hold a share of the sum. Call with `top_p`, in (0, 1] or [rows]."""

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Probabilities to probabilities."""
        if input_type != TensorType.PROBS:
            raise ValueError(f"TopP can only be applied to PROBS, got {input_type}")
        return [operators.TopPOp(**self.params)]


class MinP(LogitsProcessor):
    """Keeps what is at least a share of the largest. Call with `min_p`, in (0, 1] or [rows]."""

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Probabilities to probabilities."""
        if input_type != TensorType.PROBS:
            raise ValueError(f"MinP can only be applied to PROBS, got {input_type}")
        return [operators.MinPOp(**self.params)]


class Sample(LogitsProcessor):
    """Draws a token of each row. Call with `indices` and `generator` if need be. deterministic changes nothing."""

    def __init__(self, deterministic: bool = True, **params: Any) -> None:
        super().__init__(deterministic=deterministic, **params)

    def legalize(self, input_type: TensorType) -> list[Op]:
        """Logits or probabilities to ids."""
        if input_type == TensorType.LOGITS:
            return [operators.LogitsSampleOp(**self.params)]
        if input_type == TensorType.PROBS:
            return [operators.ProbsSampleOp(**self.params)]
        raise ValueError(f"Sampling cannot be applied to {input_type}")
