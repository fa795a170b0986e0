"""A vLLM engine on a GPU over a model that is a configuration alone: random weights whose logits are spread like a language model's.

The model's tokenizer has a token for each byte, an end, and the two marks of a thought; all other ids of the vocabulary have no text.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import random_model
import torch
from random_model import COMMON, VOCAB

__all__ = ["COMMON", "END", "SHAPES", "THINK", "THOUGHT", "VOCAB", "engine", "folder", "prompt", "spread_weights"]

END, THINK, THOUGHT = 256, 257, 258
# EAGLE's drafters are of models of this kind.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
SHAPES = random_model.SHAPES | {"small": random_model.SHAPES["small"] | LLAMA}


def folder(shape: str, **changes: Any) -> str:
    """A new folder with a model's configuration and tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    made = Path(tempfile.mkdtemp())
    (made / "config.json").write_text(
        json.dumps(COMMON | SHAPES[shape] | {"bos_token_id": END, "eos_token_id": END} | changes)
    )
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: id for id, text in enumerate(bytes_)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = ["<end>", "<think>", "</think>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in marks])
    assert [tokenizer.token_to_id(text) for text in marks] == [END, THINK, THOUGHT]
    tokenizer.save(str(made / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "bos_token": "<end>"}
    (made / "tokenizer_config.json").write_text(json.dumps(described))
    return str(made)


def _weights(config: Any, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's weights under the names of its published files.

    Logits are about N(0, 4^2): at temperature 0.8 their entropy is a language model's. What a layer reads of the second half of its own inner
    values is 0, so the sum over two GPUs has the bits of one GPU's.
    """
    generator = torch.Generator(device=device).manual_seed(1234)

    def normal(rows: int, columns: int, scale: float) -> torch.Tensor:
        made = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        for part in made.split(8192):
            part.copy_(torch.randn(part.shape, generator=generator, device=device) * scale)
        return made

    def one() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16, device=device)

    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    yield "model.embed_tokens.weight", normal(config.vocab_size, hidden, 1.0)
    yield "lm_head.weight", normal(config.vocab_size, hidden, 4 / hidden**0.5)
    yield "model.norm.weight", one()
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        shapes = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}
        for name, rows in (shapes | {"mlp.gate_proj": inner, "mlp.up_proj": inner}).items():
            yield f"{at}{name}.weight", normal(rows, hidden, 0.02)
        for name, columns in {"self_attn.o_proj": heads, "mlp.down_proj": inner}.items():
            read = normal(hidden, columns, 0.02)
            read[:, columns // 2 :] = 0
            yield f"{at}{name}.weight", read
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{name}.weight", one()
        if config.model_type == "qwen3":
            for name in ("q_norm", "k_norm"):
                yield f"{at}self_attn.{name}.weight", torch.ones(config.head_dim, dtype=torch.bfloat16, device=device)


def spread_weights(worker: Any) -> None:
    """Gives the model of a worker its weights, and its drafter's too."""
    runner = worker.model_runner
    target = runner.get_model()
    device = target.lm_head.weight.device
    with torch.no_grad():
        target.load_weights(_weights(target.config, device))
        drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
        model = getattr(drafter, "model", None)
        if model is None:
            return
        if not hasattr(model.model, "fc"):
            model.load_weights(_weights(model.config, device))
            return
        # EAGLE's drafter: the last token's embedding before the target's head, which its own layers leave alone.
        hidden = model.config.hidden_size
        for name, part in model.model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                part.zero_()
        model.model.fc.weight.zero_()
        model.model.fc.weight[:, :hidden] = torch.eye(hidden)
        model.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        model.lm_head.weight.copy_(target.lm_head.weight)


def engine(shape: str, *, cache_gb: float, **options: Any) -> Any:
    """An `LLM` of a shape; cache_gb: the memory of its cache of keys and values."""
    from vllm import LLM

    chosen = {
        "model": folder(shape),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "kv_cache_memory_bytes": int(cache_gb * 2**30),
        # Several engines share the GPU; vLLM requires this share of the memory to be free when each begins.
        "gpu_memory_utilization": 0.1,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    llm = LLM(**chosen | options)
    llm.collective_rpc(spread_weights)
    return llm


def prompt(number: int, length: int) -> dict[str, list[int]]:
    """A prompt of random ids, which are the same for the same number and length."""
    return {"prompt_token_ids": random_model.prompt(number, length)}
