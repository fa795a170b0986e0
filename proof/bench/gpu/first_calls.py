"""How long a first call takes on a GPU: `first_calls.py carried|compiled [CASE..]`, milliseconds from the call until its result.

Each case runs in a process of its own with an empty cache, after torch has made the CUDA context. `carried` expects GUMBALL_KERNELS to
name a folder of compiled kernels, or a package that carries them; `compiled` uses neither, so NVRTC compiles what the call launches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from gumball import Step

VOCAB, ROWS = 151_936, 8
ANY: dict[str, Any] = {"temperature": 0.8, "seed": 1}
PENALISED = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "logit_bias": {5: 1.0}}
POOLS = {
    "pool, greedy": {"temperature": 0, "seed": 1},
    "pool, plain": ANY,
    "pool, top-k + top-p": {**ANY, "top_k": 50, "top_p": 0.9},
    "pool, top-p": {**ANY, "top_p": 0.9},
    "pool, typical-p": {**ANY, "typical_p": 0.9},
    "pool, everything": {**ANY, **PENALISED, "top_k": 50, "top_p": 0.9, "logprobs": True},
}


def step(rows: Any, params: dict[str, Any], capture: bool = False) -> Callable[[], Any]:
    """Makes a pool, admits a request for each row, and takes a step, in a graph if `capture` is set."""
    from gumball import LogprobsParams, Pool, SamplingParams

    wants_logprobs = params.pop("logprobs", False)
    asked = SamplingParams(**params, logprobs=LogprobsParams() if wants_logprobs else None)

    def call() -> Any:
        pool = Pool(VOCAB, device="cuda:0", slots=ROWS, rows=ROWS)
        slots = [pool.admit(asked, [3, 1]) for _ in range(ROWS)]
        if not capture:
            return pool.step(rows, slots)
        pool.assign(slots)
        return pool.replay(pool.capture([Step(rows)]))

    return call


def cases(rows: Any) -> dict[str, Callable[[], Any]]:
    import gumball

    probs = (rows / 2).softmax(-1)
    found = {name: step(rows, dict(params)) for name, params in POOLS.items()}
    found["pool, captured in a graph"] = step(rows, dict(ANY), capture=True)
    found["softmax"] = lambda: gumball.softmax(rows, 0.8)
    drawn: dict[str, Any] = dict(kind="probabilities", seed=1, position=0)
    found["draw from probabilities"] = lambda: gumball.sample(probs, **drawn)
    found["draw from probabilities, top-p"] = lambda: gumball.sample(probs, top_p=0.9, **drawn)
    found["renormalise, top-k + top-p"] = lambda: gumball.probabilities(
        probs, kind="probabilities", top_k=50, top_p=0.9
    )
    return found


def take(name: str) -> None:
    """Times a case's first call and its second in this process, and prints both."""
    import torch

    rows = 2 * torch.randn(ROWS, VOCAB, device="cuda")
    call = cases(rows)[name]
    torch.cuda.synchronize()
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(round(1e3 * (time.perf_counter() - begun), 1))
    print(json.dumps({"case": name, "first_ms": times[0], "second_ms": times[1]}))


def main(way: str, chosen: list[str]) -> None:
    names = [
        *POOLS,
        "pool, captured in a graph",
        "softmax",
        "draw from probabilities",
        "draw from probabilities, top-p",
    ]
    names.append("renormalise, top-k + top-p")
    for name in chosen or names:
        with tempfile.TemporaryDirectory() as cache:
            # NVRTC has a cache of its own, where the driver's is.
            environment = {**os.environ, "GUMBALL_CACHE": cache, "CUDA_CACHE_PATH": cache}
            if way == "compiled":
                environment.pop("GUMBALL_KERNELS", None)
            run = [sys.executable, __file__, "take", name]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
        print(f"{way}: {done.stdout.strip() or done.stderr[-600:]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2:])
