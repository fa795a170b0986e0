"""What TokenSpeed hands to its backend, and what a drafter reads there: the config, and requests' parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ...params import LogprobsParams, SamplingParams

__all__ = ["SamplingBackendConfig", "SpeculativeSamplingPools", "params_of"]


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


@dataclasses.dataclass(frozen=True)
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
    `top_k` of 1, which becomes temperature 0: the same token by fewer kernels. Raises ValueError as SamplingParams does.
    """
    stop_ids = sorted(getattr(request, "stop_token_ids", None) or ())
    bias = getattr(request, "logit_bias", None) or {}
    return SamplingParams(
        temperature=0.0 if request.top_k == 1 else request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        repetition_scope="output",
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias={int(token): float(value) for token, value in bias.items()},
        min_tokens=request.min_new_tokens if stop_ids else 0,
        stop_ids=stop_ids,
        seed=None if request.seed is None else request.seed & ((1 << 64) - 1),
        logprobs=LogprobsParams(mode="raw") if logprobs else None,
    )
