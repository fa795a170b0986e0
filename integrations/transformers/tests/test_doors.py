"""The other doors of transformers: a folder beside weights, and continuous batching, which is decided against; the example, and types."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from calls import PROMPT
from gumball import Sampler, SamplingParams
from gumball_transformers import FOLDER, generate

SIZE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=5000, **SIZE)).eval()


def test_a_folder_beside_a_models_weights_makes_its_generate(small: Any, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path)
    shutil.copytree(Path(FOLDER) / "custom_generate", tmp_path / "custom_generate")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    ids = torch.tensor([PROMPT])
    asked = {"do_sample": True, "max_new_tokens": 10, "attention_mask": torch.ones_like(ids)}
    found = loaded.generate(ids, seed=7, **asked)
    other = small.generate(ids, seed=7, custom_generate=FOLDER, trust_remote_code=True, **asked)
    assert found.shape == (1, 15) and torch.equal(found, other)
    # Without trust it is transformers' own, which knows no seed.
    with pytest.raises(ValueError, match="seed"):
        AutoModelForCausalLM.from_pretrained(tmp_path).generate(ids, seed=7, **asked)


def test_a_prompt_of_embeddings_has_no_ids(small: Any) -> None:
    states = torch.randn((1, 4, SIZE["hidden_size"]), generator=torch.Generator().manual_seed(1))
    found = small.generate(
        inputs_embeds=states,
        attention_mask=torch.ones((1, 4)),
        do_sample=True,
        seed=7,
        max_new_tokens=6,
        custom_generate=FOLDER,
        trust_remote_code=True,
    )[0]
    sampler = Sampler(SamplingParams(top_k=50, seed=7), 5000)
    while len(sampler.output) < 6:
        behind = small.get_input_embeddings()(torch.tensor([sampler.output], dtype=torch.long))
        with torch.no_grad():
            sampler.sample(small(inputs_embeds=torch.cat([states, behind], 1)).logits[0, -1])
    assert found.tolist() == sampler.output


def test_continuous_batching_is_refused(small: Any) -> None:
    """There a processor is handed the last token of each row, without a word about whose it is."""
    ids = torch.tensor([PROMPT])
    for params in (None, SamplingParams()):
        with pytest.raises(ValueError, match="cache_implementation is 'paged'"):
            generate(small, params, input_ids=ids, cache_implementation="paged")


PACKAGE = Path(__file__).parents[1]
TYPES = ["-m", "mypy", "--config-file", str(PACKAGE / "pyproject.toml"), "-p", "gumball_transformers"]


@pytest.mark.parametrize("arguments", [[str(PACKAGE / "examples/assisted.py")], TYPES], ids=["example", "types"])
def test_the_example_runs_and_the_package_types_strictly(arguments: list[str], tmp_path: Path) -> None:
    if arguments is TYPES:
        pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr
