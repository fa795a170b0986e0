"""What a call costs on a GPU from Python, in microseconds: `cost_of_calls.py [FILE.json]`. Medians and p95 of single calls.

host: until the call returns, the device idle before it. synchronised: until torch.cuda.synchronize after it returns, the
device idle before it. torch's own operators stand beside; FlashInfer does in cost_of_names.py.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import gumball.torch
from gumball import Pool, SamplingParams, Step

VOCAB, WARM, RUNS = 151_936, 50, 400


def times(call: Callable[[], Any]) -> dict[str, float]:
    """Medians and p95 of both times."""
    host, whole = [], []
    for run in range(WARM + RUNS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        if run >= WARM:
            host.append(1e6 * (returned - begun))
            whole.append(1e6 * (ended - begun))
    p95 = [statistics.quantiles(values, n=20)[-1] for values in (host, whole)]
    found = [statistics.median(host), p95[0], statistics.median(whole), p95[1]]
    return dict(zip(("host", "host_p95", "synchronised", "synchronised_p95"), (round(value, 2) for value in found)))


def calls(rows: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    logits = 2 * torch.randn(rows, VOCAB, device="cuda")
    kinds = {
        "greedy": SamplingParams(temperature=0, seed=1),
        "plain": SamplingParams(temperature=0.8, seed=1),
        "top-k 50 + top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1),
    }
    found: dict[str, Callable[[], Any]] = {}
    for name, params in kinds.items():
        pool = Pool(VOCAB, device="cuda:0", slots=rows, rows=rows, history_growth=8192)
        slots = [pool.admit(params) for _ in range(rows)]
        pool.assign(slots)
        found[f"gumball enqueue, {name}"] = lambda pool=pool: pool.enqueue([Step(logits)])
        batch = gumball.Batch(slots)
        found[f"gumball assign, {name}"] = lambda pool=pool, batch=batch: pool.assign(batch)
        graph = pool.capture([Step(logits)])
        found[f"gumball replay, {name}"] = lambda pool=pool, graph=graph: pool.replay(graph)
        # Last: a direct call ends an assignment.
        found[f"gumball step, {name}"] = lambda pool=pool, slots=slots: pool.step(logits, slots).tokens
    one = torch.zeros(1, device="cuda")
    found["torch add_ of one element: a launch"] = lambda: one.add_(1)
    found["torch argmax"] = lambda: torch.argmax(logits, -1)
    found["torch softmax + multinomial"] = lambda: torch.multinomial(torch.softmax(logits / 0.8, -1), 1)
    column, to = torch.full((rows,), 0.8, device="cuda"), torch.empty_like(logits)
    narrow, columns = logits.bfloat16(), torch.full((rows, 1), 0.8, device="cuda")
    found["gumball softmax, a number"] = lambda: gumball.softmax(logits, 0.8)
    found["gumball softmax, a column"] = lambda: gumball.softmax(logits, column)
    found["gumball softmax, a column, to out"] = lambda: gumball.softmax(logits, column, to)
    found["gumball softmax, a list"] = lambda listed=[0.8] * rows: gumball.softmax(logits, listed)
    found["gumball softmax, bf16 in place"] = lambda: gumball.softmax(narrow, column, narrow)
    ks, seeds = torch.full((rows,), 50, device="cuda"), torch.arange(rows, device="cuda")
    found["gumball sample"] = lambda: gumball.sample(logits, seed=7, position=0)
    found["gumball sample, columns of top-k, top-p, seeds"] = lambda: gumball.sample(
        logits, seed=seeds, position=0, top_k=ks, top_p=column
    )
    probs = torch.softmax(logits, -1)
    found["gumball sample of probabilities"] = lambda: gumball.sample(probs, kind="probabilities", seed=7, position=0)
    found["gumball sample of probabilities, columns of top-k, top-p"] = lambda: gumball.sample(
        probs, kind="probabilities", seed=7, position=0, top_k=ks, top_p=column
    )
    found["gumball probabilities, a column of top-k"] = lambda: gumball.probabilities(
        probs, kind="probabilities", top_k=ks
    )
    found["gumball mask_logits, a column of top-k"] = lambda: gumball.mask_logits(logits, top_k=ks)
    target, drafts = torch.rand(rows, 4, VOCAB, device="cuda"), torch.zeros(rows, 3, device="cuda", dtype=torch.int32)
    draft = torch.rand(rows, 3, VOCAB, device="cuda")
    found["gumball judge, chains of 3 drafts"] = lambda: gumball.judge(draft, drafts, target, seed=7, position=0)
    found["gumball.torch softmax, a column"] = lambda: gumball.torch.softmax(logits, column)
    found["torch softmax of a quotient"] = lambda: torch.softmax(logits / columns, -1)
    found["torch empty_like"] = lambda: torch.empty_like(logits)
    return found


def main(calls: Callable[[int], dict[str, Callable[[], Any]]] = calls) -> None:
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "vocab": VOCAB}
    for rows in (1, 8, 32, 128):
        print(f"{rows} rows of {VOCAB} f32:  host (p95)  synchronised (p95), microseconds")
        for name, call in calls(rows).items():
            try:
                found = times(call)
            except Exception as error:
                print(f"  {name}: {type(error).__name__}: {error}")
                continue
            record[f"{rows}: {name}"] = found
            print(
                f"  {name:48} {found['host']:7.2f} ({found['host_p95']:.2f})"
                f"  {found['synchronised']:7.2f} ({found['synchronised_p95']:.2f})",
                flush=True,
            )
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
