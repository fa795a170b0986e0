"""What TokenSpeed hands to its backend, and what a drafter reads there: the config, and requests' parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gumball.errors import RefusedError
from gumball.flat import FLAT_NAMES, flat_params, refuse_near_misses
from gumball.params import LogprobsParams, SamplingParams

__all__ = ["KNOWN", "SamplingBackendConfig", "SpeculativeSamplingPools", "known_of", "params_of"]

KNOWN = "__known__"
"""The key of `custom_params` under which the engine's two lists of a request come: its prompt, and the tokens that it has so far."""


@dataclasses.dataclass
class SamplingBackendConfig:
    """The fields that the backend reads of TokenSpeed's config of the same name, which works as well."""

    max_bs: int = 1
    max_draft_tokens_per_req: int = 1
    max_req_pool_size: int = 0
    vocab_size: int = 0
    device: Any = None
    random_seed: int = 48
    enable_output_logprobs: bool = False
    tp_group: tuple[int, ...] | None = None
    enable_tp_sync: bool = True

    def __post_init__(self) -> None:
        if self.tp_group is not None:
            self.tp_group = tuple(map(int, self.tp_group))


@dataclasses.dataclass(frozen=True, eq=False)
class SpeculativeSamplingPools:
    """Parameters of requests by pool index, which a drafter draws with: [max_req_pool_size + 1] each, on the pool's device.

    temperature: float32. top_k: int32; a greedy request has 1. seed: int64, the bits of the request's seed.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor


def params_of(request: Any, logprobs: bool = False) -> SamplingParams:
    """Converts a request's parameters from TokenSpeed to Gumball.

    As in TokenSpeed, `min_new_tokens` has no effect without `stop_token_ids`. TokenSpeed asks for greedy decoding by a
    `top_k` of 1, which becomes temperature 0: the same token by fewer kernels. `custom_params` has parameters of Gumball alone, by
    their flat names. Raises ValueError as SamplingParams does, and RefusedError for another name there.
    """
    stop_ids = sorted(getattr(request, "stop_token_ids", None) or ())
    bias = getattr(request, "logit_bias", None) or {}
    chosen: dict[str, Any] = {
        "temperature": 0.0 if request.top_k == 1 else request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "repetition_scope": "output",
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "logit_bias": {int(token): float(value) for token, value in bias.items()},
        "min_tokens": request.min_new_tokens if stop_ids else 0,
        "stop_ids": stop_ids,
        "seed": None if request.seed is None else request.seed & ((1 << 64) - 1),
        "logprobs": LogprobsParams(mode="raw") if logprobs else None,
    }
    return SamplingParams(**chosen | flat_params(_own(request), "custom_params"))


def _own(request: Any) -> dict[str, Any]:
    """Returns a request's `custom_params`, without what no client put there."""
    custom = getattr(request, "custom_params", None) or {}
    given = {name: value for name, value in custom.items() if name not in _INNER and value is not None}
    for name in given:
        if hasattr(request, name):
            raise RefusedError(f"custom_params has {name!r}, which is TokenSpeed's own; give it beside, not in there")
    refuse_near_misses(given, "custom_params", peers=True)
    for name in given:
        if name not in FLAT_NAMES:
            raise RefusedError(f"custom_params has {name!r}, but takes only {', '.join(FLAT_NAMES)}")
    return given


# The second is TokenSpeed's.
_INNER = {KNOWN, "__req__"}


def known_of(request: Any) -> tuple[list[int], list[int]]:
    """Returns what a request begins with: its prompt, if it has parameters of Gumball alone, which may look at it, and the tokens that it has."""
    given = getattr(request, "custom_params", None) or {}
    prompt, output = given.get(KNOWN, ((), ()))
    return list(prompt if given.keys() - _INNER else ()), list(output)


def check_requests(req_pool_indices: torch.Tensor, rows: int, each: int) -> None:
    """Raises ValueError unless there is an index for each request, of which each has as many rows of logits."""
    if each < 1 or rows % each != 0:
        raise ValueError(f"num_tokens_per_req is {each}, but must be at least 1 and divide the rows of logits, {rows}")
    if req_pool_indices.shape != (rows // each,):
        found = tuple(req_pool_indices.shape)
        raise ValueError(f"req_pool_indices has shape {found}, but must have one element per request, {rows // each}")
