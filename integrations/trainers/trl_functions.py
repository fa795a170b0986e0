"""TRL's functions of logprobs over the tokens that a sampler kept: with the arguments of TRL's own, and the sets.

Each takes `kept` as `gumball.torch.logprobs` does. Without it the numbers are TRL's, within rounding.
"""

from __future__ import annotations

from typing import Any

import torch

import gumball.torch

__all__ = ["per_token_logps", "selective_log_softmax", "selective_log_softmax_and_entropy"]

_IGNORED = -100


def selective_log_softmax(
    logits: torch.Tensor,
    index: torch.Tensor,
    temperature: float = 1.0,
    row_mask: torch.Tensor | None = None,
    *,
    kept: Any = None,
) -> torch.Tensor:
    """As `trl.trainer.utils.selective_log_softmax`, in float32."""
    return selective_log_softmax_and_entropy(logits, index, True, temperature, row_mask, kept=kept)[0]


def selective_log_softmax_and_entropy(
    logits: torch.Tensor,
    index: torch.Tensor,
    entropy_requires_grad: bool = True,
    temperature: float = 1.0,
    row_mask: torch.Tensor | None = None,
    *,
    kept: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trl.trainer.utils.selective_log_softmax_and_entropy`, in float32; the entropy is that of the set."""
    if temperature <= 0:
        raise ValueError("temperature must be positive")
    ids = index if row_mask is None else index.masked_fill(row_mask == 0, _IGNORED)
    found, entropy = gumball.torch.logprobs(logits, ids, temperature=temperature, kept=kept, entropy=True)
    return found, entropy if entropy_requires_grad else entropy.detach()


def per_token_logps(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    *,
    temperature: float = 1.0,
    kept: Any = None,
    chunk: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprobs and entropies of the last `logits_to_keep` tokens of each sequence, as `GRPOTrainer._get_per_token_logps_and_entropies` has them of TRL's fused head.

    model: one of transformers, without a soft cap or a scale of logits. kept: the sets of these tokens, [sequences, logits_to_keep, words] or lists in
    that order; padding has any set, and what was not sampled, a tool's text say, none. No more than a chunk of logits exists at once.
    """
    outputs = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    hidden = outputs.last_hidden_state[:, -logits_to_keep - 1 : -1]
    ids = input_ids.masked_fill(attention_mask == 0, _IGNORED)[:, -logits_to_keep:]
    found, entropy = gumball.torch.hidden_logprobs(
        hidden, model.get_output_embeddings(), ids, temperature=temperature, kept=kept, entropy=True, chunk=chunk
    )
    return found, entropy
