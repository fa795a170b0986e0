"""verl's function of logprobs over the tokens that a sampler kept: with the arguments of verl's own, and the sets."""

from __future__ import annotations

from typing import Any

import torch

import gumball.torch

__all__ = ["logprobs_from_logits"]


def logprobs_from_logits(
    logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True, *, kept: Any = None
) -> torch.Tensor:
    """As `verl.utils.torch_functional.logprobs_from_logits`, in float32.

    logits: divided by the temperature already, as verl does, in place; the sampler's own numbers come back bit for bit at temperature 1 alone. inplace_backward: the
    gradient is written over the logits, which nothing else may need then. kept: as `gumball.torch.logprobs` takes it.
    """
    found: torch.Tensor = gumball.torch.logprobs(logits, labels, kept=kept, in_place=inplace_backward)
    return found
