#!/usr/bin/env python3
"""Draws batch.svg: microseconds of a step by its rows, ours as lines and the fastest rivals as dots, by the newest record of a GPU.

docs/pictures/batch.py            writes the picture
docs/pictures/batch.py --check    says whether it is as this script draws it
"""

import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "proof/bench"
sys.path.insert(1, str(BENCH / "gpu"))

from curve import floor_us, lines, rivals
from drawing import Drawing, main
from record import Record

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 480, 56, 624, 16, 420
COLOURS = ("ours", "first", "a", "b", "quiet")


def svg():
    """Both axes are powers of two; the dots are the fastest rivals that start from logits."""
    record = Record.read(max((BENCH / "record").glob("*-gpu.json")))
    vocab, dtype = record.curve[0]["vocab"], record.curve[0]["dtype"]
    drawn, theirs = lines(record.curve), rivals(record, vocab, dtype)
    sizes = sorted({rows for points in drawn.values() for rows, _ in points})
    drawn["the logits read once"] = [(rows, floor_us(rows, vocab, dtype)) for rows in sizes]
    both = [*drawn.values(), *theirs.values()]
    top = math.ceil(math.log2(max(us for points in both for _, us in points)))
    last = math.log2(max(rows for points in both for rows, _ in points))

    def at(rows, us):
        return LEFT + (RIGHT - LEFT) * math.log2(rows) / last, BOTTOM - (BOTTOM - TOP) * max(math.log2(us), 0) / top

    out = Drawing(WIDTH, HEIGHT, "Microseconds of a step by its rows: Gumball as lines, the fastest rivals as dots")
    for power in range(top + 1):
        _, y = at(1, 2**power)
        out.path([(LEFT, y), (RIGHT, y)], "grid")
        out.text(LEFT - 8, y + 5, str(2**power), "quiet", "end")
    for power in range(int(last) + 1):
        out.text(at(2**power, 1)[0], BOTTOM + 20, str(2**power), "quiet", "middle")
    out.text(LEFT, BOTTOM + 44, f"rows of a step; microseconds, vocabulary {vocab:,}, {dtype}", "quiet")
    for place, (task, points) in enumerate(drawn.items()):
        colour = COLOURS[place % len(COLOURS)]
        out.path([at(rows, us) for rows, us in points if us >= 1], colour, 1.5)
        beside = [at(rows, us) for rows, us in theirs.get(task, [])]
        if beside:
            out.path(beside, colour, 1, ' stroke-dasharray="2 4"')
        for x, y in beside:
            out.dot(x, y, colour)
        named = f"{task}; dots: the fastest rival" if beside else task
        out.box(LEFT + 8, TOP + 12 + 20 * place, 300, 20, "ground")
        out.text(LEFT + 12, TOP + 27 + 20 * place, named, f"{colour} bold")
    return out.svg()


if __name__ == "__main__":
    sys.exit(main(HERE / "batch.svg", svg()))
