"""The curve over batch sizes: a drawing, and where it jumps."""

import math

from plan import BYTES
from table import digits, table

# What a gigabyte takes to be read, in microseconds, at the read-only ceiling of one H200 (4576 GB/s).
CEILING_BYTES_PER_US = 4_576_000
# A size is a jump if it takes so much longer than the one before, as a part of that, beyond the reading of its further
# rows with half as much again, and a row so much more than at the sizes around; or if it takes so much less.
JUMP_UP, JUMP_DOWN, READING, AROUND = 0.04, 0.02, 1.5, 1.5

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 430, 56, 16, 16, 42
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#555555")


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


def svg(curve):
    """Microseconds by rows, both by powers of two, with the floor."""
    vocab, dtype = curve[0]["vocab"], curve[0]["dtype"]
    drawn = lines(curve)
    sizes = sorted({rows for points in drawn.values() for rows, _ in points})
    drawn["logits read once"] = [(rows, floor_us(rows, vocab, dtype)) for rows in sizes]
    most = max(us for points in drawn.values() for _, us in points)
    top, last = math.ceil(math.log2(most)), math.log2(sizes[-1])

    def x(rows):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(rows) / max(last, 1)

    def y(us):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(math.log2(us), 0) / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(top + 1):
        at = f"{y(2**power):.1f}"
        out.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{at}" dy="4" text-anchor="end">{2**power}</text>')
    for power in range(int(last) + 1):
        at = f"{x(2**power):.1f}"
        out.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{2**power}</text>')
    out.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">rows of a step (vocabulary {vocab}, {dtype})</text>'
    )
    out.append(
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">microseconds, median</text>'
    )
    for place, (task, points) in enumerate(drawn.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = "L".join(f"{x(rows):.1f} {y(us):.1f}" for rows, us in points if us >= 1)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(f'<text x="{LEFT + 12}" y="{TOP + 14 + 16 * place}" fill="{colour}">{task}</text>')
    return "\n".join(out) + "\n</svg>\n"
