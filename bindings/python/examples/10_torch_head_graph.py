"""A model of torch and a head of Gumball's in one CUDA graph: a replay goes from the last tokens to the next ones, and the host waits for nothing.

    python 10_torch_head_graph.py

The heads read torch's own weights. The exact and the certified head draw the same tokens, bit for bit; the fast head's are the GPU's own. Without a GPU there is nothing to capture, and
the program says so.
"""

import sys

import torch

from gumball import DeviceHead, Head, Hidden, Pool, SamplingParams, Step
from gumball.torch import tokens_of

VOCAB, WIDTH, REQUESTS, STEPS = 32_000, 256, 4, 16

if not torch.cuda.is_available():
    sys.exit(print("skipped: there is no GPU"))
DEVICE = "cuda:0"

torch.manual_seed(1)
embedding = torch.randn(VOCAB, WIDTH, device=DEVICE, dtype=torch.bfloat16)
weight = torch.randn(VOCAB, WIDTH, device=DEVICE, dtype=torch.bfloat16) / 4


def model(ids: torch.Tensor) -> torch.Tensor:
    """Hidden states after each id, [rows, WIDTH]: the output of the last norm. Your model goes here, without its lm_head."""
    return torch.tanh(embedding[ids.long()])


def text_of(head: DeviceHead) -> list[list[int]]:
    """Decodes STEPS tokens of each request by replays of one graph."""
    pool = Pool(VOCAB, device=DEVICE, slots=REQUESTS, rows=REQUESTS, keep_histories=True)
    params = [SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=row) for row in range(REQUESTS)]
    slots = [pool.admit(one, [row + 1]) for row, one in enumerate(params)]
    pool.assign(slots)
    ids = torch.arange(1, REQUESTS + 1, dtype=torch.int32, device=DEVICE)
    # Where each step leaves its tokens.
    tokens = tokens_of(pool)

    model(ids)  # Warms torch's own kernels up. Nothing of a request changes.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = pool.on_device().record([Step(Hidden(head, model(ids)))])
        ids.copy_(tokens)
    for _ in range(STEPS):
        # Requests may come and go here, as long as the number of rows stays.
        pool.on_device().before_replay(recorded)
        graph.replay()
    return [pool.output(slot) for slot in slots]


exact = text_of(DeviceHead(weight, rows=REQUESTS))
certified = Head.certified(weight.cpu()).to(DEVICE, rows=REQUESTS, weights=weight)
print("exact", [text[:6] for text in exact])
print("certified: the same tokens:", text_of(certified) == exact, certified.counts())
print("fast", [text[:6] for text in text_of(DeviceHead(weight, rows=REQUESTS, fast=True))])
