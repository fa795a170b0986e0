"""Texts of a real vLLM on a GPU, as JSON: `check.py OUT [SETTING]`; `check.py compare FILES..` says whether all have the same.

The engine computes logits that do not depend on the batch (`VLLM_BATCH_INVARIANT=1`), so a text may differ only by what is drawn. Each request
runs alone, among all, joined later by requests with penalties, with prompts that are read in parts, and preempted; every text alone is
drawn again by a `gumball.Sampler` on the CPU from the very logits. Many thoughts have budgets, and a request without a seed has that of its id.
`VLLM_USE_V2_MODEL_RUNNER` names the runner; `GUMBALL_VLLM=0` takes vLLM's
own sampler, whose greedy texts and logprobs are compared. Settings of the engine:

    ngram, eagle, draft   with drafts of n-grams, of an EAGLE head, of a draft model
    eagle_sampled, draft_sampled   the same with a drafter that draws its drafts
    sleep1, sleep2        the engine sleeps, by either level, between the first batch and the other texts; behind level 2 it gets its weights again
    small_cache           a cache of keys and values so small that requests are preempted
    prefix                keys and values of prompts that were read before are used again
    processed             `logprobs_mode` processed_logprobs
    kept, kept_ngram, kept_eagle, kept_draft   the same with `--return-sampling-mask`, whose sets are drawn again, too; and with drafts
    two                   tensor parallelism on two GPUs
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

LENGTH = 40
# Each of the first ends before LENGTH; grammars are of bytes, which are the tokens that the model's tokenizer knows.
DIGITS = {"structured_outputs": {"regex": "[a-z]{3,20}: [0-9]{2,5}"}}
RECORD = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "word": {"enum": ["ash", "oak"]}},
    "required": ["n", "word"],
    "additionalProperties": False,
}
OURS = [
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {77: 3.0, 5: -100.0}, "repetition_penalty": 1.1, "logprobs": 3},
    {"temperature": 0.9, "logit_bias": {77: 3.0}, "min_tokens": 20, "stop_token_ids": [90]},
    {"temperature": 0.9, "allowed_token_ids": list(range(40, 4000, 7)), "logprobs": 20},
    {"temperature": 1.2, "extra_args": {"xtc_probability": 0.5, "xtc_threshold": 0.05}, "top_k": 100},
    {"temperature": 1.0, "extra_args": {"typical_p": 0.8}, "logprobs": 5},
    {"temperature": 1.0, "extra_args": {"dry_multiplier": 0.8, "no_repeat_ngram": 3}},
    {"temperature": 1.0, "extra_args": {"mirostat_tau": 4.0}},
    {"temperature": 0.8, "logprobs": 5},
    {"temperature": 0.9, "logprob_token_ids": [5, 77, 4000]},
    {"temperature": 0.8, "n": 3},
    {"temperature": 0.8, "prompt_logprobs": 3},
    {"temperature": 1.0, "bad_words": ["a", "bc"], "top_k": 500},
    {"temperature": 0.9, "thinking_token_budget": 12},
    {"temperature": 0.9, "extra_args": {"watermark_key": 3}},
    {"temperature": 1.0, "top_p": 0.9, "extra_args": {"watermark_key": 3, "watermark_context": 1}, "logprobs": 2},
    {"temperature": 0.9, "top_p": 0.9, **DIGITS},
    {"temperature": 0.9, "structured_outputs": {"json": RECORD}, "logprobs": 3},
]
GREEDY = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.0, "logit_bias": {77: 3.0, 5: -100.0}, "repetition_penalty": 1.1},
    {"temperature": 0.0, "thinking_token_budget": 12},
    {"temperature": 0.0, **DIGITS},
]
# Thoughts besides, of budgets from 0 on, in one batch.
THOUGHTS = 128
DRAFTED = ("ngram", "eagle", "draft", "eagle_sampled", "draft_sampled")
# What vLLM ends a draft's row with.
NOT_DRAFTED = {"bad_words"}
# What a kept set does not tell.
NOT_KEPT = {"repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "dry_multiplier"}


class Watched:
    """The rows of logits that the pool is given, of a batch of one request without drafts."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.on = False

    def watch(self) -> None:
        from gumball_vllm import pooled, samplers

        edited, draw = pooled._Pooled._edited, samplers.draw

        def noted(logits: Any) -> Any:
            if self.on:
                self.rows.append(logits[0].float().cpu().numpy())
            return logits

        def on_v2(sampler: Any, logits: Any, *batch: Any) -> Any:
            return noted(edited(sampler, logits, *batch))

        def on_v1(requests: Any, logits: Any, **named: Any) -> Any:
            return draw(requests, noted(logits), **named)

        pooled._Pooled._edited, samplers.draw = on_v2, on_v1


def params(kind: dict[str, Any], seed: int | None) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    chosen = dict(kind)
    grammar = chosen.pop("structured_outputs", None)
    if grammar is not None:
        chosen["structured_outputs"] = StructuredOutputsParams(**grammar)
    return SamplingParams(
        seed=seed,
        max_tokens=LENGTH,
        ignore_eos=grammar is None,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **chosen,
    )


def listed(lines: Any) -> list[dict[str, float]]:
    """Logprobs: for each position a dict from id to logprob."""
    return [{str(id): p.logprob for id, p in line.items()} for line in lines or () if line is not None]


def digests(sets: Any) -> list[list[int]]:
    """Of each kept set how many ids it has, and a checksum of these."""
    import numpy as np

    return [[len(ids), zlib.crc32(np.array(ids, np.int32).tobytes())] for ids in sets]


def said(out: Any) -> dict[str, Any]:
    """The tokens of a request's samples, their kept sets and logprobs, and those of its prompt, where it asks for some."""
    samples = sorted(out.outputs, key=lambda one: one.index)
    return {
        "tokens": [list(one.token_ids) for one in samples],
        "logprobs": [line for one in samples for line in listed(one.logprobs)],
        "prompt_logprobs": listed(out.prompt_logprobs),
        "kept": [line for one in samples if one.sampling_mask for line in digests(one.sampling_mask.token_ids)],
    }


def redrawn(
    kind: dict[str, Any], seed: int, prompt: list[int], rows: list[Any], reasoning: Any
) -> tuple[list[int], list[list[int]]]:
    """The text that a sampler on the CPU draws from these rows, which have biases where vLLM adds them before the penalties, and its kept sets."""
    from gumball_vllm.params import params_of

    import gumball

    translated = params_of(params(kind, seed), reasoning=reasoning).replace(seed=seed)
    alone = gumball.Sampler(translated, len(rows[0]), prompt=prompt)
    alone.collect_kept(True)
    sets = []
    for row in rows:
        alone.sample(row)
        sets.append(sorted(alone.kept))
    return list(alone.output), digests(sets)


def options_of(setting: str) -> dict[str, Any]:
    """What the engine is made with."""
    from shapes import folder

    speculation: dict[str, dict[str, Any]] = {
        "ngram": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
        "eagle": {
            "method": "eagle",
            "model": folder("small", num_hidden_layers=1) if setting.startswith("eagle") else "",
        },
        "draft": {"method": "draft_model", "model": folder("small") if setting.startswith("draft") else ""},
    }
    thoughts = {"reasoning_config": {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}}
    if setting.startswith("kept"):
        masks = {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}
        return options_of(setting.removeprefix("kept").removeprefix("_")) | masks
    method, _, sampled = setting.partition("_")
    if setting in DRAFTED:
        drawn = {"draft_sample_method": "probabilistic"} if sampled else {}
        return thoughts | {"speculative_config": {"num_speculative_tokens": 3, **speculation[method], **drawn}}
    others: dict[str, dict[str, Any]] = {
        "small_cache": {"cache_gb": 0.04},
        "prefix": {"enable_prefix_caching": True},
        "processed": {"logprobs_mode": "processed_logprobs"},
        "two": {"tensor_parallel_size": 2},
        "sleep1": {"enable_sleep_mode": True},
        "sleep2": {"enable_sleep_mode": True},
    }
    return thoughts | others.get(setting, {})


def texts(out_file: str, setting: str) -> None:
    from shapes import THINK, engine, prompt, spread_weights

    ours = os.environ.get("GUMBALL_VLLM", "1") == "1"
    watched = Watched()
    if ours:
        # Each process of an engine reads the file.
        keys = Path(tempfile.mkdtemp()) / "keys"
        keys.write_text("3 000102030405060708090a0b0c0d0e0f\n")
        os.environ["GUMBALL_WATERMARK_KEYS"] = str(keys)
        watched.watch()
    options = {"cache_gb": 0.5, "max_num_seqs": 64, "max_num_batched_tokens": 256, "enforce_eager": True}
    llm = engine("small", **options | options_of(setting), disable_log_stats=False)
    with_sets, drafted = setting.startswith("kept"), setting.removeprefix("kept_") in DRAFTED
    kinds = [*GREEDY, *OURS]
    asked = {
        i: kind
        for i, kind in enumerate(kinds[i % len(kinds)] for i in range(2 * len(kinds)))
        if (ours or kind in GREEDY)
        and not (drafted and NOT_DRAFTED & set(kind))
        and not (with_sets and NOT_KEPT & {*kind, *kind.get("extra_args", ())})
    }
    found: dict[str, Any] = {"setting": setting, "ours": ours, "v2": os.environ.get("VLLM_USE_V2_MODEL_RUNNER")}
    # Prompts of one length in three are read in parts.
    prompts = {i: prompt(i, 300 if i % 3 == 0 else 20) for i in asked}
    for i, kind in asked.items():
        if "thinking_token_budget" in kind:
            prompts[i]["prompt_token_ids"].append(THINK)
    names = {i: f"{json.dumps(kind, sort_keys=True)} {i}" for i, kind in asked.items()}
    among = llm.generate(list(prompts.values()), [params(kind, i) for i, kind in asked.items()], use_tqdm=False)
    found["among"] = dict(zip(names.values(), map(said, among), strict=True))
    if setting.startswith("sleep"):
        llm.sleep(level=int(setting[-1]))
        llm.wake_up(tags=["weights"])
        if setting == "sleep2":
            llm.collective_rpc(spread_weights)
        llm.wake_up(tags=["kv_cache"])
        found["woken"] = True
    found["alone"], found["redrawn"], found["redrawn_kept"] = {}, {}, {}
    for i in [i for i in asked if i < len(kinds)]:
        watched.rows, watched.on = [], True
        (out,) = llm.generate([prompts[i]], params(asked[i], i), use_tqdm=False)
        watched.on = False
        found["alone"][names[i]] = said(out)
        # Whether a prompt with logprobs is read again, in parts, depends on the cache.
        read_again = setting == "prefix" and "prompt_logprobs" in asked[i]
        if watched.rows and not drafted and "n" not in asked[i] and not read_again:
            # Rows of the prompt's parts come first, and of steps that were begun before the end was seen last.
            ids = prompts[i]["prompt_token_ids"]
            parts = 0 if setting == "prefix" else -(-len(ids) // 256) - 1
            length = len(out.outputs[0].token_ids)
            reasoning = llm.llm_engine.vllm_config.reasoning_config
            tokens, sets = redrawn(asked[i], i, ids, watched.rows[parts:][:length], reasoning)
            found["redrawn"][names[i]] = tokens
            if with_sets:
                found["redrawn_kept"][names[i]] = sets
    if ours:
        from gumball.plugins.states import seed_of

        thinking = {1000 + i: {"temperature": 0.9, "thinking_token_budget": i % 25} for i in range(THOUGHTS)}
        given = [prompt(i, 20) for i in thinking]
        for one in given:
            one["prompt_token_ids"].append(THINK)
        out = llm.generate(given, [params(kind, i) for i, kind in thinking.items()], use_tqdm=False)
        named = (f"{json.dumps(kind, sort_keys=True)} {i}" for i, kind in thinking.items())
        found["thoughts"] = dict(zip(named, map(said, out), strict=True))
        (free,) = llm.generate([prompts[0]], params(OURS[0], None), use_tqdm=False)
        (again,) = llm.generate([prompts[0]], params(OURS[0], seed_of(free.request_id)), use_tqdm=False)
        found["seeded"] = [said(one)["tokens"] for one in (free, again)]
    # Requests join one by one while others run; some have penalties.
    found["joined"] = {}
    running = llm.llm_engine
    order = sorted(asked, key=lambda i: (i * 29) % len(asked))
    step = 0
    while order or running.has_unfinished_requests():
        if order and step % 2 == 0:
            i = order.pop()
            running.add_request(names[i], prompts[i], params(asked[i], i))
        for out in running.step():
            if out.finished:
                found["joined"][out.request_id] = said(out)
        step += 1
    wanted = ("preemptions", "accepted_tokens", "prefix_cache_hits")
    found["metrics"] = {one.name: getattr(one, "value", 0) for one in llm.get_metrics() if one.name.endswith(wanted)}
    Path(out_file).write_text(json.dumps(found))
    counts = {name: len(part) for name, part in found.items() if isinstance(part, dict)}
    print("TEXTS", out_file, counts, found["metrics"], flush=True)


def close(one: list[Any], other: list[Any], exactly: bool) -> bool:
    """Whether two lists of logprobs agree; if not exactly, to 1e-5, and which ids of equal logits end a list may differ."""
    if exactly:
        return one == other
    return len(one) == len(other) and all(
        len(p := sorted({*a.values()})) == len(q := sorted({*b.values()}))
        and all(abs(x - y) < 1e-5 for x, y in zip(p, q, strict=True))
        for a, b in zip(one, other, strict=True)
    )


def compare(files: list[str]) -> int:
    """Compares each text with the text of the same request in the first file, drawn alone, among all, or joining later."""
    from shapes import THOUGHT

    reference: dict[str, Any] = {}
    counts = {"texts": 0, "texts that differ": 0, "redrawn": 0, "redrawn that differ": 0, "logprobs that differ": 0}
    counts |= {
        "seeds that differ": 0,
        "kept": 0,
        "kept that differ": 0,
        "thoughts": 0,
        "thoughts that differ from their budget": 0,
    }
    for file in files:
        found = json.loads(Path(file).read_text())
        with_sets = found["setting"].startswith("kept")
        label = f"{Path(file).stem}"
        mode = "processed" if with_sets or found["setting"] == "processed" else "raw"
        free, again = found.get("seeded", ([], []))
        counts["seeds that differ"] += free != again
        for part in ("among", "alone", "joined", "thoughts"):
            for name, text in found.get(part, {}).items():
                wanted = reference.setdefault(name, text)["tokens"]
                counts["texts"] += 1
                budget = json.loads(name[: name.rindex(" ")]).get("thinking_token_budget")
                for tokens in [] if budget is None else text["tokens"]:
                    counts["thoughts"] += 1
                    if THOUGHT not in tokens[: budget + 1]:
                        counts["thoughts that differ from their budget"] += 1
                        print(f"LONGER {label} {part}: {name[:110]}")
                if text["tokens"] != wanted:
                    counts["texts that differ"] += 1
                    pairs = zip(sum(text["tokens"], []), sum(wanted, []), strict=False)
                    at = next((i for i, (a, b) in enumerate(pairs) if a != b), -1)
                    print(f"DIFFERS {label} {part} at {at}: {name[:110]}")
                    continue
                if with_sets:
                    counts["kept"] += 1
                    sets = reference.setdefault(f"kept {name}", text)["kept"]
                    if text["kept"] != sets or len(sets) != len(sum(wanted, [])):
                        counts["kept that differ"] += 1
                        print(f"KEPT {label} {part}: {name[:110]}")
                lists = reference.setdefault(f"{mode} {name}", text)
                # vLLM makes those of a request with a bias before a penalty, and those of prompts.
                exactly = found["ours"] and "logit_bias" not in name
                if not (
                    close(text["logprobs"], lists["logprobs"], exactly)
                    and close(text["prompt_logprobs"], lists["prompt_logprobs"], False)
                ):
                    counts["logprobs that differ"] += 1
                    print(f"LOGPROBS {label} {part}: {name[:110]}")
        for name, tokens in found["redrawn"].items():
            counts["redrawn"] += 1
            (alone,) = found["alone"][name]["tokens"]
            if tokens != alone:
                counts["redrawn that differ"] += 1
                print(f"REDRAWN {label}: {name[:110]}\n  {tokens[:12]}\n  {alone[:12]}")
        for name, sets in found["redrawn_kept"].items():
            counts["redrawn"] += 1
            if sets != found["alone"][name]["kept"]:
                counts["redrawn that differ"] += 1
                print(f"REDRAWN KEPT {label}: {name[:110]}")
    print(json.dumps(counts))
    differ = sum(count for name, count in counts.items() if "differ" in name)
    print("VERDICT: vLLM passed" if differ == 0 and counts["texts"] else "VERDICT: vLLM FAILED")
    return int(differ > 0)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2:]))
    texts(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
