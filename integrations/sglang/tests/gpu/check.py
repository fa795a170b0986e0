"""Texts of a real SGLang on a GPU, as JSON: `check.py OUT [SETTING..]`; `check.py compare FILES..` says whether all have the same.

The engine computes logits that do not depend on the batch (`--enable-deterministic-inference`), so a text may differ only by what is drawn.
Each request runs alone, among all, and joined later by others; every text alone is drawn again by a `gumball.Sampler` on the CPU from the very
logits. SETTING: `own` takes SGLang's sampler, whose greedy texts are compared; `eager` no CUDA graphs; `sync` no overlap scheduling; `parts`
prompts read in parts; `retract` requests retracted every few steps; `words` a tokenizer, with requests that need one; `drafts` a draft
model, whose drafts `gumball_compat.sglang.eagle_sample` judges, and `drafts own` SGLang's judge.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

LENGTH = 40
BANNED = [77, 90, 1000]
KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "top_logprobs_num": 5},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.9, "seedless": True},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {"77": 3.0, "5": -100.0}, "repetition_penalty": 1.1, "top_logprobs_num": 3},
    {"temperature": 0.9, "top_k": 20, "logit_bias": {"90": 9.0}, "stop_token_ids": [90]},
    {"temperature": 1.0, "token_ids_logprob": [5, 77, 1000]},
    {"temperature": 0.8, "top_k": 100, "top_logprobs_num": 20},
    {"temperature": 0.9, "top_k": 40, "custom_params": {"token_ids": BANNED}},
    {"temperature": 1.3, "top_p": 0.95, "top_k": 1000},
    {"temperature": 0.0, "sampling_logprobs_mode": "support"},
    {"temperature": 0.8, "top_p": 0.9, "sampling_logprobs_mode": "selected"},
    {"temperature": 1.0, "min_p": 0.05, "sampling_logprobs_mode": "support"},
    {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5, "sampling_logprobs_mode": "selected"},
]
WORDS = [
    {"temperature": 0.9, "regex": "([a-z]{2,7} ){30}"},
    {"temperature": 0.7, "top_p": 0.9, "json_schema": json.dumps({"type": "array", "items": {"type": "integer"}})},
    {"temperature": 0.9, "min_new_tokens": 20, "logit_bias": {"90": 20.0}, "stop_token_ids": [90]},
    {"temperature": 0.0, "regex": "[a-z ]+"},
]
LISTED = ("top_logprobs_num", "token_ids_logprob")
MASKED = "sampling_logprobs_mode"


def named(kind: dict[str, Any], number: int) -> str:
    return f"{json.dumps(kind, sort_keys=True)} {number}"


async def said(llm: Any, kind: dict[str, Any], number: int, ids: list[int], wait: float = 0.0) -> dict[str, Any]:
    """The tokens of a request, its logprobs if it asks for some, for each position a dict from id to logprob, and its sampling masks."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    await asyncio.sleep(wait)
    chosen = {name: value for name, value in kind.items() if name not in (*LISTED, MASKED, "seedless")}
    chosen |= {"max_new_tokens": LENGTH, "ignore_eos": True}
    if "seedless" not in kind:
        chosen["sampling_seed"] = number
    extra: dict[str, Any] = {}
    if "custom_params" in kind:
        extra["custom_logit_processor"] = DisallowedTokensLogitsProcessor.to_str()
    asks = {name: kind[name] for name in LISTED if name in kind}
    if MASKED in kind:
        extra |= {"return_sampling_mask": True, MASKED: kind[MASKED]}
    # A request without a seed draws by its name. The engine's own methods have no argument for masks.
    request = GenerateReqInput(
        input_ids=ids,
        sampling_params=chosen,
        return_logprob=bool(asks),
        rid=named(kind, number),
        **asks,
        **extra,
    )
    out = await anext(llm.tokenizer_manager.generate_request(request, None))
    meta = out["meta_info"]
    lists = []
    if asks:
        lines = meta["output_token_logprobs"]
        others = [meta.get(f"output_{part}") or [None] * len(lines) for part in ("top_logprobs", "token_ids_logprobs")]
        lists = [{str(id): p for p, id, *_ in [line, *(a or ()), *(b or ())]} for line, a, b in zip(lines, *others)]
    masks = meta.get("output_token_sampling_mask", [])
    counted = meta.get("output_token_penalized")
    if os.environ.get("GUMBALL_SYNC") and counted is not None and not meta.get("num_retractions"):
        assert counted == [-1, *out["output_ids"][:-1]], f"{kind} counted {counted}"
    told = [[mask, logprob] for mask, logprob in zip(masks, meta.get("output_token_sampling_logprobs", []))]
    return {
        "tokens": list(out["output_ids"]),
        "logprobs": lists,
        "retractions": meta.get("num_retractions", 0),
        "kept": told,
    }


def redrawn(kind: dict[str, Any], number: int, prompt: list[int], rows: Any, count: int) -> tuple[list[int], list[Any]]:
    """The text that a sampler on the CPU draws from these rows, in which penalties, biases and masks are already, and its kept sets with logprobs."""
    import torch
    from gumball_sglang.draws import _seed

    import gumball
    import gumball.torch

    filters = {name: kind[name] for name in ("temperature", "top_k", "top_p", "min_p") if name in kind}
    seed = None if "seedless" in kind else number
    request = SimpleNamespace(rid=named(kind, number), sampling_params=SimpleNamespace(sampling_seed=seed))
    logprobs = gumball.LogprobsParams(mode="processed")
    params = gumball.SamplingParams(**filters, order="joint", seed=_seed(request) % 2**64, logprobs=logprobs)
    alone = gumball.Sampler(params, rows.shape[1], prompt=prompt)
    alone.collect_kept(True)
    sets: list[Any] = []
    for row in rows[:count]:
        alone.sample(np.array(row))
        ids, logprob = sorted(alone.kept), alone.logprobs.token.logprob
        if kind.get(MASKED) == "support":
            every = torch.tensor([ids])
            kept = torch.tensor([len(ids)]), every[0]
            given = gumball.torch.logprobs(
                torch.from_numpy(np.array(row))[None], every, temperature=alone.temperature, kept=kept
            )
            logprob = given[0].tolist()
        sets.append([ids, logprob])
    return list(alone.output), sets if MASKED in kind else []


def texts(out_file: str, settings: list[str]) -> None:
    from random_model import VOCAB, prompt

    from engine import engine, watched

    own, drafts, words = ("own" in settings, "drafts" in settings, "words" in settings)
    os.environ["GUMBALL_EAGLE"] = str(int(drafts and not own))
    folder = watched()
    options: dict[str, Any] = {"cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 48]}
    if "eager" in settings:
        options = {"disable_cuda_graph": True}
    if "sync" in settings:
        options["disable_overlap_schedule"] = True
        os.environ["GUMBALL_SYNC"] = "1"
    if "parts" in settings:
        options["chunked_prefill_size"] = 128
    if "retract" in settings:
        os.environ |= {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
    if drafts:
        options |= {
            "speculative_algorithm": "STANDALONE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        }
    llm = engine(
        "small",
        tokens=24000,
        tokenizer=words,
        enable_deterministic_inference=True,
        enable_custom_logit_processor=True,
        sampling_backend="pytorch" if own else "gumball",
        **options,
    )
    kinds = (
        WORDS if words else [kind for kind in KINDS if not drafts or not {"custom_params", *LISTED, MASKED} & set(kind)]
    )
    if own:
        kinds = [kind for kind in kinds if kind["temperature"] == 0]
    place = {named(kind, 0): at for at, kind in enumerate([*KINDS, *WORDS])}
    # A request of the same kind and number has the same prompt in every setting.
    asked = [(kind, number) for number in range(48 // len(kinds)) for kind in kinds]
    seeds = {named(kind, n): place[named(kind, 0)] + 20 * n for kind, n in asked}
    prompts = {name: prompt(seed, 300 if seed % 3 == 0 else 20) for name, seed in seeds.items()}

    def run(*jobs: Any) -> list[dict[str, Any]]:
        async def gathered() -> list[dict[str, Any]]:
            return await asyncio.wait_for(asyncio.gather(*jobs), 120)

        return llm.loop.run_until_complete(gathered())

    def job(kind: dict[str, Any], n: int, wait: float = 0.0) -> Any:
        return said(llm, kind, n, prompts[named(kind, n)], wait)

    names = [named(kind, n) for kind, n in asked]
    found: dict[str, Any] = {"settings": settings, "redrawn": {}, "redrawn_kept": {}}
    found["among"] = dict(zip(names, run(*(job(*one) for one in asked))))
    found["joined"] = dict(zip(names, run(*(job(*one, wait=0.02 * ((at * 29) % 48)) for at, one in enumerate(asked)))))
    found["alone"] = {}
    (folder / "note").touch()
    for kind, n in asked[: len(kinds)]:
        name = named(kind, n)
        (folder / "rows").unlink(missing_ok=True)
        (found["alone"][name],) = run(job(kind, n))
        if own or drafts:
            continue
        got = np.fromfile(folder / "rows", dtype=[("position", "<i8"), ("row", "<f4", (VOCAB,))])
        # A part of a prompt draws a token too, which is not taken; so is a step behind the last one.
        got = got["row"][got["position"] >= len(prompts[name]) - 1]
        count = len(found["alone"][name]["tokens"])
        found["redrawn"][name], found["redrawn_kept"][name] = redrawn(kind, n, prompts[name], got, count)
    (folder / "note").unlink()
    parts = ("among", "alone", "joined")
    found["retractions"] = sum(text["retractions"] for part in parts for text in found[part].values())

    def label(name: str) -> str:
        # Rows of several drafts are not, to the bit, those of one token.
        if drafts:
            return f"drafts {name}"
        return f"overlap {name}" if "penalty" in name and "sync" not in settings else name

    # SGLang's overlap scheduling counts a token for penalties one step late, or twice where another request joins.
    for part in (*parts, "redrawn", "redrawn_kept"):
        kept = {
            name
            for name in found[part]
            if part not in ("among", "joined") or "penalty" not in name or "sync" in settings
        }
        found[part] = {label(name): text for name, text in found[part].items() if name in kept}
    Path(out_file).write_text(json.dumps(found))
    (folder / "busy").touch()
    # SGLang's own processor waits, and every request of a batch with it.
    run(*(job(*one) for one in asked[: len(kinds)] if "custom_params" not in one[0]))
    waits = (folder / "waits").read_text().splitlines() if (folder / "waits").exists() else []
    Path(out_file).write_text(json.dumps(found | {"waits": waits}))
    times = sorted(float(line.split()[0]) for line in waits)
    middle = times[len(times) // 2] if times else None
    print("TEXTS", Path(out_file).stem, {name: len(found[name]) for name in (*parts, "redrawn")}, flush=True)
    print("MORE", f"retractions {found['retractions']}; a call of the sampler behind a busy device, median {middle} ms")
    for line in sorted({" ".join(line.split()[3:]) for line in waits}):
        print("WAITS", line[:400], flush=True)
    if not own and not drafts and not words:
        print("MASK", refused(llm)[:200], flush=True)
    llm.shutdown()


def refused(llm: Any) -> str:
    """What a request for a sampling mask beside two kinds of penalties is answered."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    asking = GenerateReqInput(
        input_ids=[1, 2, 3],
        sampling_params={"frequency_penalty": 0.5, "repetition_penalty": 1.1},
        return_sampling_mask=True,
    )
    try:
        llm.loop.run_until_complete(llm.tokenizer_manager.generate_request(asking, None).__anext__())
    except ValueError as error:
        return f"ValueError: {error}"
    return "NOT REFUSED"


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        from compare_texts import compare

        sys.exit(compare(sys.argv[2:]))
    texts(sys.argv[1], sys.argv[2:])
