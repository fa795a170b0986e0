"""Times what an LM head costs through torch on this GPU: `heads.py [VOCAB] [WIDTH] [ROWS,ROWS,..]`.

For each number of rows, in a CUDA graph of steps on hidden states of their own, weights in bf16 and far larger than the second-level
cache: cuBLAS's product alone; the product and argmax; the product, softmax and torch.multinomial. Prints a line of JSON for each.
"""

import json
import statistics
import sys

import torch

STEPS = 16
REPLAYS = 15


def ways(weights):
    def linear(hidden):
        return torch.nn.functional.linear(hidden, weights)

    def greedy(hidden):
        return linear(hidden).argmax(-1)

    def sample(hidden):
        return torch.multinomial(torch.softmax(linear(hidden).float(), -1), 1)

    return {"cuBLAS": linear, "cuBLAS, argmax": greedy, "cuBLAS, softmax, multinomial": sample}


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
