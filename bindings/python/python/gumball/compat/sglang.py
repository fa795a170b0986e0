"""SGLang's fused softmax under its own names: temperature and softmax in one operator."""

from __future__ import annotations

from typing import Any

from .._gumball import describe, rows_on_device
from ..operators import softmax

__all__ = ["fused_temperature_softmax", "fused_temperature_softmax_inplace"]


def _check(logits: Any, temperatures: Any) -> None:
    rows = rows_on_device(logits, "logits")
    if rows is None:
        lines, _ = describe(logits, "logits")
        rows = lines[0] if len(lines) == 2 else 1
    shape = tuple(getattr(temperatures, "shape", ()))
    if shape not in ((rows, 1), (rows,)):
        raise ValueError(f"temperatures has shape {shape}, but must have ({rows}, 1)")


def fused_temperature_softmax(logits: Any, temperatures: Any) -> Any:
    """The softmax of logits / temperatures, float32 [rows, vocab].

    logits: [rows, vocab] float32, bfloat16 or float16. temperatures: [rows, 1] float32. Raises as :func:`gumball.softmax` does.
    """
    _check(logits, temperatures)
    return softmax(logits, temperatures)


def fused_temperature_softmax_inplace(logits: Any, temperatures: Any) -> None:
    """The same in the logits' place, each number rounded to their own type."""
    _check(logits, temperatures)
    softmax(logits, temperatures, out=logits)
