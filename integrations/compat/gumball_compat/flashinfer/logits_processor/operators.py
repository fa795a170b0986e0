"""The operators of pipes, each a function of :mod:`gumball_compat.flashinfer.sampling` or :mod:`gumball.operators`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gumball import operators as gumball

from .. import sampling
from .op import ParameterizedOp
from .types import TaggedTensor, TensorType

__all__ = [
    "FusedProbsMinPSampleOp",
    "FusedProbsTopKSampleOp",
    "FusedProbsTopKTopPSampleOp",
    "FusedProbsTopPSampleOp",
    "FusedTemperatureSoftmaxOp",
    "LogitsSampleOp",
    "LogitsTopKOp",
    "MinPOp",
    "ProbsSampleOp",
    "ProbsTopKOp",
    "SoftmaxOp",
    "TemperatureOp",
    "TopPOp",
]


# The parameters of a draw besides its filters.
_DRAW = ("indices", "generator")


class _Step(ParameterizedOp):
    """A step that is one function of a tensor and of the filters in `FILTERS`, which must be given; a draw takes `_DRAW` too.

    UNREAD: the parameters that it takes and that change nothing.
    """

    FILTERS: tuple[str, ...] = ()
    UNREAD: tuple[str, ...] = ()
    FUNCTION: Callable[..., Any]

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.TAKES = frozenset((*cls.FILTERS, *cls.UNREAD, *(_DRAW if cls.OUT == TensorType.INDICES else ())))

    def __call__(self, tensor: TaggedTensor, **kwargs: Any) -> TaggedTensor:
        out = self._validate_input_type(tensor)
        assert out is not None
        filters = [_checked(name, self._get_param(name, kwargs)) for name in self.FILTERS]
        drawn = _DRAW if out == TensorType.INDICES else ()
        draw = {name: self._get_param(name, kwargs, required=False) for name in drawn}
        return TaggedTensor(type(self).FUNCTION(tensor.data, *filters, **draw), out)


def _checked(name: str, value: Any) -> Any:
    """A filter's number or tensor. Raises ValueError for another."""
    if isinstance(value, torch.Tensor):
        return value
    if name == "temperature":
        fits, wanted = isinstance(value, float) and value > 0, "Temperature must be positive float"
    elif name == "top_k":
        fits, wanted = isinstance(value, int) and value > 0, "top_k must be a positive integer"
    else:
        fits, wanted = 0 < value <= 1, f"{name} must be float in (0, 1]"
    if not fits:
        raise ValueError(f"{wanted} or a tensor array")
    return value


def _divided(logits: Any, temperature: Any) -> Any:
    column = isinstance(temperature, torch.Tensor) and temperature.ndim == 1
    return logits / (temperature.unsqueeze(1) if column else temperature)


def _softmax(logits: Any) -> Any:
    logits = sampling.rows_of(logits, "logits")
    return gumball.softmax(logits, 1.0, torch.empty_like(logits))


def _min_p(probs: Any, min_p: Any) -> Any:
    return gumball.probabilities(sampling.rows_of(probs, "probs"), kind="probabilities", min_p=min_p)


class TemperatureOp(_Step):
    """Logits divided by their temperature: a number, [rows], or what torch divides logits by."""

    IN = OUT = TensorType.LOGITS
    FILTERS, FUNCTION = ("temperature",), staticmethod(_divided)


class SoftmaxOp(_Step):
    """The softmax, in the logits' own type."""

    IN, OUT = TensorType.LOGITS, TensorType.PROBS
    UNREAD, FUNCTION = ("enable_pdl",), staticmethod(_softmax)


class LogitsTopKOp(_Step):
    """Top-k of logits: the rest is -inf."""

    IN = OUT = TensorType.LOGITS
    FILTERS, FUNCTION = ("top_k",), staticmethod(sampling.top_k_mask_logits)


class ProbsTopKOp(_Step):
    """Top-k of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    FILTERS, FUNCTION = ("top_k",), staticmethod(sampling.top_k_renorm_probs)


class TopPOp(_Step):
    """Top-p of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    FILTERS, UNREAD, FUNCTION = ("top_p",), ("is_deterministic",), staticmethod(sampling.top_p_renorm_probs)


class MinPOp(_Step):
    """Min-p of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    FILTERS, FUNCTION = ("min_p",), staticmethod(_min_p)


class LogitsSampleOp(_Step):
    """A token of each row of logits."""

    IN, OUT = TensorType.LOGITS, TensorType.INDICES
    UNREAD, FUNCTION = ("deterministic",), staticmethod(sampling.sampling_from_logits)


class ProbsSampleOp(_Step):
    """A token of each row of probabilities."""

    IN, OUT = TensorType.PROBS, TensorType.INDICES
    UNREAD, FUNCTION = ("deterministic",), staticmethod(sampling.sampling_from_probs)


class FusedTemperatureSoftmaxOp(_Step):
    """Temperature and softmax, float32."""

    IN, OUT = TensorType.LOGITS, TensorType.PROBS
    UNREAD, FILTERS, FUNCTION = ("enable_pdl",), ("temperature",), staticmethod(sampling.softmax)

    def __init__(self, enable_pdl: bool | None = None, **default_params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **default_params)


class _FusedSample(_Step):
    """A token of each row of probabilities, after filters; takes what the operators that it stands for take."""

    IN, OUT = TensorType.PROBS, TensorType.INDICES
    UNREAD: tuple[str, ...] = ("deterministic",)

    def __init__(self, deterministic: bool = True, **default_params: Any) -> None:
        super().__init__(deterministic=deterministic, **default_params)


class FusedProbsTopKSampleOp(_FusedSample):
    """Top-k and draw."""

    FILTERS, FUNCTION = ("top_k",), staticmethod(sampling.top_k_sampling_from_probs)


class FusedProbsTopPSampleOp(_FusedSample):
    """Top-p and draw."""

    FILTERS, FUNCTION = ("top_p",), staticmethod(sampling.top_p_sampling_from_probs)
    UNREAD = ("deterministic", "is_deterministic")


class FusedProbsMinPSampleOp(_FusedSample):
    """Min-p and draw."""

    FILTERS, FUNCTION = ("min_p",), staticmethod(sampling.min_p_sampling_from_probs)


class FusedProbsTopKTopPSampleOp(_FusedSample):
    """Top-k and top-p, both of the whole row, and draw."""

    FILTERS, UNREAD = ("top_k", "top_p"), ("deterministic", "is_deterministic")
    FUNCTION = staticmethod(partial(sampling.top_k_top_p_sampling_from_probs, filter_apply_order="joint"))
