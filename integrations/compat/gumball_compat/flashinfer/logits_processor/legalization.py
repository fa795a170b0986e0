"""From processors to operators: each is asked what it is for the type of tensor that comes before it."""

from __future__ import annotations

from .op import Op
from .processors import LogitsProcessor
from .types import TensorType

__all__ = ["LegalizationError", "infer_initial_type", "legalize_processors", "validate_processor_chain"]


class LegalizationError(Exception):
    """A processor cannot stand where it stands."""


def legalize_processors(processors: list[LogitsProcessor], initial_type: TensorType = TensorType.LOGITS) -> list[Op]:
    """The operators of a list of processors, the first of which takes tensors of `initial_type`."""
    if not processors:
        raise LegalizationError("Cannot legalize empty processor list")
    ops: list[Op] = []
    current: TensorType | None = initial_type
    for i, processor in enumerate(processors):
        name = type(processor).__name__
        try:
            # A processor of the caller's may raise any exception.
            legal = processor.legalize(current)  # type: ignore[arg-type]
            if not legal:
                raise LegalizationError(f"Processor {name} produced no ops")
        except Exception as error:
            raise LegalizationError(f"Failed to legalize processor {i} ({name}): {error}") from error
        ops.extend(legal)
        current = legal[-1].OUT
    return ops


def _takes(processor: LogitsProcessor, input_type: TensorType) -> bool:
    try:
        processor.legalize(input_type)
    except (ValueError, LegalizationError):
        return False
    return True


def infer_initial_type(processors: list[LogitsProcessor]) -> TensorType:
    """The one type of tensor that the first processor takes; LegalizationError if there are two, or none."""
    if not processors:
        return TensorType.LOGITS
    first = processors[0]
    name = type(first).__name__
    taken = [kind for kind in (TensorType.LOGITS, TensorType.PROBS) if _takes(first, kind)]
    if len(taken) == 2:
        raise LegalizationError(
            f"Cannot infer input type: {name} can accept both LOGITS and PROBS. Please specify input_type explicitly when "
            "creating the LogitsPipe."
        )
    if not taken:
        raise LegalizationError(f"Processor {name} cannot accept standard pipeline inputs (LOGITS or PROBS)")
    return taken[0]


def validate_processor_chain(processors: list[LogitsProcessor]) -> None:
    """Raises LegalizationError if the processors cannot follow each other."""
    if not processors:
        raise LegalizationError("Processor chain cannot be empty")
    legalize_processors(processors, infer_initial_type(processors))
