"""The tables of steps that documents and a record's page take from the record; see `document` and `page`."""

import curve
import families
import plan
import table
from counters import cells
from operators import by_rows
from record import OURS
from table import STEP, Graphs, digits, lines

VOCAB, DTYPE = plan.MAIN_VOCAB, "f32"
NAMES = {
    "greedy": "greedy",
    "plain": "plain",
    "min-p": "min-p 0.05",
    "top-k-top-p": "top-k 50 + top-p 0.9",
    "top-k-top-p-min-p": "top-k 50 + top-p 0.9 + min-p 0.05",
    "top-p": "top-p 0.9",
    "top-k-5000": "top-k 5000",
    "penalties": "penalties over 2048 tokens, bias; plain",
    "full": "full: penalties over 2048 tokens, bias, bitmask, top-k, top-p, min-p, raw logprob",
}
# The steps of the short tables.
SHORT = tuple(task for task in plan.TASKS if task not in ("penalties", "top-k-top-p-min-p"))
# Calls from the host: (what a call does, mode, in words).
HOST = (
    (STEP, "graph", "the operator in a graph"),
    (STEP, "eager", "the operator and a synchronisation"),
    ("Pool::replay", "graph", "the engine's step in a graph"),
    ("Pool::step", "eager", "the engine's step, its tokens fetched"),
    ("Pool::replay", "eager", "the engine's step in a graph, its tokens fetched"),
    ("Pool::enqueue", "host", "host: enqueuing a step"),
    ("the launches of Pool::enqueue alone", "host", "host: its launches alone"),
    ("Pool::enqueue, launches that do nothing", "host", "host: all but its launches"),
    ("Pool::replay", "host", "host: replaying a graph"),
)
HOST_TASKS = ("greedy", "plain", "top-k-top-p", "top-p", "full", "edited")
# Ways from logits to a token without a filter, as `ways` compares them: (whose, in words, ((engine, task, call), ..) whose
# times add up).
WAYS = (
    ("Gumball", "a Gumbel race on the logits", ((OURS, "plain", STEP),)),
    ("TokenSpeed, vLLM", "a Gumbel race on the logits, the faster of the two", None),
    ("FlashInfer", "temperature, then a Gumbel race", (("flashinfer", "plain", "division, sampling_from_logits"),)),
    ("FlashInfer", "softmax, then the inverse transform", (("flashinfer", "plain", "softmax, sampling_from_probs"),)),
    (
        "FlashInfer",
        "the inverse transform alone, probabilities given",
        (("flashinfer", "plain", "sampling_from_probs"),),
    ),
    ("Gumball", "softmax, then a race on the probabilities", ((OURS, "softmax", None), (OURS, "probs-plain", None))),
    ("Gumball", "the race alone, probabilities given", ((OURS, "probs-plain", None),)),
)
RACES = (("tokenspeed", "plain"), ("vllm", "plain"))


def ours(results, **which):
    """Our results with the given fields, by (task, rows); by default in f32 in a graph."""
    which = {"engine": OURS, "does": STEP, "dtype": DTYPE, "mode": "graph", "rows_like": "model", **which}
    found = [r for r in results if all(r[field] == value for field, value in which.items())]
    return {(r["task"], r["rows"]): r for r in found}


def floors(vocab=VOCAB, dtype=DTYPE):
    return [digits(curve.floor_us(rows, vocab, dtype)) for rows in plan.ROWS]


def ways(record, _):
    """From logits to a token without a filter: races, the inverse transform, softmaxes."""
    in_graphs = [
        r
        for r in record.results
        if (r["vocab"], r["dtype"], r["mode"], r["rows_like"]) == (VOCAB, DTYPE, "graph", "model")
        and not r["objection"]
    ]

    def least(engine, task, does, count):
        times = [
            r["median_us"]
            for r in in_graphs
            if (r["engine"], r["task"], r["rows"]) == (engine, task, count) and does in (None, r["does"])
        ]
        return min(times, default=None)

    rows = []
    for whose, way, parts in WAYS:
        cells = []
        for count in plan.ROWS:
            if parts is None:
                times = [us for engine, task in RACES if (us := least(engine, task, None, count)) is not None]
                cells.append(digits(min(times)) if times else "-")
            else:
                times = [least(*part, count) for part in parts]
                cells.append("-" if None in times else digits(sum(times)))
        rows.append([whose, way, *cells])
    return lines(["whose", f"plain, vocabulary {VOCAB}, {DTYPE}, microseconds", *by_rows()], rows, words=2)


def sizes(record, _):
    """Our medians at every vocabulary and type, and how far the 95th percentile is from them at most."""
    rows, furthest = [], 0
    for vocab in plan.VOCABS:
        for dtype in ("f32", "bf16"):
            found = ours(record.results, vocab=vocab, dtype=dtype)
            rows.append([str(vocab), dtype, "floor", *floors(vocab, dtype)])
            for task in plan.TASKS:
                cells = [found.get((task, count)) for count in plan.ROWS]
                furthest = max([furthest, *(c["p95_us"] / c["median_us"] - 1 for c in cells if c)])
                if any(cells):
                    rows.append(["", "", task, *(digits(c["median_us"]) if c else "-" for c in cells)])
    said = f"The 95th percentile is at most {100 * furthest:.1f} % above the median.\n\n"
    return said + lines(["vocabulary", "type", "microseconds", *by_rows()], rows, words=3)


def rivals(record, _):
    """The fastest rival, in multiples of our time; below 1 in bold."""
    rows = []
    for vocab in plan.VOCABS:
        graphs = Graphs(record.results, vocab)
        for task in plan.TASKS:
            for given in ("logits", "scaled", "probabilities"):
                ways = [by for way, by in graphs.rivals[task].items() if way[2] == given]
                cells = []
                for count in plan.ROWS if ways else []:
                    theirs = [by[count] for by in ways if count in by]
                    mine = graphs.ours.get((task, count))
                    factor = min(theirs) / mine if theirs and mine else None
                    text = "-" if factor is None else digits(factor)
                    cells.append(f"**{text}**" if factor is not None and factor < 1 else text)
                if cells:
                    rows.append([str(vocab), task, given, *cells])
    return lines(["vocabulary", "task", "the rival is given", *by_rows()], rows, words=3)


def host(record, _):
    """One call from the host, and the engine's whole step."""
    rows = []
    for does, mode, name in HOST:
        found = ours(record.results, vocab=VOCAB, does=does, mode=mode)
        for task in HOST_TASKS:
            cells = [found.get((task, count)) for count in plan.ROWS]
            if any(cells):
                shown = (f"{digits(c['median_us'])} ({digits(c['p95_us'])})" if c else "-" for c in cells)
                rows.append([name, task, *shown])
    title = f"vocabulary {VOCAB}, {DTYPE}, microseconds, median (95th percentile)"
    return lines([title, "task", *by_rows()], rows, words=2)


def flat(record, _):
    """Rows without peaks: microseconds, and how many readings of the rows take as long."""
    rows = []
    for dtype in ("f32", "bf16"):
        for like in plan.FLAT:
            found = ours(record.results, vocab=plan.MAIN_VOCAB, dtype=dtype, rows_like=like)
            for task in plan.FLAT_TASKS:
                cells = []
                for count in plan.ROWS:
                    us = found.get((task, count), {}).get("median_us")
                    reads = us and us / curve.floor_us(count, plan.MAIN_VOCAB, dtype)
                    cells.append("-" if us is None else f"{digits(us)} ({digits(reads)})" if count > 1 else digits(us))
                rows.append([like, dtype, NAMES[task], *cells])
    header = ["rows like", "type", f"vocabulary {plan.MAIN_VOCAB}, microseconds (floors)", *by_rows()]
    return lines(header, rows, words=3)


def jumps(record, _):
    return curve.jumps_table(record.curve) if record.curve else "The record has no curve.\n"


def fastest(record, _):
    """Ours and the fastest rival that starts from logits."""
    graphs, rows = Graphs(record.results, VOCAB), []
    for task in SHORT:
        given = [by for way, by in graphs.rivals[task].items() if way[2] == "logits"]
        cells = []
        for count in plan.ROWS:
            mine, theirs = graphs.ours.get((task, count)), [by[count] for by in given if count in by]
            cells.append("; ".join(digits(us) for us in [mine, *([min(theirs)] if theirs else [])] if us) or "-")
        rows.append([NAMES[task], *cells])
    title = f"one H200, vocabulary {VOCAB}, {DTYPE}, microseconds a step in a CUDA graph: Gumball; the fastest rival"
    return lines([title, *by_rows()], [["the logits read once", *floors()], *rows])


def kernels(_, profile):
    return profile.markdown() if profile else "No profile was taken.\n"


def surveys(_, profile):
    """The survey of 512 rows alone, without sums, with approximate ones, with edits, and with edits and exact sums."""
    rows = []
    for task in ("greedy", "plain", "top-p", "penalties", "full"):
        counted = next(k for k in profile.listed if (k["task"], k["rows"]) == (task, 512))
        _, _, _, kernel, _, reads, memory, issued, instructions, *_ = cells(counted)
        rows.append([NAMES[task], kernel, memory, issued, instructions, reads])
    numbers = ["rate of memory, %", "issue slots, %", "instructions a tile", "reads of the rows"]
    return lines(["512 rows of 151936, f32", "kernel", *numbers], rows, words=2)


def softmaxes(record, _):
    """Our softmax of one vocabulary."""
    shapes = (("f32 to f32", "softmax", "f32"), ("bf16 in place", "softmax-in-place", "bf16"))
    rows = []
    for name, task, dtype in shapes:
        found = Graphs(record.results, VOCAB, dtype).ours
        rows.append([name, *(digits(found[task, count]) for count in plan.ROWS)])
    rows.append(
        ["reading and writing f32 at 4576 GB/s", *(digits(2 * curve.floor_us(n, VOCAB, "f32")) for n in plan.ROWS)]
    )
    return lines(["", *by_rows()], rows)


def chains(record, _):
    """Our chains of drafts, of two vocabularies."""
    counts = plan.rows_of("chain", plan.ROWS)
    rows = []
    for vocab in (VOCAB, 32000):
        found = Graphs(record.results, vocab).ours
        rows.append([f"{vocab} tokens", *(digits(found["chain", count]) for count in counts)])
        if vocab == VOCAB:
            floors = (digits(2 * curve.floor_us(count, vocab, "f32")) for count in counts)
            rows.append(["both rows read once at 4576 GB/s", *floors])
    return lines(["chains", *map(str, counts)], rows)


def source(record, _):
    """Which runs the record has."""
    said = []
    for run in record.whole["runs"]:
        gpu = run["machine"]["gpu"].split(",")[0] or "no GPU"
        said.append(f"{run['part']} on {run['date'][:16].replace('T', ' ')} UTC at {run['machine']['commit']} ({gpu})")
    return f"Runs: {'; '.join(said)}.\n"


def every(record, _):
    return table.every(record.results)


# What stands between markers of documents.
BLOCKS = {f.__name__: f for f in (fastest, ways, families.worst, surveys, softmaxes, chains)}
