"""The package's operators on a GPU: `python operators_check.py [NAME..]`. A line for each check; the verdict is the last.

What they make is compared with what the same functions make on the host, and with float64. Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from check import DTYPES, ROWS, VOCAB, run

import gumball

CHECKS: list[Callable[[], str]] = []


def check(work: Callable[[], str]) -> Callable[[], str]:
    CHECKS.append(work)
    return work


def softmax64(logits: torch.Tensor, temperature: Any) -> torch.Tensor:
    """In float64 on the host."""
    t = torch.as_tensor(temperature, dtype=torch.float64, device="cpu").reshape(-1, 1)
    return (logits.detach().cpu().double() / t).softmax(-1)


def near(seen: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(seen.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


def host_softmax(logits: torch.Tensor, temperature: Any) -> torch.Tensor:
    made: torch.Tensor = gumball.softmax(logits.cpu(), temperature)
    return made


TEMPERATURES = [1.0, 0.01, 100.0, 0.7, 0.5, 2.0]


@check
def softmax() -> str:
    """Each type, shape and kind of temperature: the host's bits, and float64's values."""
    column, seen = torch.tensor(TEMPERATURES, device="cuda"), 0
    for rows, vocab in [(1, 151_936), (6, VOCAB), (6, 151_936), (6, 257), (200, 128_256), (6, 1)]:
        for dtype in DTYPES:
            for shift in (0, 3):
                wide = torch.randn(rows, vocab + 11, device="cuda").mul_(3).to(dtype)
                logits = wide[:, shift : vocab + shift]
                temperatures = column.repeat(rows)[:rows]
                listed = temperatures.tolist()
                wanted = host_softmax(logits, listed)
                near(wanted, softmax64(logits, listed))
                for given in (temperatures, temperatures.reshape(rows, 1), listed, temperatures.double()):
                    got, statuses = gumball.softmax(logits, given, return_statuses=True)
                    assert torch.equal(got.cpu(), wanted) and not statuses.any(), (rows, vocab, dtype, shift)
                place = wide.clone()
                inside = place[:, shift : vocab + shift]
                assert gumball.softmax(inside, temperatures, out=inside) is inside
                assert torch.equal(inside.cpu(), wanted.to(dtype))
                place[:, shift : vocab + shift] = logits
                assert torch.equal(place, wide), "what lies between rows was touched"
                seen += rows
    logits = torch.randn(5, VOCAB, device="cuda")
    logits[1], logits[3, 7] = -torch.inf, torch.nan
    got, statuses = gumball.softmax(logits, 0.5, return_statuses=True)
    assert statuses.tolist() == [0, gumball.Status.EMPTY, 0, gumball.Status.NAN, 0]
    assert torch.equal(got.cpu(), host_softmax(logits, 0.5)) and gumball.softmax(logits[:0]).shape == (0, VOCAB)
    return f"{seen} rows"


@check
def softmax_across_streams_and_graphs() -> str:
    """On each stream in its turn; captured on torch's capture stream, replayed with other logits and temperatures."""
    logits, column = torch.randn(ROWS, VOCAB, device="cuda"), torch.tensor(TEMPERATURES, device="cuda")
    wanted = host_softmax(logits, TEMPERATURES)
    for stream in [torch.cuda.Stream() for _ in range(5)]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = [gumball.softmax(logits * 1.0, column) for _ in range(20)]
        torch.cuda.current_stream().wait_stream(stream)
        assert all(torch.equal(one.cpu(), wanted) for one in made)
    for rows in (ROWS, 1, 200):
        still = torch.randn(rows, 151_936, device="cuda")
        given = column.repeat(rows)[:rows].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = gumball.softmax(still, given)
            again = gumball.softmax(got.log(), 1.0)
            try:
                gumball.softmax(still, [1.0] * rows)
            except ValueError as error:
                refused = str(error)
        assert "the capture of a graph" in refused
        for scale in (1.0, 3.0, 0.1):
            still.normal_().mul_(scale)
            given.copy_(given.roll(1))
            graph.replay()
            assert torch.equal(got.cpu(), host_softmax(still, given.cpu()))
            torch.testing.assert_close(again, got, rtol=1e-4, atol=1e-6)
    return "5 streams, 9 replays"


@check
def softmax_compiled() -> str:
    """In what torch compiles, whole; with CUDA graphs of the compiler's own, too."""
    import gumball.torch

    logits, column = torch.randn(ROWS, VOCAB, device="cuda"), torch.tensor(TEMPERATURES, device="cuda")
    for mode in ("default", "reduce-overhead"):
        for of in (gumball.torch.softmax, gumball.softmax):
            torch.compiler.reset()

            @torch.compile(fullgraph=True, mode=mode)
            def work(logits: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
                return of(logits * 2.0, column) + 1.0

            for _ in range(4):
                assert torch.equal(work(logits, column), gumball.softmax(logits * 2.0, column) + 1.0)
    return "2 modes"


@check
def draws() -> str:
    """Draws from logits are the host's: columns, lists, lines, several a row; on a stream, in a graph, compiled."""
    import gumball.torch

    logits = torch.randn(ROWS, VOCAB, device="cuda").mul_(2)
    ks, ps = (
        torch.tensor([5, 0, 40, 1, 7, 900], device="cuda"),
        torch.tensor([0.9, 1.0, 0.5, 0.3, 0.95, 0.99], device="cuda"),
    )
    seeds, lines = torch.arange(-3, 3, device="cuda"), torch.tensor([5, 0, 0, 3], device="cuda")
    calls: list[dict[str, Any]] = [
        {"seed": 7},
        {"seed": seeds, "temperature": ps, "top_k": ks, "top_p": ps},
        {"seed": 7, "top_k": 50, "top_p": 0.9, "dtype": "int64"},
        {"seed": seeds, "min_p": 0.05, "position": 9},
        {"seed": 7, "indices": lines, "top_p": ps, "order": "joint"},
        {"seed": seeds, "n": 5, "top_k": ks},
        {"seed": [1, 2, 3, 4, 5, 6], "temperature": [0.5] * 6},
    ]
    seen = 0
    for dtype in DTYPES:
        rows = torch.empty(ROWS, VOCAB + 9, device="cuda", dtype=dtype)[:, 5 : VOCAB + 5].copy_(logits)
        for call in calls:
            on_host = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
            wanted = gumball.sampling_from_logits(rows.cpu(), **on_host)
            assert torch.equal(gumball.sampling_from_logits(rows, **call).cpu(), wanted), call
            seen += wanted.numel()
    many = gumball.sampling_from_logits(logits[:1], n=200_000, seed=3)
    assert torch.equal(many.cpu(), gumball.sampling_from_logits(logits[:1].cpu(), n=200_000, seed=3))
    probs = gumball.softmax(logits)
    for call in ({"seed": 7}, {"seed": seeds, "top_k": ks, "top_p": ps}, {"seed": 7, "min_p": 0.05}):
        on_host = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        wanted = gumball.sampling_from_probs(probs.cpu(), **on_host)
        assert torch.equal(gumball.sampling_from_probs(probs, **call).cpu(), wanted), call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = gumball.sampling_from_logits(logits, seed=seeds, top_k=ks, top_p=ps)
    for _ in range(3):
        logits.normal_().mul_(2)
        graph.replay()
        wanted = gumball.sampling_from_logits(logits.cpu(), seed=seeds.cpu(), top_k=ks.cpu(), top_p=ps.cpu())
        assert torch.equal(drawn.cpu(), wanted)
    compiled = torch.compile(lambda z: gumball.torch.sampling_from_logits(z, seed=seeds, top_k=ks) + 0, fullgraph=True)
    assert torch.equal(compiled(logits), gumball.sampling_from_logits(logits, seed=seeds, top_k=ks))
    return f"{seen} tokens, and {many.numel()} of one row"


@check
def selected_logprobs() -> str:
    """Logprobs of tokens, and ranks, are the host's, of ids on the host and on the GPU, eager and in a graph."""
    logits = torch.randn(600, VOCAB, device="cuda").mul_(3)
    tokens = torch.randint(-1, VOCAB, (600,))
    for dtype in DTYPES:
        rows = logits.to(dtype)
        wanted = gumball.selected_logprobs(rows.cpu(), tokens, return_ranks=True)
        ids = tokens.to("cuda")
        for given in (tokens, ids, ids.int()):
            seen = gumball.selected_logprobs(rows, given, return_ranks=True)
            assert torch.equal(seen[0].cpu(), wanted[0]) and (seen[1].cpu().numpy() == wanted[1]).all(), dtype
        graph, out = torch.cuda.CUDAGraph(), torch.zeros(600, device="cuda")
        with torch.cuda.graph(graph):
            gumball.selected_logprobs(rows, ids, out=out)
        ids.copy_(ids.flip(0))
        graph.replay()
        assert torch.equal(out.cpu(), gumball.selected_logprobs(rows.cpu(), tokens.flip(0))), dtype
    return f"{3 * len(tokens)} tokens"


@check
def chains() -> str:
    """Chains of drafts come to what they come to on the host, eager and in a graph."""
    count, n = 16, 3
    target = torch.randn(count, n + 1, VOCAB, device="cuda").mul_(3).softmax(-1)
    draft = (target[:, :n] + torch.rand(count, n, VOCAB, device="cuda") / VOCAB).contiguous()
    draft /= draft.sum(-1, keepdim=True)
    ids = torch.multinomial(draft.reshape(-1, VOCAB), 1).reshape(count, n)
    seeds = torch.arange(count, device="cuda")
    for call in ({"seed": 5}, {"seed": seeds, "position": seeds.int(), "dtype": "int64"}):
        on_host = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        wanted = gumball.judge(draft.cpu(), ids.cpu(), target.cpu(), **on_host)
        got = gumball.judge(draft, ids, target, **call)
        for seen, want in zip(got, wanted):
            assert seen is want or seen.tolist() == want.tolist()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gumball.judge(draft, ids, target, seed=seeds)
    graph.replay()
    assert torch.equal(captured.tokens, gumball.judge(draft, ids, target, seed=seeds).tokens)
    assert int(captured.accepted.sum()) > 0
    return f"{count} chains"


@check
def mistakes_of_operators() -> str:
    """What does not fit is told, and nothing was changed."""
    good = torch.randn(ROWS, VOCAB, device="cuda")
    before = good.clone()
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: gumball.softmax(good, -1.0, good), ValueError, "temperature is -1"),
        (lambda: gumball.softmax(good, [1.0, 2.0], good), ValueError, "temperature has length 2"),
        (lambda: gumball.softmax(good, torch.ones(2, device="cuda")), ValueError, "has length 2"),
        (lambda: gumball.softmax(good, torch.ones(ROWS)), ValueError, "temperature is on cpu, but must be on cuda:0"),
        (lambda: gumball.softmax(good, "hot"), TypeError, "temperature must be a number"),
        (lambda: gumball.softmax(good.cpu(), torch.ones(ROWS, device="cuda")), ValueError, "temperature is on cuda:0"),
        (lambda: gumball.softmax(good, out=good.cpu()), ValueError, "out is on cpu, but must be on cuda:0"),
        (lambda: gumball.softmax(good.cpu(), out=good), (ValueError, gumball.UnavailableError), "cuda:0"),  # type: ignore[list-item]
        (lambda: gumball.softmax(good, out=good.half()), ValueError, "out.dtype is f16"),
        (lambda: gumball.softmax(good, out=good.int()), TypeError, "out is of int32"),
        (lambda: gumball.softmax(good[1:], out=good[:-1]), ValueError, "out shares memory"),
        (lambda: gumball.softmax(good, out=good[:3].clone()), ValueError, "out has length 3"),
        (lambda: gumball.softmax(good.double()), TypeError, "logits is of float64"),
        (lambda: gumball.softmax(good.t()), ValueError, "side by side"),
        (lambda: gumball.softmax(good[None]), ValueError, "3 dimensions"),
        (lambda: gumball.softmax(good, stream="mine"), TypeError, "stream must be"),
    ]
    for call, kind, text in cases:
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"not refused: {text}")
    assert torch.equal(good, before)
    return f"{len(cases)} mistakes"


@check
def operators_on_another_device() -> str:
    """Rows on the last device are worked on there, and torch's current device stays."""
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(0):
        logits = torch.randn(3, VOCAB, device=f"cuda:{last}")
        got = gumball.softmax(logits, 0.7)
        assert got.device == logits.device and torch.cuda.current_device() == 0
        assert torch.equal(got.cpu(), host_softmax(logits, 0.7))
        if last:
            for wrong in (
                {"out": torch.empty(3, VOCAB, device="cuda:0")},
                {"temperature": torch.ones(3, device="cuda:0")},
            ):
                try:
                    gumball.softmax(logits, **wrong)
                except ValueError as error:
                    assert "is on cuda:0, but must be on cuda:" in str(error)
                else:
                    raise AssertionError(wrong)
    return f"cuda:{last} of {last + 1}"


@check
def no_leak() -> str:
    """Device memory and references stay as they are over 10^5 calls."""
    logits, column = torch.randn(1, 1000, device="cuda"), torch.ones(1, device="cuda")
    for given in (0.7, column, [0.7]):
        for _ in range(100):
            gumball.softmax(logits, given, return_statuses=True)
        torch.cuda.synchronize()
        gc.collect()
        held, references = torch.cuda.memory_allocated(), [sys.getrefcount(one) for one in (logits, column)]
        free = torch.cuda.mem_get_info()[0]
        for _ in range(100_000 // 3):
            gumball.softmax(logits, given, return_statuses=True)
        torch.cuda.synchronize()
        gc.collect()
        assert torch.cuda.memory_allocated() == held and torch.cuda.mem_get_info()[0] >= free - 2**22
        assert [sys.getrefcount(one) for one in (logits, column)] == references
    return "10^5 calls"


if __name__ == "__main__":
    run(CHECKS, "the package's operators")
