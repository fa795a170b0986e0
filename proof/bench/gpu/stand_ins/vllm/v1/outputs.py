"""Stands in for vLLM's outputs: what its logprobs come back in."""

from dataclasses import dataclass


@dataclass
class LogprobsTensors:
    logprob_token_ids: object
    logprobs: object
    selected_token_ranks: object
    cu_num_generated_tokens: object = None
    cu_num_generated_tokens_tensor: object = None
