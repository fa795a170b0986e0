"""Times what an LM head costs through torch on this GPU: `heads.py [VOCAB] [WIDTH] [ROWS,ROWS,..]`.

For each number of rows, in a CUDA graph of steps on hidden states of their own, weights in bf16 and far larger than the second-level
cache: cuBLAS's product alone; the product and argmax; the product, softmax and torch.multinomial; and a head of two stages, greedy and
drawn, which multiplies 7997 centroids, takes the first 256, and multiplies the rows of their clusters of 19, which lie together. Prints a
line of JSON for each.
"""

import json
import statistics
import sys

import torch

STEPS = 16
REPLAYS = 15


CAPACITY = 19
PROBES = 256


def two_stages(weights):
    """Returns the greedy and the drawing call of a head of two stages, and of a compiled one, over whole clusters of the weights."""
    count = weights.shape[0] // CAPACITY
    clusters = weights[: count * CAPACITY].view(count, CAPACITY, weights.shape[1])
    centroids = clusters[:, 0].contiguous()

    def probed(hidden):
        scores = torch.nn.functional.linear(hidden, centroids)
        first = scores.topk(min(PROBES, count), -1, sorted=False).indices
        logits = torch.einsum("rpcw,rw->rpc", clusters[first], hidden).flatten(1)
        return first, logits

    def ids(first, chosen):
        return first.gather(1, chosen // CAPACITY) * CAPACITY + chosen % CAPACITY

    def greedy(hidden):
        first, logits = probed(hidden)
        return ids(first, logits.argmax(-1, keepdim=True))

    def sample(hidden):
        first, logits = probed(hidden)
        return ids(first, torch.multinomial(torch.softmax(logits.float(), -1), 1))

    return {
        "two stages, argmax": greedy,
        "two stages, softmax, multinomial": sample,
        "two stages, argmax, compiled": torch.compile(greedy, dynamic=False),
    }


def ways(weights):
    def linear(hidden):
        return torch.nn.functional.linear(hidden, weights)

    def greedy(hidden):
        return linear(hidden).argmax(-1)

    def sample(hidden):
        return torch.multinomial(torch.softmax(linear(hidden).float(), -1), 1)

    dense = {"cuBLAS": linear, "cuBLAS, argmax": greedy, "cuBLAS, softmax, multinomial": sample}
    return dense | two_stages(weights)


def time_graph(call, states):
    for hidden in states[:3]:
        call(hidden)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(hidden) for hidden in states]
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(1000 * began.elapsed_time(ended) / len(states))
    del kept
    return times


def main():
    vocab = int(sys.argv[1]) if len(sys.argv) > 1 else 151_936
    width = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    counts = [int(rows) for rows in sys.argv[3].split(",")] if len(sys.argv) > 3 else [1, 2, 4, 8, 16]
    weights = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16)
    for name, call in ways(weights).items():
        for rows in counts:
            states = list(torch.randn(STEPS, rows, width, device="cuda", dtype=torch.bfloat16))
            times = time_graph(call, states)
            line = {"head": name, "vocab": vocab, "width": width, "rows": rows}
            line |= {"median_us": round(statistics.median(times), 1), "least_us": round(min(times), 1)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
