"""Times NCCL's all-gather of logits over the GPUs of this machine: `gather.py [WORLD] [VOCAB]`.

One process a GPU gathers f32 parts of rows in a CUDA graph, as an engine under tensor parallelism does before anything is drawn.
Rank 0 prints a line of JSON for each number of rows: microseconds, the median of replays.
"""

import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = (1, 32, 128, 512)
# Rows that lie in memory; the calls of a graph read them in turn, so that caches do not hold them.
RESIDENT = 1024
MOST_CALLS, REPLAYS = 64, 21


def gather_all(parts, whole, rows, calls):
    for call in range(calls):
        dist.all_gather_into_tensor(whole, parts[call * rows : (call + 1) * rows])


def time_replays(graph, calls):
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The first replay lets the ranks begin together.
        graph.replay()
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(1000 * began.elapsed_time(ended) / calls)
    return times


def time_gathers(rank, world, vocab):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    width = -(-vocab // world)
    parts = torch.randn(RESIDENT, width, device="cuda")
    for rows in ROWS:
        calls = min(RESIDENT // rows, MOST_CALLS)
        whole = torch.empty(world * rows, width, device="cuda")
        gather_all(parts, whole, rows, calls)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gather_all(parts, whole, rows, calls)
        times = time_replays(graph, calls)
        if rank == 0:
            line = {"layout": "NCCL all-gather", "world": world, "rows": rows, "vocab": vocab, "dtype": "f32"}
            line |= {"median_us": round(statistics.median(times), 2), "least_us": round(min(times), 2)}
            print(json.dumps(line), flush=True)
        # A graph that holds the group's kernels would keep the group from ending.
        graph.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 151_936
    mp.spawn(time_gathers, args=(count, size), nprocs=count)
