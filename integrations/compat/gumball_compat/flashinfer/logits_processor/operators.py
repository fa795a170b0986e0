"""The operators of pipes, each a function of :mod:`gumball.compat.flashinfer.sampling` or :mod:`gumball.operators`."""

from __future__ import annotations

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


# The parameters of a draw besides its filters; `deterministic` has no effect, since every draw is.
_DRAW = ("indices", "generator", "deterministic")


class _Step(ParameterizedOp):
    """A step that is one function of a tensor and parameters."""

    def __call__(self, tensor: TaggedTensor, **kwargs: Any) -> TaggedTensor:
        out = self._validate_input_type(tensor)
        assert out is not None
        return TaggedTensor(self._run(tensor.data, kwargs), out)

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _temperature(self, kwargs: dict[str, Any]) -> Any:
        temperature = self._get_param("temperature", kwargs)
        if isinstance(temperature, torch.Tensor) or isinstance(temperature, float) and temperature > 0:
            return temperature
        raise ValueError("Temperature must be positive float or a tensor array")

    def _top_k(self, kwargs: dict[str, Any]) -> Any:
        top_k = self._get_param("top_k", kwargs)
        if isinstance(top_k, torch.Tensor) or isinstance(top_k, int) and top_k > 0:
            return top_k
        raise ValueError("top_k must be a positive integer or a tensor array")

    def _share(self, name: str, kwargs: dict[str, Any]) -> Any:
        share = self._get_param(name, kwargs)
        if isinstance(share, torch.Tensor) or 0 < share <= 1:
            return share
        raise ValueError(f"{name} must be float in (0, 1] or a tensor array")

    def _draw(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self._get_param(name, kwargs, required=False) for name in ("indices", "generator")}


class TemperatureOp(_Step):
    """Logits divided by their temperature: a number, [rows], or what torch divides logits by."""

    IN = OUT = TensorType.LOGITS
    TAKES = frozenset(("temperature",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        temperature = self._temperature(kwargs)
        column = isinstance(temperature, torch.Tensor) and temperature.ndim == 1
        return data / (temperature.unsqueeze(1) if column else temperature)


class SoftmaxOp(_Step):
    """The softmax, in the logits' own type."""

    IN, OUT = TensorType.LOGITS, TensorType.PROBS
    TAKES = frozenset(("enable_pdl",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        logits = sampling.rows_of(data, "logits")
        return gumball.softmax(logits, 1.0, torch.empty_like(logits))


class LogitsTopKOp(_Step):
    """Top-k of logits: the rest is -inf."""

    IN = OUT = TensorType.LOGITS
    TAKES = frozenset(("top_k",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.top_k_mask_logits(data, self._top_k(kwargs))


class ProbsTopKOp(_Step):
    """Top-k of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    TAKES = frozenset(("top_k",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.top_k_renorm_probs(data, self._top_k(kwargs))


class TopPOp(_Step):
    """Top-p of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    TAKES = frozenset(("top_p",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.top_p_renorm_probs(data, self._share("top_p", kwargs))


class MinPOp(_Step):
    """Min-p of probabilities, which sum to 1 then."""

    IN = OUT = TensorType.PROBS
    TAKES = frozenset(("min_p",))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return gumball.min_p_renorm_probs(sampling.rows_of(data, "probs"), self._share("min_p", kwargs))


class LogitsSampleOp(_Step):
    """A token of each row of logits."""

    IN, OUT = TensorType.LOGITS, TensorType.INDICES
    TAKES = frozenset((*_DRAW,))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.sampling_from_logits(data, **self._draw(kwargs))


class ProbsSampleOp(_Step):
    """A token of each row of probabilities."""

    IN, OUT = TensorType.PROBS, TensorType.INDICES
    TAKES = frozenset((*_DRAW,))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.sampling_from_probs(data, **self._draw(kwargs))


class FusedTemperatureSoftmaxOp(_Step):
    """Temperature and softmax, float32."""

    IN, OUT = TensorType.LOGITS, TensorType.PROBS
    TAKES = frozenset(("temperature", "enable_pdl"))

    def __init__(self, enable_pdl: bool | None = None, **default_params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **default_params)

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.softmax(data, self._temperature(kwargs), self.default_params["enable_pdl"])


class _FusedSample(_Step):
    """A token of each row of probabilities, after filters."""

    IN, OUT = TensorType.PROBS, TensorType.INDICES

    def __init__(self, deterministic: bool = True, **default_params: Any) -> None:
        super().__init__(deterministic=deterministic, **default_params)


class FusedProbsTopKSampleOp(_FusedSample):
    """Top-k and draw."""

    TAKES = frozenset(("top_k", *_DRAW))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.top_k_sampling_from_probs(data, self._top_k(kwargs), **self._draw(kwargs))


class FusedProbsTopPSampleOp(_FusedSample):
    """Top-p and draw."""

    TAKES = frozenset(("top_p", *_DRAW))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.top_p_sampling_from_probs(data, self._share("top_p", kwargs), **self._draw(kwargs))


class FusedProbsMinPSampleOp(_FusedSample):
    """Min-p and draw."""

    TAKES = frozenset(("min_p", *_DRAW))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        return sampling.min_p_sampling_from_probs(data, self._share("min_p", kwargs), **self._draw(kwargs))


class FusedProbsTopKTopPSampleOp(_FusedSample):
    """Top-k and top-p, both of the whole row, and draw."""

    TAKES = frozenset(("top_k", "top_p", *_DRAW))

    def _run(self, data: Any, kwargs: dict[str, Any]) -> Any:
        top_k, top_p = self._top_k(kwargs), self._share("top_p", kwargs)
        sample = sampling.top_k_top_p_sampling_from_probs
        return sample(data, top_k, top_p, filter_apply_order="joint", **self._draw(kwargs))
