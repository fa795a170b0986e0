#!/usr/bin/env python3
"""Draws row.svg: what one real row of logits goes through, from 49,152 logits to the token.

    docs/pictures/row.py            writes the picture; needs the package gumball
    docs/pictures/row.py --check    says whether it is as this script draws it

The row is one that the explorer shows; the numbers are what `gumball inspect` says of it.
"""

import gzip
import json
import math
import struct
import subprocess
import sys
from pathlib import Path

from drawing import Drawing, main

HERE = Path(__file__).resolve().parent
ROWS = HERE.parents[1] / "apps/explorer/rows/smollm2.rows.gz"
NAME, SETTINGS = "A name", {"temperature": 0.8, "top-p": 0.8, "seed": 7}
WIDTH, LEFT, RIGHT = 520, 16, 504
# The curve, and the lanes of the race below it.
CURVE_TOP, CURVE_BOTTOM = 84, 178
LANES_TOP, LANE, TRACK = 246, 20, 152


def recorded():
    """What the file says of a row, its logits, and the texts of all tokens; the example record_explorer lays the file out."""
    data = gzip.decompress(ROWS.read_bytes())
    size = struct.unpack_from("<I", data)[0]
    said = json.loads(data[4 : 4 + size])
    vocab = said["vocab"]
    place = next(i for i, row in enumerate(said["rows"]) if row["name"] == NAME)
    upper = data[4 + size + 2 * vocab * place :][: 2 * vocab]
    halves = bytes(byte for pair in zip(upper[vocab:], upper[:vocab]) for byte in pair)
    return said, said["rows"][place], struct.unpack(f"<{vocab}e", halves)


def inspected(logits):
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "gumball", "inspect", "-", "--json", *flags]
    return json.loads(subprocess.run(command, input=json.dumps(logits), text=True, check=True, stdout=-1).stdout)


def svg():
    said, row, logits = recorded()
    trace = inspected(logits)
    kept, vocab = trace["kept"]["end"], said["vocab"]
    tokens = trace["tokens"][:kept]
    winner = trace["winner"]["id"]
    height = LANES_TOP + LANE * kept + 50
    out = Drawing(WIDTH, height, f"How the token after “{row['prompt']}” is chosen from {vocab:,} logits")
    out.text(LEFT, 28, row["prompt"], "text bold", size=17)
    out.text(RIGHT, 28, f"→ {said['texts'][winner].strip()}", "first bold", "end", 17)
    asked = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    out.text(LEFT, 48, f"{vocab:,} logits of {said['model'].split('-Instruct')[0]}; {asked}", "quiet")

    # The cut.
    def x_of(place):
        return LEFT + (RIGHT - LEFT) * math.log(place + 1) / math.log(vocab)

    def y_of(share):
        return CURVE_BOTTOM - (CURVE_BOTTOM - CURVE_TOP) * share

    points = [(x_of(at["place"]), y_of(at["cumulative"])) for at in trace["curve"]]
    cut, top_p = x_of(kept - 1), SETTINGS["top-p"]
    out.box(LEFT, CURVE_TOP, cut - LEFT, CURVE_BOTTOM - CURVE_TOP, "ours", 0.14)
    out.path([(LEFT, CURVE_BOTTOM), (RIGHT, CURVE_BOTTOM)], "grid")
    out.path([(LEFT, y_of(top_p)), (RIGHT, y_of(top_p))], "quiet", 1, ' stroke-dasharray="3 4"')
    out.path(points, "ours", 2)
    out.path([(cut, CURVE_TOP), (cut, CURVE_BOTTOM)], "ours", 2)
    out.text(LEFT, CURVE_TOP - 9, f"top-p keeps {kept} tokens", "ours bold")
    out.text(RIGHT, CURVE_TOP - 9, f"and drops {vocab - kept:,}", "quiet", "end")
    out.text(RIGHT, y_of(top_p) + 18, f"{top_p:.0%} of the probability", "quiet", "end")
    out.text(LEFT, CURVE_BOTTOM + 18, "likeliest token", "quiet")
    out.text(RIGHT, CURVE_BOTTOM + 18, f"token {vocab:,}, log scale", "quiet", "end")

    # The race.
    times = [token["arrival"] / token["p_kept"] for token in tokens]
    low, high = math.floor(math.log10(min(times)) * 2) / 2, math.ceil(math.log10(max(times)) * 2) / 2

    def at(time):
        return TRACK + (RIGHT - 8 - TRACK) * (math.log10(time) - low) / (high - low)

    out.text(LEFT, LANES_TOP - 18, "They race, and the first to arrive is drawn", "ours bold")
    for place, (token, time) in enumerate(zip(tokens, times)):
        y, won = LANES_TOP + LANE * place + LANE / 2, token["id"] == winner
        colour = "first" if won else "ours"
        out.text(LEFT, y + 5, said["texts"][token["id"]].strip(), f"{'first bold' if won else 'text'} mono")
        out.text(TRACK - 10, y + 5, f"{100 * token['p_kept']:.0f} %", "first bold" if won else "quiet", "end")
        out.path([(TRACK, y), (at(time), y)], "first" if won else "grid", 2 if won else 1)
        out.dot(at(time), y, colour, 6 if won else 4)
    end = LANES_TOP + LANE * kept
    out.path([(at(min(times)), LANES_TOP), (at(min(times)), end)], "first", 1, ' stroke-dasharray="3 4"')
    out.text(TRACK, end + 18, "early", "quiet")
    out.text(RIGHT, end + 18, "late", "quiet", "end")
    out.text(LEFT, end + 38, "arrival = a random time, from the seed, / probability", "quiet")
    return out.svg()


if __name__ == "__main__":
    sys.exit(main(HERE / "row.svg", svg()))
