"""Times of an SGLang engine's decode step by sampling parameters and batch: `times.py OUT SHAPE BATCHES SECONDS [CELL..]`.

GUMBALL_SGLANG names the sampling backend. Steps are timed where the scheduler begins each. SECONDS: after this time no cell begins.

`times.py page RECORD.json` writes RECORD.md: a table, from what several runs wrote, joined under "engines" by name (`flashinfer`, `pytorch`,
`gumball`).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

KP = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
CELLS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "t08": {"temperature": 0.8},
    "p95": {"temperature": 0.8, "top_p": 0.95},
    "kp": KP,
    "minp": {"temperature": 0.8, "min_p": 0.05},
    "kp_pen": KP | {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "kp_lp5": KP | {"top_logprobs_num": 5},
    "kp_lp20": KP | {"top_logprobs_num": 20},
}
LENGTH, FIRST, LAST = 96, 28, 90


def cell(llm: Any, folder: Path, batch: int, what: dict[str, Any]) -> dict[str, float]:
    from random_model import prompt

    given = dict(what)
    listed = given.pop("top_logprobs_num", 0)
    (folder / "steps").unlink(missing_ok=True)
    llm.generate(
        input_ids=[prompt(1000 * batch + place, 32) for place in range(batch)],
        sampling_params=given | {"max_new_tokens": LENGTH, "ignore_eos": True},
        return_logprob=bool(listed),
        top_logprobs_num=listed,
    )
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    begun = [float(at) for at, count, kind in lines if kind == "decode" and int(count) == batch]
    steps = [1e3 * (end - start) for start, end in zip(begun, begun[1:])][FIRST:LAST]
    quartiles = statistics.quantiles(steps, n=4)
    return {
        "median_ms": quartiles[1],
        "first_quartile_ms": quartiles[0],
        "third_quartile_ms": quartiles[2],
        "mean_ms": statistics.fmean(steps),
        "steps": len(steps),
    }


def main() -> None:
    from in_turn import wait_for_turn

    from engine import engine, watched

    out, shape, sizes, most, *cells = sys.argv[1:]
    begin = time.perf_counter()
    batches = [int(one) for one in sizes.split(",")]
    backend, folder = os.environ["GUMBALL_SGLANG"], watched()
    llm = engine(
        shape,
        tokens=(LENGTH + 64) * max(batches),
        sampling_backend=backend,
        max_running_requests=max(batches),
        cuda_graph_bs_decode=[size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if size <= max(batches)],
    )
    found: dict[str, Any] = {"backend": backend, "cells": {}}
    print("START", round(time.perf_counter() - begin, 1), found, flush=True)
    for what in ("greedy", "kp", "minp"):
        cell(llm, folder, min(8, max(batches)), CELLS[what])
    wait_for_turn()
    print("TURN", round(time.perf_counter() - begin, 1), flush=True)
    begin = time.perf_counter()
    for batch in batches:
        for what in cells or CELLS:
            if time.perf_counter() - begin > float(most):
                print("OUT OF TIME", what, batch, flush=True)
                llm.shutdown()
                return
            key = f"{what}/{batch}"
            found["cells"][key] = got = cell(llm, folder, batch, CELLS[what])
            print(f"CELL {key:12} {got['median_ms']:8.3f} ms", flush=True)
            Path(out).write_text(json.dumps(found, indent=1))
    llm.shutdown()


def page(file: Path) -> str:
    record = json.loads(file.read_text())
    engines: dict[str, Any] = record["engines"]
    batches = sorted({int(key.split("/")[1]) for cells in engines.values() for key in cells})
    lines = [
        f"# A decode step of SGLang {record['sglang']} on a GPU, by its sampling backends",
        "",
        f"`ci/gpu sglang times` at {record['commit']}, {record['date']}: {record['card']}, {record['model']}, torch {record['torch']}, sglang-kernel",
        f"{record['sglang_kernel']}, FlashInfer {record['flashinfer']}. Medians in milliseconds between the beginnings of the scheduler's steps:",
        f"{', then '.join(f'`{name}`' for name in engines)}.",
        "",
        f"| requests | {' | '.join(map(str, batches))} |",
        "| --- |" + " ---: |" * len(batches),
    ]
    for what, given in CELLS.items():
        found = [[cells.get(f"{what}/{batch}") for cells in engines.values()] for batch in batches]
        shown = ["; ".join(f"{one['median_ms']:.2f}" if one else "-" for one in some) for some in found]
        lines.append(f"| {', '.join(f'{name} {value}' for name, value in given.items())} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "page":
        Path(sys.argv[2]).with_suffix(".md").write_text(page(Path(sys.argv[2])))
    else:
        main()
