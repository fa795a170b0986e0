"""What vLLM's samplers are made of, over Gumball; the package `gumball-vllm` puts it into vLLM.

* :mod:`gumball_compat.vllm.params`: a request's parameters, translated or refused.
* :mod:`gumball_compat.vllm.requests`: the rows of vLLM's batch as sequences of a pool (model runner V1).
* :mod:`gumball_compat.vllm.draws`: tokens and logprobs of a batch, with drafts and without (model runner V1).
* :mod:`gumball_compat.vllm.heads`: a head of ours in the place of a model's last product, on both runners.
* :mod:`gumball_compat.vllm.runner_v2`: the sampler and the rejection sampler of model runner V2.

These modules need torch, and vLLM only where runner V2 is asked for logprobs, counts of NaN or sampling masks.
"""

from __future__ import annotations

from ..errors import RefusedError
from .draws import Drawn, draw, verify
from .params import params_of
from .requests import Request, Requests
from .runner_v2 import RejectionSampler, SamplerOutput, sampler_of

__all__ = [
    "Drawn",
    "RefusedError",
    "RejectionSampler",
    "Request",
    "Requests",
    "SamplerOutput",
    "draw",
    "params_of",
    "sampler_of",
    "verify",
]
