"""Heads in a GPU's memory beside torch: `python heads_check.py [NAME..]`. A line for each check; the verdict is the last.

What each kind computes of each type is held by conformance; here are torch's weights, streams and graphs. Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from check import check, refused, run, same, twins

from gumball import DeviceHead, Head, Hidden, LogprobsParams, Pool, SamplingParams, Step
from gumball.torch import tokens_of

VOCAB, WIDTH, ROWS, STEPS = 32_000, 256, 6, 12
PARAMS = [
    SamplingParams(temperature=0, seed=1),
    SamplingParams(seed=2),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=3),
    SamplingParams(top_p=0.9, repetition_penalty=1.2, seed=4, logprobs=LogprobsParams(top_n=2)),
    SamplingParams(temperature=1.2, min_p=0.05, seed=5),
    SamplingParams(top_k=20, seed=6),
]
KINDS = ["plain", "auto", "clustered"]


def weights_of(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    weights = torch.randn(VOCAB, WIDTH, device="cuda", generator=generator) / WIDTH**0.5 * 3
    return weights.to(dtype)


def hidden_of(dtype: torch.dtype, rows: int = ROWS, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, WIDTH, device="cuda", generator=generator).to(dtype)


def heads(weights: torch.Tensor, kind: str, borrowed: bool) -> tuple[Head, DeviceHead]:
    """A head on the host and its twin on the GPU."""
    ids = np.random.default_rng(3).permutation(VOCAB).reshape(-1, 16)
    centroids = weights.float().cpu().numpy()[ids].mean(axis=1)
    clusters: dict[str, Any] = dict(vocab_maps=ids, centroids=centroids, probes=200, special_ids=[5, 31_999])
    host = weights.cpu()
    head = Head.clustered(host, **clusters) if kind == "clustered" else Head.auto(host, screen=kind == "auto")
    return head, head.to("cuda", rows=64, weights=weights if borrowed else None)


def pools() -> tuple[Pool, Pool, list[int]]:
    """A pool on the GPU and its twin on the host, with the same requests in the same slots."""
    return twins(VOCAB, PARAMS, rows=64)


@check
def a_head_over_a_parameter() -> str:
    """Over the weight of a layer, which is not copied and may be trained on between steps of a head without a screen."""
    layer = torch.nn.Linear(WIDTH, VOCAB, bias=True, device="cuda", dtype=torch.bfloat16)
    # Before the first head its kernels are loaded, which take memory as well.
    DeviceHead(layer.weight, rows=8)
    free = torch.cuda.mem_get_info()[0]
    there = DeviceHead(layer.weight, bias=layer.bias.detach().float().cpu().numpy(), rows=8)
    taken = free - torch.cuda.mem_get_info()[0]
    assert there.is_borrowed and taken < layer.weight.nbytes, taken
    device, host, slots = pools()
    for step in range(STEPS):
        with torch.no_grad():
            layer.weight.mul_(1.01)
        hidden = hidden_of(torch.bfloat16, seed=step)
        head = Head.auto(layer.weight.detach().cpu(), screen=False, bias=layer.bias.detach().float().cpu().numpy())
        same(device.step(Hidden(there, hidden), slots), host.step(Hidden(head, hidden.cpu()), slots))
    auto = Head.auto(layer.weight.detach().cpu()).to("cuda", weights=layer.weight)
    with torch.no_grad():
        layer.weight.mul_(2)
    refused([(lambda: device.step(Hidden(auto, hidden), slots), RuntimeError, "were written since it was made")])
    return f"{STEPS * ROWS} tokens"


@check
def in_a_graph_of_torch() -> str:
    """Captured by torch beside the product of a model; what a step drew is the next one's input."""
    tokens = 0
    for kind in KINDS:
        head, there = heads(weights_of(torch.bfloat16), kind, True)
        device, host, slots = pools()
        device.assign(slots)
        drawn, states = tokens_of(device), hidden_of(torch.bfloat16)

        def model() -> torch.Tensor:
            return states + torch.sin(drawn.float())[:, None].to(states.dtype) / 3

        model()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            hidden = model()
            recorded = device.on_device().record([Step(Hidden(there, hidden))])
        for _ in range(STEPS):
            device.on_device().before_replay(recorded)
            graph.replay()
            seen = drawn.tolist()
            assert seen == host.step(Hidden(head, hidden.cpu()), slots).tolist(), kind
            tokens += ROWS
    return f"{tokens} tokens"


@check
def after_a_capture() -> str:
    """A step on a stream that was under capture comes after steps of other pools with the head."""
    head, there = heads(weights_of(torch.bfloat16), "plain", True)
    states = hidden_of(torch.bfloat16, rows=4)
    wanted = head.logits(states.float().cpu()).argmax(1).tolist()
    captured, other = torch.cuda.Stream(), torch.cuda.Stream()
    pools = [Pool(VOCAB, device="cuda:0", rows=4, slots=4) for _ in range(2)]
    for pool in pools:
        pool.assign([pool.admit(SamplingParams(temperature=0)) for _ in range(4)])
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        pools[0].enqueue([Step(Hidden(there, states))])
        assert pools[0].fetch().tolist() == wanted
    with torch.cuda.graph(graph, stream=captured):
        pools[1].on_device().record([Step(Hidden(there, states))])
        refused([(there.counts, ValueError, "counts cannot be combined with the capture of a graph")])
    for _ in range(50):
        with torch.cuda.stream(other):
            pools[0].enqueue([Step(Hidden(there, states))])
        with torch.cuda.stream(captured):
            pools[1].enqueue([Step(Hidden(there, states))])
            assert pools[1].fetch().tolist() == wanted
        with torch.cuda.stream(other):
            assert pools[0].fetch().tolist() == wanted
    assert there.counts()["whole_rows"] == 4 * 101
    return "101 steps"


if __name__ == "__main__":
    run("the package's heads")
