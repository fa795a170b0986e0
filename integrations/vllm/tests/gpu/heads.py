"""A real vLLM on a GPU with a head of Gumball's, which GUMBALL_VLLM_HEAD names, in the place of the model's last product.

    heads.py texts OUT MODEL [REFERENCE]       what the real model says: MODEL is the folder that real_model.py makes
    heads.py compare FILES..                   whether the texts agree that must, and how often the others do: agreement.json beside them
    heads.py times OUT MODEL BATCHES           milliseconds a decode step and tokens a second; MODEL 8b is a shape with random weights
    heads.py clusters OUT                      clusters of neighbouring ids for 8b, with random centroids: they cost what others cost
    heads.py record RECORD.json FOLDER NAME=VALUE..   joins what compare and times wrote, and writes RECORD.md; NAMEs are card, commit, date, vllm, torch

`texts` writes what each of 32 requests says in batches of 32, 8 and 1. Then it draws once more behind each beginning of the texts in REFERENCE,
which another process writes, so that heads are compared at the same positions. It needs VLLM_BATCH_INVARIANT=1, by which hidden states do not
depend on the batch, and VLLM_ENABLE_V1_MULTIPROCESSING=0. DRAFTS=1 lets vLLM draft n-grams.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T = 1": {"temperature": 1.0},
    "T = 0.8, top-k 50, top-p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
}
PROMPTS = [
    f"{task} {topic}."
    for task in ("Explain in simple words", "Write a short story about", "List five facts about", "Give me advice on")
    for topic in ("rain", "prime numbers", "lighthouses", "bread", "the moon", "bees", "chess", "trains")
]
MODELS = {
    "8b": "the shape of an 8B Qwen3 in bf16, random weights, a head of 151936 x 4096; clusters of 16 neighbouring ids of 9496, the number probed",
    "real": "SmolLM2-135M-Instruct in bf16, a head of 49152 x 576; clusters of 16 of 3072, the number probed",
}
LABELS = {"vllm": "none: vLLM's product and sampler", "own": "none: vLLM's product, Gumball's sampler"}
BATCHES, LENGTH, STRIDE = (32, 8, 1), 64, 2
# Steps of a batch that are timed, when all of its prompts are read and none has ended.
STEPS, FIRST, LAST = 160, 28, 154


@register_model_loader("spread")
class SpreadLoader(DummyModelLoader):
    """Random weights by which logits are about N(0, 4^2); the plug-in makes its head of these."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Writes the weights of a model."""
        from random_model import spread_weights

        spread_weights(model)


class Extension:
    """Nothing; vLLM's workers import this module for it, and know the loader then."""


def engine(model: str, **options: Any) -> Any:
    """An `LLM` of a folder or of the shape 8b."""
    from vllm import LLM

    chosen: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 512, "seed": 0, "max_num_seqs": 32}
    # Several engines share the GPU; vLLM requires this share of the memory to be free when each begins.
    chosen["gpu_memory_utilization"] = 0.1
    if model == "8b":
        from shapes import COMMON, SHAPES

        model = tempfile.mkdtemp()
        (Path(model) / "config.json").write_text(json.dumps(COMMON | SHAPES["8b"]))
        chosen |= {"load_format": "spread", "skip_tokenizer_init": True, "worker_extension_cls": "heads.Extension"}
    return LLM(model=model, **chosen | options)


def prompts(tokenizer: Any) -> list[list[int]]:
    """The ids of PROMPTS, each put to the model as a chat."""
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    return tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)


def texts(out: str, model: str, reference: str = "") -> None:
    """Writes what an engine says; reference: the file of another process, which may still write it."""
    from gumball_vllm.heads import sequences_of
    from vllm import SamplingParams

    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    llm = engine(
        model,
        kv_cache_memory_bytes=2**30,
        enforce_eager=True,
        max_num_seqs=64,
        speculative_config=drafts if os.environ.get("DRAFTS") == "1" else None,
    )
    asked_for = prompts(llm.get_tokenizer())

    def drawn(asked: list[list[int]], seeds: list[int], length: int, what: dict[str, Any]) -> list[list[int]]:
        params = [
            SamplingParams(seed=seed, max_tokens=length, ignore_eos=True, detokenize=False, **what) for seed in seeds
        ]
        outs = llm.generate([{"prompt_token_ids": ids} for ids in asked], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outs]

    found: dict[str, Any] = {"head": os.environ.get("GUMBALL_VLLM_HEAD", ""), "texts": {}, "behind": {}}
    for name, what in SETTINGS.items():
        found["texts"][name] = [drawn(asked_for[:batch], list(range(batch)), LENGTH, what) for batch in BATCHES]
    written(out, found)
    until = time.monotonic() + 150
    while reference and not Path(reference).exists() and time.monotonic() < until:
        time.sleep(0.5)
    wanted = json.loads(Path(reference or out).read_text())["texts"]
    places = [(i, j) for i in range(len(asked_for)) for j in range(0, LENGTH, STRIDE)]
    for name, what in SETTINGS.items():
        behind = [asked_for[i] + wanted[name][0][i][:j] for i, j in places]
        found["behind"][name] = [token for (token,) in drawn(behind, [i for i, _ in places], 1, what)]
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    head = sequences_of(worker.model_runner, worker.vllm_config).head
    found["counts"] = {} if head is None else head.counts()
    written(out, found)
    print("TEXTS", out, found["head"], found["counts"], flush=True)


def written(file: str, found: dict[str, Any]) -> None:
    """Writes a file at once, since other processes wait for it."""
    Path(f"{file}.part").write_text(json.dumps(found))
    os.replace(f"{file}.part", file)


def compare(files: list[str]) -> int:
    """Compares each file with the one of all logits."""
    everything = {Path(file).stem: json.loads(Path(file).read_text()) for file in files if Path(file).exists()}
    plain, table = everything["plain"], {}
    whole = {label: found for label, found in everything.items() if "counts" in found}
    failures = [f"{file}: ended early" for file in files if Path(file).stem not in whole]
    for label, found in whole.items():
        kind, line = found["head"].partition(",")[0], {}
        for name, (among, *fewer) in found["texts"].items():
            wanted, behind = plain["texts"][name][0], plain["behind"][name]
            same = sum(map(list.__eq__, among, wanted))
            agree = sum(a == b for a, b in zip(found["behind"][name], behind, strict=True)) / len(behind)
            line[name] = {"texts": same / len(wanted), "positions": agree}
            alone = sum(text != among[i] for few in fewer for i, text in enumerate(few))
            if kind and alone:
                failures.append(f"{label}, {name}: {alone} texts depend on the batch")
            if kind == "auto" and same < len(wanted):
                failures.append(f"{label}, {name}: {len(wanted) - same} texts are not those of all logits")
        counts = found["counts"]
        drew = {"auto": "certified_rows", "clustered": "clustered_rows"}.get(kind, "whole_rows")
        drew = "whole_rows" if label == "plain" else drew
        if kind and not counts[drew]:
            failures.append(f"{label}: the head drew nothing: {counts}")
        table[label] = {"head": found["head"], "settings": line, "counts": counts}
        print(
            f"AGREE {label:22}",
            {name: (round(one["texts"], 3), round(one["positions"], 4)) for name, one in line.items()},
            counts,
        )
    print(*failures, sep="\n")
    Path(files[0]).with_name("agreement.json").write_text(json.dumps(table, indent=1))
    print("VERDICT: heads FAILED" if failures else "VERDICT: heads passed")
    return int(bool(failures))


def times(out: str, model: str, sizes: str) -> None:
    """Writes the median step of each setting and batch, as a client sees it."""
    from in_turn import wait_for_turn
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    begin = time.perf_counter()
    batches = [int(size) for size in sizes.split(",")]
    captured = {"cudagraph_capture_sizes": [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= max(batches)]}
    llm = engine(
        model,
        kv_cache_memory_bytes=2 * 2**30,
        max_num_seqs=max(batches),
        compilation_config=captured,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    names = ("VLLM_USE_V2_MODEL_RUNNER", "GUMBALL_VLLM", "GUMBALL_VLLM_HEAD")
    found: dict[str, Any] = {"environment": {name: os.environ.get(name) for name in names}, "cells": {}}
    print("START", round(time.perf_counter() - begin, 1), found, flush=True)
    core = llm.llm_engine

    def steps(tag: str, batch: int, what: dict[str, Any]) -> list[float]:
        for place in range(batch):
            asked = SamplingParams(
                max_tokens=STEPS,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                seed=place,
                **what,
            )
            ids = [(7919 * (place + 1) * (i + 3)) % 40000 for i in range(32)]
            core.add_request(f"{tag} {place}", {"prompt_token_ids": ids}, asked)
        ends = [time.perf_counter()]
        while core.has_unfinished_requests():
            core.step()
            ends.append(time.perf_counter())
        return [1e3 * (end - start) for start, end in zip(ends, ends[1:], strict=False)][FIRST:LAST]

    for name, what in SETTINGS.items():
        steps(f"warm {name}", max(batches), what)
    wait_for_turn()
    print("TURN", round(time.perf_counter() - begin, 1), flush=True)
    for batch in batches:
        for name, what in SETTINGS.items():
            first, median, third = statistics.quantiles(steps(f"{name} {batch}", batch, what), n=4)
            found["cells"][f"{name}/{batch}"] = {
                "median_ms": median,
                "first_quartile_ms": first,
                "third_quartile_ms": third,
            }
            print(f"CELL {name:30} {batch:4} {median:8.3f} ms {1e3 * batch / median:8.0f} tokens/s", flush=True)
    Path(out).write_text(json.dumps(found, indent=1))


def clusters(out: str) -> None:
    """Writes the clusters of 8b."""
    from safetensors.torch import save_file
    from shapes import COMMON, SHAPES

    vocab, width = COMMON["vocab_size"], SHAPES["8b"]["hidden_size"]
    generator = torch.Generator().manual_seed(5)
    ids = torch.arange(vocab, dtype=torch.int32).view(-1, 16)
    centroids = torch.randn(len(ids), width, generator=generator).to(torch.bfloat16)
    save_file({"vocab_maps": ids, "centroids": centroids}, out)


def record(file: str, folder: str, *said: str) -> None:
    """Writes a record and its page. folder: has `agreement.json` and files `times-MODEL-HEAD.json`."""
    joined: dict[str, Any] = dict(one.split("=", 1) for one in said)
    joined |= {"agreement": json.loads((Path(folder) / "agreement.json").read_text()), "times": {}}
    for one in sorted(Path(folder).glob("times-*.json")):
        _, model, head = one.stem.split("-", 2)
        joined["times"].setdefault(model, {})[head] = json.loads(one.read_text())
    Path(file).write_text(json.dumps(joined, indent=1))
    Path(file).with_suffix(".md").write_text(page(joined))


def page(record: dict[str, Any]) -> str:
    """The tables of a record."""
    plain = "all logits"
    lines = [
        f"# Heads of Gumball's in vLLM {record['vllm']}",
        "",
        f"`ci/gpu vllm heads` at {record['commit']}, {record['date']}: {record['card']}, model runner V2, torch {record['torch']}.",
        "",
        "## Agreement",
        "",
        f"SmolLM2-135M-Instruct in bf16, {len(PROMPTS)} questions, {LENGTH} tokens each, VLLM_BATCH_INVARIANT=1. Texts that are those of {plain}; in brackets, at",
        f"{len(PROMPTS) * LENGTH // STRIDE} positions of its texts, the share at which the same token is drawn.",
        "",
        f"| head | {' | '.join(SETTINGS)} |",
        "| --- |" + " ---: |" * len(SETTINGS),
    ]
    for label, one in record["agreement"].items():
        cells = (f"{cell['texts']:.3f} ({cell['positions']:.4f})" for cell in one["settings"].values())
        lines.append(f"| {LABELS.get(label, label)} | {' | '.join(cells)} |")
    for model, heads in record["times"].items():
        lines += ["", f"## Tokens a second: {MODELS[model]}", ""]
        # What was run another day than the agreement.
        if model in record:
            lines += ["At {commit}, {date}: {card}.".format(**record[model]), ""]
        lines.append(
            f"With CUDA graphs, prompts of 32 ids, a seed each, output tokens {FIRST} to {LAST}; in brackets the median step in milliseconds."
        )
        batches = sorted({int(key.rpartition("/")[2]) for one in heads.values() for key in one["cells"]})
        for name in SETTINGS:
            lines += [
                "",
                f"| {name}: requests | {' | '.join(map(str, batches))} |",
                "| --- |" + " ---: |" * len(batches),
            ]
            for label, one in heads.items():
                got = [one["cells"][f"{name}/{batch}"]["median_ms"] for batch in batches]
                cells = (f"{1e3 * batch / ms:.0f} ({ms:.2f})" for batch, ms in zip(batches, got, strict=True))
                lines.append(f"| {LABELS.get(label, label)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "compare":
        sys.exit(compare(rest))
    {"texts": texts, "times": times, "clusters": clusters, "record": record}[what](*rest)
