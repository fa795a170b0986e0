"""Stands in for vLLM's outputs: what its logprobs and its sampling masks come back in."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class LogprobsTensors:
    logprob_token_ids: object
    logprobs: object
    selected_token_ranks: object
    cu_num_generated_tokens: object = None
    cu_num_generated_tokens_tensor: object = None


class SamplingMaskLists(NamedTuple):
    token_ids: object
    offsets: object = None
    cu_num_generated_tokens: object = None
