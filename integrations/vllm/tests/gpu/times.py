"""Times of a vLLM server's decode step by sampling parameters and batch: `times.py OUT SHAPE BATCHES SECONDS [CELL..]`.

`VLLM_USE_V2_MODEL_RUNNER` names the runner; `GUMBALL_VLLM=0` takes vLLM's own sampler, `VLLM_USE_FLASHINFER_SAMPLER=0` that without FlashInfer.
Steps are timed where the client sees their outputs. SECONDS: after so many no cell begins.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from shapes import engine, prompt

KP = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
CELLS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "t08": {"temperature": 0.8},
    "p95": {"temperature": 0.8, "top_p": 0.95},
    "kp": KP,
    "t08_seed": {"temperature": 0.8, "seed": 1},
    "p95_seed": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "kp_seed": KP | {"seed": 1},
    "minp_seed": {"temperature": 0.8, "min_p": 0.05, "seed": 1},
    "kp_pen": KP | {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "kp_lp5": KP | {"logprobs": 5},
    "kp_lp20": KP | {"logprobs": 20},
}
LENGTH, FIRST, LAST = 96, 28, 90


def cell(llm: Any, tag: str, batch: int, what: dict[str, Any]) -> dict[str, float]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    core = llm.llm_engine
    for place in range(batch):
        mine = what | ({"seed": 1000 + place} if "seed" in what else {})
        asked = SamplingParams(
            max_tokens=LENGTH, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **mine
        )
        core.add_request(f"{tag}.{place}", prompt(1000 * batch + place, 32), asked)
    ends = [time.perf_counter()]
    while core.has_unfinished_requests():
        core.step()
        ends.append(time.perf_counter())
    steps = [1e3 * (end - start) for start, end in zip(ends, ends[1:], strict=False)][FIRST:LAST]
    quartiles = statistics.quantiles(steps, n=4)
    return {"median_ms": quartiles[1], "first_quartile_ms": quartiles[0], "third_quartile_ms": quartiles[2]}


def main() -> None:
    out, shape, sizes, most, *cells = sys.argv[1:]
    begin = time.perf_counter()
    batches = [int(one) for one in sizes.split(",")]
    captured = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if size <= max(batches)]
    llm = engine(
        shape,
        cache_gb=17,
        max_num_seqs=max(batches),
        compilation_config={"cudagraph_capture_sizes": captured},
        disable_log_stats=True,
        max_logprobs=20,
    )
    names = ("VLLM_USE_V2_MODEL_RUNNER", "GUMBALL_VLLM", "VLLM_USE_FLASHINFER_SAMPLER")
    found: dict[str, Any] = {"environment": {name: os.environ.get(name) for name in names}, "cells": {}}
    print("START", round(time.perf_counter() - begin, 1), found, flush=True)
    cell(llm, "warm", 8, CELLS["greedy"])
    for batch in batches:
        for what in cells or CELLS:
            if time.perf_counter() - begin > float(most):
                print("OUT OF TIME", what, batch, flush=True)
                return
            key = f"{what}/{batch}"
            found["cells"][key] = got = cell(llm, key.replace("/", "_"), batch, CELLS[what])
            print(f"CELL {key:14} {got['median_ms']:8.3f} ms", flush=True)
            Path(out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
