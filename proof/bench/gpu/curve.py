"""The curve over batch sizes, and where it jumps; docs/pictures/batch.py draws it."""

from plan import BYTES, CURVE_TASKS
from table import Graphs, digits, table

# How long reading a gigabyte takes, in microseconds, at the read-only ceiling of one H200 (4576 GB/s).
CEILING_BYTES_PER_US = 4_576_000
# A size is a jump if it takes so much longer than the one before, as a part of that, beyond the reading of its further
# rows with half as much again, and a row so much more than at the sizes around; or if it takes so much less.
JUMP_UP, JUMP_DOWN, READING, AROUND = 0.04, 0.02, 1.5, 1.5


def floor_us(rows, vocab, dtype):
    return rows * vocab * BYTES[dtype] / CEILING_BYTES_PER_US


def lines(curve):
    """By task: (rows, microseconds), ascending."""
    found = {}
    for r in curve:
        if r["mode"] == "graph" and r["rows_like"] == "model":
            found.setdefault(r["task"], []).append((r["rows"], r["median_us"]))
    return {task: sorted(points) for task, points in found.items()}


def smooth(points):
    """The median of each size and the two on either side: a single size that stands out is of the measurement."""
    around = [sorted(us for _, us in points[max(i - 2, 0) : i + 3]) for i in range(len(points))]
    return [(rows, near[len(near) // 2] if len(near) == 5 else us) for (rows, us), near in zip(points, around)]


def jumps(points, vocab, dtype):
    """Yields (rows before, rows, microseconds before, microseconds) of each jump."""
    points = smooth(points)
    pairs = list(zip(points, points[1:]))
    slopes = [(us - us_before) / (rows - before) for (before, us_before), (rows, us) in pairs]
    for place, ((before, us_before), (rows, us)) in enumerate(pairs):
        more = us - us_before - READING * floor_us(rows - before, vocab, dtype)
        around = slopes[max(place - 1, 0) : place] + slopes[place + 1 : place + 2]
        steep = slopes[place] > AROUND * max(sum(around) / max(len(around), 1), 0)
        if (more > JUMP_UP * us_before and steep) or us < (1 - JUMP_DOWN) * us_before:
            yield before, rows, us_before, us


def jumps_table(curve):
    if not curve:
        return ""
    vocab, dtype = curve[0]["vocab"], curve[0]["dtype"]
    rows = []
    for task, points in lines(curve).items():
        for before, rows_then, us_before, us in jumps(points, vocab, dtype):
            rows.append([task, f"{before} to {rows_then}", f"{digits(us_before)} to {digits(us)}"])
    title = f"vocab {vocab}, {dtype}: jumps of the curve"
    return table(title, ["task"], ["rows", "us"], rows or [["none", "", ""]])


def rivals(record, vocab, dtype):
    """By task: the fastest rival that starts from logits, as (rows, microseconds), ascending."""
    found = {}
    for task, ways in Graphs(record.results, vocab, dtype).rivals.items():
        for (_, _, given), by_rows in ways.items():
            if task in CURVE_TASKS and given == "logits":
                least = found.setdefault(task, {})
                for rows, us in by_rows.items():
                    least[rows] = min(us, least.get(rows, us))
    return {task: sorted(points.items()) for task, points in found.items()}
