"""Times the layouts of rows over processes of this host, joined by Unix sockets: `host_ranks.py [WORLD] [FILE]`.

Each process has one thread, and logits of f32 that were drawn from a normal distribution. Prints the record of `crates/dist/tests/decided.rs`, or writes it
to FILE: of each cell the microseconds of a step under each layout, two medians of repeats, of which one was taken with the layouts in this order
and one the other way round. Needs numpy and the package `gumball`.
"""

import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gumball import Batch, Pool, Ranks, SamplingParams

LAYOUTS = ("gather", "swap", "survey")
ASKED: dict[str, dict[str, Any]] = {"plain": {}, "list": {"top_k": 50, "top_p": 0.9}, "mass": {"top_p": 0.9}}
CELLS = [(151_936, rows) for rows in (1, 2, 4, 8, 16, 32, 64)] + [(32_000, rows) for rows in (1, 4, 16, 64)]
REPEATS = 41


def cells(rank: int, world: int, folder: str) -> Iterator[dict[str, Any]]:
    for vocab, rows in CELLS:
        logits = (np.random.default_rng(1).standard_normal((rows, vocab)) * 3).astype(np.float32)
        us: dict[str, dict[str, list[float]]] = {asked: {layout: [] for layout in LAYOUTS} for asked in ASKED}
        for turn, layouts in enumerate((LAYOUTS, LAYOUTS[::-1])):
            for layout in layouts:
                addresses = [f"unix:{folder}/{vocab}-{rows}-{turn}-{layout}-{each}" for each in range(world)]
                ranks = Ranks(rank=rank, addresses=addresses, layouts=LAYOUTS, layout=layout)
                with Pool(vocab, slots=rows, ranks=ranks, threads=1) as pool:
                    start, end = pool.ranks.ids
                    part = np.ascontiguousarray(logits[:, start:end])
                    for asked, params in ASKED.items():
                        slots = [pool.admit(SamplingParams(seed=1 + row, **params), [1]) for row in range(rows)]
                        times = []
                        for _ in range(REPEATS):
                            since = time.perf_counter()
                            pool.step(part, Batch(slots))
                            times.append(1e6 * (time.perf_counter() - since))
                        us[asked][layout].append(round(statistics.median(times), 1))
                        for slot in slots:
                            pool.release(slot)
        for asked, of_layouts in us.items():
            shape = {"world": world, "vocab": vocab, "rows": rows, "drafts": 0, "dtype": "f32"}
            yield shape | {"asked": asked, "us": of_layouts}


def of_rank(rank: int, world: int, folder: str, file: str | None) -> None:
    found = list(cells(rank, world, folder))
    if rank == 0:
        lines = ",\n".join(json.dumps(cell) for cell in found)
        text = f'{{"machine": {json.dumps(platform.processor() or platform.machine())}, "cells": [\n{lines}\n]}}\n'
        with open(file, "w") if file else sys.stdout as to:
            to.write(text)


def main(world: int, file: str | None) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=of_rank, args=(rank, world, folder, file)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2, sys.argv[2] if len(sys.argv) > 2 else None)
