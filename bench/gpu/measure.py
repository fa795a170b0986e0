"""Times a way from logits to tokens on this machine's GPU, and looks at its answer.

A way is what an engine of `engines/` does for a task: `make(rows, vocab)` prepares what a server prepares once for a
request, and gives the call that is timed, from a batch [rows, vocab] to its tokens.
"""

import time
from dataclasses import dataclass
from typing import Callable

import torch

import plan


@dataclass
class Way:
    task: str
    does: str
    make: Callable
    given: str = "logits"


class Inputs:
    """Batches of rows like a model's, in the forms that ways read; kept until the shape changes."""

    def __init__(self):
        self.shape, self.forms = None, {}

    def of(self, vocab, rows, given, batches):
        shape = (batches, rows, vocab)
        if shape != self.shape:
            self.shape, self.forms = None, {}
            torch.cuda.empty_cache()
            self.shape, self.forms = shape, {"logits": model_like(*shape)}
        if given not in self.forms:
            scaled = self.forms["logits"] / plan.TEMPERATURE
            self.forms[given] = torch.softmax(scaled, -1) if given == "probabilities" else scaled
        return self.forms[given]


def model_like(batches, rows, vocab):
    """Normal with sigma 2, then 20 tokens raised by 6 to 14."""
    generator = torch.Generator("cuda").manual_seed(vocab + rows)
    logits = torch.empty(batches, rows, vocab, device="cuda").normal_(0, 2, generator=generator)
    shape = (batches, rows, 20)
    peaks = torch.randint(vocab, shape, device="cuda", generator=generator)
    return logits.scatter_add_(2, peaks, 6 + 8 * torch.rand(shape, device="cuda", generator=generator))


def warm(ways, vocab, rows):
    """Calls every way once, which compiles its kernels for the shape. Yields what failed."""
    inputs = Inputs()
    for way in ways:
        try:
            way.make(rows, vocab)(inputs.of(vocab, rows, way.given, 1)[0])
            torch.cuda.synchronize()
        except Exception as error:
            yield way, error


def measure(way, inputs, vocab, rows):
    """Yields results of a way: in a graph and, of one row, eagerly."""
    batches = inputs.of(vocab, rows, way.given, plan.batches(vocab, rows))
    call = way.make(rows, vocab)
    for batch in batches[:3]:
        tokens = call(batch)
    torch.cuda.synchronize()
    logits = inputs.forms["logits"]
    found = objection(way.task, logits[min(2, len(logits) - 1)], tokens)
    if rows == 1:
        yield {"mode": "eager", "objection": found, **eager(call, batches)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for batch in batches:
            tokens = call(batch)
    times = replays(graph, len(batches))
    found = found or objection(way.task, logits[-1], tokens)
    yield {"mode": "graph", "objection": found, "calls": len(batches), **plan.of_samples(times)}
    graph.reset()


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


def objection(task, logits, tokens):
    """Says what is wrong with tokens as the answer for a batch, if anything is: loose, and no proof of an engine."""
    rows, vocab = logits.shape
    tokens = tokens.reshape(-1).long()
    if len(tokens) != rows:
        return f"{len(tokens)} tokens for {rows} rows"
    if ((tokens < 0) | (tokens >= vocab)).any():
        return f"a token is none of 0..{vocab}"
    drawn = logits.gather(1, tokens[:, None])
    above = (logits > drawn).sum(1)
    if task == "greedy" and above.any():
        return f"{int((above > 0).sum())} rows have a more likely token"
    if task in ("top-k-top-p", "top-k-top-p-min-p") and (above >= plan.TOP_K).any():
        return f"a token has {int(above.max())} more likely ones, of the top {plan.TOP_K}"
    scaled = logits.double() / plan.TEMPERATURE
    if task in ("min-p", "top-k-top-p-min-p"):
        ratio = (drawn.double()[:, 0] / plan.TEMPERATURE - scaled.amax(1)).exp().min().item()
        if ratio < plan.MIN_P * 0.999:
            return f"a token is {ratio:.4f} times as likely as the likeliest, of min-p {plan.MIN_P}"
    if task in ("top-p", "top-k-top-p", "top-k-top-p-min-p"):
        # Of the whole row: after top-k some take p of what is left, which keeps less.
        before = (scaled.softmax(-1) * (logits > drawn)).sum(1).max().item()
        if before > plan.TOP_P + 2e-3:
            return f"{before:.4f} of the mass comes before a token, of top-p {plan.TOP_P}"
    return None
