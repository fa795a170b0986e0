"""Times whole decoding steps of a torch model on this GPU, with heads of torch's and of Gumball's: `decode.py [SHAPE] [ROWS,ROWS,..]`.

SHAPE is 8b or 1.7b: the layers of Qwen3's models of these sizes, with random weights. A graph holds STEPS steps, each from the tokens of the one before: embedding, layers (one function that torch compiles, without a rotation of positions, with a
context of CONTEXT tokens in a cache), the last norm, the head, and the draw. The output matrix is as wide as the vocabulary and normal, without structure, so that logits have a deviation of 3: the hardest
case for a screen; which ids stand together in clusters has nothing to do with it. Prints a line of JSON for each way: microseconds a step and tokens a second, and of the certified head whether all tokens are the exact head's.
"""

import json
import statistics
import sys

import numpy as np
import torch

from gumball import DeviceHead, Head, Hidden, Pool, SamplingParams, Step
from gumball.torch import tokens_of

VOCAB, CONTEXT, STEPS, REPLAYS = 151936, 256, 8, 12
# Hidden size, layers, heads of queries, of keys and values, their size, and the width between the two matrices after attention.
SHAPES = {"8b": (4096, 36, 32, 8, 128, 12288), "1.7b": (2048, 28, 16, 8, 128, 6144)}
# As many logits a row as 256 clusters of 19 have.
CAPACITY, PROBES = 16, 304
SETTINGS = {
    "greedy": {"temperature": 0},
    "plain": {"temperature": 0.8},
    "top-k 50, top-p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
}


def block(x, wide, narrow, gates, down, norms, keys, values, position, heads):
    """A layer of a decoder for one token a row: attention over a cache of keys and values, which it writes, then the gated product."""
    queries, groups, size = heads
    rows, hidden = x.shape
    normed = torch.nn.functional.rms_norm(x, (hidden,), norms[0])
    q, k, v = (normed @ wide.T).split([queries * size, groups * size, groups * size], 1)
    keys.index_copy_(2, position, k.view(rows, groups, 1, size))
    values.index_copy_(2, position, v.view(rows, groups, 1, size))
    scores = q.view(rows, groups, queries // groups, size) @ keys.transpose(2, 3)
    mixed = torch.softmax(scores.float() / size**0.5, -1).to(x.dtype) @ values
    x = x + mixed.reshape(rows, queries * size) @ narrow.T
    normed = torch.nn.functional.rms_norm(x, (hidden,), norms[1])
    gate, up = (normed @ gates.T).chunk(2, 1)
    return x + (torch.nn.functional.silu(gate) * up) @ down.T


class Model:
    """A decoder with random weights in the shape of a real one, without its head."""

    def __init__(self, shape):
        hidden, layers, queries, groups, size, middle = SHAPES[shape]
        self.hidden, self.heads = hidden, (queries, groups, size)
        self.block = torch.compile(block, fullgraph=True, dynamic=False)
        sizes = [
            ((queries + 2 * groups) * size, hidden),
            (hidden, queries * size),
            (2 * middle, hidden),
            (hidden, middle),
        ]
        self.layers = [[self.random(*size) for size in sizes] for _ in range(layers)]
        self.norms = torch.ones(2, hidden, device="cuda", dtype=torch.bfloat16)
        self.embedding = self.random(VOCAB, hidden) * hidden**0.5
        self.weight = self.random(VOCAB, hidden) * 3

    @staticmethod
    def random(rows, columns):
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).div_(columns**0.5)

    def empty_cache(self, rows):
        """Makes an empty cache for a number of rows, and sets the position to 0."""
        _, groups, size = self.heads
        shape = (2, rows, groups, CONTEXT, size)
        self.cache = [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in self.layers]
        self.position = torch.zeros(1, device="cuda", dtype=torch.int64)

    def states(self, ids):
        """Hidden states after the ids, [rows, hidden], as the last norm gives them."""
        x = self.embedding[ids.long()]
        for weights, (keys, values) in zip(self.layers, self.cache):
            x = self.block(x, *weights, self.norms, keys, values, self.position, self.heads)
        self.position.add_(1).remainder_(CONTEXT)
        return torch.nn.functional.rms_norm(x, (self.hidden,))


def measure(step, before_replay):
    """Captures STEPS steps, and returns the microseconds of one: the median of replays."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            step()
    times = []
    for _ in range(REPLAYS + 2):
        before_replay()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) * 1000 / STEPS)
    return statistics.median(times[2:])


def layers_alone(model, rows):
    """A step without a head and a draw."""
    model.empty_cache(rows)
    ids = torch.arange(1, rows + 1, device="cuda")
    return measure(lambda: model.states(ids), lambda: None)


def by_torch(model, rows, draw):
    """A step whose logits and draw are torch's."""
    model.empty_cache(rows)
    ids = torch.arange(1, rows + 1, device="cuda")

    def step():
        ids.copy_(draw(model.states(ids) @ model.weight.T))

    return measure(step, lambda: None)


def drawn_by_torch(logits):
    return torch.multinomial(torch.softmax(logits.float() / 0.8, -1), 1).flatten()


def by_pool(model, rows, setting, head):
    """A step that a pool draws, from the logits of torch's product or from hidden states by a head; and the tokens of all requests."""
    model.empty_cache(rows)
    pool = Pool(VOCAB, device="cuda:0", slots=rows, rows=rows, keep_histories=True)
    slots = [pool.admit(SamplingParams(seed=row, **setting), [row + 1]) for row in range(rows)]
    pool.assign(slots)
    ids, tokens = torch.arange(1, rows + 1, device="cuda"), tokens_of(pool)
    # Of a step from logits the kernels that these requests need are captured.
    there, recorded = pool.on_device(), []
    variant = there.needed_variant() if head is None else "full"

    def step():
        states = model.states(ids)
        rows = states @ model.weight.T if head is None else Hidden(head, states)
        recorded.append(there.record([Step(rows)], variant=variant))
        ids.copy_(tokens)

    def before_replay():
        there.before_replay(recorded[-STEPS:])

    us = measure(step, before_replay)
    return us, [pool.output(slot) for slot in slots]


def heads_of(model, rows):
    """Gumball's heads over the model's output matrix, which stays where it is."""
    weight, host = model.weight, model.weight.cpu()
    clusters = np.random.default_rng(1).permutation(VOCAB).reshape(-1, CAPACITY)
    centroids = host[torch.from_numpy(clusters[:, 0].copy())]
    clustered = Head.clustered(host, vocab_maps=clusters, centroids=centroids.float(), probes=PROBES)
    return {
        "exact": DeviceHead(weight, rows=rows),
        "fast": DeviceHead(weight, rows=rows, fast=True),
        "certified": Head.auto(host).to("cuda:0", rows=rows, weights=weight),
        "clustered": clustered.to("cuda:0", rows=rows, weights=weight),
    }


def main():
    shape = sys.argv[1] if len(sys.argv) > 1 else "8b"
    counts = [int(rows) for rows in (sys.argv[2] if len(sys.argv) > 2 else "1,8").split(",")]
    torch.manual_seed(1)
    model = Model(shape)
    heads = heads_of(model, max(counts))

    def report(rows, way, setting, us, **more):
        line = {
            "shape": shape,
            "rows": rows,
            "head": way,
            "setting": setting,
            "us": us,
            "tokens_per_s": rows * 1e6 / us,
        }
        print(json.dumps(line | more), flush=True)

    for rows in counts:
        report(rows, "none", "the layers alone", layers_alone(model, rows))
        report(rows, "torch", "greedy", by_torch(model, rows, lambda logits: logits.argmax(-1)))
        report(rows, "torch", "plain", by_torch(model, rows, drawn_by_torch))
        for setting, params in SETTINGS.items():
            texts = {}
            for way, head in {"torch's product, Gumball's pool": None, **heads}.items():
                us, texts[way] = by_pool(model, rows, params, head)
                same = {"exact_heads_tokens": texts[way] == texts["exact"]} if way == "certified" else {}
                report(rows, way, setting, us, **same)


if __name__ == "__main__":
    main()
