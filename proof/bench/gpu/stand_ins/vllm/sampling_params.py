"""Stands in for vLLM's requests, whose names its kernels' modules import."""

MAX_LOGPROB_TOKEN_IDS = 0


class SamplingParams:
    pass
