"""What many calls must leave as it was: memory and references."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

CALLS = 100_000


def holds(work: Callable[[], object], objects: list[Any], calls: int = CALLS) -> None:
    """Asserts that many calls leave as many blocks, as much memory and as many references as few."""
    counts = [sys.getrefcount(it) for it in objects]
    for _ in range(min(2000, calls)):
        work()
    gc.collect()
    blocks, kib = sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        work()
    gc.collect()
    more = sys.getallocatedblocks() - blocks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kib
    assert [sys.getrefcount(it) for it in objects] == counts
    assert more[0] < 200 and more[1] < 4096, more
