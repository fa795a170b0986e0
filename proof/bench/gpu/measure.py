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
    # What the rows ask for in turn, where the call leaves out a part of what its task asks for.
    request: tuple = ()

    def __post_init__(self):
        self.request = self.request or plan.request(self.task)

    def temperatures(self):
        """The temperatures that the rows are divided by; a greedy row's is any."""
        return tuple(params.temperature or 1.0 for params in self.request)


def warm(ways, vocab, rows, dtype):
    """Calls every way once, which compiles its kernels for the shape. Yields what failed."""
    inputs = Inputs()
    for way in ways:
        try:
            if dtype in way.dtypes:
                count = rows * plan.rows_each(way.task)
                batch = inputs.of(vocab, count, way.given, dtype, batches=1, temperatures=way.temperatures())[0]
                way.make(rows, vocab)(batch)
                torch.cuda.synchronize()
        except Exception as error:
            yield way, error


def measure(way, inputs, vocab, rows, dtype, modes, like="model"):
    """Yields results of a way over rows of a family, those of `inputs`: in a graph and eagerly; where both are asked for, only one row eagerly."""
    given = inputs.of(vocab, rows * plan.rows_each(way.task), way.given, dtype, temperatures=way.temperatures())
    which = {"dtype": dtype, "rows_like": like}
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
    found = objection(way, asked(way, inputs, given, place), answer, dtype)
    if "eager" in modes and (rows == 1 or "graph" not in modes):
        yield {"mode": "eager", **which, "objection": found, **eager(call, batches)}
    if "graph" not in modes:
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # All are kept, so that the memory that is written is as cold as the memory that is read.
        answers = [call(batch) for batch in batches]
    times = replays(graph, len(batches), plan.MOST_REPLAYS if "eager" in modes else plan.FAMILY_REPLAYS)
    if not way.in_place:
        found = found or objection(way, asked(way, inputs, given, len(given) - 1), answers[-1], dtype)
    yield {"mode": "graph", **which, "objection": found, "calls": len(batches), **plan.of_samples(times)}
    graph.reset()


def asked(way, inputs, given, place):
    """The logits that an answer is for, as f32: of a request with drafts its first row, of chains only their width counts."""
    if way.given == "drafts":
        return given[place][0][:, 0]
    logits = given[place].float() if way.given == "logits" else inputs.logits(place)
    return logits[:: plan.rows_each(way.task)]


def eager(call, batches):
    times = []
    for index in range(10 + plan.EAGER_CALLS):
        batch = batches[index % len(batches)]
        began = time.perf_counter_ns()
        call(batch)
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - began) / 1000)
    return plan.of_samples(times[10:])


def replays(graph, calls, most):
    """Microseconds a call in each replay, by the device's clock, after replays that do not count."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def replay():
        events[0].record()
        graph.replay()
        events[1].record()
        events[1].synchronize()
        return 1000 * events[0].elapsed_time(events[1])

    replay()
    count = most if replay() < plan.LONG_US else min(most, plan.FEWEST_REPLAYS)
    return [replay() / calls for _ in range(count)]
