"""Gumball under FlashInfer's name, for programs that use its sampling and logits processors alone.

:func:`gumball.compat.flashinfer_path` says how to put it on the path. The modules here are those of
:mod:`gumball.compat.flashinfer`, the same objects.
"""

from gumball.compat.flashinfer import (
    chain_speculative_sampling,
    min_p_sampling_from_probs,
    sampling_from_logits,
    sampling_from_probs,
    softmax,
    top_k_mask_logits,
    top_k_renorm_probs,
    top_k_sampling_from_probs,
    top_k_top_p_sampling_from_logits,
    top_k_top_p_sampling_from_probs,
    top_p_renorm_probs,
    top_p_sampling_from_probs,
)

from . import logits_processor, sampling

# The release whose surface this is.
__version__ = "0.7.2"

__all__ = [
    "chain_speculative_sampling",
    "logits_processor",
    "min_p_sampling_from_probs",
    "sampling",
    "sampling_from_logits",
    "sampling_from_probs",
    "softmax",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_k_sampling_from_probs",
    "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs",
    "top_p_renorm_probs",
    "top_p_sampling_from_probs",
]


def __getattr__(name: str) -> object:
    text = "this flashinfer is Gumball's, which has sampling and logits_processor alone"
    raise AttributeError(f"module 'flashinfer' has no attribute '{name}': {text}")
