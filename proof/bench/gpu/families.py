"""The tables over families of rows that a run and a record's page take from the record: the median, the worst, and the least lead."""

import statistics

import plan
from operators import NONE
from record import OURS
from table import STEP, digits, lines


def given(task):
    """What a rival is given as we are. A step from logits that a rival makes from probabilities is a part of the task."""
    return "probabilities" if task in plan.DRAWS else "logits"


# The tasks of the documents' table.
DOCUMENTED = ("greedy", "plain", "top-k-top-p-t1", "top-p", "top-p-95", "mixture", "everything")
# A task stands in the tables once this many families were measured of it: the worst of fewer says little.
FEWEST_FAMILIES = 4
# Whose times stand beside ours for each family, in this order.
ENGINES = ("flashinfer", "tokenspeed", "vllm")


def row_count(n):
    return "1 row" if n == 1 else f"{n} rows"


class Families:
    """Medians in graphs of one vocabulary and type, by (task, rows), then family: ours, and the fastest rival with its engine.

    A mixture's requests alone are one task where there are fewer rows, and family and request together are a name.
    """

    def __init__(self, results, vocab, dtype="f32"):
        self.ours, self.rivals, self.each = {}, {}, {}
        for r in results:
            if (r["mode"], r["vocab"], r["dtype"]) != ("graph", vocab, dtype) or r["objection"]:
                continue
            task, like, us = r["task"], r["rows_like"], r["median_us"]
            whole, _, index = task.rpartition("-")
            if whole in ("mixture", "mixture-everything") and index.isdigit():
                task, like = whole, f"{like}, request {index}"
            if r["engine"] == OURS and (r["does"] == STEP or task in plan.DRAWS):
                self.ours.setdefault((task, r["rows"]), {})[like] = us
            elif r["engine"] != OURS and r["given"] == given(r["task"]):
                times = self.each.setdefault((task, r["rows"]), {}).setdefault(like, {})
                times[r["engine"]] = min(times.get(r["engine"], us), us)
                fastest = self.rivals.setdefault((task, r["rows"]), {})
                fastest[like] = min(fastest.get(like, (us, r["engine"])), (us, r["engine"]))

    def tasks(self, names):
        """The tasks for which enough families were measured."""

        def likes(task):
            found = (like for (name, _), times in self.ours.items() if name == task for like in times)
            return {like.split(",")[0] for like in found}

        return [task for task in names if len(likes(task)) >= FEWEST_FAMILIES]

    def middle(self, task, rows):
        found = self.ours.get((task, rows))
        return digits(statistics.median(found.values())) if found else "-"

    def worst(self, task, rows):
        """The worst time, and the rows that it was taken with."""
        found = self.ours.get((task, rows))
        if not found:
            return "-"
        like = max(found, key=found.get)
        return f"{digits(found[like])} ({like})"

    def beside(self, task, rows, like):
        """Our time, and the multiples of it that each engine's fastest way takes over the same family; below 1 in bold."""
        mine = self.ours.get((task, rows), {}).get(like)
        if mine is None:
            return "-"
        times = self.each.get((task, rows), {}).get(like, {})
        theirs = [digits(times[name] / mine) if name in times else "-" for name in ENGINES]
        bold = [f"**{text}**" if name in times and times[name] < mine else text for name, text in zip(ENGINES, theirs)]
        return f"{digits(mine)}; {', '.join(bold)}"

    def least_lead(self, task, rows):
        """The least multiple of our time that a rival takes on the same family; below 1 in bold."""
        ours, rivals = self.ours.get((task, rows), {}), self.rivals.get((task, rows), {})
        leads = [(rivals[like][0] / ours[like], rivals[like][1], like) for like in ours.keys() & rivals.keys()]
        if not leads:
            return "-"
        lead, engine, like = min(leads)
        text = f"**{digits(lead)}**" if lead < 1 else digits(lead)
        return f"{text} ({engine}; {like})"


def shapes(record):
    """The vocabularies and types that more than one family was measured at."""
    likes = {}
    for r in record.results:
        if r["engine"] == OURS and r["task"] in plan.FAMILY_TASKS:
            likes.setdefault((r["vocab"], r["dtype"]), set()).add(r["rows_like"])
    return [shape for shape, found in likes.items() if len(found) > len(plan.FLAT) + 1]


def tables(record, row_of):
    texts = []
    for vocab, dtype in shapes(record):
        found = Families(record.results, vocab, dtype)
        rows = [row for task in found.tasks(plan.FAMILY_TASKS) for row in row_of(found, task)]
        header = [f"vocabulary {vocab}, {dtype}, microseconds", "", *map(row_count, plan.FAMILY_ROWS)]
        texts.append(lines(header, rows, words=2))
    return "\n".join(texts) or NONE


def every(record, _):
    """Of each task the median over the families, the worst, and the least lead over a rival that starts from logits."""

    def row_of(found, task):
        cells = {
            name: [cell(task, count) for count in plan.FAMILY_ROWS]
            for name, cell in (("median", found.middle), ("worst", found.worst), ("least lead", found.least_lead))
        }
        kept = [[name, *row] for name, row in cells.items() if set(row) != {"-"}]
        return [[task if first else "", *row] for first, row in zip([True, False, False], kept)]

    return tables(record, row_of)


def each(record, _):
    """Of each task and family our time, and each rival's fastest way in multiples of it."""
    texts = []
    for vocab, dtype in shapes(record):
        found, rows = Families(record.results, vocab, dtype), []
        for task in found.tasks(plan.FAMILY_TASKS):
            likes = [like for by_like in (found.each.get((task, n), {}) for n in plan.FAMILY_ROWS) for like in by_like]
            for like in dict.fromkeys(likes):
                rows.append([task, like, *(found.beside(task, n, like) for n in plan.FAMILY_ROWS)])
        header = [
            f"vocabulary {vocab}, {dtype}: ours; {', '.join(ENGINES)}",
            "family",
            *map(row_count, plan.FAMILY_ROWS),
        ]
        texts.append(lines(header, rows, words=2) if rows else "")
    return "\n".join(filter(None, texts)) or NONE


def worst(record, _):
    """The worst over the families at the main vocabulary, of the tasks that documents name."""
    shape = (plan.MAIN_VOCAB, "f32")
    if shape not in shapes(record):
        return NONE
    found = Families(record.results, *shape)
    rows = [[task, *(found.worst(task, count) for count in plan.FAMILY_ROWS)] for task in found.tasks(DOCUMENTED)]
    header = [f"vocabulary {shape[0]}, {shape[1]}, microseconds", *map(row_count, plan.FAMILY_ROWS)]
    return lines(header, rows)
