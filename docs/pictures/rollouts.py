#!/usr/bin/env python3
"""Draws rollouts.svg: the reward by training steps of bindings/python/examples/10_grpo.py, with the sampler's kept sets and without.

docs/pictures/rollouts.py            writes the picture
docs/pictures/rollouts.py --check    says whether it is as this script draws it
docs/pictures/rollouts.py --train    trains before, some minutes of one core, and writes rollouts.json
"""

import json
import runpy
import sys
from pathlib import Path

from drawing import Drawing, main

HERE = Path(__file__).resolve().parent
RECORD, EXAMPLE = HERE / "rollouts.json", HERE.parents[1] / "bindings/python/examples/10_grpo.py"
RUNS, STEPS, EVERY = (1, 2, 3), 300, 10
KINDS = {"with kept sets": ("ours", True), "without": ("first", False)}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 48, 624, 20, 300
TOP_REWARD = 0.65


def train():
    """Writes, for each kind, each run's rewards, as means of EVERY steps, and the share of ratios outside 0.9 to 1.1 before the first update."""
    one, found = runpy.run_path(str(EXAMPLE))["train"], {}
    for kind, (_, with_sets) in KINDS.items():
        made = [one(STEPS, with_sets, run) for run in RUNS]
        rewards = [[round(sum(of[at : at + EVERY]) / EVERY, 4) for at in range(0, STEPS, EVERY)] for of, _ in made]
        outside = sum(share["whole sequences"][1] for _, shares in made for share in shares) / (STEPS * len(RUNS))
        found[kind] = {"rewards": rewards, "outside": round(outside, 5)}
    RECORD.write_text(json.dumps(found) + "\n")


def svg():
    out = Drawing(WIDTH, HEIGHT, "Reward by training steps, with kept sets and without: each run, and the mean of them")

    def at(step, reward):
        return LEFT + (RIGHT - LEFT) * step / STEPS, BOTTOM - (BOTTOM - TOP) * reward / TOP_REWARD

    for tenth in range(7):
        _, y = at(0, tenth / 10)
        out.path([(LEFT, y), (RIGHT, y)], "grid")
        out.text(LEFT - 8, y + 5, f"{tenth / 10:.1f}", "quiet", "end")
    for step in range(0, STEPS + 1, 50):
        out.text(at(step, 0)[0], BOTTOM + 20, str(step), "quiet", "middle")
    out.text(
        LEFT,
        BOTTOM + 44,
        f"training steps; reward, mean of {EVERY} steps: {len(RUNS)} runs, and thick their mean",
        "quiet",
    )
    for place, (kind, told) in enumerate(json.loads(RECORD.read_text()).items()):
        colour, runs = KINDS[kind][0], told["rewards"]
        mean = [sum(values) / len(values) for values in zip(*runs, strict=True)]
        for values, width, more in (*((one, 1, ' opacity="0.4"') for one in runs), (mean, 2.5, "")):
            out.path([at(EVERY * (i + 0.5), value) for i, value in enumerate(values)], colour, width, more)
        words = f"{kind}: {100 * told['outside']:.1f} % of the ratios before an update outside 0.9 to 1.1"
        out.text(RIGHT - 8, BOTTOM - 36 + 20 * place, words, f"{colour} bold", "end")
    return out.svg()


if __name__ == "__main__":
    if "--train" in sys.argv[1:]:
        train()
    sys.exit(main(HERE / "rollouts.svg", svg()))
