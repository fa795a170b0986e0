"""The engine's side of the bench, for engines in Python: the twin of proof/bench/protocol.

An engine calls `serve(name, version, prepare)`. `prepare(definition, parameters, rows)` returns
`(does, draw)`, where `draw(row)` gives the token of a row, or raises `Skip(reason)`. `rows` is an
array [row, vocab]: float32, or uint16 that hold the bits of bfloat16.
"""

import json
import math
import statistics
import sys
import time

import numpy

# How long a batch of calls lasts, as in proof/bench/protocol.
BATCH_NS = 500_000


class Skip(Exception):
    """The engine cannot do a definition; the message says why."""


def read_rows(path, definition, row_count):
    """The rows of a file, aligned to cache lines as the Rust engines have them."""
    dtype = numpy.float32 if definition["dtype"] == "f32" else numpy.uint16
    found = numpy.fromfile(path, dtype=dtype).reshape(row_count, definition["vocab"])
    buffer = numpy.empty(found.nbytes + 64, dtype=numpy.uint8)
    start = -buffer.ctypes.data % 64
    rows = buffer[start : start + found.nbytes].view(dtype).reshape(found.shape)
    rows[:] = found
    return rows


def sample(draw, row, row_count, streams, min_ns):
    """The median of batches of calls that fill `min_ns`, after untimed calls that say how long they are."""
    now = time.perf_counter_ns

    def following(row):
        return (row + 1) % row_count if streams else row

    warm_calls, start = 0, now()
    while warm_calls == 0 or now() - start < min_ns // 4:
        draw(row)
        row = following(row)
        warm_calls += 1
    estimate = max((now() - start) / warm_calls, 1)
    batch_calls = math.ceil(BATCH_NS / estimate)
    means, first = [], now()
    while not means or now() - first < min_ns:
        order = [row]
        for _ in range(batch_calls - 1):
            order.append(following(order[-1]))
        start = now()
        for row in order:
            token = draw(row)
        means.append((now() - start) / batch_calls)
        last, row = row, following(row)
    median, calls = statistics.median(means), batch_calls * len(means)
    return {"ns_per_row": median, "calls": calls, "row": last, "token": int(token)}, row


def say(reply):
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def serve(name, version, prepare):
    """Answers the runner's lines until they end."""
    say({"hello": {"engine": name, "version": version}})
    draw, row_count, streams, cursor = None, 0, False, 0
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            asked = request["prepare"]
            definition = asked["definition"]
            draw, cursor = None, 0
            row_count, streams = asked["row_count"], definition["residence"] == "dram"
            try:
                rows = read_rows(asked["rows_file"], definition, row_count)
                does, draw = prepare(definition, asked["parameters"], rows)
                say({"ready": {"does": does}})
            except Skip as reason:
                say({"skip": {"reason": str(reason)}})
        else:
            asked = request["sample"]
            row = cursor if streams else asked["row"]
            reply, cursor = sample(draw, row, row_count, streams, asked["min_ns"])
            say({"sample": reply})
