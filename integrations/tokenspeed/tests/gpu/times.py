"""Times of a step of TokenSpeed's sampling backends on a GPU: `times.py OUT BATCHES SECONDS BACKENDS`; both lists have commas.

Each cell is a step of as many requests, by the graph that TokenSpeed's way captures: its time on the device, between events, behind other work so
that no launch counts; and the host's time of preparing and launching it while nobody waits. SECONDS: after this time a backend begins no cell.

`times.py page RECORD.json` writes RECORD.md from what one run wrote, with "card", "commit" and "date" beside.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
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
}
LOGPROBS = ("greedy", "kp")
# What each of TokenSpeed's backends applies; it ignores the rest without a word.
APPLIES = {
    "greedy": {"greedy"},
    "flashinfer": {"greedy", "t08", "p95", "kp"},
    "triton": {"greedy", "t08", "p95", "kp"},
}
TIMED = 40


def rows_of_logits(rows: int, dtype: Any) -> Any:
    import torch
    from served import VOCAB

    generator = torch.Generator(device="cuda").manual_seed(rows)
    return (torch.randn(rows, VOCAB, generator=generator, device="cuda") * 4).to(dtype)


def cell(server: Any, tag: str, rows: int, params: dict[str, Any], logits: Any) -> dict[str, float]:
    import torch
    from served import request

    requests = [request(f"{tag} {i}", params, i + 1) for i in range(rows)]
    places = list(range(1, rows + 1))
    whole = [(0, 3, 3)] * rows
    torch.cuda.set_stream(server.stream)
    server.logits[:rows] = logits
    server.step(requests, places, whole)
    device, host = [], []
    for step in range(TIMED + 5):
        server.logits[:rows] = logits
        torch.cuda.synchronize()
        began = time.perf_counter()
        server.prepare(requests, places, [])
        prepared = time.perf_counter()
        # The device works until the launches of the step are behind it.
        torch.cuda._sleep(1_000_000)
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        launching = time.perf_counter()
        server.forward(0, rows)
        launched = time.perf_counter()
        last.record()
        torch.cuda.synchronize()
        if step >= 5:
            device.append(1e3 * first.elapsed_time(last))
            host.append(1e6 * (prepared - began + launched - launching))
    return {"device_us": statistics.median(device), "host_us": statistics.median(host)}


def backend(name: str, logprobs: bool, batches: list[int], seconds: float, found: dict[str, Any], out: Path) -> None:
    import torch
    from served import Server

    begin = time.perf_counter()
    server = Server(name, max(batches), dtype=torch.bfloat16, logprobs=logprobs)
    server.capture(batches)
    print(f"BACKEND {name}{' with logprobs' if logprobs else ''} after {time.perf_counter() - begin:.1f} s", flush=True)
    for rows in batches:
        logits = rows_of_logits(rows, torch.bfloat16)
        for what in LOGPROBS if logprobs else CELLS:
            if what not in APPLIES.get(name, CELLS):
                continue
            if time.perf_counter() - begin > seconds:
                print(f"OUT OF TIME {name} {what} {rows}", flush=True)
                return
            key = f"{what}{'_lp' if logprobs else ''}/{rows}"
            found["cells"].setdefault(name, {})[key] = got = cell(server, f"{name} {key}", rows, CELLS[what], logits)
            print(f"CELL {name:16} {key:14} {got['device_us']:8.1f} us, host {got['host_us']:7.1f} us", flush=True)
            out.write_text(json.dumps(found, indent=1))


def main() -> None:
    out, sizes, seconds, names = sys.argv[1:]
    import torch

    found: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "cells": {},
    }
    for logprobs in (False, True):
        for name in names.split(","):
            try:
                backend(name, logprobs, [int(one) for one in sizes.split(",")], float(seconds), found, Path(out))
            except Exception:
                print(f"BACKEND {name} Error: {''.join(traceback.format_exc().splitlines(True)[-8:])}", flush=True)
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.empty_cache()


def page(file: Path) -> str:
    record = json.loads(file.read_text())
    cells = record["cells"]
    batches = sorted({int(key.split("/")[1]) for own in cells.values() for key in own})
    lines = [
        "# A step of TokenSpeed 0.1.1's sampling backends on a GPU, and of Gumball's",
        "",
        f"`ci/gpu tokenspeed times` at {record['commit']}, {record['date']}: {record['card']}, torch {record['torch']}, logits in {record['dtype']} of 151936 ids.",
        "Medians in microseconds of a captured step: on the device, then the host's to prepare and launch it. A backend has no cell for parameters",
        "that it does not apply."
        + (" `greedy` has torch's argmax, without nvidia-cutlass-dsl." if "greedy" in cells else ""),
    ]
    for key in [*CELLS, *(f"{what}_lp" for what in LOGPROBS)]:
        words = ", ".join(f"{name} {value}" for name, value in CELLS[key.removesuffix("_lp")].items())
        lines += ["", f"## {words}{', with logprobs' if key.endswith('_lp') else ''}", ""]
        lines += [f"| requests | {' | '.join(map(str, batches))} |", "| --- |" + " ---: |" * len(batches)]
        for name, own in cells.items():
            row = [own.get(f"{key}/{rows}") for rows in batches]
            if any(row):
                shown = [f"{one['device_us']:.0f}; {one['host_us']:.0f}" if one else "-" for one in row]
                lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "page":
        Path(sys.argv[2]).with_suffix(".md").write_text(page(Path(sys.argv[2])))
    else:
        main()
