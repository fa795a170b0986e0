"""A run: our programs and the rivals, one at a time on the GPU, the most important shapes first."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import plan
from process import Ended, ours, warm_up
from record import OURS, Record

# Of a run's time, the part that compiling for Triton may take; the seconds that one way or a program of ours may take.
WARM_PART, WAY_S, OURS_S = 0.4, 60, 240


@dataclass
class Programs:
    """Ours: one times steps of the operator, the other, if it is there, whole steps of the engine."""

    step: Path
    pool: Path | None = None


def say(budget, text):
    print(f"[{budget.spent():5.1f} s] {text}", file=sys.stderr, flush=True)


def ready(engines, record, budget):
    """Waits for the engines' first lines; returns those that take part."""
    there = []
    for engine in engines:
        if engine.wait_for_hello(min(90, budget.left())):
            record.took_part(engine.name, engine.hello["version"], engine.hello["runtime"])
            there.append(engine)
        else:
            record.skip(engine.name, reason=engine.absent)
            say(budget, f"{engine.name}: left out, {engine.absent}")
            engine.end()
    return there


def measure_ours(program, arguments, record, budget, to="results"):
    for said in ours(program, arguments, min(budget.left(), OURS_S)):
        if "result" in said:
            found = {"engine": OURS, **said["result"]}
            record.took_part(found["engine"], found.pop("version", ""))
            record.result(to, **found)
        else:
            record.skip(OURS, does=" ".join([Path(program).name, *arguments]), **said["skip"])
            say(budget, f"  {OURS}: {said['skip']['reason']}")


def measure_vocab(programs, vocab, rows, record, budget):
    likes = ["model", *plan.FLAT] if vocab == plan.MAIN_VOCAB else ["model"]
    shape = [str(vocab), ",".join(map(str, rows))]
    measure_ours(programs.step, ["--like", ",".join(likes), *shape], record, budget)
    if programs.pool and vocab == plan.MAIN_VOCAB:
        measure_ours(programs.pool, shape, record, budget)


def measure_curve(programs, record, budget):
    say(budget, "curve")
    which = ["--only", ",".join(plan.CURVE_TASKS), "--type", plan.CURVE_DTYPE, "--like", "model"]
    measure_ours(programs.step, [*which, str(plan.MAIN_VOCAB), "curve"], record, budget, to="curve")


def measure_way(engine, index, vocab, rows, record, budget):
    """Measures a way at every number of rows. An engine that ends is started again, and not asked for the way again."""
    way = {**engine.hello["ways"][index], "vocab": vocab}
    try:
        for said in engine.measure(index, vocab, rows, min(budget.left(), WAY_S)):
            if "result" in said:
                record.result(engine=engine.name, **way, **said["result"])
            else:
                record.skip(engine.name, **way, **said["skip"])
                say(budget, f"  {engine.name}: {way['does']}, {said['skip']['rows']} rows: {said['skip']['reason']}")
    except Ended as error:
        record.skip(engine.name, reason=str(error), **way)
        say(budget, f"  {engine.name}: {way['does']}: {error}")
        engine.lost.add(index)
        engine.start()
        engine.wait_for_hello(60)


def measure_rival(engine, vocab, rows, tasks, record, budget):
    for index, way in enumerate(engine.ways):
        if way["task"] not in tasks or index in engine.lost:
            continue
        if not engine.hello:
            record.skip(engine.name, vocab=vocab, reason=engine.absent, **way)
        elif budget.left() < 5:
            record.skip(engine.name, vocab=vocab, reason="no time was left", **way)
        else:
            measure_way(engine, index, vocab, rows, record, budget)


def run(engines, programs, vocabs, rows, tasks, out, budget, part="all", env=None):
    """Measures a part (all, ours, rivals, curve), writes the record after each vocabulary, and returns it."""
    record = Record(part, budget.seconds)
    there = ready(engines, record, budget)
    triton = [engine.name for engine in there if engine.hello["triton"]]
    if triton:
        say(budget, f"compiling for {' and '.join(triton)}")
        shapes = [(vocab, count) for vocab in vocabs for count in rows]
        processes = max(2, (os.cpu_count() or 2) - 2)
        finished = warm_up(triton, shapes, env, WARM_PART * budget.left(), processes)
        say(budget, f"compiled {finished} of {len(triton) * len(shapes)}")
    if part in ("all", "curve"):
        measure_curve(programs, record, budget)
        record.write(out)
    for vocab in vocabs if part != "curve" else []:
        say(budget, f"vocab {vocab}")
        if part != "rivals":
            measure_vocab(programs, vocab, rows, record, budget)
        for engine in there:
            say(budget, f"  {engine.name}")
            measure_rival(engine, vocab, rows, tasks, record, budget)
        record.write(out)
    for engine in there:
        engine.end()
    record.run["seconds"] = round(budget.spent(), 1)
    record.write(out)
    return record
