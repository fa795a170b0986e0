"""The bodies of `laws.py` on a GPU, five million draws of every kind, and long runs: `python proofs.py [NAME..]`.

A line for each proof; the verdict is the last. What has no kernel is said and skipped. Needs torch with CUDA,
and no pytest.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

# In the repository the bodies lie a folder above.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import gumball  # noqa: E402
import laws  # noqa: E402
from gumball import Pool, SamplingParams  # noqa: E402

PROOFS: dict[str, Callable[[], str]] = {}
CALLS = 100_000


def put(array: np.ndarray, dtype: str | None = None) -> torch.Tensor:
    tensor = torch.from_numpy(array).cuda()
    return tensor if dtype is None else tensor.to(getattr(torch, dtype))


def back(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    tensor = torch.as_tensor(array)
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


CUDA = laws.Place("cuda", put, back)


def proof(work: Callable[[], str]) -> Callable[[], str]:
    PROOFS[work.__name__] = work
    return work


for body in laws.BODIES:
    PROOFS[body.__name__] = lambda body=body: body(CUDA)  # type: ignore[misc]


@proof
def five_million_draws() -> str:
    """From 1, 99 and 989 rows of three vocabularies, with every filter, from probabilities and from logits."""
    done, missing = 0, set()
    for vocab, rows, kind in itertools.product((111, 32_000, 128_256), (1, 99, 989), ("logits", "probs")):
        for name, filters in laws.FILTERS.items():
            begun = time.perf_counter()
            try:
                found = laws.draws_follow(CUDA, rows, vocab, 5_000_000, filters, kind)
            except gumball.UnavailableError as error:
                missing.add(f"{kind}, {name}: {error}")
                continue
            done += 1
            print(f"  {rows} x {vocab}, {kind}, {name}: {found}, {time.perf_counter() - begun:.1f} s", flush=True)
    return f"{done} times" + "".join(f"\n  skipped: {text}" for text in sorted(missing))


@proof
def an_index_list_of_five_million() -> str:
    """From one row of 128256; what it takes in memory besides the list and the tokens is bounded."""
    row = laws.softmax64(laws.model_like(128_256, 4)).astype(np.float32)
    probs, lines = put(row), torch.zeros(5_000_000, dtype=torch.int32, device="cuda")
    out = torch.empty(5_000_000, dtype=torch.int32, device="cuda")
    gumball.sampling_from_probs(probs, lines[:1000], seed=3, out=out[:1000])
    torch.cuda.synchronize()
    free, begun = torch.cuda.mem_get_info()[0], time.perf_counter()
    gumball.sampling_from_probs(probs, lines, seed=3, out=out)
    torch.cuda.synchronize()
    seconds, taken = time.perf_counter() - begun, (free - torch.cuda.mem_get_info()[0]) >> 20
    assert taken < 1024, f"{taken} MiB"
    law = row[0].astype(np.float64) / row.sum(dtype=np.float64)
    return f"{laws.fits(np.bincount(back(out), minlength=row.size), law)}, {seconds:.2f} s, {taken} MiB besides"


def operators(rows: torch.Tensor, probs: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Calls of every operator, with parameters that lie on the device."""
    count = rows.shape[0]
    top_k, seeds = torch.full((count,), 20, device="cuda", dtype=torch.int32), torch.arange(count, device="cuda")
    top_p, heat = torch.full((count,), 0.9, device="cuda"), torch.full((count, 1), 0.7, device="cuda")
    return {
        "softmax": lambda: gumball.softmax(rows, heat),
        "probabilities": lambda: gumball.probabilities(rows, top_k=top_k, top_p=top_p),
        "top_k_renorm_probs": lambda: gumball.top_k_renorm_probs(probs, top_k),
        "top_p_renorm_probs": lambda: gumball.top_p_renorm_probs(probs, top_p),
        "min_p_renorm_probs": lambda: gumball.min_p_renorm_probs(probs, 0.05),
        "top_k_top_p_renorm_probs": lambda: gumball.top_k_top_p_renorm_probs(probs, top_k, top_p, order="joint"),
        "mask_logits": lambda: gumball.mask_logits(rows, top_k=top_k, top_p=top_p),
        "top_k_mask_logits": lambda: gumball.top_k_mask_logits(rows, top_k),
        "sampling_from_probs": lambda: gumball.sampling_from_probs(probs, top_k=top_k, top_p=top_p, seed=seeds),
        "sampling_from_logits": lambda: gumball.sampling_from_logits(rows, temperature=0.7, top_p=top_p, seed=seeds),
    }


def each_operator(work: Callable[[str, Callable[[], Any]], None], rows: int = 5, vocab: int = 5003) -> str:
    """Does something with every operator that has kernels; says which have not."""
    logits = np.stack([laws.model_like(vocab, seed) for seed in range(rows)])
    missing, done = [], 0
    for name, call in operators(put(logits), put(laws.softmax64(logits).astype(np.float32))).items():
        try:
            call()
        except gumball.UnavailableError:
            missing.append(name)
            continue
        work(name, call)
        done += 1
    assert done, "no operator has kernels"
    return f"{done} operators" + (f"; without kernels: {', '.join(missing)}" if missing else "")


@proof
def on_any_stream() -> str:
    """On other streams than the default one, several at a time, each gives the same bits."""

    def work(name: str, call: Callable[[], Any]) -> None:
        wanted, streams = call().clone(), [torch.cuda.Stream() for _ in range(4)]
        torch.cuda.synchronize()
        seen = []
        for _ in range(25):
            for stream in streams:
                with torch.cuda.stream(stream):
                    seen.append(call())
        torch.cuda.synchronize()
        assert all(torch.equal(one, wanted) for one in seen), name

    return each_operator(work)


@proof
def in_graphs() -> str:
    """Captured by torch, and replayed, each writes the same bits into the same place."""

    def work(name: str, call: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            wanted = call().clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = call()
        for _ in range(20):
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, wanted), name

    return each_operator(work)


def held(name: str, call: Callable[[], Any], calls: int) -> None:
    """Asserts that many calls take no more memory, on the host and on the device, than few."""
    for _ in range(2000):
        call()
    torch.cuda.synchronize()
    gc.collect()
    blocks, free, allocated = sys.getallocatedblocks(), torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for number in range(calls):
        call()
        if number % 1000 == 999:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    gc.collect()
    more = (
        sys.getallocatedblocks() - blocks,
        free - torch.cuda.mem_get_info()[0],
        torch.cuda.memory_allocated() - allocated,
    )
    assert more[0] < 300 and more[1] < 1 << 22 and more[2] < 1 << 12, (name, more)


@proof
def operators_leak_nothing() -> str:
    return each_operator(lambda name, call: held(name, call, CALLS), rows=1, vocab=64) + f", {CALLS} calls each"


@proof
def steps_leak_nothing() -> str:
    pool = Pool(64, device="cuda:0", slots=2, rows=2)
    slots, logits = [pool.admit(SamplingParams(seed=seed)) for seed in range(2)], torch.zeros(2, 64, device="cuda")
    pool.assign(slots)

    def work() -> None:
        torch.from_dlpack(pool.on_device().outputs("tokens"))
        assert len(pool.step(logits, slots)) == 2
        for slot in slots:
            pool.shorten([slot], [1])

    held("step", work, CALLS // 2)
    double = logits.double()

    def refused() -> None:
        try:
            pool.step(double, slots)
        except TypeError:
            return
        raise AssertionError("taken")

    held("refusals", refused, CALLS // 2)
    return f"{CALLS} calls"


def main() -> None:
    named, failed = sys.argv[1:], 0
    for name, work in PROOFS.items():
        if named and name not in named:
            continue
        begun = time.perf_counter()
        try:
            print(f"{name}: {work()}, {time.perf_counter() - begun:.1f} s", flush=True)
        except gumball.UnavailableError as error:
            print(f"{name}: skipped: {error}", flush=True)
        except Exception:
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
    print(f"VERDICT: {failed} of the proofs FAILED" if failed else "VERDICT: the proofs hold on this GPU")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
