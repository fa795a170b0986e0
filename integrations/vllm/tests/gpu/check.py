"""Texts of a real vLLM on a GPU, as JSON: `check.py OUT [ngram] [cache]`; `check.py compare FILES..` says whether all have the same.

The engine computes logits that do not depend on the batch (`VLLM_BATCH_INVARIANT=1`), so a text may differ only by what is drawn. Each request
runs alone, among all, joined later by requests with penalties, with prompts that are read in parts, and preempted; every text alone is
drawn again by a `gumball.Sampler` on the CPU from the very logits. `ngram`: with drafts. `cache`: with a cache so small that requests are
preempted. `VLLM_USE_V2_MODEL_RUNNER` names the runner, `GUMBALL_VLLM=0` takes vLLM's own sampler, whose greedy texts and logprobs are compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LENGTH = 40
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
]
GREEDY = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "logprobs": 5},
]


class Watched:
    """The rows of logits that the sampler is given, of a batch of one request."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.on = False

    def note(self, logits: Any) -> None:
        if self.on:
            # Drafts add rows of which only the first is sure to follow the text.
            self.rows.append(logits[0].float().cpu().numpy())

    def watch(self) -> None:
        from gumball_vllm import samplers

        from gumball.compat.vllm import pooled

        step, draw = pooled._Pooled.step, samplers.draw

        def stepped(sampler: Any, logits: Any, *rest: Any) -> Any:
            self.note(logits)
            return step(sampler, logits, *rest)

        def drawn(requests: Any, logits: Any, **named: Any) -> Any:
            self.note(logits)
            return draw(requests, logits, **named)

        pooled._Pooled.step, samplers.draw = stepped, drawn


def params(kind: dict[str, Any], seed: int, length: int = LENGTH) -> Any:
    from vllm import SamplingParams

    return SamplingParams(seed=seed, max_tokens=length, ignore_eos=True, detokenize=False, **kind)


def said(out: Any) -> dict[str, Any]:
    """The tokens of a request, and its logprobs if it asks for some: for each position a dict from id to logprob."""
    one = out.outputs[0]
    lists = [{str(id): p.logprob for id, p in line.items()} for line in one.logprobs or []]
    return {"tokens": list(one.token_ids), "logprobs": lists}


def redrawn(kind: dict[str, Any], number: int, prompt: list[int], rows: list[Any]) -> list[int]:
    """The text that a sampler on the CPU draws from these rows."""
    import gumball
    from gumball.compat.vllm import params_of
    from gumball.compat.vllm.params import bias_first

    theirs = params(kind, number)
    alone = gumball.Sampler(params_of(theirs).replace(seed=number), len(rows[0]), prompt=prompt)
    for z in rows[:LENGTH]:
        if bias_first(theirs):
            for id, bias in theirs.logit_bias.items():
                z[id] += bias
        alone.sample(z)
        if alone.output[-1] in (theirs.stop_token_ids or ()) and len(alone.output) >= theirs.min_tokens:
            break
    return list(alone.output)


def texts(out_file: str, settings: list[str]) -> None:
    import os

    from shapes import engine, prompt

    ours = os.environ.get("GUMBALL_VLLM", "1") == "1"
    options: dict[str, Any] = {}
    if "ngram" in settings:
        options["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 2,
            "prompt_lookup_min": 1,
        }
    watched = Watched()
    if ours:
        watched.watch()
    llm = engine(
        "small",
        cache_gb=0.04 if "cache" in settings else 2,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        enforce_eager=True,
        disable_log_stats=False,
        **options,
    )
    kinds = [*GREEDY, *OURS]
    # vLLM refuses some parameters beside drafts, and has not all of ours.
    asked = {
        i: kind
        for i, kind in enumerate(kinds[i % len(kinds)] for i in range(48))
        if (ours or kind in GREEDY) and ("ngram" not in settings or not {"min_p", "logit_bias"} & set(kind))
    }
    found: dict[str, Any] = {"settings": settings, "ours": ours, "v2": os.environ.get("VLLM_USE_V2_MODEL_RUNNER")}
    # Prompts of one length in three are read in parts.
    prompts = {i: prompt(i, 300 if i % 3 == 0 else 20) for i in asked}
    names = {i: f"{json.dumps(kind, sort_keys=True)} {i}" for i, kind in asked.items()}
    among = llm.generate(list(prompts.values()), [params(kind, i) for i, kind in asked.items()], use_tqdm=False)
    found["among"] = dict(zip(names.values(), map(said, among), strict=True))
    found["alone"], found["redrawn"] = {}, {}
    for i in [i for i in asked if i < len(kinds)]:
        watched.rows, watched.on = [], True
        (out,) = llm.generate([prompts[i]], params(asked[i], i), use_tqdm=False)
        watched.on = False
        found["alone"][names[i]] = said(out)
        if ours and "ngram" not in settings:
            # Rows of the prompt's parts come first; the text's follow.
            ids = prompts[i]["prompt_token_ids"]
            parts = -(-len(ids) // 256) - 1
            found["redrawn"][names[i]] = redrawn(asked[i], i, ids, watched.rows[parts:])
    # Requests join one by one while others run; some have penalties.
    found["joined"] = {}
    running = llm.llm_engine
    order = sorted(asked, key=lambda i: (i * 29) % 48)
    step = 0
    while order or running.has_unfinished_requests():
        if order and step % 2 == 0:
            i = order.pop()
            running.add_request(names[i], prompts[i], params(asked[i], i))
        for out in running.step():
            if out.finished:
                found["joined"][out.request_id] = said(out)
        step += 1
    wanted = ("preemptions", "accepted_tokens")
    metrics = {one.name: getattr(one, "value", 0) for one in llm.get_metrics() if one.name.endswith(wanted)}
    found["metrics"] = metrics
    Path(out_file).write_text(json.dumps(found))
    print(
        "TEXTS",
        out_file,
        {name: len(part) for name, part in found.items() if isinstance(part, dict)},
        metrics,
        flush=True,
    )


def close(one: list[Any], other: list[Any], exactly: bool) -> bool:
    """Whether two lists of logprobs agree; if not exactly, to 1e-5, and which ids of equal logits end a list may differ."""
    if exactly:
        return one == other
    return len(one) == len(other) and all(
        len(a) == len(b) and all(abs(p - q) < 1e-5 for p, q in zip(sorted(a.values()), sorted(b.values()), strict=True))
        for a, b in zip(one, other, strict=True)
    )


def compare(files: list[str]) -> int:
    """Compares each text with the text of the same request in the first file, drawn alone, among all, or joining later."""
    reference: dict[str, Any] = {}
    counts = {"texts": 0, "texts that differ": 0, "redrawn": 0, "redrawn that differ": 0, "logprobs that differ": 0}
    for file in files:
        found = json.loads(Path(file).read_text())
        label = f"{Path(file).stem}"
        for part in ("among", "alone", "joined"):
            for name, text in found[part].items():
                wanted = reference.setdefault(name, text)
                counts["texts"] += 1
                if text["tokens"] != wanted["tokens"]:
                    counts["texts that differ"] += 1
                    at = next(
                        (i for i, (a, b) in enumerate(zip(text["tokens"], wanted["tokens"], strict=False)) if a != b),
                        -1,
                    )
                    print(f"DIFFERS {label} {part} at {at} of {len(wanted['tokens'])}: {name[:110]}")
                elif not close(text["logprobs"], wanted["logprobs"], found["ours"] and "logit_bias" not in name):
                    counts["logprobs that differ"] += 1
                    print(f"LOGPROBS {label} {part}: {name[:110]}")
        for name, tokens in found["redrawn"].items():
            counts["redrawn"] += 1
            if tokens != found["alone"][name]["tokens"]:
                counts["redrawn that differ"] += 1
                print(f"REDRAWN {label}: {name[:110]}\n  {tokens[:12]}\n  {found['alone'][name]['tokens'][:12]}")
    print(json.dumps(counts))
    differ = sum(count for name, count in counts.items() if "differ" in name)
    print("VERDICT: vLLM passed" if differ == 0 and counts["texts"] else "VERDICT: vLLM FAILED")
    return int(differ > 0)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2:]))
    texts(sys.argv[1], sys.argv[2:])
