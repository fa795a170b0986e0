"""Holds two ranks of `gumball.dist`, each with torch's tensors on a GPU of its own, to one GPU; and a rank that is killed to an error at once.

Needs two GPUs that reach each other, and torch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from typing import Any

import torch

import gumball
from gumball import Batch, Pool, SamplingParams, dist

VOCAB, STEPS = 32003, 3
PARAMS = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.0),
    SamplingParams(seed=3, top_k=50, top_p=0.9),
    SamplingParams(seed=4, top_p=0.8, repetition_penalty=1.3),
]
DRAFTS = [[4, 5], [6], [], [7, 8]]
STARTS = [0, 3, 5, 6, 9]


def rows(step: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    logits = torch.randn(count, VOCAB, generator=generator) * 2.5
    logits[:, 4:9] += 9
    return logits.to(dtype)


def texts(pool: Any, device: str, dtype: torch.dtype, layout: str | None) -> list[Any]:
    """Steps and verifications of rows in the GPU's memory: a rank's own part of them, or the whole rows."""
    slots = [pool.admit(params, [3, 7]) for params in PARAMS]
    found = []
    for step in range(STEPS):
        whole = rows(step, 4, dtype)
        if layout is None:
            found.append(pool.step(whole.to(device), slots).tolist())
            continue
        plan = pool.plan(slots)
        start, end = pool.ranks.ids
        part = whole[list(plan.requests)] if plan.layout == "replicated" else whole[:, start:end].contiguous()
        found.append(pool.step(part.to(device), Batch(slots, plan=plan)).tolist())
    whole = rows(STEPS, 9, dtype)
    if layout is None:
        found.append(pool.verify(whole.to(device), slots, DRAFTS).emitted())
    else:
        plan = pool.plan(slots, drafts=2)
        start, end = pool.ranks.ids
        own = [row for request in plan.requests for row in range(STARTS[request], STARTS[request + 1])]
        part = whole[own] if plan.layout == "replicated" else whole[:, start:end].contiguous()
        found.append(pool.verify(part.to(device), Batch(slots, plan=plan), DRAFTS).emitted())
    return [found, [pool.output(slot) for slot in slots]]


def rank_of(rank: int, address: str, layout: str, dtype: torch.dtype, answers: Any) -> None:
    device = f"cuda:{rank}"
    given: dict[str, Any] = {"rows": 16, "slots": 8, "layouts": [layout], "layout": layout}
    pool = dist.join(VOCAB, address=address, rank=rank, world=2, device=device, **given)
    answers.put((rank, texts(pool, device, dtype, layout)))


def killed(rank: int, address: str, answers: Any) -> None:
    """Rank 1 ends without a word; rank 0 says how long it took to be told, and by what."""
    pool = dist.join(
        VOCAB, address=address, rank=rank, world=2, device=f"cuda:{rank}", layouts=["gather"], rows=16, slots=8
    )
    slots = [pool.admit(SamplingParams(seed=1), [3])]
    start, end = pool.ranks.ids
    part = rows(0, 1, torch.float32)[:, start:end].contiguous().to(f"cuda:{rank}")
    pool.step(part, slots)
    if rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(1.0)
    began = time.perf_counter()
    try:
        pool.step(part, slots)
        told = "nothing"
    except dist.DistError as error:
        told = type(error).__name__
    answers.put((rank, [told, time.perf_counter() - began]))


def on_ranks(target: Any, *given: Any) -> dict[int, Any]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        processes = [
            context.Process(target=target, args=(rank, f"unix:{folder}/ranks", *given, answers)) for rank in (0, 1)
        ]
        for process in processes:
            process.start()
        found = dict(answers.get(timeout=120) for _ in range(1 if target is killed else 2))
        for process in processes:
            process.join(30)
    return found


def main() -> int:
    failed = 0
    for dtype in (torch.float32, torch.bfloat16):
        wanted = texts(Pool(VOCAB, device="cuda:0", slots=8, rows=16), "cuda:0", dtype, None)
        for layout in ("gather", "swap", "survey", "replicated"):
            # A verification is not surveyed: the plan takes another layout for it.
            found = on_ranks(rank_of, layout, dtype)
            good = found == {0: wanted, 1: wanted}
            failed += not good
            print(f"{layout} {dtype}: {'as one GPU' if good else f'DIFFERS: {found} {wanted}'[:2000]}", flush=True)
    told, seconds = on_ranks(killed)[0]
    good = told == "LostError" and seconds < 1
    failed += not good
    print(f"a rank that is killed: {told} after {1000 * seconds:.1f} ms", flush=True)
    print(f"VERDICT: ranks in Python {'FAILED' if failed else 'passed'} (gumball {gumball.__version__})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
