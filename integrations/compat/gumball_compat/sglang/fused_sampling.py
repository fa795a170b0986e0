"""`sglang.srt.layers.fused_sampling` of SGLang's pull request 22166, over Gumball's softmax."""

from __future__ import annotations

from typing import Any

from gumball.operators import row_count, softmax

__all__ = ["fused_temperature_softmax", "fused_temperature_softmax_inplace", "warmup_fused_temperature_softmax"]


def _check(logits: Any, temperatures: Any) -> None:
    rows = row_count(logits, "logits")
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
    """The softmax of logits / temperatures, written over the logits, each number rounded to their type.

    Shapes, types and errors are those of :func:`fused_temperature_softmax`.
    """
    _check(logits, temperatures)
    softmax(logits, temperatures, out=logits)


def warmup_fused_temperature_softmax(vocab_size: int, device: Any = None, logits_dtype: Any = None) -> None:
    """Compiles and loads the kernels of both functions, so that no request waits for that, and allows a capture to follow.

    vocab_size: the width of the rows; all widths share their kernels. device: a torch.device, an index or a name; if None, torch's
    current CUDA device, or the host where there is none. logits_dtype: float32 if None. Needs torch. Returns once a row of that
    shape and type has been computed. Raises as :func:`gumball.softmax` does.
    """
    import torch

    if device is None:
        device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    logits = torch.zeros((1, vocab_size), dtype=logits_dtype or torch.float32, device=device)
    temperatures = torch.ones((1, 1), dtype=torch.float32, device=device)
    fused_temperature_softmax(logits, temperatures)
    fused_temperature_softmax_inplace(logits, temperatures)
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)
