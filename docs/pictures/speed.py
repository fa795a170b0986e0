#!/usr/bin/env python3
"""Draws speed.svg: what a token takes here and in other packages, by the newest records that have rivals.

    docs/pictures/speed.py            writes the picture
    docs/pictures/speed.py --check    says whether it is as this script draws it

A rival's dot is its fastest way that starts from logits. README's own numbers are held to the same records.
"""

import json
import math
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "proof/bench"
sys.path.insert(1, str(BENCH / "gpu"))

from curve import floor_us
from drawing import Drawing, main
from record import Record
from table import Graphs

RECORDS = BENCH / "record"
OURS, FLOOR = "gumball", "floor"
TASKS = {
    "greedy": "greedy",
    "plain": "temperature",
    "min-p": "min-p",
    "top-k-top-p": "top-k + top-p",
    "top-p": "top-p",
}
# Rivals by their names in records: a letter, a colour, and the name that readers know.
RIVALS = {
    "vllm": ("V", "a", "vLLM"),
    "flashinfer": ("F", "b", "FlashInfer"),
    "tokenspeed": ("T", "c", "TokenSpeed"),
    "llama-cpp": ("L", "a", "llama.cpp"),
    "candle": ("C", "b", "candle"),
    "numpy": ("N", "c", "numpy"),
    "torch": ("P", "d", "PyTorch"),
}
GPU_ROWS, VOCAB = 32, 128256
WIDTH, LEFT, AXIS, RIGHT, LANE, RADIUS = 520, 16, 132, 500, 32, 7.5
LEAST_US, MOST_US = 1, 16_000


def graphs():
    return Graphs(Record.read(max(RECORDS.glob("*-gpu.json"))).results, VOCAB)


def gpu():
    """By task, each engine's microseconds."""
    record = graphs()
    found = {task: {FLOOR: floor_us(GPU_ROWS, VOCAB, "f32"), OURS: record.ours[task, GPU_ROWS]} for task in TASKS}
    for task in TASKS:
        for (engine, _, given), by_rows in record.rivals[task].items():
            if given == "logits" and GPU_ROWS in by_rows:
                keep(found, task, engine, by_rows[GPU_ROWS])
    return found


def cpu():
    records = (json.loads(path.read_text()) for path in sorted(RECORDS.glob("*-cpu.json"), reverse=True))
    record = next(record for record in records if any(r["engine"] in RIVALS for r in record["results"]))
    shape = {"vocab": VOCAB, "dtype": "f32", "rows": "model", "residence": "cache"}
    found = {task: {} for task in TASKS}
    for result in record["results"]:
        asked = result["definition"]
        if all(asked[name] == value for name, value in shape.items()):
            keep(found, asked["task"], result["engine"], result["ns_median"] / 1000)
    return found


def keep(found, task, engine, us):
    if task in found and engine in (OURS, FLOOR, *RIVALS):
        found[task][engine] = min(us, found[task].get(engine, us))


def x_of(us):
    return AXIS + (RIGHT - AXIS) * math.log(us / LEAST_US) / math.log(MOST_US / LEAST_US)


def panel(out, top, title, times):
    out.text(LEFT, top, title, "text bold")
    engines = [name for name in RIVALS if any(name in by for by in times.values())]
    names = [(OURS, "Gumball"), *((name, RIVALS[name][2]) for name in engines)]
    for at, (name, label) in enumerate(names):
        x = LEFT + 103 * at
        letter, colour = ("", "ours") if name == OURS else RIVALS[name][:2]
        out.dot(x + 8, top + 19, colour, RADIUS, letter)
        out.text(x + 20, top + 24, label, "ours bold" if name == OURS else "quiet", size=13)
    for place, (task, by) in enumerate(times.items()):
        y = top + 56 + LANE * place
        out.text(LEFT, y + 5, TASKS[task])
        out.path([(AXIS, y), (RIGHT, y)], "grid")
        aside = 0
        out.path([(x_of(by[FLOOR]), y - 9), (x_of(by[FLOOR]), y + 9)], "text", 2)
        dots = sorted((x_of(us), engine) for engine, us in by.items() if engine != FLOOR)
        # Dots that would cover each other stand above and below the line in turn.
        for at, (x, engine) in enumerate(dots):
            is_near = [abs(x - other) < 2 * RADIUS for other, _ in dots[max(at - 1, 0) : at] + dots[at + 1 : at + 2]]
            aside = (RADIUS if aside < 0 else -RADIUS) if any(is_near) else 0
            letter, colour = ("", "ours") if engine == OURS else RIVALS[engine][:2]
            out.dot(x, y + aside, colour, RADIUS, letter)
    return top + 52 + LANE * len(times)


def svg():
    out = Drawing(WIDTH, 522, "Microseconds of a token: Gumball beside other packages, on a GPU and on a CPU")
    bottom = panel(out, 28, f"GPU: {GPU_ROWS} rows of {VOCAB:,} logits at once, one H200", gpu())
    bottom = panel(out, bottom + 20, f"CPU: one row of {VOCAB:,} logits, one Zen 5 thread", cpu())
    for us in (1, 10, 100, 1000, 10_000):
        out.text(x_of(us), bottom + 4, f"{us:,} µs", "quiet", "middle", 13)
    out.text(
        LEFT, bottom + 28, "Bars: the time of reading the logits once. The scale is logarithmic.", "quiet", size=13
    )
    return out.svg()


def lacks():
    """Which number README should have and has not: the range of what a step with top-p takes less in vLLM."""
    # The newest page that has the row with vLLM's sampler, without and with FlashInfer, and Gumball's.
    row = r"## Model runner V2\n\n(?:\|.*\n)*\| temperature 0.8, top_p 0.95, a seed each \|(.* \d\S*; \S+; .*)\|\n"
    pages = sorted(RECORDS.glob("*-vllm-[0-9]*.md"), reverse=True)
    cells = next(found for page in pages if (found := re.search(row, page.read_text())))[1].split("|")
    times = [[float(us) for us in cell.split(";") if us.strip() != "-"] for cell in cells]
    less = [100 * (1 - ours / min(others)) for *others, ours in times]
    number = f"{min(less):.1f} to {max(less):.1f} % less"
    text = " ".join((HERE.parents[1] / "README.md").read_text().split())
    return [] if number in text else [number]


if __name__ == "__main__":
    if missing := lacks():
        sys.exit(f"README has not {', '.join(missing)}")
    sys.exit(main(HERE / "speed.svg", svg()))
