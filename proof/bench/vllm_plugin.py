"""What a sampler call costs in the real vLLM on a CPU: its own sampler and Gumball's, in the same engine with the same model.

    python proof/bench/vllm_plugin.py MODEL RECORD.json

MODEL: the folder that integrations/real_model.py makes. Needs the environment of `ci/plugin make vllm`, with both packages installed. Each engine is started in
turn in a process of its own, in two rounds; a call is timed from vLLM's request for tokens to its answer, over the calls of a full batch, and a figure is their median over both rounds.
Times are those of the process on the processor, all its threads together, so that other work on the machine counts little; `taskset -c 1` and OMP_NUM_THREADS=1 make them those of one core.
Writes the record, and the page beside it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENGINES = {"vLLM": "0", "Gumball": "1"}
BATCHES = (1, 8, 32)
TOKENS, ROUNDS = 16, 2
# Requests of a row share these; those with a seed have one each.
FILTERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "T 1": {},
    "T 0.8, top-k 50, top-p 0.9": FILTERS,
    "the same, with seeds": FILTERS | {"seed": 1},
    "the same, three penalties": FILTERS
    | {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "the same, 5 logprobs": FILTERS | {"logprobs": 5},
}


def measure(model: str) -> dict[str, Any]:
    """Times one engine, whichever the switch says, in this process."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=32)
    worker: Any = llm.llm_engine.engine_core
    sampler = type(worker.engine_core.model_executor.driver_worker.worker.model_runner.sampler)
    forward, calls = sampler.forward, []

    def timed(self: Any, logits: Any, *rest: Any, **named: Any) -> Any:
        start = time.process_time()
        out = forward(self, logits, *rest, **named)
        calls.append((logits.shape[0], 1e6 * (time.process_time() - start)))
        return out

    sampler.forward = timed
    found: dict[str, Any] = {}
    for name, chosen in SETTINGS.items():
        for count in BATCHES:
            for warm in (True, False):
                calls.clear()
                params = []
                for i in range(count):
                    seed = {"seed": i} if "seed" in chosen else {}
                    params.append(SamplingParams(**(chosen | seed), max_tokens=4 if warm else TOKENS, ignore_eos=True))
                start = time.process_time()
                llm.generate([f"{i}. The sky is blue because" for i in range(count)], params, use_tqdm=False)
                seconds = time.process_time() - start
            times = [us for rows, us in calls if rows == count]
            found[f"{name}/{count}"] = {"us": times, "tokens_per_second": count * TOKENS / seconds}
    return found


def page(record: dict[str, Any]) -> str:
    """The tables of a record."""
    lines = [
        "# vLLM's sampler and Gumball's, in vLLM",
        "",
        f"`taskset -c 1 python proof/bench/vllm_plugin.py` on {record['machine']}, {record['date']}: vLLM {record['vllm']}, torch {record['torch']}, SmolLM2-135M-Instruct in float32, "
        f"vocabulary 49152, model runner V1, {TOKENS} tokens a request. Load average at the start and at the end: {record['load'][0]}, {record['load'][1]}.",
        "",
        "Microseconds of a sampler call, medians, in time of the processor; rows are requests:",
        "",
        "| setting | rows | vLLM | Gumball | vLLM / Gumball |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    speeds = [
        "",
        "Tokens of the whole engine in a second of the processor, the faster of two rounds:",
        "",
        "| setting | requests | vLLM | Gumball | Gumball / vLLM |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for key, found in record["figures"].items():
        name, count = key.split("/")
        theirs, ours = (found[engine]["us"] for engine in ENGINES)
        lines.append(f"| {name} | {count} | {theirs:.0f} | {ours:.0f} | {theirs / ours:.1f} |")
        theirs, ours = (found[engine]["tokens_per_second"] for engine in ENGINES)
        speeds.append(f"| {name} | {count} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} |")
    return "\n".join([*lines, *speeds, ""])


def processor() -> str:
    """The processor's name, and how many of it this process may use."""
    listed = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in listed.read_text().splitlines() if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} core(s) of an {names[0] if names else platform.processor()}"


def main(model: str, path: str) -> None:
    """Runs both engines in turn and writes what was found."""
    import torch
    import vllm

    load = [os.getloadavg()[0]]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    for _ in range(ROUNDS):
        for name, switch in ENGINES.items():
            settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "GUMBALL_VLLM": switch}
            command = [sys.executable, __file__, "--measure", model]
            done = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    figures: dict[str, Any] = {}
    for key in runs["vLLM"][0]:
        figures[key] = {}
        for name, found in runs.items():
            times = [us for run in found for us in run[key]["us"]]
            speed = max(run[key]["tokens_per_second"] for run in found)
            figures[key][name] = {"us": statistics.median(times), "calls": len(times), "tokens_per_second": speed}
    load.append(os.getloadavg()[0])
    record = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": processor(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "load": [round(one, 1) for one in load],
        "figures": figures,
    }
    file = Path(path)
    file.write_text(json.dumps(record, indent=1) + "\n")
    file.with_suffix(".md").write_text(page(record))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2])))
    elif len(sys.argv) == 3:
        main(sys.argv[1], sys.argv[2])
    else:
        sys.exit("usage: python proof/bench/vllm_plugin.py MODEL RECORD.json")
