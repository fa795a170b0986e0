"""A model whose logits are recorded rows, chosen by a token alone, so that they are the same in every batch.

It runs as a Llama of two small layers, so that the scheduler, the cache and the attention have their work; what comes out of that is
thrown away.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import LLM, ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM

ROWS: list[torch.Tensor] = []
# The most by which a batch of several rows moves a logit.
NOISE = 0.0
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "architectures": ["RecordedForCausalLM"],
}


def row_of(token: int, rows: int) -> int:
    """The number of the recorded row behind a token."""
    return (token * 7 + 3) % rows


class RecordedForCausalLM(LlamaForCausalLM):
    """Hidden states carry the token; logits are the row that belongs to it."""

    def forward(self, input_ids: Any, positions: Any, *rest: Any, **named: Any) -> Any:
        """Runs the layers, and returns the tokens as hidden states."""
        hidden = super().forward(input_ids, positions, *rest, **named)
        hidden = torch.zeros_like(hidden)
        hidden[:, 0] = input_ids
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """A copy of the recorded row of each token."""
        (rows,) = ROWS
        found = rows[(hidden_states[:, 0].long() * 7 + 3) % len(rows)]
        return found + NOISE * (2 * torch.rand(found.shape) - 1) if len(found) > 1 and NOISE else found


def write(folder: Path, model: Path) -> Path:
    """Writes a folder that vLLM loads as this model, with the tokenizer of the real one."""
    for file in model.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "generation_config")):
            shutil.copy(file, folder)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SMALL))
    ROWS[:] = [torch.from_numpy(np.load(model / "recorded.npy"))]
    return folder


def engine(folder: Path, **options: Any) -> LLM:
    """An engine with small chunks and a small cache, so that prompts come in parts and requests are preempted."""
    ModelRegistry.register_model("RecordedForCausalLM", RecordedForCausalLM)
    chosen = {
        "load_format": "dummy",
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    return LLM(model=str(folder), **(chosen | options))
