"""A batch of requests decoded on the CPU, with numpy alone: each row has its own parameters, and requests come and go.

    python 01_numpy_loop.py

The model is a table: the logits of the next id, given the last one. Yours goes in its place.
"""

import numpy as np

from gumball import LogprobsParams, Pool, SamplingParams

VOCAB, END, MOST, SLOTS = 1000, 0, 24, 2

generator = np.random.default_rng(1)
TABLE = generator.normal(0, 2, (VOCAB, VOCAB)).astype(np.float32)
TABLE[:, END] += 4


def model(last: list[int]) -> np.ndarray:
    """The logits of the next ids, [rows, VOCAB]."""
    return TABLE[last]


waiting = [
    ([5], SamplingParams(temperature=0)),
    ([6, 7], SamplingParams(temperature=0.8, top_p=0.9, seed=7)),
    ([8], SamplingParams(min_p=0.05, repetition_penalty=1.2, seed=8)),
    ([9], SamplingParams(top_k=50, seed=9, logprobs=LogprobsParams(mode="processed"))),
]
pool = Pool(VOCAB, slots=SLOTS)
# The slot of each row, and the last token of each slot.
running: list[int] = []
last = {}
while waiting or running:
    while waiting and len(pool) < SLOTS:
        prompt, params = waiting.pop(0)
        running.append(pool.admit(params, prompt))
        last[running[-1]] = prompt[-1]
    logits = model([last[slot] for slot in running])
    out = pool.step(logits, running)
    for row, slot in enumerate(list(running)):
        last[slot] = out.tokens[row]
        if out.tolist()[row] == END or len(pool.output(slot)) == MOST:
            print(f"slot {slot}: {pool.output(slot)}, the last with logprob {out.logprobs[row]:.3f}")
            pool.release(slot)
            running.remove(slot)
