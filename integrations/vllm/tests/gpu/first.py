"""What a server's first requests wait for: seconds to start, and those of the first and second request of each kind."""

from __future__ import annotations

import time
from typing import Any

from shapes import engine, prompt
from vllm import SamplingParams

KP = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-k, top-p": KP,
    "penalties, 5 logprobs": KP | {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 5},
    "min-p, a bias": {"min_p": 0.05, "logit_bias": {7: 2.0}},
    "typical-p, DRY": {"extra_args": {"typical_p": 0.9, "dry_multiplier": 0.8}},
    "a thinking budget": {"thinking_token_budget": 4},
}


def seconds(llm: Any, kind: dict[str, Any]) -> float:
    begin = time.perf_counter()
    llm.generate([prompt(1, 20)], SamplingParams(seed=1, max_tokens=4, ignore_eos=True, **kind), use_tqdm=False)
    return time.perf_counter() - begin


if __name__ == "__main__":
    begin = time.perf_counter()
    thoughts = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
    llm = engine("small", cache_gb=0.5, max_num_seqs=16, enforce_eager=True, reasoning_config=thoughts)
    print(f"START {time.perf_counter() - begin:.1f}", flush=True)
    worst = 0.0
    for name, kind in KINDS.items():
        first, second = seconds(llm, kind), seconds(llm, kind)
        worst = max(worst, first - second)
        print(f"FIRST {name}: {first:.3f} s, then {second:.3f}", flush=True)
    print("VERDICT: first requests", "passed" if worst < 1.0 else "FAILED")
