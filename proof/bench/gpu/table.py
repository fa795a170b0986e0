"""A record as Markdown: our times in microseconds, rivals' as multiples of ours at the same shape."""

from collections import defaultdict

import plan
from record import OURS

STEP = "step"
TASKS = (*plan.TASKS, *plan.OPERATORS)
GIVEN = ("logits", "scaled", "probabilities", "drafts")
STATISTIC = "medians of the replays of a CUDA graph"


def digits(number):
    """Three significant digits, as long as there is a fraction to cut."""
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"


def table(title, header, numbers, rows):
    lines = [f"**{title}**", "", f"| {' | '.join(header + numbers)} |"]
    lines.append(f"|{' --- |' * len(header)}{' ---: |' * len(numbers)}")
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows] + ["", ""])


def lines(header, rows, words=1):
    """A table whose first columns are words."""
    head = [f"| {' | '.join(header)} |", f"|{' --- |' * words}{' ---: |' * (len(header) - words)}"]
    return "\n".join(head + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


class Graphs:
    """The medians of one vocabulary and type in graphs: ours by (task, rows), rivals' by task, then way, then rows."""

    def __init__(self, results, vocab, dtype="f32"):
        self.vocab, self.dtype, self.ours = vocab, dtype, {}
        self.rivals = defaultdict(lambda: defaultdict(dict))
        for r in results:
            shape = (r["mode"], r["dtype"], r["vocab"], r["rows_like"])
            if shape != ("graph", dtype, vocab, "model") or r["objection"]:
                continue
            if r["engine"] == OURS and (r["does"] == STEP or r["task"] in plan.OPERATORS):
                self.ours[r["task"], r["rows"]] = r["median_us"]
            elif r["engine"] != OURS:
                self.rivals[r["task"]][r["engine"], r["does"], r["given"]][r["rows"]] = r["median_us"]
        found = [by_rows for ways in self.rivals.values() for by_rows in ways.values()]
        self.rows = sorted({rows for by_rows in found for rows in by_rows} | {rows for _, rows in self.ours})

    def of_ours(self, task):
        cells = [self.ours.get((task, rows)) for rows in self.rows]
        return [f"**{digits(cell)} us**" if cell else "-" for cell in cells] if any(cells) else None

    def cell(self, task, rows, by_rows):
        """A rival's multiple of our time, or its time where we have none."""
        if rows not in by_rows:
            return "-"
        ours = self.ours.get((task, rows))
        return digits(by_rows[rows] / ours) if ours else f"{digits(by_rows[rows])} us"

    def every(self):
        """Every way of every rival."""
        rows = []
        for task in TASKS:
            if ours := self.of_ours(task):
                rows.append([task, OURS, "", "logits" if task in plan.TASKS else "", *ours])
            for way, by_rows in self.rivals[task].items():
                rows.append([task, *way, *(self.cell(task, count, by_rows) for count in self.rows)])
        title = f"vocab {self.vocab}, {self.dtype}, multiples of our time by rows, {STATISTIC}"
        return table(title, ["task", "engine", "a call", "given"], [str(count) for count in self.rows], rows)

    def best(self):
        """The fastest rival at each number of rows, apart for each input that rivals take."""
        rows = []
        for task in TASKS:
            if ours := self.of_ours(task):
                rows.append([task, "ours", *ours])
            for given in GIVEN:
                ways = {way: by_rows for way, by_rows in self.rivals[task].items() if way[2] == given}
                if ways:
                    rows.append([task, f"given {given}", *(self.fastest(task, count, ways) for count in self.rows)])
        title = f"vocab {self.vocab}, {self.dtype}, the fastest rival in multiples of our time by rows, {STATISTIC}"
        return table(title, ["task", "which"], [str(count) for count in self.rows], rows)

    def fastest(self, task, rows, ways):
        times = [(by_rows[rows], way) for way, by_rows in ways.items() if rows in by_rows]
        if not times:
            return "-"
        _, way = min(times)
        return f"{self.cell(task, rows, ways[way])} {way[0]}"


def graphs(results):
    """The graphs of f32, and of the types that rivals were given."""
    found = dict.fromkeys((r["vocab"], r["dtype"]) for r in results if r["dtype"] == "f32" or r["engine"] != OURS)
    return [Graphs(results, *shape) for shape in found]


def best(results):
    return "".join(one.best() for one in graphs(results))


def every(results):
    return "".join(one.every() for one in graphs(results))


def ours(results):
    """All of ours: microseconds, the 95th percentile in brackets."""
    shapes = dict.fromkeys((r["vocab"], r["dtype"]) for r in results if r["engine"] == OURS)
    tables = []
    for shape in shapes:
        found = defaultdict(dict)
        for r in results:
            if r["engine"] == OURS and (r["vocab"], r["dtype"]) == shape:
                way = [r["task"], r["rows_like"], r["does"], r["mode"]]
                found[tuple(way)][r["rows"]] = f"{digits(r['median_us'])} ({digits(r['p95_us'])})"
        counts = sorted({rows for by_rows in found.values() for rows in by_rows})
        rows = [[*way, *(by_rows.get(count, "-") for count in counts)] for way, by_rows in found.items()]
        title = f"{OURS}, vocab {shape[0]}, {shape[1]}: microseconds a call by rows, median (95th percentile)"
        tables.append(table(title, ["task", "rows like", "a call", "mode"], [str(count) for count in counts], rows))
    return "".join(tables)


def eager(results):
    """Host time of one call and a synchronisation, at one row: microseconds, no multiples."""
    by_vocab = defaultdict(list)
    for task in TASKS:
        for r in results:
            if (r["mode"], r["dtype"], r["rows"], r["rows_like"], r["task"]) == ("eager", "f32", 1, "model", task):
                cells = [digits(r["median_us"]), digits(r["p95_us"])]
                by_vocab[r["vocab"]].append([task, r["engine"], r["does"], r["given"], *cells])
    title = "vocab {}, f32, one row: host microseconds of one eager call and a synchronisation"
    header = ["task", "engine", "a call", "given"]
    return "".join(table(title.format(v), header, ["median", "p95"], rows) for v, rows in by_vocab.items())


def left_out(record):
    """What has no time, and why; the same reason of the same way in one line."""
    counts = defaultdict(int)
    for r in record.results:
        if r["objection"]:
            counts[r["engine"], r["does"], f"vocab {r['vocab']}, {r['rows']} rows: {r['objection']}"] += 1
    for skip in record.whole["skipped"]:
        counts[skip["engine"], skip.get("does", ""), skip["reason"]] += 1
    lines = [
        f"- {engine}: {f'{does}: ' if does else ''}{reason}{f' ({count} times)' if count > 1 else ''}"
        for (engine, does, reason), count in counts.items()
    ]
    return "\n".join(["**left out**", "", *lines, ""]) if lines else ""


def markdown(record):
    return (
        ours(record.results) + best(record.results) + every(record.results) + eager(record.results) + left_out(record)
    )
