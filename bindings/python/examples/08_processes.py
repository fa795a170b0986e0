"""One sampler over several processes, each of which computes the logits of a part of the vocabulary.

    python 08_processes.py                          # starts three processes itself
    torchrun --nproc-per-node 2 08_processes.py     # torch starts them, and they find each other through it

Each process has the columns of a head that belong to its part of the vocabulary, as under tensor parallelism. All of them get the tokens
that one process with the whole head would draw: in steps, and in verifications of five drafts for each request. In the last of these each
process has the hidden states of its own requests alone, and multiplies them with the whole head.
"""

import functools
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import gumball
from gumball import Batch, Ranks, SamplingParams, dist

VOCAB, WIDTH, STEPS, ROUNDS, DRAFTS = 32000, 64, 10, 3, 5
LAYOUTS = ["gather", "swap", "survey", "replicated"]

REQUESTS = [
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=0, seed=2),
    SamplingParams(top_k=50, top_p=0.9, seed=3),
    SamplingParams(top_p=0.95, repetition_penalty=1.2, seed=4),
]


@functools.cache
def head() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.4, (WIDTH, VOCAB)).astype(np.float32)


def parts() -> list[np.ndarray]:
    width = -(-VOCAB // world())
    return [np.ascontiguousarray(part) for part in np.split(head(), range(width, VOCAB, width), axis=1)]


def hidden(tokens: list[int]) -> np.ndarray:
    """The hidden states of a model after the last tokens."""
    states = [np.random.default_rng(token).normal(0, 1, WIDTH) for token in tokens]
    return np.array(states, np.float32).reshape(-1, WIDTH)


def logits(tokens: list[int], columns: list[np.ndarray]) -> np.ndarray:
    """The logits after tokens, by parts of the head and a row at a time: sums of other shapes may round differently."""
    rows = [np.concatenate([state @ part for part in columns]) for state in hidden(tokens)]
    return np.array(rows, np.float32).reshape(len(tokens), sum(part.shape[1] for part in columns))


def guesses(tokens: list[int]) -> list[list[int]]:
    """Five drafts after each token, by a smaller model that each process has whole."""
    small, chains = head()[:60], [tokens]
    for _ in range(DRAFTS):
        chains.append((hidden(chains[-1])[:, :60] @ small).argmax(axis=1).tolist())
    return [list(chain) for chain in zip(*chains[1:])]


def generate(pool: gumball.Pool, plan: Callable[..., Any], rows: Callable[..., np.ndarray]) -> list[list[int]]:
    """plan: decides the layout of a step, before there are logits. rows: the logits that a plan wants after paths of tokens, one a request."""
    slots = [pool.admit(params, [5]) for params in REQUESTS]
    tokens = [5] * len(slots)
    for _ in range(STEPS):
        planned = plan(slots)
        tokens = pool.step(rows([[token] for token in tokens], planned), Batch(slots, plan=planned)).tolist()
    for turn in range(2 * ROUNDS):
        drafts = guesses(tokens)
        planned = plan(slots, drafts=DRAFTS, data_parallel=turn >= ROUNDS)
        # A row after the last token of each request, and one after each draft.
        paths = [[token, *chain] for token, chain in zip(tokens, drafts)]
        out = pool.verify(rows(paths, planned), Batch(slots, plan=planned), drafts)
        tokens = [emitted[-1] for emitted in out.emitted()]
    return [pool.output(slot) for slot in slots]


def over_ranks(pool: gumball.Pool) -> list[list[int]]:
    whole, rank = parts(), pool.ranks.rank

    def rows(paths: list[list[int]], plan: Any) -> np.ndarray:
        if plan.layout == "replicated":  # all ids, of this process' own requests
            return logits(sum((paths[request] for request in plan.requests), []), whole)
        return logits(sum(paths, []), [whole[rank]])  # its own ids, of all requests

    return generate(pool, pool.plan, rows)


def alone() -> list[list[int]]:
    whole = parts()
    return generate(gumball.Pool(VOCAB), lambda *_, **__: None, lambda paths, _: logits(sum(paths, []), whole))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "3"))


def run(pool: gumball.Pool) -> None:
    texts = over_ranks(pool)
    assert texts == alone()
    counts = pool.counts()
    received = sum(counted[2] for counted in counts["traffic"].values())
    print(f"{pool}: {sorted(counts['layouts'])}, {received / (STEPS + 2 * ROUNDS):.0f} bytes received a step")
    if pool.ranks.rank == 0:
        print("the same tokens as one process draws:", texts[0][:8], "...,", [len(text) for text in texts], "a request")


if "TORCHELASTIC_RUN_ID" in os.environ:
    torch_distributed = importlib.import_module("torch.distributed")
    torch_distributed.init_process_group("gloo")
    run(dist.join(VOCAB, layouts=LAYOUTS))
    torch_distributed.destroy_process_group()
elif len(sys.argv) == 3:
    addresses = [f"{sys.argv[1]}.{rank}" for rank in range(world())]
    run(gumball.Pool(VOCAB, ranks=Ranks(int(sys.argv[2]), addresses, layouts=LAYOUTS)))
else:
    with tempfile.TemporaryDirectory() as folder:
        places = [[sys.executable, __file__, f"unix:{folder}/rank", str(rank)] for rank in range(world())]
        # As torchrun does: each process has threads of its own, and they share the processors.
        started = [subprocess.Popen(place, env=os.environ | {"OMP_NUM_THREADS": "1"}) for place in places]
        sys.exit(max(process.wait() for process in started))
