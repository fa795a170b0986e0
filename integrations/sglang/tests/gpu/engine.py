"""An SGLang engine on a GPU over a random model."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from random_model import folder


def watched() -> Path:
    """A new folder where `inside.py` notes what goes on in the engine that starts next."""
    made = Path(tempfile.mkdtemp())
    os.environ["GUMBALL_WATCH"] = str(made)
    return made


def engine(shape: str, *, tokens: int, tokenizer: bool = False, **options: Any) -> Any:
    """An `Engine` of a shape; tokens: what its cache of keys and values holds."""
    import sglang

    made = folder(shape)
    if tokenizer:
        _write_tokenizer(made)
    chosen: dict[str, Any] = {
        "attention_backend": "triton",
        "disable_radix_cache": True,
        "cuda_graph_backend_prefill": "disabled",
        "log_level": os.environ.get("GUMBALL_LOG", "warning"),
        # Several engines share the GPU.
        "mem_fraction_static": 0.85,
    }
    if "speculative_algorithm" in options:
        # The drafts are those of the model itself.
        chosen["speculative_draft_model_path"] = str(made)
    return sglang.Engine(
        model_path=str(made),
        load_format="dummy",
        skip_tokenizer_init=not tokenizer,
        dtype="bfloat16",
        context_length=2048,
        max_total_tokens=tokens,
        random_seed=0,
        # Engines that start together would find the same free one.
        nccl_port=20000 + os.getpid() % 9000,
        **(chosen | options),
    )


def _write_tokenizer(made: Path) -> None:
    """Of bytes; ids above them have no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<eos>").save_pretrained(str(made))
