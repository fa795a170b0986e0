"""Times the ways of other programs to move logits between the GPUs of this machine: `gather.py [WORLD] [VOCAB] [ROWS,..] [DTYPE] [FILE]`.

One process a GPU moves parts of rows in a CUDA graph, as an engine under tensor parallelism does before anything is drawn: NCCL's all-gather to all
ranks; the same and a copy that puts the parts of each row together; NCCL's all-to-all and such a copy, after which each rank has its share of the
rows. With a FILE, which `ci/gpu build-swap` makes, also TokenSpeed's own kernels over rows of six for each request: `dp_sampling_swap`, which does as
much as the last of these, and `dp_sampling_gather`, which sends what verifications found to all ranks.
Rank 0 prints a line of JSON for each way and number of rows: microseconds, the median of replays.
"""

import importlib.util
import json
import os
import statistics
import sys
import types

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = (1, 32, 128, 512)
# Rows that lie in memory; the calls of a graph read them in turn, so that caches do not hold them.
RESIDENT = 1024
MOST_CALLS, REPLAYS = 64, 21
# The rows of a request with five drafts.
A_REQUEST = 6


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay on the device, after one that lets the ranks begin together."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return 1000 * began.elapsed_time(ended)


def time_replays(calls, each):
    """Microseconds of a call, over replays of a graph that makes each of the calls once."""
    each(0)
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for call in range(calls):
            each(call)
    for _ in range(REPLAYS):
        times.append(replay_us(graph) / calls)
    # A graph that holds the group's kernels would keep the group from ending.
    graph.reset()
    return times


def by_nccl(parts, world, rows):
    """Ways by name; each takes the parts of a call."""
    width = parts.shape[1]
    own = -(-rows // world)
    gathered = torch.empty(world * rows, width, dtype=parts.dtype, device="cuda")
    whole = torch.empty(rows, world, width, dtype=parts.dtype, device="cuda")
    swapped = torch.empty(world * own, width, dtype=parts.dtype, device="cuda")
    owned = torch.empty(own, world, width, dtype=parts.dtype, device="cuda")

    def gather(part):
        dist.all_gather_into_tensor(gathered, part)

    def gather_and_copy(part):
        gather(part)
        whole.copy_(gathered.view(world, rows, width).transpose(0, 1))

    def swap_and_copy(part):
        dist.all_to_all_single(swapped, part)
        owned.copy_(swapped.view(world, own, width).transpose(0, 1))

    ways = {"NCCL all-gather": gather, "NCCL all-gather, copy": gather_and_copy}
    return ways | ({"NCCL all-to-all, copy": swap_and_copy} if rows % world == 0 else {})


def tokenspeed_state(kernels, world, rank, requests, vocab, dtype):
    """What TokenSpeed's kernels keep for requests of A_REQUEST rows."""
    return kernels.create_dp_sampling_state(
        group=dist.group.WORLD,
        rank_in_group=rank,
        tp_size=world,
        max_pad_bs=requests,
        num_tokens_per_req=A_REQUEST,
        vocab_size=vocab,
        logits_dtype=dtype,
        device=torch.device("cuda", rank),
    )


def by_tokenspeed(kernels, parts, world, rank, rows):
    requests = rows // A_REQUEST
    state = tokenspeed_state(kernels, world, rank, requests, world * parts.shape[1], parts.dtype)
    own = requests // world
    tokens, paths = (torch.zeros(own, A_REQUEST, dtype=torch.int32, device="cuda") for _ in range(2))
    lengths = torch.zeros(own, dtype=torch.int32, device="cuda")

    def swap(part):
        kernels.dp_sampling_swap(state, part, pad_bs=requests)

    def gather(_):
        kernels.dp_sampling_gather(state, tokens, paths, lengths, pad_bs=requests)

    def both(part):
        swap(part)
        gather(part)

    return {
        "TokenSpeed dp_sampling_swap": swap,
        "TokenSpeed dp_sampling_gather": gather,
        "TokenSpeed dp_sampling_swap, dp_sampling_gather": both,
    }


def load(file):
    """TokenSpeed's module, with this machine's Triton in the place of its own, which is a release of the same."""
    import triton

    package, inner, platform = (types.ModuleType(f"tokenspeed_kernel{name}") for name in ("", "._triton", ".platform"))
    inner.triton, inner.tl, platform.current_platform = triton, triton.language, lambda: None
    sys.modules |= {module.__name__: module for module in (package, inner, platform)}
    spec = importlib.util.spec_from_file_location("tokenspeed_kernels", file)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def time_ways(rank, world, vocab, counts, dtype, file):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    width = -(-vocab // world)
    parts = torch.randn(RESIDENT, width, device="cuda").to(getattr(torch, dtype))
    for rows in counts:
        calls = min(RESIDENT // rows, MOST_CALLS)
        ways = by_nccl(parts, world, rows)
        if file and rows % (A_REQUEST * world) == 0:
            ways |= by_tokenspeed(load(file), parts, world, rank, rows)
        for name, way in ways.items():
            times = time_replays(calls, lambda call, way=way, rows=rows: way(parts[call * rows : (call + 1) * rows]))
            if rank == 0:
                line = {"way": name, "world": world, "rows": rows, "vocab": vocab, "dtype": dtype}
                line |= {"median_us": round(statistics.median(times), 2), "least_us": round(min(times), 2)}
                print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    count = int(given.get(0) or torch.cuda.device_count())
    sizes = tuple(int(size) for size in given[2].split(",")) if 2 in given else ROWS
    arguments = (count, int(given.get(1, 151_936)), sizes, given.get(3, "float32"), given.get(4))
    mp.spawn(time_ways, args=arguments, nprocs=count)
