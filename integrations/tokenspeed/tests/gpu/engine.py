"""Texts of TokenSpeed's whole engine on a GPU, with Gumball's backend: `engine.py OUT`. A small model of random weights, read from a file.

Requests run alone, among all, and joining one another; prompts are read in parts, the cache is so small that requests are retracted, decode steps
are graphs, and each is prepared while the one before runs. Every text is drawn again by a `gumball.Sampler` on the CPU from the very logits,
which `watch.py` writes down; logits depend on the batch here, so texts alone and among others need not be the same.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VOCAB, LENGTH, COUNT = 32000, 24, 48
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model() -> Path:
    """A folder with a model of the configuration, whose logits are about N(0, 4^2)."""
    import torch
    from safetensors.torch import save_file

    folder, generator = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(1)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    hidden, inner, heads, shared, width = 512, 1024, 8, 4, 64
    shapes = {"model.embed_tokens": (VOCAB, hidden), "lm_head": (VOCAB, hidden)}
    norms = {"model.norm": hidden}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj": (heads * width, hidden),
            f"{at}.self_attn.k_proj": (shared * width, hidden),
            f"{at}.self_attn.v_proj": (shared * width, hidden),
            f"{at}.self_attn.o_proj": (hidden, heads * width),
            f"{at}.mlp.gate_proj": (inner, hidden),
            f"{at}.mlp.up_proj": (inner, hidden),
            f"{at}.mlp.down_proj": (hidden, inner),
        }
        norms |= {f"{at}.input_layernorm": hidden, f"{at}.post_attention_layernorm": hidden}
        norms |= {f"{at}.self_attn.q_norm": width, f"{at}.self_attn.k_norm": width}
    weights = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embed" in name else 4.0 / shape[1] ** 0.5 if "lm_head" in name else 0.02
        weights[f"{name}.weight"] = (torch.randn(shape, generator=generator) * scale).to(torch.bfloat16)
    weights |= {f"{name}.weight": torch.ones(size, dtype=torch.bfloat16) for name, size in norms.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def prompt(number: int) -> list[int]:
    """Random ids; every third prompt is read in parts."""
    rng = random.Random(number)
    return [rng.randrange(3, VOCAB) for _ in range(150 if number % 3 == 0 else 9)]


def asked(number: int) -> dict[str, Any]:
    from check import DRAFTED, kind_of

    # Without mirostat, which begins again after a retraction.
    return {"seed": number + 1, "max_new_tokens": LENGTH, "ignore_eos": True} | kind_of(number, DRAFTED)


def drawn_again(number: int, name: str, folder: str, length: int) -> list[int]:
    import numpy
    from gumball_tokenspeed.params import params_of
    from tokenspeed.runtime.sampling.sampling_params import SamplingParams

    import gumball

    params = params_of(SamplingParams(**asked(number)))
    rows = numpy.fromfile(Path(folder, name), dtype=numpy.uint16).astype(numpy.uint32).reshape(-1, VOCAB) << 16
    one = gumball.Sampler(params, VOCAB, prompt=prompt(number) if "custom_params" in asked(number) else ())
    return [one.sample(row.view(numpy.float32)) for row in rows[:length]]


def run(out: Path) -> str:
    began = time.perf_counter()
    folder = os.environ["GUMBALL_WATCH"] = tempfile.mkdtemp()
    where = str(model())
    from tokenspeed.runtime.entrypoints.engine import Engine

    engine = Engine(
        model=where,
        skip_tokenizer_init=True,
        sampling_backend="gumball",
        enable_output_logprobs=True,
        attention_backend="triton",
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=48,
        # Less than all requests need.
        max_total_tokens=3072,
        chunked_prefill_size=64,
        gpu_memory_utilization=0.2,
        enable_prefix_caching=False,
        disable_kvstore=True,
        disable_autotune=True,
        disable_prefill_graph=True,
        cudagraph_capture_sizes=[1, 2, 4, 8, 16, 32, 48],
        log_level="info",
        port=18000,
    )
    print(f"  engine after {time.perf_counter() - began:.0f} s", flush=True)

    def one(number: int, delay: float = 0) -> Any:
        time.sleep(delay)
        return engine.generate(input_ids=prompt(number), sampling_params=asked(number))

    numbers = list(range(COUNT))
    found = {"alone": [one(i) for i in numbers[:12]]}
    found["among"] = engine.generate(
        input_ids=[prompt(i) for i in numbers], sampling_params=[asked(i) for i in numbers]
    )
    with ThreadPoolExecutor(COUNT) as pool:
        found["joined"] = list(pool.map(one, numbers, [0.02 * i for i in numbers]))
    # The rows of the last steps are written when another is prepared.
    for _ in range(2):
        one(0)
    differ, same, texts = 0, 0, 0
    for part, answers in found.items():
        for i, answer in zip(numbers, answers, strict=False):
            tokens, texts = answer["output_ids"], texts + 1
            wanted = drawn_again(i, answer["meta_info"]["id"], folder, len(tokens))
            same += tokens == found["among"][i]["output_ids"]
            if tokens != wanted or len(tokens) != LENGTH:
                differ += 1
                print(
                    f"  DIFFERS {part} {i}, {len(tokens)} tokens: {asked(i)}\n    {tokens[:12]}\n    {wanted[:12]}",
                    flush=True,
                )
    out.write_text(json.dumps({part: [one["output_ids"] for one in answers] for part, answers in found.items()}))
    said = f"{texts} texts, {same} the same as among all"
    assert differ == 0, f"{differ} of {said} are not what a sampler draws"
    return said


def main() -> int:
    began = time.perf_counter()
    try:
        said, verdict = run(Path(sys.argv[1])), "ok"
    except BaseException:
        said, verdict = "".join(traceback.format_exc().splitlines(True)[-14:]), "FAILED"
    print(f"CASE engine {verdict} ({time.perf_counter() - began:.0f} s): {said}", flush=True)
    sys.stdout.flush()
    # TokenSpeed's processes end with this one.
    from tokenspeed.runtime.utils.process import kill_process_tree

    kill_process_tree(os.getpid(), include_parent=False)
    os._exit(verdict != "ok")


if __name__ == "__main__":
    main()
