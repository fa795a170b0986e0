"""Five million draws of every kind on a GPU, and long runs: `python proofs.py [NAME..]`.

A line for each proof; the verdict is the last. Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from check import run
from operators_check import all_calls

import gumball
import laws  # operators_check has put the folder above on the path
from float64 import softmax64
from gumball import Pool, SamplingParams

CALLS = 100_000
PROOFS: list[Callable[[], str]] = []
CUDA = laws.Place(lambda array: torch.from_numpy(array).cuda(), lambda array: array.cpu().numpy())


def proof(work: Callable[[], str]) -> Callable[[], str]:
    PROOFS.append(work)
    return work


@proof
def five_million_draws() -> str:
    """From 1, 99 and 989 rows of three vocabularies, with every filter, from probabilities and from logits."""
    done = 0
    for vocab, rows, kind in itertools.product((111, 32_000, 128_256), (1, 99, 989), ("logits", "probs")):
        for name, filters in laws.FILTERS.items():
            begun = time.perf_counter()
            found = laws.draws_follow(CUDA, rows, vocab, 5_000_000, filters, kind)
            done += 1
            print(f"  {rows} x {vocab}, {kind}, {name}: {found}, {time.perf_counter() - begun:.1f} s", flush=True)
    return f"{done} times"


@proof
def an_index_list_of_five_million() -> str:
    """From one row of 128256; what it takes in memory besides the list and the tokens is bounded."""
    row = softmax64(laws.model_like(128_256, 4)).astype(np.float32)
    probs, lines = CUDA.put(row), torch.zeros(5_000_000, dtype=torch.int32, device="cuda")
    out = torch.empty(5_000_000, dtype=torch.int32, device="cuda")
    gumball.sampling_from_probs(probs, lines[:1000], seed=3, out=out[:1000])
    torch.cuda.synchronize()
    free, begun = torch.cuda.mem_get_info()[0], time.perf_counter()
    gumball.sampling_from_probs(probs, lines, seed=3, out=out)
    torch.cuda.synchronize()
    seconds, taken = time.perf_counter() - begun, (free - torch.cuda.mem_get_info()[0]) >> 20
    assert taken < 1024, f"{taken} MiB"
    law = row[0].astype(np.float64) / row.sum(dtype=np.float64)
    return f"{laws.fits(np.bincount(CUDA.back(out), minlength=row.size), law)}, {seconds:.2f} s, {taken} MiB besides"


def held(name: str, call: Callable[[], Any], calls: int) -> None:
    """Asserts that many calls take no more memory, on the host and on the device, than few."""
    for _ in range(2000):
        call()
    torch.cuda.synchronize()
    gc.collect()
    blocks, free, allocated = sys.getallocatedblocks(), torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for number in range(calls):
        call()
        if number % 1000 == 999:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    gc.collect()
    more = sys.getallocatedblocks() - blocks, free - torch.cuda.mem_get_info()[0]
    assert more[0] < 300 and more[1] < 1 << 22, (name, more)
    assert torch.cuda.memory_allocated() - allocated < 1 << 12, name


@proof
def operators_leak_nothing() -> str:
    found = all_calls("cuda", 64)
    for name, call in found.items():
        held(name, call, CALLS // 4)
    return f"{len(found)} operators, {CALLS // 4} calls each"


@proof
def steps_leak_nothing() -> str:
    pool = Pool(64, device="cuda:0", slots=2, rows=2)
    slots, logits = [pool.admit(SamplingParams(seed=seed)) for seed in range(2)], torch.zeros(2, 64, device="cuda")
    pool.assign(slots)
    double = logits.double()

    def work() -> None:
        torch.from_dlpack(pool.on_device().outputs("tokens"))
        assert len(pool.step(logits, slots)) == 2
        pool.shorten(slots, [1, 1])
        try:
            pool.step(double, slots)
        except TypeError:
            return
        raise AssertionError("taken")

    held("step", work, CALLS // 2)
    return f"{CALLS // 2} calls"


if __name__ == "__main__":
    run(PROOFS, "the package's proofs")
