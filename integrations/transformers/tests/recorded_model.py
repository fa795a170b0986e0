"""A model whose logits are recorded rows, chosen by a token alone, so that they are the same in every batch and with every number of drafts.

It runs as a Llama of two small layers, so that cache, masks and positions have their work; what comes out of that is thrown away.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PAD, EOS = 0, 2


class Recorded(LlamaForCausalLM):
    """Its logits after a token are the row that belongs to it. passes: how often it was run."""

    rows: torch.Tensor
    passes = 0

    def forward(self, input_ids: Any = None, logits_to_keep: int = 0, **named: Any) -> Any:
        """Runs the layers, and puts the recorded rows in the place of their logits."""
        outputs = super().forward(input_ids=input_ids, logits_to_keep=logits_to_keep, **named)
        self.passes += 1
        outputs.logits = self.rows[(input_ids[:, -logits_to_keep:] * 7 + 3) % len(self.rows)]
        return outputs


def model(rows: torch.Tensor) -> Recorded:
    """A model with these rows, [rows, vocab] float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows.shape[1],
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    made = Recorded(config).eval()
    made.rows = rows
    return made


def row_of(token: int, rows: int) -> int:
    """The number of the recorded row after a token."""
    return (token * 7 + 3) % rows
