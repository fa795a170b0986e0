"""What flows through a pipe: tensors that say whether they are logits, probabilities or ids."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TaggedTensor", "TensorType"]


class TensorType(enum.Enum):
    """Logits, any numbers; probabilities, at least 0, which need not sum to 1; or ids of tokens, which end a pipe."""

    LOGITS = enum.auto()
    PROBS = enum.auto()
    INDICES = enum.auto()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class TaggedTensor:
    """A tensor and its type. Functions of torch take it as they take the tensor, and return plain tensors."""

    data: torch.Tensor
    type: TensorType

    @staticmethod
    def logits(t: torch.Tensor) -> TaggedTensor:
        """Says of a tensor that it holds logits."""
        return TaggedTensor(t, TensorType.LOGITS)

    @staticmethod
    def probs(t: torch.Tensor) -> TaggedTensor:
        """Says of a tensor that it holds probabilities."""
        return TaggedTensor(t, TensorType.PROBS)

    @staticmethod
    def indices(t: torch.Tensor) -> TaggedTensor:
        """Says of a tensor that it holds ids."""
        return TaggedTensor(t, TensorType.INDICES)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[Any, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*(arg.data if isinstance(arg, TaggedTensor) else arg for arg in args), **(kwargs or {}))

    @property
    def shape(self) -> Any:
        """The tensor's shape."""
        return self.data.shape

    @property
    def device(self) -> Any:
        """Where the tensor lies."""
        return self.data.device

    @property
    def dtype(self) -> Any:
        """The type of the tensor's elements."""
        return self.data.dtype

    def size(self, dim: int | None = None) -> Any:
        """The tensor's shape, or its length along one dimension."""
        return self.data.size(dim)

    def __repr__(self) -> str:
        what = f"type={self.type}, shape={self.shape}, dtype={self.dtype}, device={self.device}"
        return f"{type(self).__name__}({what})"
