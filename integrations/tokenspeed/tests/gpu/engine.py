"""TokenSpeed's whole engine on GPUs, with a small model of random weights, read from a file. `engine.py OUT`: texts, with Gumball's backend.

Requests run alone, among all, and joining one another; prompts are read in parts, the cache is so small that requests are retracted, decode steps
are graphs, and each is prepared while the one before runs. Every text is drawn again by a `gumball.Sampler` on the CPU from the very logits,
which `watch.py` writes down; logits depend on the batch here, so texts alone and among others need not be the same.

`engine.py served BACKEND-DRAFTS-SPREAD TEXTS`: tokens a second with tensor parallelism over two GPUs, of as many requests at once as REQUESTS has, at
temperature 0.8 and top-p 0.9, and the texts in a file; SPREAD is off, or with `--dp-sampling`, which TokenSpeed has for drafts alone, and for `flashinfer` and
Gumball's, the value of TOKENSPEED_DP_SAMPLING_BACKEND: nccl or onesided. `engine.py compared TEXTS..` counts equal texts. The drafter is an EAGLE3 model of random weights, too: hardly any draft is accepted, and a step samples DRAFTS + 1 rows a request for a token. All that
crosses GPUs goes by NCCL, except logits that `onesided` moves: no engine takes NVLink multicast.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VOCAB, LENGTH, COUNT = 32000, 24, 48
# Of `served`: the ids of the model and of its drafter, and the numbers of concurrent requests; then the seconds in which an engine must start and be timed.
WIDE, DRAFTED_IDS, REQUESTS = 151936, 32000, (32, 128)
START, TIMED = 150, 60
HIDDEN, INNER, HEADS, SHARED, WIDTH = 512, 1024, 8, 4, 64
CONFIG = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "head_dim": WIDTH,
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


def layer(at: str, reads: int) -> dict[str, tuple[int, int]]:
    """The shapes of a layer's matrices; reads: the width of what its attention reads."""
    return {
        f"{at}.self_attn.q_proj": (HEADS * WIDTH, reads),
        f"{at}.self_attn.k_proj": (SHARED * WIDTH, reads),
        f"{at}.self_attn.v_proj": (SHARED * WIDTH, reads),
        f"{at}.self_attn.o_proj": (HIDDEN, HEADS * WIDTH),
        f"{at}.mlp.gate_proj": (INNER, HIDDEN),
        f"{at}.mlp.up_proj": (INNER, HIDDEN),
        f"{at}.mlp.down_proj": (HIDDEN, INNER),
    }


def saved(
    config: dict[str, Any], shapes: dict[str, tuple[int, int]], norms: dict[str, int], more: dict[str, Any]
) -> Path:
    """A folder with a model of a configuration, whose logits are about N(0, 4^2)."""
    import torch
    from safetensors.torch import save_file

    folder, generator = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(1)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    weights = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embed" in name else 4.0 / shape[1] ** 0.5 if "lm_head" in name else 0.02
        weights[f"{name}.weight"] = (torch.randn(shape, generator=generator) * scale).to(torch.bfloat16)
    weights |= {f"{name}.weight": torch.ones(size, dtype=torch.bfloat16) for name, size in norms.items()}
    save_file(weights | more, folder / "model.safetensors")
    return folder


def model(vocab: int = VOCAB, layers: int = 2) -> Path:
    shapes = {"model.embed_tokens": (vocab, HIDDEN), "lm_head": (vocab, HIDDEN)}
    norms = {"model.norm": HIDDEN}
    for at in (f"model.layers.{number}" for number in range(layers)):
        shapes |= layer(at, HIDDEN)
        norms |= {f"{at}.input_layernorm": HIDDEN, f"{at}.post_attention_layernorm": HIDDEN}
        norms |= {f"{at}.self_attn.q_norm": WIDTH, f"{at}.self_attn.k_norm": WIDTH}
    of = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    return saved(of | {"vocab_size": vocab, "num_hidden_layers": layers}, shapes, norms, {})


def drafter() -> Path:
    """A drafter for the model of WIDE ids and four layers, of whose first three it reads what they leave."""
    import torch

    at, reads = "midlayer", [0, 1, 2]
    shapes = {"fc": (HIDDEN, len(reads) * HIDDEN), "lm_head": (DRAFTED_IDS, HIDDEN)} | layer(at, 2 * HIDDEN)
    norms = {"norm": HIDDEN, f"{at}.input_layernorm": HIDDEN, f"{at}.hidden_norm": HIDDEN}
    norms |= {f"{at}.post_attention_layernorm": HIDDEN}
    of = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    of |= {"vocab_size": WIDE, "draft_vocab_size": DRAFTED_IDS, "eagle_aux_hidden_state_layer_ids": reads}
    return saved(of, shapes, norms, {"d2t": torch.zeros(DRAFTED_IDS, dtype=torch.int64)})


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


def started(where: Path, backend: str, **more: Any) -> Any:
    from tokenspeed.runtime.entrypoints.engine import Engine

    return Engine(
        model=str(where),
        skip_tokenizer_init=True,
        sampling_backend=backend,
        attention_backend="triton",
        dtype="bfloat16",
        max_model_len=512,
        enable_prefix_caching=False,
        disable_kvstore=True,
        disable_autotune=True,
        disable_prefill_graph=True,
        log_level="info",
        port=18000 + 1500 * int(os.environ.get("TURN", "0")),
        **more,
    )


def run(out: Path) -> str:
    began = time.perf_counter()
    folder = os.environ["GUMBALL_WATCH"] = tempfile.mkdtemp()
    engine = started(
        model(),
        "gumball",
        enable_output_logprobs=True,
        max_num_seqs=48,
        # Less than all requests need.
        max_total_tokens=3072,
        chunked_prefill_size=64,
        gpu_memory_utilization=0.2,
        cudagraph_capture_sizes=[1, 2, 4, 8, 16, 32, 48],
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


def ending_after(seconds: int, why: str) -> threading.Timer:
    """Ends this process and the engine's processes after `seconds` seconds, unless the timer is cancelled."""

    def end() -> None:
        print(f"FAILED: {why} within {seconds} s", flush=True)
        ended(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def served(name: str, out: Path) -> None:
    from in_turn import wait_for_turn

    backend, drafts, spread = name.split("-")
    limit = ending_after(START, "it had not started")
    os.environ["GUMBALL_NCCL_ALONE"] = "1"
    more: dict[str, Any] = {}
    if int(drafts):
        more = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(drafter())}
        more |= {"speculative_num_steps": int(drafts), "dp_sampling": spread != "off"}
        if spread != "off":
            os.environ["TOKENSPEED_DP_SAMPLING_BACKEND"] = spread
    engine = started(
        model(WIDE, 4),
        backend,
        max_num_seqs=max(REQUESTS),
        max_total_tokens=65536,
        chunked_prefill_size=8192,
        gpu_memory_utilization=0.4,
        cudagraph_capture_sizes=list(REQUESTS),
        max_cudagraph_capture_size=max(REQUESTS),
        attn_tp_size=2,
        force_deterministic_rsag=True,
        comm_fusion_max_num_tokens=-1,
        disable_nccl_nvls=True,
        **more,
    )

    texts = {}

    def rate(count: int, length: int) -> float:
        rng = random.Random(count)
        prompts = [[rng.randrange(3, WIDE) for _ in range(32)] for _ in range(count)]
        params = {"temperature": 0.8, "top_p": 0.9, "max_new_tokens": length, "ignore_eos": True}
        began = time.perf_counter()
        answers = engine.generate(input_ids=prompts, sampling_params=[params | {"seed": i + 1} for i in range(count)])
        seconds = time.perf_counter() - began
        lengths = {len(answer["output_ids"]) for answer in answers}
        assert lengths == {length}, f"answers of {lengths} tokens, not {length}"
        texts[count] = [answer["output_ids"] for answer in answers]
        return count * length / seconds

    for count in REQUESTS:
        rate(count, 16)
    limit.cancel()
    wait_for_turn()
    limit = ending_after(TIMED, "it was not timed")
    for count in REQUESTS:
        rate(count, 128)
        rates = [rate(count, 128) for _ in range(3)]
        said = f"{statistics.median(rates):.0f} tokens/s (of {', '.join(f'{one:.0f}' for one in sorted(rates))})"
        print(f"CELL {backend} dp_sampling={spread} drafts={drafts} {count} requests {said}", flush=True)
    limit.cancel()
    out.write_text(json.dumps(texts))


def compared(files: list[str]) -> None:
    """Counts the texts that a backend writes without DP sampling, too, with its drafts and without. Logits may depend on the batch, and so may texts."""
    texts = {Path(file).stem.removeprefix("texts-"): json.loads(Path(file).read_text()) for file in files}
    for name, found in texts.items():
        backend, drafts, _ = name.split("-")
        for other in dict.fromkeys((f"{backend}-{drafts}-off", f"{backend}-0-off")):
            for count, own in found.items() if other in texts and other != name else ():
                same = sum(one == another for one, another in zip(own, texts[other][count], strict=True))
                print(f"TEXTS {name} {count} requests: {same} equal those of {other}", flush=True)


def ended(status: int) -> None:
    """TokenSpeed's processes end with this one."""
    from tokenspeed.runtime.utils.process import kill_process_tree

    sys.stdout.flush()
    kill_process_tree(os.getpid(), include_parent=False)
    os._exit(status)


def main() -> None:
    began = time.perf_counter()
    if sys.argv[1] == "compared":
        return compared(sys.argv[2:])
    if sys.argv[1] == "served":
        try:
            served(sys.argv[2], Path(sys.argv[3]))
        except BaseException:
            print("FAILED: " + "".join(traceback.format_exc().splitlines(True)[-14:]), flush=True)
            ended(1)
        ended(0)
    try:
        said, verdict = run(Path(sys.argv[1])), "ok"
    except BaseException:
        said, verdict = "".join(traceback.format_exc().splitlines(True)[-14:]), "FAILED"
    print(f"CASE engine {verdict} ({time.perf_counter() - began:.0f} s): {said}", flush=True)
    ended(verdict != "ok")


if __name__ == "__main__":
    main()
