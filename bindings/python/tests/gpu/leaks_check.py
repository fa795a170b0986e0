"""Long runs of the package on a GPU, which leak nothing: `python leaks_check.py [NAME..]`. A line for each check; the verdict is the last.

Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from check import check, run
from operators_check import all_calls

from gumball import Pool, SamplingParams

CALLS = 100_000


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


@check
def operators_leak_nothing() -> str:
    found = all_calls("cuda", 64)
    for name, call in found.items():
        held(name, call, CALLS // 4)
    return f"{len(found)} operators, {CALLS // 4} calls each"


@check
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
    run("long runs of the package")
