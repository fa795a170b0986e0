"""Holds two ranks of `gumball.dist`, each with torch's tensors on a GPU of its own, to one GPU: by each transport, between what NCCL takes for two hosts,
in graphs of torch, over its process group and over its communicator. A rank that is killed, or stops so that its link stalls, must be an error in
time, after which a new group goes on.

Needs two GPUs that reach each other, torch, and NCCL.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed

import gumball
from gumball import Batch, Pool, Ranks, SamplingParams, Step, dist

VOCAB, STEPS, WORLD = 32003, 3, 2
PARAMS = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.0),
    SamplingParams(seed=3, top_k=50, top_p=0.9),
    SamplingParams(seed=4, top_p=0.8, repetition_penalty=1.3),
]
DRAFTS = [[4, 5], [6], [], [7, 8]]
STARTS = [0, 3, 5, 6, 9]
DTYPES = (torch.float32, torch.bfloat16)
LAYOUTS = {"onesided": ("gather", "swap", "survey", "replicated"), "nccl": ("gather", "swap", "replicated")}
# Seconds in which all ranks of a part must have said all that they say.
PATIENCE = 150
# Seconds after which a rank that says nothing is late.
TIMEOUT = 3.0


def rows(step: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    logits = torch.randn(count, VOCAB, generator=generator) * 2.5
    logits[:, 4:9] += 9
    return logits.to(dtype)


def part_of(pool: Pool, plan: Any, whole: torch.Tensor, starts: list[int]) -> torch.Tensor:
    """What a rank has of a step's rows: its own part of them, or the whole rows of its requests."""
    if plan.layout == "replicated":
        return whole[[row for request in plan.requests for row in range(starts[request], starts[request + 1])]]
    start, end = pool.ranks.ids
    return whole[:, start:end].contiguous()


def texts(pool: Pool, device: str, dtype: torch.dtype) -> list[Any]:
    """Steps and a verification over ranks."""
    slots = [pool.admit(params, [3, 7]) for params in PARAMS]
    found: list[Any] = []
    for step in range(STEPS):
        plan = pool.plan(slots)
        part = part_of(pool, plan, rows(step, 4, dtype), [0, 1, 2, 3, 4])
        found.append(pool.step(part.to(device), Batch(slots, plan=plan)).tolist())
    plan = pool.plan(slots, drafts=2)
    part = part_of(pool, plan, rows(STEPS, 9, dtype), STARTS)
    found.append(pool.verify(part.to(device), Batch(slots, plan=plan), DRAFTS).emitted())
    return [found, [pool.output(slot) for slot in slots]]


def wanted_texts(dtype: torch.dtype) -> list[Any]:
    pool = Pool(VOCAB, device="cuda:0", slots=8, rows=16)
    slots = [pool.admit(params, [3, 7]) for params in PARAMS]
    found: list[Any] = [pool.step(rows(step, 4, dtype).to("cuda:0"), slots).tolist() for step in range(STEPS)]
    found.append(pool.verify(rows(STEPS, 9, dtype).to("cuda:0"), slots, DRAFTS).emitted())
    return [found, [pool.output(slot) for slot in slots]]


def in_a_graph(pool: Pool, device: str, dtype: torch.dtype) -> list[Any]:
    """The same steps, captured in a graph of torch and replayed over what lies in one place."""
    slots = [pool.admit(params, [3, 7]) for params in PARAMS]
    plan, graph = pool.plan(slots), torch.cuda.CUDAGraph()
    place = part_of(pool, plan, rows(0, 4, dtype), [0, 1, 2, 3, 4]).to(device)
    pool.assign(Batch(slots, plan=plan))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        recorded = pool.on_device().record([Step(place)])
    found = []
    for step in range(STEPS):
        place.copy_(part_of(pool, plan, rows(step, 4, dtype), [0, 1, 2, 3, 4]))
        pool.on_device().before_replay(recorded)
        graph.replay()
        found.append(pool.fetch().tolist())
    # Messages in a graph keep their communicator.
    graph.reset()
    return found


Say = Callable[[str, Any], None]


def on_two_hosts(rank: int) -> None:
    """Lets NCCL take each process for one on a host of its own: what travels does so over sockets."""
    os.environ |= {
        "NCCL_HOSTID": f"host-{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
    }


def joined(address: str, rank: int, **options: Any) -> Pool:
    of_ranks = {name: options.pop(name) for name in Ranks.__dataclass_fields__ if name in options}
    return Pool(VOCAB, ranks=Ranks(rank, [f"{address}.{it}" for it in range(WORLD)], **of_ranks), **options)


def by_transport(rank: int, folder: str, transport: str, hosts: int, say: Say) -> None:
    device = f"cuda:{rank}"
    torch.cuda.set_device(rank)
    if hosts == WORLD:
        on_two_hosts(rank)
    for dtype in DTYPES:
        for layout in LAYOUTS[transport]:
            address = f"unix:{folder}/{layout}-{dtype}"
            given: dict[str, Any] = {"rows": 16, "slots": 8, "layouts": [layout], "layout": layout, "timeout": 60}
            with joined(address, rank, device=device, transport=transport, **given) as pool:
                assert pool.ranks.transport == transport
                say(f"texts {dtype}: {transport} of {hosts} host(s), {layout}", texts(pool, device, dtype))
                say(f"graph {dtype}: {transport} of {hosts} host(s), {layout}", in_a_graph(pool, device, dtype))


def seeing_one_device(rank: int, folder: str, say: Say) -> None:
    """Ranks of which each process sees its own GPU alone, and which leave the transport to `auto`."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = seen[rank]
    assert torch.cuda.device_count() == 1
    for dtype in DTYPES:
        with joined(f"unix:{folder}/{dtype}", rank, device="cuda:0", rows=16, slots=8, timeout=60) as pool:
            if rank == 0:
                print(f"each process sees one GPU: {pool.ranks.transport}; {pool.ranks.warning}", flush=True)
            name = f"texts {dtype}: {pool.ranks.transport} between processes that see one GPU each"
            say(name, texts(pool, "cuda:0", dtype))


def by_group(rank: int, folder: str, say: Say) -> None:
    """Ranks that find each other by a process group of torch on NCCL, and rows in host memory that travel by it; then by its communicator."""
    device, dtype = f"cuda:{rank}", torch.float32
    torch.cuda.set_device(rank)
    os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "0"
    torch.distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    everyone = torch.distributed.group.WORLD
    summed = torch.ones(1, device=device)
    torch.distributed.all_reduce(summed)

    def ranks(**given: Any) -> Iterator[tuple[str, Ranks]]:
        for layout in ("swap", "replicated"):
            yield layout, Ranks(group=everyone, layouts=[layout], layout=layout, timeout=60, **given)

    for layout, made in ranks():
        with Pool(VOCAB, slots=8, ranks=made) as pool:
            say(f"texts {dtype}: rows in host memory by torch's NCCL, {layout}", texts(pool, "cpu", dtype))
    for transport in ("onesided", "nccl"):
        for layout, made in ranks(transport=transport):
            with Pool(VOCAB, slots=8, rows=16, device=device, ranks=made) as pool:
                assert pool.ranks.transport == transport
                say(f"texts {dtype}: {transport}, met by torch's NCCL, {layout}", texts(pool, device, dtype))
    address = everyone._get_backend(torch.device("cuda"))._comm_ptr()
    torch.cuda.synchronize()
    for layout, made in ranks(communicator=address):
        with Pool(VOCAB, slots=8, rows=16, device=device, ranks=made) as pool:
            assert pool.ranks.transport == "nccl"
            say(f"texts {dtype}: torch's own communicator, {layout}", texts(pool, device, dtype))
            say(f"graph {dtype}: torch's own communicator, {layout}", in_a_graph(pool, device, dtype))
    torch.distributed.all_reduce(summed)
    assert summed.item() == WORLD**2, "the program's communicator is the program's"
    torch.distributed.destroy_process_group()


def lost(rank: int, folder: str, transport: str, hosts: int, sent: int, say: Say) -> None:
    """Rank 1 gets a signal; rank 0 says how long it took to be told, and by what. Then another rank 1 comes, and a new group goes on."""
    given: dict[str, Any] = {"layouts": ["swap"], "rows": 16, "slots": 8, "transport": transport, "timeout": TIMEOUT}
    is_new, rank = rank == WORLD, min(rank, WORLD - 1)
    device = f"cuda:{rank}"
    torch.cuda.set_device(rank)
    if hosts == WORLD:
        on_two_hosts(rank)

    def join(group: str) -> Pool:
        return joined(f"unix:{folder}/{group}", rank, device=device, **given)

    def part(pool: Pool, step: int) -> torch.Tensor:
        start, end = pool.ranks.ids
        return rows(step, 4, torch.float32)[:, start:end].contiguous().to(device)

    found: list[Any] = []
    if not is_new:
        pool = join("first")
        slots = [pool.admit(params, [3, 7]) for params in PARAMS]
        found.append(pool.step(part(pool, 0), slots).tolist())
        if rank == 1:
            os.kill(os.getpid(), sent)
        time.sleep(1.0)
        free, began = torch.cuda.mem_get_info()[0], time.perf_counter()
        try:
            pool.step(part(pool, 1), slots)
            told = "nothing"
        except dist.DistError as error:
            told = type(error).__name__
        say("told", [told, time.perf_counter() - began])
        states = [pool.state(slot) for slot in slots]
        pool.close()
        say("freed", torch.cuda.mem_get_info()[0] - free)
        with open(f"{folder}/states.new", "wb") as file:
            pickle.dump(states, file)
        os.rename(f"{folder}/states.new", f"{folder}/states")
    while not os.path.exists(f"{folder}/states"):
        time.sleep(0.05)
    with open(f"{folder}/states", "rb") as file:
        states = pickle.load(file)
    with join("second") as pool:
        slots = [pool.resume(params, state) for params, state in zip(PARAMS, states)]
        found += [pool.step(part(pool, step), slots).tolist() for step in range(1, STEPS)]
    say("went on", found[-(STEPS - 1) :])


def run(work: Any, rank: int, folder: str, given: tuple[Any, ...], answers: Any) -> None:
    try:
        work(rank, folder, *given, lambda name, found: answers.put((rank, name, found)))
        answers.put((rank, None, None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()[-2000:]))


def on_ranks(work: Any, *given: Any, ranks: Sequence[int] = (0, 1)) -> tuple[dict[str, dict[int, Any]], list[str]]:
    """What the ranks say, by its name and by rank; and what went wrong. Two of `ranks` come to their end."""
    context = multiprocessing.get_context("spawn")
    said: dict[str, dict[int, Any]] = {}
    wrong, ended, until = [], 0, time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        processes = [context.Process(target=run, args=(work, rank, folder, given, answers)) for rank in ranks]
        for process in processes:
            process.start()
        while ended < WORLD:
            try:
                rank, name, found = answers.get(timeout=max(0.1, until - time.monotonic()))
            except queue.Empty:
                wrong.append(f"rank {set(range(WORLD))} said nothing more for {PATIENCE} seconds")
                break
            if name is not None:
                said.setdefault(name, {})[rank] = found
                continue
            ended += 1
            if found is not None:
                wrong.append(f"rank {rank}: {found}")
                break
        for process in processes:
            process.join(0.1 if wrong or len(ranks) > WORLD else 30)
            process.kill()
    return said, wrong


def main() -> int:
    failed = 0

    def hold(good: bool, text: str) -> None:
        nonlocal failed
        failed += not good
        print(text, flush=True)

    wanted = {f"texts {dtype}": wanted_texts(dtype) for dtype in DTYPES}
    wanted |= {f"graph {dtype}": wanted[f"texts {dtype}"][0][:STEPS] for dtype in DTYPES}
    for work, *given in [
        (by_transport, "onesided", 1),
        (by_transport, "nccl", 1),
        (by_transport, "nccl", 2),
        (seeing_one_device,),
        (by_group,),
    ]:
        said, wrong = on_ranks(work, *given)
        for name, found in said.items():
            want = wanted[name.split(":")[0]]
            good = found == dict.fromkeys(range(WORLD), want)
            hold(good, f"{name}: {'as one GPU' if good else f'DIFFERS: {found} {want}'[:2000]}")
        for text in wrong:
            hold(False, f"{work.__name__} {given} FAILED: {text}")
    went_on = wanted[f"graph {torch.float32}"][1:]
    for (transport, hosts), sent in itertools.product(
        (("onesided", 1), ("nccl", 1), ("nccl", 2)), (signal.SIGKILL, signal.SIGSTOP)
    ):
        said, wrong = on_ranks(lost, transport, hosts, sent.value, ranks=(0, 1, WORLD))
        told, seconds = said.get("told", {}).get(0, (f"nothing: {wrong}", 0.0))
        due = ("LostError", 5) if sent is signal.SIGKILL else ("LateError", TIMEOUT + 5)
        text = f"a rank that gets {sent.name}, {transport}, {hosts} host(s): {told} after {1000 * seconds:.1f} ms"
        hold((told, seconds < due[1]) == (due[0], True), text)
        again = said.get("went on", {})
        good = again == {0: went_on, WORLD: went_on}
        verdict = "as one GPU" if good else f"DIFFERS: {again} {wrong}"[:2000]
        hold(good, f"a new group after it: {verdict}; freed: {said.get('freed')}")
    print(f"VERDICT: ranks in Python {'FAILED' if failed else 'passed'} (gumball {gumball.__version__})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
