"""Stands in for TokenSpeed's choices of numerics: a width that only another order of logprobs asks for."""

MEGATRON_VOCAB_BLOCK = 32768
