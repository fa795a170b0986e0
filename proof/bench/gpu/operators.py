"""The tables of operators on rows, and of calls from Python, that a record's page takes from it; see `page`."""

import curve
import plan
from record import OURS
from table import digits, lines

NAMES = {
    "softmax": "softmax with temperature, to f32",
    "softmax-in-place": "softmax with temperature, in place",
    "softmax-mixed": "softmax with a temperature for each row, to f32",
    "probs-plain": "a draw from probabilities",
    "probs-top-k": "a draw from probabilities: top-k 50",
    "probs-top-p": "a draw from probabilities: top-p 0.9",
    "probs-min-p": "a draw from probabilities: min-p 0.05",
    "probs-top-k-top-p": "a draw from probabilities: top-k 50, then top-p 0.9",
    "probs-joint": "a draw from probabilities: top-k 50 and top-p 0.9, joint",
    "probs-top-p-99": "a draw from probabilities: top-p 0.99",
    "probs-top-k-1000": "a draw from probabilities: top-k 1000",
    "probs-joint-1000": "a draw from probabilities: top-k 1000 and top-p 0.95, joint",
    "top-k-renorm": "top-k 50 renormalised",
    "top-p-renorm": "top-p 0.9 renormalised",
    "top-k-top-p-renorm": "top-k 50, then top-p 0.9, renormalised",
    "joint-renorm": "top-k 50 and top-p 0.9 of the whole row, renormalised",
    "top-k-mask": "top-k 50, logits masked",
    "chain": "a chain of 3 drafts, by rejection",
}
PACKAGE, COMPAT = "gumball_python", "compat.flashinfer: "
NONE = "Not measured so far.\n"


def by_rows():
    return [f"{rows} row" if rows == 1 else str(rows) for rows in plan.ROWS]


def graphs(record, tasks):
    """By (vocabulary, type, task), then engine, then rows: the result of its fastest way in a graph."""
    found = {}
    for r in record.results:
        if r["task"] in tasks and r["mode"] == "graph" and r["rows_like"] == "model" and not r["objection"]:
            engines = found.setdefault((r["vocab"], r["dtype"], r["task"]), {})
            fastest = engines.setdefault(r["engine"], {})
            if r["rows"] not in fastest or r["median_us"] < fastest[r["rows"]]["median_us"]:
                fastest[r["rows"]] = r

    def place(shape):
        vocab, dtype, task = shape
        return vocab != plan.MAIN_VOCAB, -vocab, dtype != "f32", plan.OPERATORS.index(task)

    return {shape: found[shape] for shape in sorted(found, key=place)}


def floor(vocab, times, name):
    return [name, *(digits(times * curve.floor_us(rows, vocab, "f32")) for rows in plan.ROWS)]


def operators(record, _):
    """Our medians and 95th percentiles."""
    vocab, dtype = plan.MAIN_VOCAB, "f32"
    found = {}
    for (*shape, task), engines in graphs(record, plan.OPERATORS).items():
        if shape == [vocab, dtype]:
            found[task] = engines.get(OURS, {})
    if not any(found.values()):
        return NONE
    rows = [floor(vocab, 1, "floor: rows read once at 4576 GB/s"), floor(vocab, 2, "floor: read once and written once")]
    for task in filter(found.__contains__, plan.OPERATORS):
        cells = []
        for count in plan.ROWS:
            result = found[task].get(count)
            cells.append(f"{digits(result['median_us'])} ({digits(result['p95_us'])})" if result else "-")
        rows.append([NAMES[task], *cells])
    return lines([f"vocabulary {vocab}, {dtype}, microseconds: median (95th percentile)", *by_rows()], rows)


def beside(record, tasks):
    """Ours in microseconds, and each rival's fastest way in multiples of it; below 1 in bold."""
    rows = []
    for (vocab, dtype, task), engines in graphs(record, tasks).items():
        ours = engines.get(OURS, {})
        if not ours:
            continue
        cells = (digits(ours[count]["median_us"]) if count in ours else "-" for count in plan.ROWS)
        rows.append([str(vocab), dtype, task, "ours, us", *cells])
        for engine in sorted(engines.keys() - {OURS}):
            cells = []
            for count in plan.ROWS:
                both = count in ours and count in engines[engine]
                factor = engines[engine][count]["median_us"] / ours[count]["median_us"] if both else None
                text = "-" if factor is None else digits(factor)
                cells.append(f"**{text}**" if factor is not None and factor < 1 else text)
            rows.append(["", "", "", engine, *cells])
    return lines(["vocabulary", "type", "task", "engine", *by_rows()], rows, words=4) if rows else NONE


def softmaxes(record, _):
    return beside(record, plan.SOFTMAXES)


def on_probabilities(record, _):
    return beside(record, plan.OPERATORS[len(plan.SOFTMAXES) :])


def eager_calls(record, vocab, rows):
    """By task, then engine: the result of its fastest eager way that does the whole task, with that of ours under FlashInfer's names
    apart."""
    found = {}
    for r in record.results:
        shape = (r["mode"], r["rows"], r["vocab"], r["dtype"])
        if shape != ("eager", rows, vocab, "f32") or r["given"] == "scaled" or r["objection"]:
            continue
        if r["task"] in plan.TASKS and r["given"] != "logits":
            continue
        engine = COMPAT if r["does"].startswith(COMPAT) else r["engine"]
        best = found.setdefault(r["task"], {})
        if engine not in best or r["median_us"] < best[engine]["median_us"]:
            best[engine] = r
    return found


def cells(best, engines):
    return [f"{digits(best[e]['median_us'])} ({digits(best[e]['p95_us'])})" if e in best else "-" for e in engines]


def python(record, _):
    """One eager call from Python and a synchronisation at one row: ours, ours under FlashInfer's names, FlashInfer, torch."""
    found = eager_calls(record, plan.MAIN_VOCAB, 1)
    tasks = [task for task in (*plan.TASKS, *plan.OPERATORS) if PACKAGE in found.get(task, {})]
    rows = [[NAMES.get(t, t), *cells(found[t], (PACKAGE, COMPAT, "flashinfer", "torch"))] for t in tasks]
    header = [f"one row of {plan.MAIN_VOCAB}, f32, microseconds: median (95th percentile)"]
    header += ["gumball", "gumball_compat.flashinfer", "FlashInfer", "torch"]
    return lines(header, rows) if rows else NONE


def whole_calls(record, _):
    """Whole steps from Python, and a synchronisation: ours, TokenSpeed's backend object, FlashInfer, torch."""
    rows, engines = [], (PACKAGE, "tokenspeed_backend", "flashinfer", "torch")
    for vocab in plan.HOST_VOCABS:
        for count in plan.HOST_ROWS:
            found = eager_calls(record, vocab, count)
            named = [task for task in plan.WHOLE_CALLS if engines[1] in found.get(task, {})]
            rows += [[str(vocab), str(count), task, *cells(found[task], engines)] for task in named]
    header = ["vocabulary", "rows", "f32, microseconds: median (95th percentile)"]
    header += ["gumball", "TokenSpeed's backend", "FlashInfer", "torch"]
    return lines(header, rows, words=3) if rows else NONE
