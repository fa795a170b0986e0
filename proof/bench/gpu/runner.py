"""A run: our programs and the rivals, one at a time on the GPU, the most important shapes first."""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import drafts
import families
import plan
from process import Ended, ours, warm_up
from record import OURS, Record

# The seconds that one way, a program of ours, or its operators of one group may take; and a way over rows of one family or with
# drafts, at one number of rows.
WAY_S, OURS_S, GROUP_S, FAMILY_S = 60, 240, 100, 15


@dataclass
class Programs:
    """Ours: one times steps of the operator, the other, if it is there, whole steps of the engine."""

    step: Path
    pool: Path | None = None


def say(budget, text):
    print(f"[{budget.spent():5.1f} s] {text}", file=sys.stderr, flush=True)


def ready(engines, record, budget):
    """Waits for the engines' first lines; returns the engines that take part."""
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


def rows_file(folder, like, vocab):
    """Where our program writes the rows that it times."""
    return Path(folder, f"{like}-{vocab}.f32")


def measure_family(programs, vocab, like, tasks, rows, record, budget, folder):
    named = ",".join(task for task in tasks if not plan.alone(task))
    which = ["--graphs", "--only", named, "--type", "f32", "--like", like, "--write-rows", folder]
    measure_ours(programs.step, [*which, str(vocab), ",".join(map(str, rows))], record, budget)


def measure_drafts(programs, vocab, shape, tasks, rows, record, budget, folder):
    """Ours by both rules: with the row's own draws, and with ratio tests."""
    named = ",".join(name for name, judged in map(drafts.split, tasks) if judged == shape)
    counts = [count for count in rows if count * shape.nodes <= plan.MOST_VERIFIED]
    which = ["--drafts", str(shape.count), *(["--tree"] if shape.is_tree else []), "--only", named, "--type", "f32"]
    for rule in ([], ["--judged", "rejection"]):
        more = [*rule, "--like", "model", "--write-rows", folder]
        measure_ours(programs.step, [*which, *more, str(vocab), ",".join(map(str, counts))], record, budget)


def measure_curve(programs, record, budget):
    say(budget, "curve")
    which = ["--only", ",".join(plan.CURVE_TASKS), "--type", plan.CURVE_DTYPE, "--like", "model"]
    measure_ours(programs.step, [*which, str(plan.MAIN_VOCAB), "curve"], record, budget, to="curve")


def fits(engine, way, dtype, tasks, asked):
    left_out = f"{engine.name}:{way['task']}" in asked.without
    return way["task"] in tasks and dtype in way.get("dtypes", ["f32"]) and not left_out


def measure_way(engine, index, way, rows, modes, record, budget, like="model", file=None):
    """Measures a way at every number of rows. An engine that ends is started again, and not asked for the way again."""
    vocab, dtype = way["vocab"], way["dtype"]
    seconds = min(budget.left(), FAMILY_S if file else WAY_S)
    try:
        for said in engine.measure(index, vocab, dtype, rows, modes, seconds, like, file):
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


def measure_rival(engine, vocab, dtype, rows, tasks, asked, record, budget, takes=lambda way: True, **of_rows):
    for index, way in enumerate(engine.ways):
        counts = plan.rows_of(way["task"], rows, asked.modes())
        if not (fits(engine, way, dtype, tasks, asked) and takes(way) and counts) or index in engine.lost:
            continue
        way = {"task": way["task"], "does": way["does"], "given": way["given"], "vocab": vocab, "dtype": dtype}
        if not engine.hello:
            record.skip(engine.name, reason=engine.absent, **way)
        elif budget.left() < 5:
            record.skip(engine.name, reason="no time was left", **way)
        else:
            measure_way(engine, index, way, counts, asked.modes(), record, budget, **of_rows)


def measure_on_same_rows(there, shape, asked, record, budget, **of_rows):
    """Rivals over the rows that ours were timed with. An engine makes batches once for all its ways, so numbers of rows come first."""
    vocab, dtype, tasks = shape
    if not of_rows["file"].exists():
        record.skip(OURS, reason="the program wrote no rows", vocab=vocab, rows_like=of_rows["like"])
        return
    for engine in there:
        began = budget.spent()
        for count in asked.rows:
            measure_rival(engine, vocab, dtype, [count], tasks, asked, record, budget, **of_rows)
        say(budget, f"  {engine.name} took {budget.spent() - began:.1f} s")


def measure_families(programs, there, asked, record, budget, out, folder):
    """Ours and rivals over rows of one family after the other; the budget may not cover the last families."""

    def takes(way):
        return way["given"] == families.given(way["task"])

    for vocab, dtype, tasks in asked.shapes():
        for like in asked.likes:
            say(budget, f"vocab {vocab}, rows like {like}")
            if budget.left() > 5:
                measure_family(programs, vocab, like, tasks, asked.rows, record, budget, folder)
                of_rows = {"like": like, "file": rows_file(folder, like, vocab), "takes": takes}
                measure_on_same_rows(there, (vocab, dtype, tasks), asked, record, budget, **of_rows)
            else:
                record.skip(OURS, reason="no time was left", vocab=vocab, rows_like=like)
            record.write(out)


def measure_verifications(programs, there, asked, record, budget, out, folder):
    """Ours and rivals with one shape of drafts after the other."""
    for vocab, dtype, tasks in asked.shapes():
        for shape in drafts.SHAPES:
            named = [task for task in tasks if drafts.split(task)[1] == shape]
            if not named:
                continue
            say(budget, f"vocab {vocab}, {shape.name}")
            if budget.left() > 5:
                measure_drafts(programs, vocab, shape, named, asked.rows, record, budget, folder)
                of_rows = {"like": "model", "file": rows_file(folder, "model", vocab)}
                measure_on_same_rows(there, (vocab, dtype, named), asked, record, budget, **of_rows)
            else:
                record.skip(OURS, reason="no time was left", vocab=vocab, does=shape.name)
            record.write(out)


def warm(there, asked, rows, budget, env):
    """Has Triton compile what its engines need; of steps one process for each number of rows, since those compile for longest."""
    wanted = []
    for vocab, dtype, tasks in asked.shapes():
        for engine in there:
            named = [way["task"] for way in engine.ways if fits(engine, way, dtype, tasks, asked)]
            if engine.hello["triton"] and named:
                counts = [",".join(map(str, rows))] if asked.part == "operators" else rows
                wanted += [(engine.name, vocab, count, dtype, named) for count in counts]
    if wanted:
        say(budget, f"compiling for {' and '.join(dict.fromkeys(name for name, *_ in wanted))}")
        processes = max(2, (os.cpu_count() or 2) - 2)
        finished = warm_up(wanted, env, asked.compile * budget.left(), processes)
        say(budget, f"compiled {finished} of {len(wanted)}")


def run(engines, programs, asked, out, budget, env=None):
    """Measures a part (all, ours, rivals, curve, operators, families, verify, python), writes the record after each shape, and
    returns it."""
    record, part = Record(asked.part, budget.seconds), asked.part
    there = ready(engines, record, budget)
    rows = asked.rows
    warm(there, asked, rows, budget, env)
    if part in ("all", "curve"):
        measure_curve(programs, record, budget)
        record.write(out)
    on_same_rows = {"families": measure_families, "verify": measure_verifications}
    if part in on_same_rows:
        with tempfile.TemporaryDirectory() as folder:
            on_same_rows[part](programs, there, asked, record, budget, out, folder)
    for vocab, dtype, tasks in asked.shapes() if part not in ("curve", *on_same_rows) else []:
        say(budget, f"vocab {vocab}, {dtype}")
        if part in ("all", "ours"):
            measure_vocab(programs, vocab, rows, record, budget)
        elif part == "operators":
            measure_operators(programs, vocab, dtype, tasks, rows, record, budget)
        for engine in there:
            say(budget, f"  {engine.name}")
            measure_rival(engine, vocab, dtype, rows, tasks, asked, record, budget)
        record.write(out)
    for engine in there:
        engine.end()
    record.run["seconds"] = round(budget.spent(), 1)
    record.write(out)
    return record
