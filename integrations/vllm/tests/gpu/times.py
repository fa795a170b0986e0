"""Times of a vLLM server's decode step by sampling parameters and batch: `times.py OUT SHAPE BATCHES SECONDS [CELL..]`.

`VLLM_USE_V2_MODEL_RUNNER` names the runner; `GUMBALL_VLLM=0` takes vLLM's own sampler, `VLLM_USE_FLASHINFER_SAMPLER=0` that without FlashInfer.
Steps are timed where the client sees their outputs, and in each the sampler's call: the host's work, since nothing there waits for the GPU; and what the client
itself does with the outputs. LOGPROBS=kept has the server return kept sets, LOGPROBS=processed the logprobs over these alone.
SECONDS: after this time no cell begins. After the cells the functions of the call are listed for the largest batch (PROFILE).

`times.py page RECORD.json` writes RECORD.md: a table of each runner, from what several runs wrote, joined under "engines" by name
(`v1_own`, `v1_own_triton`, `v1_ours`, and likewise of v2); and under "rates", if it is there, what server.py wrote.
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
    "t08_seed": {"temperature": 0.8, "seed": 1},
    "p95_seed": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "kp_seed": KP | {"seed": 1},
    "kp_bias_pen": KP | {"seed": 1, "logit_bias": {77: 3.0, 5: -100.0}, "repetition_penalty": 1.1},
    "minp_seed": {"temperature": 0.8, "min_p": 0.05, "seed": 1},
    "kp_pen": KP | {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "kp_lp5": KP | {"logprobs": 5},
    "kp_lp20": KP | {"logprobs": 20},
    **{
        f"{name}_lp0": of | {"logprobs": 0, "flat_logprobs": True}
        for name, of in (("greedy", {"temperature": 0.0}), ("kp", KP), ("p95", {"temperature": 0.8, "top_p": 0.95}))
    },
}
OPTIONS: dict[str | None, dict[str, Any]] = {
    None: {},
    "processed": {"logprobs_mode": "processed_logprobs"},
    "kept": {"logprobs_mode": "processed_logprobs", "return_sampling_mask": True},
}
LENGTH, FIRST, LAST = 96, 28, 90


def watch_sampler(worker: Any) -> None:
    """Lets a worker note how long each call of its sampler takes."""
    kind = type(worker.model_runner.sampler)
    name = "forward" if hasattr(kind, "forward") else "__call__"
    call, worker.seconds, worker.profile = getattr(kind, name), [], None

    def timed(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        made = call(*given, **named) if worker.profile is None else worker.profile.runcall(call, *given, **named)
        worker.seconds.append(time.perf_counter() - begin)
        return made

    setattr(kind, name, timed)


def taken_seconds(worker: Any) -> list[float]:
    seconds, worker.seconds[:] = list(worker.seconds), []
    return seconds


def begin_profile(worker: Any) -> None:
    import cProfile

    worker.profile = cProfile.Profile()


def taken_profile(worker: Any) -> str:
    import io
    import pstats

    text = io.StringIO()
    pstats.Stats(worker.profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(22)
    worker.profile = None
    return text.getvalue()


def cell(llm: Any, tag: str, batch: int, what: dict[str, Any]) -> dict[str, float]:
    from shapes import prompt
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    core = llm.llm_engine
    for place in range(batch):
        mine = what | ({"seed": 1000 + place} if "seed" in what else {})
        asked = SamplingParams(
            max_tokens=LENGTH, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **mine
        )
        core.add_request(f"{tag}.{place}", prompt(1000 * batch + place, 32), asked)
    read, reading = core.output_processor.process_outputs, list[float]()

    def timed(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        made = read(*given, **named)
        reading.append(time.perf_counter() - begin)
        return made

    core.output_processor.process_outputs = timed
    ends = [time.perf_counter()]
    while core.has_unfinished_requests():
        core.step()
        ends.append(time.perf_counter())
    core.output_processor.process_outputs = read
    steps = [1e3 * (end - start) for start, end in zip(ends, ends[1:], strict=False)][FIRST:LAST]
    quartiles = statistics.quantiles(steps, n=4)
    seconds = llm.collective_rpc(taken_seconds)[0][-LENGTH:][FIRST:LAST]
    return {
        "host_us": 1e6 * statistics.median(seconds),
        "median_ms": quartiles[1],
        "first_quartile_ms": quartiles[0],
        "third_quartile_ms": quartiles[2],
        "mean_ms": statistics.fmean(steps),
        "client_ms": 1e3 * statistics.median(reading[FIRST:LAST]),
        "last_client_ms": 1e3 * reading[-1],
        "run_ms": 1e3 * (ends[-1] - ends[0]) / LENGTH,
    }


def main() -> None:
    from in_turn import wait_for_turn
    from shapes import engine

    out, shape, sizes, most, *cells = sys.argv[1:]
    begin = time.perf_counter()
    batches = [int(one) for one in sizes.split(",")]
    captured = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if size <= max(batches)]
    llm = engine(
        shape,
        cache_gb=5,
        max_num_batched_tokens=4096,
        max_num_seqs=max(batches),
        compilation_config={"cudagraph_capture_sizes": captured},
        disable_log_stats=True,
        max_logprobs=20,
        **OPTIONS[os.environ.get("LOGPROBS")],
    )
    names = ("VLLM_USE_V2_MODEL_RUNNER", "GUMBALL_VLLM", "VLLM_USE_FLASHINFER_SAMPLER")
    found: dict[str, Any] = {"environment": {name: os.environ.get(name) for name in names}, "cells": {}}
    print("START", round(time.perf_counter() - begin, 1), found, flush=True)
    llm.collective_rpc(watch_sampler)
    # FlashInfer compiles its samplers when they are first taken.
    for what in ("greedy", "kp", "minp_seed"):
        cell(llm, f"warm {what}", min(8, max(batches)), CELLS[what])
    wait_for_turn()
    print("TURN", round(time.perf_counter() - begin, 1), flush=True)
    begin = time.perf_counter()
    for batch in batches:
        for what in cells or CELLS:
            if time.perf_counter() - begin > float(most):
                print("OUT OF TIME", what, batch, flush=True)
                return
            key = f"{what}/{batch}"
            found["cells"][key] = got = cell(llm, key.replace("/", "_"), batch, CELLS[what])
            print(
                f"CELL {key:14} {got['median_ms']:8.3f} ms, mean {got['mean_ms']:8.3f}, host {got['host_us']:6.0f} us, "
                f"client {got['client_ms']:.2f} ms, at the end {got['last_client_ms']:.1f}, of the run {got['run_ms']:.2f} a token",
                flush=True,
            )
            Path(out).write_text(json.dumps(found, indent=1))
    llm.collective_rpc(begin_profile)
    cell(llm, "profiled", max(batches), CELLS["kp_seed"])
    (found["profile"],) = llm.collective_rpc(taken_profile)
    print("PROFILE", found["profile"], flush=True)
    Path(out).write_text(json.dumps(found, indent=1))


def page(file: Path) -> str:
    record = json.loads(file.read_text())
    setting = ", ".join(record[name] for name in ("card", "model"))
    lines = [
        f"# A decode step of vLLM {record['vllm']} on a GPU, by its own sampler and by Gumball's",
        "",
        f"`ci/gpu vllm times` at {record['commit']}, {record['date']}: {setting}, torch {record['torch']}, FlashInfer {record['flashinfer']}.",
        "Medians in milliseconds of the steps that a client sees: vLLM's sampler with FlashInfer, vLLM's without it, Gumball's. With `*` the mean:",
        "outputs arrive in bunches there, as the reading of logprobs in vLLM's client takes longer than the step.",
    ]
    rates = record.get("rates", {})
    for runner in ("v2", "v1"):
        names = [f"{runner}_{who}" for who in ("own", "own_triton", "ours")]
        engines = [record["engines"].get(name, {}) for name in names]
        lines += ["", f"## Model runner {runner.upper()}", "", *_table(engines, "median_ms")]
        lines += ["", "The sampler's call in a step, in microseconds of the host, in the same order.", ""]
        lines += _table(engines, "host_us")
        served = [rates[name] for name in names if name in rates]
        if served:
            lines += [
                "",
                "Output tokens a second of its OpenAI server, where each request is a call of its own, of 32 ids and 128 tokens:",
            ]
            lines += [
                "vLLM's sampler with FlashInfer, Gumball's. The server's Python is the bound at 256 requests.",
                "",
            ]
            lines += _table([{key: {"rate": rate} for key, rate in cells.items()} for cells in served], "rate")
    return "\n".join(lines) + "\n"


def _table(engines: list[dict[str, Any]], number: str) -> list[str]:
    batches = sorted({int(key.split("/")[1]) for cells in engines for key in cells})
    lines = [f"| requests | {' | '.join(map(str, batches))} |", "| --- |" + " ---: |" * len(batches)]
    for what, given in CELLS.items():
        words = ", ".join(f"{name} {value}" for name, value in given.items() if name != "seed")
        cells = [
            "; ".join(
                _shown(cells.get(f"{what}/{batch}"), number, "logprobs" in given and batch > 100) for cells in engines
            )
            for batch in batches
        ]
        if any(set(cell) - set("-; ") for cell in cells):
            lines.append(f"| {words}{', a seed each' if 'seed' in given else ''} | {' | '.join(cells)} |")
    return lines


def _shown(cell: dict[str, float] | None, number: str, in_bunches: bool) -> str:
    if cell is None:
        return "-"
    if number != "median_ms":
        return f"{cell[number]:.0f}"
    return f"{cell['mean_ms']:.1f}*" if in_bunches else f"{cell[number]:.2f}"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "page":
        Path(sys.argv[2]).with_suffix(".md").write_text(page(Path(sys.argv[2])))
    else:
        main()
