"""A model that is a configuration alone: random weights whose logits are spread like a language model's. For the plug-ins' runs on a GPU."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

VOCAB = 151936
SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "small": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16},
}
COMMON = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}


def spread_weights(model: Any) -> None:
    """Weights by which logits are about N(0, 4^2): at temperature 0.8 their entropy is a language model's."""
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(1234)
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "norm" in name:
                part.data.fill_(1.0)
                continue
            scale = 1.0 if "embed" in name else 4.0 / part.shape[-1] ** 0.5 if "lm_head" in name else 0.02
            for rows in part.data.split(8192):
                rows.copy_(torch.randn(rows.shape, generator=generator, device=device) * scale)


def folder(shape: str) -> Path:
    """A new folder with the configuration of a shape."""
    made = Path(tempfile.mkdtemp())
    (made / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
    return made


def prompt(number: int, length: int) -> list[int]:
    """Random ids, the same for the same number and length."""
    rng = random.Random(f"{number}-{length}")
    return [rng.randrange(1000, 150000) for _ in range(length)]
