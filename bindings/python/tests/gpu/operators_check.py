"""The package's operators on a GPU: `python operators_check.py [NAME..]`. A line for each check; the verdict is the last.

What they make is compared with what the same calls make of the host's tensors; `ci/gpu conformance` holds the kernels to the definition. Needs
torch with CUDA, and no pytest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from check import check, refused, run

# In the repository the calls lie a folder above.
sys.path[:0] = [str(Path(__file__).parents[1])]

import gumball  # noqa: E402
import gumball.torch  # noqa: E402
from operator_calls import Calls, calls, more_calls, of_torch, same  # noqa: E402

TEMPERATURES = [1.0, 0.01, 100.0, 0.7, 0.5, 2.0]


def all_calls(device: str, vocab: int = 32_000, of: Any = gumball) -> Calls:
    batch = np.random.default_rng(7).normal(0, 3, (7, vocab)).astype(np.float32)

    def put(array: np.ndarray, dtype: str | None = None) -> Any:
        return of_torch(array, dtype, device)

    return calls(of, batch, put) | (more_calls(batch, put) if of is gumball else {})


@check
def on_streams_and_in_graphs() -> str:
    """Each call is the host's, on the default stream and on others, and replayed from a graph of torch."""
    for vocab in (900, 32_000, 151_936):
        host = all_calls("cpu", vocab)
        for name, call in all_calls("cuda", vocab).items():
            wanted = host[name]()
            assert same(call(), wanted), (name, vocab)
            for stream in [torch.cuda.Stream() for _ in range(3)]:
                stream.wait_stream(torch.cuda.default_stream())
                with torch.cuda.stream(stream):
                    made = [call() for _ in range(5)]
                torch.cuda.default_stream().wait_stream(stream)
                assert all(same(one, wanted) for one in made), name
            # Lists, one id for all rows and new places are copied there, which a graph would not repeat.
            if name in ("lists", "pools, neighbours", "logprobs") or any(
                part in name for part in ("place", "to out", "one id")
            ):
                continue
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                found = call()
            graph.replay()
            assert same(found, wanted), name
    return f"{len(host)} calls of 3 vocabularies"


@check
def replays_read_what_lies_there() -> str:
    """Captured on torch's capture stream, replayed with other logits and temperatures; a list is refused there."""
    column = torch.tensor(TEMPERATURES, device="cuda")
    for rows in (6, 1, 200):
        still, given = torch.randn(rows, 151_936, device="cuda"), column.repeat(rows)[:rows].clone()
        seeds, graph = torch.arange(rows, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got, drawn = (
                gumball.softmax(still, given),
                gumball.sample(still, seed=seeds, position=3, top_k=50, top_p=0.9),
            )
            listed = [1.0] * rows
            refused(
                [
                    (lambda: gumball.softmax(still, listed), ValueError, "the capture of a graph"),  # noqa: B023
                    (lambda: gumball.sample(still), ValueError, "seed is absent"),  # noqa: B023
                ]
            )
        for scale in (1.0, 3.0, 0.1):
            still.normal_().mul_(scale)
            given.copy_(given.roll(1))
            graph.replay()
            assert torch.equal(got.cpu(), gumball.softmax(still.cpu(), given.cpu()))
            wanted = gumball.sample(still.cpu(), seed=seeds.cpu(), position=3, top_k=50, top_p=0.9)
            assert torch.equal(drawn.cpu(), wanted)
    return "9 replays"


@check
def compiled() -> str:
    """In what torch compiles, whole; with CUDA graphs of the compiler's own, too."""
    wanted = {name: call() for name, call in all_calls("cpu").items()}
    for mode in ("default", "reduce-overhead"):
        for name in ("softmax", "probabilities of probabilities", "sample", "sample of lines", "judge"):
            torch.compiler.reset()
            call = torch.compile(all_calls("cuda", of=gumball.torch)[name], fullgraph=True, mode=mode)
            for _ in range(3):
                assert same(call(), wanted[name]), (name, mode)
    return "2 modes"


@check
def mistakes_of_places() -> str:
    """Arrays of two memories are told, and nothing was changed."""
    good = torch.randn(6, 32_000, device="cuda")
    before = good.clone()
    cases: list[tuple[Callable[[], object], Any, str]] = [
        (lambda: gumball.softmax(good, torch.ones(6)), ValueError, "temperature is on cpu, but must be on cuda:0"),
        (lambda: gumball.softmax(good.cpu(), torch.ones(6, device="cuda")), ValueError, "temperature is on cuda:0"),
        (lambda: gumball.softmax(good, out=good.cpu()), ValueError, "out is on cpu, but must be on cuda:0"),
        (lambda: gumball.softmax(good.cpu(), out=good), (ValueError, gumball.UnavailableError), "cuda:0"),
        (lambda: gumball.softmax(good[1:], out=good[:-1]), ValueError, "out shares memory"),
        (lambda: gumball.softmax(good, stream="mine"), TypeError, "stream must be"),
    ]
    told = refused(cases)
    assert torch.equal(good, before)
    return told


@check
def operators_on_another_device() -> str:
    """Rows on the last device are worked on there, and torch's current device stays."""
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(0):
        logits = torch.randn(3, 32_000, device=f"cuda:{last}")
        got = gumball.softmax(logits, 0.7)
        assert got.device == logits.device and torch.cuda.current_device() == 0
        assert torch.equal(got.cpu(), gumball.softmax(logits.cpu(), 0.7))
        if last:
            out, column = torch.ones(3, 32_000, device="cuda:0"), torch.ones(3, 1, device="cuda:0")
            both = (lambda: gumball.softmax(logits, out=out), lambda: gumball.softmax(logits, column))
            refused([(call, ValueError, "is on cuda:0, but must be on cuda:") for call in both])
    return f"cuda:{last} of {last + 1}"


if __name__ == "__main__":
    run("the package's operators")
