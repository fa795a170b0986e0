"""One sampler over several processes, each of which computes the logits of a part of the vocabulary.

    python 08_processes.py                          # starts two processes itself
    torchrun --nproc-per-node 2 08_processes.py     # torch starts them, and they find each other through it

Each process has the columns of a head that belong to its part of the vocabulary, as under tensor parallelism. All of them get the
tokens that one process with the whole head would draw.
"""

import importlib
import os
import subprocess
import sys
import tempfile

import numpy as np

import gumball
from gumball import Batch, SamplingParams, dist

VOCAB, WIDTH, STEPS = 32000, 64, 20

REQUESTS = [
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=0, seed=2),
    SamplingParams(top_k=50, top_p=0.9, seed=3),
    SamplingParams(top_p=0.95, repetition_penalty=1.2, seed=4),
]


def head() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.4, (WIDTH, VOCAB)).astype(np.float32)


def hidden(tokens: list[int]) -> np.ndarray:
    """The logits of a model after the last tokens; all processes have it."""
    return np.stack([np.random.default_rng(token).normal(0, 1, WIDTH) for token in tokens]).astype(np.float32)


def decode(pool: gumball.Pool) -> list[list[int]]:
    start, end = pool.ranks.ids
    columns = np.ascontiguousarray(head()[:, start:end])
    slots = [pool.admit(params, [5]) for params in REQUESTS]
    tokens = [5] * len(slots)
    for _ in range(STEPS):
        plan = pool.plan(slots)  # asked before there are logits: the head may need to know
        assert plan.layout != "replicated"
        tokens = pool.step(hidden(tokens) @ columns, Batch(slots, plan=plan)).tolist()
    return [pool.output(slot) for slot in slots]


def alone() -> list[list[int]]:
    """Generates in one process. It multiplies by the parts of the head too, since sums of other shapes may round differently."""
    whole, pool = head(), gumball.Pool(VOCAB)
    slots = [pool.admit(params, [5]) for params in REQUESTS]
    tokens = [5] * len(slots)
    parts = [np.ascontiguousarray(part) for part in np.array_split(whole, world(), axis=1)]
    for _ in range(STEPS):
        logits = np.concatenate([hidden(tokens) @ part for part in parts], axis=1)
        tokens = pool.step(logits, slots).tolist()
    return [pool.output(slot) for slot in slots]


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "2"))


def run(pool: gumball.Pool) -> None:
    texts = decode(pool)
    assert texts == alone()
    counts = pool.counts()
    received = sum(counted[2] for counted in counts["traffic"].values())
    print(f"{pool}: {sorted(counts['layouts'])}, {received / STEPS:.0f} bytes received a step")
    if pool.ranks.rank == 0:
        print("the same tokens as one process draws:", texts[0][:8], "...")


if "TORCHELASTIC_RUN_ID" in os.environ:
    torch_distributed = importlib.import_module("torch.distributed")
    torch_distributed.init_process_group("gloo")
    run(dist.join(VOCAB))
    torch_distributed.destroy_process_group()
elif len(sys.argv) == 3:
    addresses = [f"{sys.argv[1]}.{rank}" for rank in range(world())]
    run(gumball.Pool(VOCAB, ranks=gumball.Ranks(int(sys.argv[2]), addresses)))
else:
    with tempfile.TemporaryDirectory() as folder:
        places = [[sys.executable, __file__, f"unix:{folder}/rank", str(rank)] for rank in range(world())]
        started = [subprocess.Popen(place) for place in places]
        sys.exit(max(process.wait() for process in started))
