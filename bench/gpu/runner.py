"""A run: our programs and the rivals, one at a time on the GPU, the most important shapes first."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import families
import plan
from process import Ended, ours, warm_up
from record import OURS, Record

# Of a run's time, the part that compiling for Triton may take; the seconds that one way, a program of ours, or its operators
# of one group may take.
WARM_PART, WAY_S, OURS_S, GROUP_S = 0.4, 60, 240, 100


@dataclass
class Programs:
    """Ours: one times steps of the operator, the other, if it is there, whole steps of the engine."""

    step: Path
    pool: Path | None = None


@dataclass
class Asked:
    """What of a part is measured: vocabularies and tasks, all of them if none are named, and rows."""

    part: str = "all"
    vocabs: tuple | None = None
    rows: tuple = plan.ROWS
    tasks: tuple | None = None
    likes: tuple = plan.LIKES

    def shapes(self):
        """(vocabulary, type, tasks) of the rivals, in order."""
        if self.part == "operators":
            listed = plan.OPERATOR_SHAPES
        elif self.part == "python":
            listed = [(vocab, "f32", plan.WHOLE_CALLS) for vocab in plan.HOST_VOCABS]
            listed[0] = (plan.MAIN_VOCAB, "f32", (*plan.TASKS, *plan.OPERATORS))
        elif self.part == "families":
            listed = [(vocab, "f32", plan.FAMILY_TASKS) for vocab in self.vocabs or [plan.MAIN_VOCAB]]
        else:
            listed = [(vocab, "f32", plan.TASKS) for vocab in self.vocabs or plan.VOCABS]
        for vocab, dtype, tasks in listed:
            tasks = [task for task in with_alone(tasks) if not self.tasks or task in self.tasks]
            if tasks and vocab in (self.vocabs or [vocab]):
                yield vocab, dtype, tasks

    def modes(self):
        return {"python": ["eager"], "families": ["graph"]}.get(self.part, ["eager", "graph"])


def with_alone(tasks):
    """Tasks, and behind a mixture its requests alone."""
    for task in tasks:
        yield task
        yield from filter(plan.alone, plan.REQUESTS) if task == "mixture" else ()


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


def measure_ours(program, arguments, record, budget, to="results", seconds=OURS_S):
    for said in ours(program, arguments, min(budget.left(), seconds)):
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


def measure_operators(programs, vocab, dtype, tasks, rows, record, budget):
    """Ours without requests; a failure costs no more than its group."""
    for group in plan.GROUPS:
        named = [task for task in group if task in tasks]
        counts = ",".join(map(str, plan.rows_of(group[0], rows)))
        if not (named and counts):
            continue
        which, before = ["--only", ",".join(named), "--type", dtype, "--like", "model"], len(record.results)
        measure_ours(programs.step, [*which, str(vocab), counts], record, budget, seconds=GROUP_S)
        told = {result["task"] for result in record.results[before:]}
        for task in named:
            if task not in told:
                record.skip(OURS, reason="the program told nothing of it", task=task, vocab=vocab, dtype=dtype)


def measure_family(programs, vocab, like, tasks, rows, record, budget):
    named = ",".join(task for task in tasks if not plan.alone(task))
    which = ["--graphs", "--only", named, "--type", "f32", "--like", like]
    measure_ours(programs.step, [*which, str(vocab), ",".join(map(str, rows))], record, budget)


def measure_curve(programs, record, budget):
    say(budget, "curve")
    which = ["--only", ",".join(plan.CURVE_TASKS), "--type", plan.CURVE_DTYPE, "--like", "model"]
    measure_ours(programs.step, [*which, str(plan.MAIN_VOCAB), "curve"], record, budget, to="curve")


def fits(way, dtype, tasks):
    return way["task"] in tasks and dtype in way.get("dtypes", ["f32"])


def measure_way(engine, index, way, rows, modes, like, record, budget):
    """Measures a way at every number of rows. An engine that ends is started again, and not asked for the way again."""
    vocab, dtype = way["vocab"], way["dtype"]
    try:
        for said in engine.measure(index, vocab, dtype, rows, modes, min(budget.left(), WAY_S), like):
            if "result" in said:
                record.result(engine=engine.name, **{**way, **said["result"]})
            else:
                record.skip(engine.name, **way, rows_like=like, **said["skip"])
                say(budget, f"  {engine.name}: {way['does']}, {said['skip']['rows']} rows: {said['skip']['reason']}")
    except Ended as error:
        record.skip(engine.name, reason=str(error), **way)
        say(budget, f"  {engine.name}: {way['does']}: {error}")
        engine.lost.add(index)
        engine.start()
        engine.wait_for_hello(60)


def measure_rival(engine, vocab, dtype, rows, tasks, modes, record, budget, like="model", takes=lambda way: True):
    for index, way in enumerate(engine.ways):
        counts = plan.rows_of(way["task"], rows, modes)
        if not (fits(way, dtype, tasks) and takes(way) and counts) or index in engine.lost:
            continue
        way = {"task": way["task"], "does": way["does"], "given": way["given"], "vocab": vocab, "dtype": dtype}
        if not engine.hello:
            record.skip(engine.name, reason=engine.absent, **way)
        elif budget.left() < 5:
            record.skip(engine.name, reason="no time was left", **way)
        else:
            measure_way(engine, index, way, counts, modes, like, record, budget)


def measure_families(programs, there, asked, record, budget, out):
    """Ours and rivals over rows of one family after the other: what the budget does not cover is the last families."""

    def takes(way):
        return way["given"] == families.given(way["task"])

    for vocab, dtype, tasks in asked.shapes():
        for like in asked.likes:
            say(budget, f"vocab {vocab}, rows like {like}")
            if budget.left() > 5:
                measure_family(programs, vocab, like, tasks, asked.rows, record, budget)
            for engine in there:
                measure_rival(engine, vocab, dtype, asked.rows, tasks, asked.modes(), record, budget, like, takes)
            record.write(out)


def warm(there, asked, rows, budget, env):
    """Has Triton compile what its engines need; of steps one process for each number of rows, since those compile for longest."""
    wanted = []
    for vocab, dtype, tasks in asked.shapes():
        for engine in there:
            if engine.hello["triton"] and any(fits(way, dtype, tasks) for way in engine.ways):
                counts = [",".join(map(str, rows))] if asked.part == "operators" else rows
                wanted += [(engine.name, vocab, count, dtype, tasks) for count in counts]
    if wanted:
        say(budget, f"compiling for {' and '.join(dict.fromkeys(name for name, *_ in wanted))}")
        processes = max(2, (os.cpu_count() or 2) - 2)
        finished = warm_up(wanted, env, WARM_PART * budget.left(), processes)
        say(budget, f"compiled {finished} of {len(wanted)}")


def run(engines, programs, asked, out, budget, env=None):
    """Measures a part (all, ours, rivals, curve, operators, families, python), writes the record after each shape, and returns it."""
    record, part = Record(asked.part, budget.seconds), asked.part
    there = ready(engines, record, budget)
    rows = asked.rows
    warm(there, asked, rows, budget, env)
    if part in ("all", "curve"):
        measure_curve(programs, record, budget)
        record.write(out)
    if part == "families":
        measure_families(programs, there, asked, record, budget, out)
    for vocab, dtype, tasks in asked.shapes() if part not in ("curve", "families") else []:
        say(budget, f"vocab {vocab}, {dtype}")
        if part in ("all", "ours"):
            measure_vocab(programs, vocab, rows, record, budget)
        elif part == "operators":
            measure_operators(programs, vocab, dtype, tasks, rows, record, budget)
        for engine in there:
            say(budget, f"  {engine.name}")
            measure_rival(engine, vocab, dtype, rows, tasks, asked.modes(), record, budget)
        record.write(out)
    for engine in there:
        engine.end()
    record.run["seconds"] = round(budget.spent(), 1)
    record.write(out)
    return record
