"""Times a way on this machine's GPU, and looks at its answer.

A way is what an engine of `engines/` does for a task: `make(rows, vocab)` prepares what a server prepares once for a
request, and gives the call that is timed, from a batch [rows, vocab] to its tokens, or to the rows that it writes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import plan
from answers import objection
from inputs import Inputs


@dataclass
class Way:
    task: str
    does: str
    make: Callable
    given: str = "logits"
    dtypes: tuple = ("f32",)
    # Whether the call changes its batch, and that is its answer.
    in_place: bool = False


def warm(ways, vocab, rows, dtype):
    """Calls every way once, which compiles its kernels for the shape. Yields what failed."""
    inputs = Inputs()
    for way in ways:
        try:
            if dtype in way.dtypes:
                way.make(rows, vocab)(inputs.of(vocab, rows, way.given, dtype, batches=1)[0])
                torch.cuda.synchronize()
        except Exception as error:
            yield way, error


def measure(way, inputs, vocab, rows, dtype, modes):
    """Yields results of a way: in a graph and, of one row, eagerly."""
    given = inputs.of(vocab, rows, way.given, dtype)
    batches = given.clone() if way.in_place else given
    call, answer = way.make(rows, vocab), None
    for batch in batches[:3]:
        answer = call(batch)
    torch.cuda.synchronize()
    place = min(2, len(given) - 1)
    if way.in_place:
        answer = batches[place]
    elif not isinstance(answer, torch.Tensor):
        answer = torch.from_dlpack(answer)
    found = objection(way.task, asked(way, inputs, given, place), answer, dtype)
    if rows == 1 and "eager" in modes:
        yield {"mode": "eager", "dtype": dtype, "objection": found, **eager(call, batches)}
    if "graph" not in modes:
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # All are kept: what is written goes to memory as cold as what is read.
        answers = [call(batch) for batch in batches]
    times = replays(graph, len(batches))
    if not way.in_place:
        found = found or objection(way.task, asked(way, inputs, given, len(given) - 1), answers[-1], dtype)
    yield {"mode": "graph", "dtype": dtype, "objection": found, "calls": len(batches), **plan.of_samples(times)}
    graph.reset()


def asked(way, inputs, given, place):
    """The logits that an answer is for, as f32; of chains only their width counts."""
    if way.given == "drafts":
        return given[place][0][:, 0]
    return given[place].float() if way.given == "logits" else inputs.logits(place)


def eager(call, batches):
    times = []
    for index in range(10 + plan.EAGER_CALLS):
        batch = batches[index % len(batches)]
        began = time.perf_counter_ns()
        call(batch)
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - began) / 1000)
    return plan.of_samples(times[10:])


def replays(graph, calls):
    """Microseconds a call in each replay, by the device's clock, after replays that do not count."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def replay():
        events[0].record()
        graph.replay()
        events[1].record()
        events[1].synchronize()
        return 1000 * events[0].elapsed_time(events[1])

    replay()
    count = plan.MOST_REPLAYS if replay() < plan.LONG_US else plan.FEWEST_REPLAYS
    return [replay() / calls for _ in range(count)]
