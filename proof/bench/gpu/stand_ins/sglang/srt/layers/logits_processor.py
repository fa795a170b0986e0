"""Stands in for SGLang's outputs: what its sampling masks come back in."""

from dataclasses import dataclass
from enum import IntEnum


class SamplingMaskStatus(IntEnum):
    OK = 0
    OVERFLOW = 1
    INVALID = 2


@dataclass
class SamplingMaskOutput:
    token_ids: object
    lengths: object
    selected_logprobs: object
    support_logprobs: object
    statuses: object
    num_accept_tokens: object = None
