"""FlashInfer's sampling and logits processors of release 0.7, under the same names, over gumball's operators.

::

    import gumball_compat.flashinfer as flashinfer

    tokens = flashinfer.sampling.top_k_top_p_sampling_from_probs(probs, top_k=50, top_p=0.9)

Names, signatures, defaults, aliases, checks and the texts of errors are FlashInfer's; what is drawn is Gumball's, and
so other tokens of the same distribution. What differs besides is listed in :mod:`.sampling`. A program that imports
`flashinfer` itself runs unchanged behind lines that the README of gumball-compat has. Needs torch.
"""

from . import logits_processor, sampling
from .sampling import (
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

__version__ = "0.7.4"
"""The release whose surface this is."""

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
