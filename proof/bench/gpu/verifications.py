"""The table of verifications of drafts that a record's page takes from the record."""

import drafts
import plan
from operators import NONE
from record import OURS
from table import digits, lines

NONE_ACCEPTED = "coupled, no draft accepted"
# Rows of ours: the work of a call, and its name in the table.
CALLS = (
    ("a step over as many rows", "ours, a step over as many rows, us"),
    (NONE_ACCEPTED, "ours, us"),
    ("coupled, every draft accepted", "ours, every draft accepted, us"),
    ("rejection, no draft accepted", "ours, by ratio tests, us"),
)


def by_way(record, vocab, task):
    """By engine and call, then requests: the time."""
    found = {}
    for r in record.results:
        if (r["vocab"], r["task"], r["dtype"], r["mode"]) == (vocab, task, "f32", "graph") and not r["objection"]:
            found.setdefault((r["engine"], r["does"]), {})[r["rows"]] = r["median_us"]
    return found


def table(record, _):
    """Ours in microseconds, and every way of every rival in multiples of our verification that accepts no draft; below 1 in bold."""
    rows = []
    for vocab in plan.VOCABS:
        for task in plan.VERIFICATIONS:
            found = by_way(record, vocab, task)
            mine = found.get((OURS, NONE_ACCEPTED), {})
            if not mine:
                continue
            name, judged = drafts.split(task)
            head = [str(vocab), judged.name, name]
            for does, named in CALLS:
                if times := found.get((OURS, does)):
                    cells = [digits(times[count]) if count in times else "-" for count in plan.VERIFIED_REQUESTS]
                    rows.append([*head, named, *cells])
                    head = ["", "", ""]
            for (engine, does), times in sorted(found.items()):
                if engine != OURS:
                    rows.append(
                        ["", "", "", f"{engine}: {does}", *(multiple(times, mine, n) for n in plan.VERIFIED_REQUESTS)]
                    )
    requests = [f"{count} request{'s' if count > 1 else ''}" for count in plan.VERIFIED_REQUESTS]
    return lines(["vocabulary", "drafts", "rows ask for", "a call", *requests], rows, words=4) if rows else NONE


def multiple(times, mine, count):
    if count not in times or count not in mine:
        return "-"
    text = digits(times[count] / mine[count])
    return f"**{text}**" if times[count] < mine[count] else text
