"""A pipe of processors: made once, called with tensors and their parameters."""

from __future__ import annotations

import logging
from typing import Any

import torch

from .compiler import compile_pipeline
from .fusion_rules import FusionRule
from .legalization import LegalizationError, infer_initial_type, legalize_processors
from .op import Op
from .processors import LogitsProcessor
from .types import TaggedTensor, TensorType
from .validators import CompileError, ValidityCheck, refuse_without_effect

__all__ = ["LogitsPipe"]

_LOGGER = logging.getLogger(__name__)


def _names(things: list[Any] | None) -> str:
    return " -> ".join(type(thing).__name__ for thing in things or [])


class LogitsPipe:
    """Processors one after the other.

    compile: fuse neighbours. input_type: of the tensors it is called with; needed where the first processor takes
    logits and probabilities. custom_fusion_rules, custom_validity_checks: besides the default ones. Raises ValueError
    for processors that cannot follow each other.

    Called with a tensor, [rows, vocab], and the processors' parameters by name: each takes what is its own, and a
    filter and a draw that are fused take both. What a processor was made with stands in for what a call leaves out.
    Raises ValueError, which names the operator that failed, and RefusedError, a ValueError, for a parameter that no processor takes.
    """

    def __init__(
        self,
        processors: list[LogitsProcessor],
        compile: bool = True,
        input_type: TensorType | None = None,
        custom_fusion_rules: list[FusionRule] | None = None,
        custom_validity_checks: list[ValidityCheck] | None = None,
    ) -> None:
        if not processors:
            raise ValueError("Pipeline cannot be empty")
        self.processors = list(processors)
        self.compiled_ops: list[Op] | None = None
        try:
            self._initial_type = input_type or infer_initial_type(self.processors)
            self.ops = legalize_processors(self.processors, self._initial_type)
        except LegalizationError as error:
            raise ValueError(f"Pipeline creation failed: {error}") from error
        if compile:
            self.compile(custom_fusion_rules, custom_validity_checks)

    def __repr__(self) -> str:
        made = f"ops=[{_names(self.ops)}], compiled_ops=[{_names(self.compiled_ops)}]"
        return f"{type(self).__name__}([{_names(self.processors)}], {made})"

    def __call__(self, x: torch.Tensor | TaggedTensor, **kwargs: Any) -> torch.Tensor:
        """Runs the pipe over logits or probabilities."""
        if self.compiled_ops is None:
            _LOGGER.warning("Pipeline is not compiled, running discrete ops.")
        ops = self.ops if self.compiled_ops is None else self.compiled_ops
        refuse_without_effect(ops, kwargs)
        tensor = x if isinstance(x, TaggedTensor) else TaggedTensor(x, self._initial_type)
        for i, op in enumerate(ops):
            try:
                tensor = op(tensor, **kwargs)
            except Exception as error:
                raise ValueError(f"Error executing operator {i} ({type(op).__name__}): {error}") from error
        return tensor.data

    @property
    def initial_type(self) -> TensorType:
        """The type of the tensors it is called with."""
        return self._initial_type

    def compile(
        self,
        custom_fusion_rules: list[FusionRule] | None = None,
        custom_validity_checks: list[ValidityCheck] | None = None,
    ) -> None:
        """Fuses neighbours. Raises ValueError for operators that do not fit, or break a rule."""
        try:
            self.compiled_ops = compile_pipeline(self.ops, custom_fusion_rules, custom_validity_checks)
        except CompileError as error:
            raise ValueError(f"Compilation failed: {error}") from error
