"""From hidden states to tokens: a head over a matrix of numpy, auto and clustered.

    python 09_heads.py

An auto head draws the same tokens with a screen and without, bit for bit. The screen is a copy of the weights in 8 bits, by which it reads, for most tokens, a
few rows of the weights themselves. The clustered one reads the rows of a quarter of its clusters, and its tokens are approximate: random weights, such as these, have no
clusters to speak of.
"""

import numpy as np

from gumball import Head, Hidden, Pool, SamplingParams

random = np.random.default_rng(0)
vocab, width = 8000, 256
weights = random.standard_normal((vocab, width), dtype=np.float32) / 16

# Clusters are built of the weights; ids 0 and 2 are always computed.
clustered = Head.clustered(weights, capacity=16, iterations=4, probes=125, special_ids=[0, 2])
for head in (Head.auto(weights, screen=False), Head.auto(weights), clustered):
    pool = Pool(vocab)
    slots = [pool.admit(SamplingParams(temperature=0.8, seed=seed), prompt=[1, 2, 3]) for seed in range(4)]
    states = np.random.default_rng(1)
    for _ in range(10):
        # The output of the model's last norm for each sequence.
        hidden = states.standard_normal((len(slots), width), dtype=np.float32) * 4
        pool.step(Hidden(head, hidden), slots)
    print(head.kind, [pool.output(slot)[:5] for slot in slots], pool.counts()["heads"])
