"""The shape of an operator: one type of tensor in, one out, parameters from the call or from where it was made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .types import TaggedTensor, TensorType

__all__ = ["Op", "ParameterizedOp"]


class Op(ABC):
    """One step of a pipe. Subclasses set `IN` and `OUT`."""

    IN: TensorType | None = None
    OUT: TensorType | None = None

    def __init__(self) -> None:
        if self.IN is None or self.OUT is None:
            raise ValueError(f"Operator {type(self).__name__} must define IN and OUT tensor types")

    @abstractmethod
    def __call__(self, tensor: TaggedTensor, **kwargs: Any) -> TaggedTensor:
        """Does the step. Parameters that are not this operator's are left to others."""

    def _validate_input_type(self, tensor: TaggedTensor) -> TensorType | None:
        """The type that comes out; ValueError if what goes in is not `IN`."""
        if tensor.type != self.IN:
            name = type(self).__name__
            raise ValueError(f"Operator {name} cannot accept input type {tensor.type}. Expected: {self.IN}")
        return self.OUT

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.IN} -> {self.OUT})"


class ParameterizedOp(Op):
    """A step with parameters; a call's come before the ones it was made with.

    TAKES: the names of its parameters; None if it takes any. A pipe refuses a parameter that none of its steps takes.
    """

    TAKES: frozenset[str] | None = None

    def __init__(self, **default_params: Any) -> None:
        super().__init__()
        self.default_params = default_params

    def _get_param(self, name: str, kwargs: dict[str, Any], required: bool = True) -> Any:
        """Takes a parameter out of a call's; ValueError if there is none and it is required."""
        if name in kwargs:
            return kwargs.pop(name)
        if name in self.default_params:
            return self.default_params[name]
        if required:
            raise ValueError(f"Required parameter '{name}' not provided for {type(self).__name__}")
        return None
