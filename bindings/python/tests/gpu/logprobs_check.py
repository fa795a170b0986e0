"""The trainer's function on a GPU: `python logprobs_check.py [NAME..]`. A line for each check; the verdict is the last.

Values and gradients are compared with those of the host's tensors, bit for bit, and with torch's in float64. Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

from typing import Any

import torch
from check import check, run

import gumball
import gumball.torch

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def asked(rows: int, vocab: int, dtype: Any, width: int) -> dict[str, Any]:
    """Rows with odd values, and the arguments of a call, on the host."""
    torch.manual_seed(rows + vocab + width)
    logits = torch.randn(rows, vocab) * 4
    logits[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    ids = torch.randint(0, vocab, (rows, width))
    ids[1, 0], ids[2] = -1, -100
    kept = torch.rand(rows, vocab) < torch.tensor([0.5, 0.001])[torch.arange(rows) % 2, None]
    kept[torch.arange(rows)[:, None], ids.clamp(min=0)] = True
    temperature = torch.linspace(0.3, 2, rows)
    temperature[3] = 0
    kept[4] = False
    return dict(logits=logits.to(dtype), ids=ids, temperature=temperature, lists=(kept.sum(1), kept.nonzero()[:, 1]))


def answers(
    case: dict[str, Any], device: str, has_sets: bool, in_place: bool = False, compiled: bool = False
) -> list[Any]:
    """Logprobs, entropies, and the gradient of a loss of both."""
    logits = case["logits"].to(device, copy=True).requires_grad_()
    sets = [part.to(device) for part in case["lists"]]
    named: Any = dict(temperature=case["temperature"].to(device), entropy=True, in_place=in_place)
    ids = case["ids"].to(device)

    def loss(logits: Any) -> Any:
        kept = gumball.torch.kept_bitmask(*sets, logits.shape[1]) if has_sets else None
        found, entropies = gumball.torch.logprobs(logits * 1, ids, kept=kept, **named)
        return found, entropies, torch.where(found > -1e30, found, 0).sum() - 0.3 * entropies.sum()

    found, entropies, total = (torch.compile(loss, fullgraph=True) if compiled else loss)(logits)
    total.backward()
    return [part.detach().cpu() for part in (found, entropies, logits.grad)]


def cases() -> Any:
    for vocab in (7, 900, 32_000, 151_936):
        for dtype in TYPES:
            for width in (1, 5, 256):
                for has_sets in (False, True):
                    yield (
                        asked(6 if vocab > 1000 else 40, vocab, dtype, width),
                        has_sets,
                        (vocab, dtype, width, has_sets),
                    )


@check
def values_and_gradients_are_the_hosts() -> str:
    """Bit for bit, in new memory and in the logits' place."""
    count = 0
    for case, has_sets, name in cases():
        wanted = answers(case, "cpu", has_sets)
        for in_place in (False, True):
            for got, want in zip(answers(case, "cuda", has_sets, in_place), wanted, strict=True):
                assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), (name, in_place)
        count += 1
    return f"{count} cases"


@check
def many_rows_and_chunks_are_the_same() -> str:
    """A batch of 2048 rows is its parts."""
    case = asked(2048, 32_000, torch.bfloat16, 1)
    logits, ids = case["logits"].cuda(), case["ids"].cuda()
    whole = gumball.torch.logprobs(logits, ids, entropy=True)
    for size in (1, 100, 777):
        for start in range(0, 2048, size):
            part = slice(start, start + size)
            got = gumball.torch.logprobs(logits[part], ids[part], entropy=True)
            assert all(torch.equal(a, b[part]) for a, b in zip(got, whole, strict=True)), (start, size)
    return "1, 100 and 777 rows at a time"


@check
def a_pool_reports_the_same() -> str:
    """Of a pool on the GPU with every kind of filter: 0 logprobs differ."""
    rows, vocab, seen = 256, 32_000, 0
    filters = [
        dict(top_p=0.95),
        dict(min_p=0.05),
        dict(top_k=40),
        dict(typical_p=0.9),
        dict(top_p=0.9, xtc_probability=1.0),
    ]
    pool = gumball.Pool(vocab, device="cuda:0", slots=rows, rows=rows, kept=True)
    torch.manual_seed(1)
    params = [
        gumball.SamplingParams(
            **filters[i % 5], temperature=0.5 + i % 7 / 5, seed=i, logprobs=gumball.LogprobsParams(mode="processed")
        )
        for i in range(rows)
    ]
    slots = [pool.admit(one) for one in params]
    temperature = torch.tensor([one.temperature for one in params], device="cuda")
    for _ in range(20):
        logits = (torch.randn(rows, vocab, device="cuda") * 3).bfloat16()
        out = pool.step(logits, slots)
        kept = tuple(torch.from_numpy(part).cuda() for part in out.kept_sets())
        found = gumball.torch.logprobs(logits, torch.from_numpy(out.tokens).cuda(), temperature=temperature, kept=kept)
        assert found.cpu().numpy().tobytes() == out.logprobs.tobytes()
        seen += rows
    return f"{seen} tokens"


@check
def ten_million_tokens_are_the_same() -> str:
    """Of a pool on the GPU, under all filters and greedy: the logprobs of 10^7 tokens over their kept sets are the trainer's, bit for bit."""
    rows, vocab, steps = 1024, 2000, 10_000
    kinds: list[dict[str, Any]] = [
        dict(top_p=0.95),
        dict(min_p=0.05),
        dict(top_k=40, top_p=0.9),
        dict(typical_p=0.9),
        dict(top_n_sigma=1.5),
        dict(top_a=0.2),
        dict(p_less=True),
        dict(epsilon_cutoff=0.001, eta_cutoff=0.002),
        dict(top_p=0.9, xtc_probability=0.5, xtc_threshold=0.05),
        dict(mirostat=gumball.Mirostat(3.0)),
        dict(),
    ]
    mode = gumball.LogprobsParams(mode="processed")
    temperatures = [0.0 if i % 13 == 0 else 0.5 + i % 7 / 5 for i in range(rows)]
    params = [
        gumball.SamplingParams(**kinds[i % len(kinds)], temperature=temperatures[i], seed=i, logprobs=mode)
        for i in range(rows)
    ]
    pool = gumball.Pool(vocab, device="cuda:0", slots=rows, rows=rows, kept=True)
    pool.assign([pool.admit(one) for one in params])
    tokens, told, kept = (torch.from_dlpack(pool.on_device().outputs(name)) for name in ("tokens", "logprobs", "kept"))
    temperature, differ = torch.tensor(temperatures, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    torch.manual_seed(2)
    many = (torch.randn(64, rows, vocab, device="cuda") * 3).bfloat16()
    for step in range(steps):
        logits = many[step % 64]
        pool.enqueue([gumball.Step(logits)])
        found = gumball.torch.logprobs(logits, tokens, temperature=temperature, kept=kept)
        differ += (found.view(torch.int32) != told.view(torch.int32)).sum()
    assert differ.item() == 0, differ.item()
    return f"{rows * steps} tokens"


@check
def compiled_and_in_a_graph() -> str:
    """torch.compile's results are those outside, and a graph of torch replays the forward pass."""
    case = asked(40, 32_000, torch.bfloat16, 1)
    for has_sets in (False, True):
        wanted = answers(case, "cuda", has_sets)
        for got, want in zip(answers(case, "cuda", has_sets, compiled=True), wanted, strict=True):
            assert torch.equal(got, want)
    logits, ids = case["logits"].cuda(), case["ids"].cuda()
    wanted = gumball.torch.logprobs(logits, ids, entropy=True)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = gumball.torch.logprobs(logits, ids, entropy=True)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    return "with sets and without"


@check
def gradients_are_near_those_of_float64() -> str:
    """Of torch's formula, within the rounding of float32."""
    case = asked(40, 32_000, torch.float32, 5)
    rows = torch.arange(5, 40)
    logits, ids = case["logits"][rows].cuda().requires_grad_(), case["ids"][rows].cuda()
    temperature = case["temperature"][rows].cuda()
    found, entropies = gumball.torch.logprobs(logits, ids, temperature=temperature, entropy=True)
    (found.sum() + entropies.sum()).backward()
    exact = logits.detach().double().requires_grad_()
    logp = (exact / temperature.double()[:, None]).log_softmax(-1)
    wanted, entropy = logp.gather(1, ids), -(logp.exp() * logp).sum(-1)
    (wanted.sum() + entropy.sum()).backward()
    worst = (logits.grad - exact.grad).abs().max().item()
    assert worst < 1e-5 and (found - wanted).abs().max() < 1e-5 and (entropies - entropy).abs().max() < 1e-5
    return f"{worst:.1e} at most"


if __name__ == "__main__":
    run("the trainer's function")
