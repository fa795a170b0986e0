"""Times whole rounds of decoding with drafts over the GPUs of this machine: `rounds.py [WORLD] [REQUESTS] [FILE]`, with FILE as for `gather.py`.

A round: hidden states of 40 requests with five drafts each, [240, 4096], bf16, times a head of 163840 ids; then the verification of the drafts, whose
tokens all ranks have. Three drafts of each request are accepted. The ways:

- each rank has a part of the head, NCCL gathers the logits, a copy puts the rows together, and each rank verifies all requests on its own GPU;
- ours, with a part of the head on each rank, `survey`, `swap` or `gather`, or with the whole head over the hidden states of a rank's own requests,
  `replicated`; between GPUs by stores into each other's memory, and by NCCL;
- TokenSpeed's kernels, with a FILE: `dp_sampling_swap`, a verification of a rank's own requests on its GPU by ours, `dp_sampling_gather`.

A way is captured in a graph of torch, and its tokens are held to what they must be. Rank 0 prints a line of JSON for each: microseconds of a round
on the device, one behind the other, the median of some; the same where the host fetches the tokens of each round before it begins the next, and
tokens a second by these; and by how much that is more than the first way gives.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as mp

from gather import A_REQUEST, load, replay_us, tokenspeed_state
from gumball import Batch, Pool, SamplingParams, Verify, dist

VOCAB, WIDTH, DRAFTS, ACCEPTED = 163_840, 4096, A_REQUEST - 1, 3
ROUNDS, REPEATS = 20, 7


@dataclass
class Way:
    name: str
    transport: str
    pool: Pool
    # Enqueues all of a round, whose work a pool enqueues or records.
    enqueue: Callable[[Callable[[list[Verify]], Any]], None]
    # The requests whose tokens the pool has.
    requests: range


class Model:
    """Hidden states, each of which makes one token nearly certain, and a head."""

    def __init__(self, requests: int) -> None:
        generator = torch.Generator("cuda").manual_seed(1)
        # Rows of length 1; made by parts, since f32 takes twice the memory.
        self.weights = torch.empty(VOCAB, WIDTH, dtype=torch.bfloat16, device="cuda")
        for some in self.weights.split(16_384):
            some.copy_(torch.randn(some.shape, generator=generator, device="cuda") / WIDTH**0.5)
        self.tokens = torch.randint(VOCAB, (requests, A_REQUEST), generator=torch.Generator().manual_seed(2))
        self.hidden = 30 * self.weights[self.tokens.flatten().cuda()]
        drafts = self.tokens[:, :DRAFTS].clone()
        drafts[:, ACCEPTED:] = (drafts[:, ACCEPTED:] + 1) % VOCAB
        self.drafts = drafts.int().cuda()

    def emitted(self, requests: range) -> list[list[int]]:
        return self.tokens[list(requests), : ACCEPTED + 1].tolist()


def admitted(pool: Pool, requests: range) -> list[int]:
    return [pool.admit(SamplingParams(seed=1 + request), [3]) for request in requests]


def on_one(requests: range, rank: int) -> tuple[Pool, list[int]]:
    """A pool of one GPU that verifies some requests."""
    pool = Pool(VOCAB, device=f"cuda:{rank}", slots=len(requests), rows=len(requests) * A_REQUEST)
    slots = admitted(pool, requests)
    pool.assign(Batch(slots, counts=[DRAFTS] * len(slots)))
    return pool, slots


def by_gather(model: Model, rank: int, world: int, requests: int) -> Way:
    pool, _ = on_one(range(requests), rank)
    rows, width = requests * A_REQUEST, VOCAB // world
    part = model.weights[rank * width : (rank + 1) * width].T
    gathered = torch.empty(world * rows, width, dtype=torch.bfloat16, device="cuda")
    whole = torch.empty(rows, world, width, dtype=torch.bfloat16, device="cuda")

    def enqueue(submit: Callable[[list[Verify]], Any]) -> None:
        distributed.all_gather_into_tensor(gathered, model.hidden @ part)
        whole.copy_(gathered.view(world, rows, width).transpose(0, 1))
        submit([Verify(whole.view(rows, VOCAB), model.drafts)])

    return Way("all-gather, copy, one GPU", "NCCL", pool, enqueue, range(requests))


def by_ours(model: Model, rank: int, requests: int, layout: str, transport: str) -> Way:
    given: dict[str, Any] = {"layouts": [layout], "layout": layout, "transport": transport, "timeout": 100}
    pool = dist.join(VOCAB, device=f"cuda:{rank}", slots=requests, rows=requests * A_REQUEST, **given)
    slots = admitted(pool, range(requests))
    plan = pool.plan(slots, drafts=DRAFTS)
    assert plan.layout == layout and pool.ranks.transport == transport, (plan, pool.ranks)
    pool.assign(Batch(slots, counts=[DRAFTS] * requests, plan=plan))
    start, end = pool.ranks.ids
    head, hidden = model.weights[start:end].T, model.hidden
    if layout == "replicated":
        own = plan.requests
        head, hidden = model.weights.T, hidden[own[0] * A_REQUEST : (own[-1] + 1) * A_REQUEST]

    def enqueue(submit: Callable[[list[Verify]], Any]) -> None:
        submit([Verify(hidden @ head, model.drafts)])

    return Way(f"ours, {layout}", transport, pool, enqueue, range(requests))


def by_tokenspeed(kernels: Any, model: Model, rank: int, world: int, requests: int) -> Way:
    share, width = requests // world, VOCAB // world
    own = range(rank * share, (rank + 1) * share)
    pool, _ = on_one(own, rank)
    part, drafts = model.weights[rank * width : (rank + 1) * width].T, model.drafts[own.start : own.stop]
    state = tokenspeed_state(kernels, world, rank, requests, VOCAB, torch.bfloat16)
    tokens, paths, lengths = (
        torch.from_dlpack(pool.on_device().outputs(name)) for name in ("tokens", "rows", "accepted")
    )

    def enqueue(submit: Callable[[list[Verify]], Any]) -> None:
        rows = kernels.dp_sampling_swap(state, model.hidden @ part, pad_bs=requests)
        submit([Verify(rows, drafts)])
        own_rows = [each[: share * A_REQUEST].view(torch.int32).view(share, A_REQUEST) for each in (tokens, paths)]
        kernels.dp_sampling_gather(state, *own_rows, lengths[:share].view(torch.int32), pad_bs=requests)

    return Way("TokenSpeed's dp_sampling_swap, one GPU, dp_sampling_gather", "symmetric memory", pool, enqueue, own)


def measure(way: Way, model: Model) -> dict[str, float]:
    """Microseconds of a round, and of one whose tokens the host waits for."""
    place = way.pool.on_device()
    variant = place.needed_variant()
    way.enqueue(way.pool.enqueue)
    wanted = model.emitted(way.requests)
    assert way.pool.fetch().emitted() == wanted
    torch.cuda.synchronize()
    graph, recorded, on_device, in_loop = torch.cuda.CUDAGraph(), [], [], []
    with torch.cuda.graph(graph):
        way.enqueue(lambda work: recorded.append(place.record(work, variant=variant)))

    def play() -> None:
        place.before_replay(recorded)
        graph.replay()

    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The first one lets the ranks begin together.
        play()
        began.record()
        for _ in range(ROUNDS):
            play()
        ended.record()
        ended.synchronize()
        on_device.append(1000 * began.elapsed_time(ended) / ROUNDS)
        assert way.pool.fetch().emitted() == wanted
        since = time.perf_counter()
        for _ in range(ROUNDS):
            play()
            tokens = way.pool.fetch()
        in_loop.append(1e6 * (time.perf_counter() - since) / ROUNDS)
        assert tokens.emitted() == wanted
    # A graph that holds NCCL's kernels would keep their group from ending.
    graph.reset()
    return {
        "round_us": round(statistics.median(on_device), 1),
        "least_us": round(min(on_device), 1),
        "loop_us": round(statistics.median(in_loop), 1),
    }


def heads(model: Model, world: int, requests: int) -> dict[str, float]:
    """Microseconds of a head's product alone: of a part over all rows, and of the whole one over a rank's own."""
    rows, found = requests * A_REQUEST, {}
    for name, hidden, weights in (
        ("part_head_us", model.hidden, model.weights[: VOCAB // world]),
        ("whole_head_us", model.hidden[: rows // world], model.weights),
    ):
        graph = torch.cuda.CUDAGraph()
        hidden @ weights.T
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(ROUNDS):
                hidden @ weights.T
        found[name] = round(replay_us(graph) / ROUNDS, 1)
    return found


def time_rounds(rank: int, world: int, requests: int, file: str | None) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519")
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    model, base = Model(requests), None
    shape = {
        "world": world,
        "requests": requests,
        "drafts": DRAFTS,
        "vocab": VOCAB,
        "width": WIDTH,
        "dtype": "bfloat16",
    }
    if rank == 0:
        print(json.dumps(shape | {"device": torch.cuda.get_device_name()} | heads(model, world, requests)), flush=True)
    made: list[Callable[[], Way]] = [lambda: by_gather(model, rank, world, requests)]
    layouts = ("swap", "gather", "replicated")
    for transport, of_transport in (("onesided", ("survey", *layouts)), ("nccl", layouts)):
        for layout in of_transport:
            made.append(lambda of=(layout, transport): by_ours(model, rank, requests, *of))
    if file and requests % world == 0:
        made.append(lambda: by_tokenspeed(load(file), model, rank, world, requests))
    for make in made:
        distributed.barrier()
        way = make()
        line = measure(way, model)
        way.pool.close()
        a_second = {name: 1e6 * requests * (ACCEPTED + 1) / line[f"{name}_us"] for name in ("round", "loop")}
        base = base or a_second
        for name, tokens in a_second.items():
            line[f"{name}_tokens_per_s"] = round(tokens)
            line[f"{name}_gain_percent"] = round(100 * (tokens / base[name] - 1), 1)
        if rank == 0:
            print(json.dumps({"way": way.name, "transport": way.transport} | line), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    count = int(given.get(0) or torch.cuda.device_count())
    mp.spawn(time_rounds, args=(count, int(given.get(1, 40)), given.get(2)), nprocs=count)
