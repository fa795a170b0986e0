"""Times of a step of TokenSpeed's sampling backends on a GPU: `times.py OUT BATCHES SECONDS BACKENDS`; both lists have commas.

Each cell is a step of as many requests, by the graph that TokenSpeed's way captures: its time on the device, between events, behind other work so
that no launch counts; and the host's time of preparing and launching it while nobody waits. SECONDS: after this time a backend begins no cell; with
0 its kernels are compiled, and nothing is timed. $VOCAB is the vocabulary, 151936 if it is not set, and $ROWS_LIKE what logits are like, `model` or `normal`.

`times.py page RECORD.json..` writes the first one's .md from what runs wrote, one a vocabulary, with "commit" and "date" beside.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

KP = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}
BIASES = 64
# A bias is of as many ids, spread over the vocabulary.
BIAS = {"logit_bias": 0.5}
CELLS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "t08": {"temperature": 0.8},
    "p95": {"temperature": 0.8, "top_p": 0.95},
    "kp": KP,
    "minp": {"temperature": 0.8, "min_p": 0.05},
    "kp_minp": KP | {"min_p": 0.05},
    "kp_pen": KP | PENALTIES,
    "kp_bias": KP | BIAS,
    "kp_pen_bias": KP | PENALTIES | BIAS,
}
LOGPROBS = ("greedy", "kp")
# What TokenSpeed's backends read of a request; they ignore the rest without a word. `triton_full` and `flashinfer_full`, and Gumball's, read all of it:
# `triton_full` applies min-p in its kernels of a race and of top-k, `flashinfer_full` draws by min-p from the result of its fused top-k and top-p.
READS = {
    "greedy": {"temperature"},
    "flashinfer": {"temperature", "top_k", "top_p"},
    "triton": {"temperature", "top_k", "top_p"},
}
# Triton's variant for any mixture of filters compiles for minutes, and no cell takes it.
UNUSED = {"triton": ("default",), "triton_full": ("default",)}
LIKES = {
    "model": "like a model's (sigma 2, 20 tokens raised by 6 to 14, as proof/bench makes them)",
    "normal": "normal, of deviation 4",
}
TIMED = 40


def unread(backend: str, what: str) -> list[str]:
    """The parameters of a cell that a backend does not read."""
    if backend == "greedy" and what != "greedy":
        return ["sampling"]
    return [name for name in CELLS[what] if name not in READS.get(backend, CELLS[what])]


def asked(what: str, vocab: int) -> dict[str, Any]:
    params = dict(CELLS[what])
    if "logit_bias" in params:
        params["logit_bias"] = {str(i * (vocab // BIASES)): params["logit_bias"] for i in range(BIASES)}
    return params


def rows_of_logits(rows: int, dtype: Any, like: str) -> Any:
    import torch
    from served import VOCAB

    if like == "model":
        from inputs import model

        return model((1, rows, VOCAB))[0].to(dtype)
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
    from served import VOCAB, Server

    begin = time.perf_counter()
    server = Server(name, max(batches), dtype=torch.bfloat16, logprobs=logprobs)
    server.capture(batches, UNUSED.get(name, ()))
    print(f"BACKEND {name}{' with logprobs' if logprobs else ''} after {time.perf_counter() - begin:.1f} s", flush=True)
    for rows in batches if seconds else []:
        logits = rows_of_logits(rows, torch.bfloat16, found["rows_like"])
        for what in LOGPROBS if logprobs else CELLS:
            if unread(name, what):
                continue
            key = f"{what}{'_lp' if logprobs else ''}/{rows}"
            if time.perf_counter() - begin > seconds:
                found["left_out"].setdefault(name, {})[key] = f"not begun within {seconds:.0f} s"
                print(f"OUT OF TIME {name} {key}", flush=True)
                continue
            try:
                got = cell(server, f"{name} {key}", rows, asked(what, VOCAB), logits)
            except Exception as error:
                found["left_out"].setdefault(name, {})[key] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
                out.write_text(json.dumps(found, indent=1))
                raise
            found["cells"].setdefault(name, {})[key] = got
            print(f"CELL {name:16} {key:16} {got['device_us']:8.1f} us, host {got['host_us']:7.1f} us", flush=True)
            out.write_text(json.dumps(found, indent=1))


def main() -> None:
    out, sizes, seconds, names = sys.argv[1:]
    import torch
    from served import VOCAB

    found: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "vocab": VOCAB,
        "rows_like": os.environ.get("ROWS_LIKE", "model"),
        "cells": {},
        "left_out": {},
    }
    assert found["rows_like"] in LIKES, f"ROWS_LIKE={found['rows_like']}: known are {', '.join(LIKES)}"
    for logprobs in (False, True):
        for name in names.split(","):
            try:
                backend(name, logprobs, [int(one) for one in sizes.split(",")], float(seconds), found, Path(out))
            except Exception as error:
                said = f"{type(error).__name__}: {error}".splitlines()[0][:160]
                found["left_out"].setdefault(name, {})["*_lp" if logprobs else "*"] = said
                print(f"BACKEND {name} Error: {''.join(traceback.format_exc().splitlines(True)[-8:])}", flush=True)
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.empty_cache()
    Path(out).write_text(json.dumps(found, indent=1))


def words_of(what: str) -> str:
    named = (
        f"a bias of {BIASES} ids" if name == "logit_bias" else f"{name} {value}" for name, value in CELLS[what].items()
    )
    return ", ".join(named)


def why_left_out(record: dict[str, Any], name: str, key: str, batches: list[int]) -> str | None:
    """Why a backend lacks cells of a table; nothing if it has all."""
    own = record["cells"].get(name, {})
    lacking = [rows for rows in batches if f"{key}/{rows}" not in own]
    if not lacking:
        return None
    if ignored := unread(name, key.removesuffix("_lp")):
        return f"ignores {', '.join(one.replace('_', ' ') for one in ignored)}"
    said = record["left_out"].get(name, {})
    of_all = said.get("*_lp" if key.endswith("_lp") else "*", "not run")
    reasons = {said.get(f"{key}/{rows}", of_all): None for rows in lacking}
    return f"{', '.join(map(str, lacking))} requests: {'; '.join(reasons)}"


def tables(record: dict[str, Any]) -> list[str]:
    """Of one vocabulary, a table for each cell's parameters, and under it why backends lack cells."""
    cells = record["cells"]
    names = list(dict.fromkeys((*cells, *record["left_out"])))
    batches = sorted({int(key.split("/")[1]) for own in cells.values() for key in own})
    lines: list[str] = []
    for key in [*CELLS, *(f"{what}_lp" for what in LOGPROBS)]:
        logprobs = ", with logprobs" if key.endswith("_lp") else ""
        lines += ["", f"### {record['vocab']} ids: {words_of(key.removesuffix('_lp'))}{logprobs}", ""]
        lines += [f"| requests | {' | '.join(map(str, batches))} |", "| --- |" + " ---: |" * len(batches)]
        reasons = []
        for name in names:
            row = [cells.get(name, {}).get(f"{key}/{rows}") for rows in batches]
            if any(row):
                shown = [f"{one['device_us']:.0f}; {one['host_us']:.0f}" if one else "-" for one in row]
                lines.append(f"| {name} | {' | '.join(shown)} |")
            if reason := why_left_out(record, name, key, batches):
                reasons.append(f"`{name}`: {reason}")
        lines += ["", f"Left out: {'. '.join(reasons)}."] if reasons else []
    return lines


def page(files: list[Path]) -> str:
    records = [json.loads(file.read_text()) for file in files]
    first = records[0]
    vocabs = " and ".join(str(record["vocab"]) for record in records)
    greedy = any("greedy" in record["cells"] for record in records)
    lines = [
        "# A step of TokenSpeed 0.1.1's sampling backends on a GPU, and of Gumball's",
        "",
        f"`ci/gpu tokenspeed times` at {first['commit']}, {first['date']}: {first['card']}, torch {first['torch']}.",
        f"Logits in {first['dtype']} of {vocabs} ids, {LIKES[first['rows_like']]}. Medians in microseconds of a captured step: on the",
        "device, then the host's to prepare and launch it. The logits were written just before, so that those of few requests lie in the cache."
        + (" `greedy` has torch's argmax, without nvidia-cutlass-dsl." if greedy else ""),
    ]
    for record in records:
        lines += tables(record)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "page":
        Path(sys.argv[2]).with_suffix(".md").write_text(page([Path(file) for file in sys.argv[2:]]))
    else:
        main()
