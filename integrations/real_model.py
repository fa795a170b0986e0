"""The default model of `gumball generate`, as transformers and vLLM load it, and rows of logits recorded from it.

    python real_model.py FOLDER

makes FOLDER from the GGUF file that `gumball generate` has fetched: weights, configuration and tokenizer, by transformers' own reading of
GGUF, and `recorded.npy`, the logits behind each token of a text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = (
    "The sky is blue because air scatters short waves of light more than long ones. One, two, three, four, five. "
    '{"name": "Ada", "age": 36} def add(a, b): return a + b\nQ: What is the capital of France?\nA: Paris is'
)

PROMPTS = [
    "The sky is blue because",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "The capital of France is",
    "Q: What is 12 times 12?\nA:",
    "A recipe for pancakes: first,",
    "In 1969 the first",
    "The three laws of robotics are",
]


def gguf() -> Path:
    """Where `gumball generate` keeps the file, whether it is there or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gumball" / FILE


def gguf_or_skip() -> Path:
    """The file; without it the test is skipped and says so."""
    import pytest

    if not gguf().exists():
        pytest.skip(f"the default model is not there ({FILE}); `cargo gumball generate` fetches it")
    return gguf()


def ready_or_skip() -> Path:
    """The folder of the model, made once and kept beside the file that it is made from; without that file the test is skipped and says so."""
    folder = gguf_or_skip().parent / "SmolLM2-135M-Instruct-safetensors"
    if not (folder / "done").exists():
        # In a process of its own, because what it reads of GGUF stays in memory; elsewhere, because another engine's tests may make it too.
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            subprocess.run([sys.executable, __file__, f"{made}/model"], check=True)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(f"{made}/model", folder)
    return folder


def make(folder: Path) -> None:
    """Writes the model and the recorded rows to a folder."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    source = gguf()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    with torch.inference_mode():
        rows = model(torch.tensor([tokenizer(TEXT).input_ids])).logits[0]
    np.save(folder / "recorded.npy", rows.numpy())
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # It is no quantised model any more.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
