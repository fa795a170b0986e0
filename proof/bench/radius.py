"""How tight the radius of tokens is, and the radius of a draw by the inverse of the distribution function: `python radius.py tight` and
`python radius.py inverse`, on the CPU.

`tight` looks for the least movement that changes each token, among those that lift one rival and lower all else and the one that lowers the token, and prints the
radius as a share of it. `inverse` draws rows both ways, and prints the radii of both. Rows are like a model's (`bell`), or SmolLM2's where
`proof/conformance/rows/smollm2.bf16` is there.
"""

import sys
from pathlib import Path

import numpy as np

from gumball import LogprobsParams, Pool, SamplingParams

SETTINGS = {
    "greedy": dict(temperature=0),
    "no filter": dict(temperature=0.8),
    "top-k 50": dict(temperature=0.8, top_k=50),
    "min-p 0.05": dict(temperature=0.8, min_p=0.05),
    "top-p 0.9": dict(temperature=0.8, top_p=0.9),
    "top-k 50, top-p 0.9": dict(temperature=0.8, top_k=50, top_p=0.9),
    "min-p 0.05 before top-p 0.9": dict(temperature=0.8, min_p=0.05, top_p=0.9, order=["min_p", "top_p"]),
    "epsilon 0.002": dict(temperature=0.8, epsilon_cutoff=0.002),
    "top-a 0.2": dict(temperature=0.8, top_a=0.2),
    "p-less": dict(temperature=0.8, p_less=True),
    "repetition 1.3": dict(temperature=0.8, repetition_penalty=1.3),
}
RECORDED = Path(__file__).parents[1] / "conformance/rows/smollm2.bf16"


def bell(rows, vocab, seed=1):
    """Rows of a normal body and a long tail at its top, as models have them."""
    random = np.random.default_rng(seed)
    return (random.normal(0, 2, (rows, vocab)) + random.exponential(1.2, (rows, vocab)) ** 1.3).astype(np.float32)


def drawn(logits, setting, prompt=(1, 2, 3)):
    """Tokens and radii of rows, each of a request with its row's number as the seed."""
    rows, vocab = logits.shape
    pool = Pool(vocab, slots=rows)
    asked = LogprobsParams(mode=["raw", "radius"])
    slots = [pool.admit(SamplingParams(seed=seed, logprobs=asked, **setting), prompt) for seed in range(rows)]
    out = pool.step(logits, slots)
    return out.tokens.copy(), out.second_logprobs.copy()


def least(logits, setting, tokens, lifts, rivals):
    """For each row the least movement that changes its token, by bisection; `lifts` says which way logits go."""
    low, high = np.zeros(len(logits), np.float32), np.full(len(logits), 16, np.float32)
    at = np.arange(len(logits))
    for _ in range(22):
        by = (low + high) / 2
        signs = np.where(lifts, 1, -1)[:, None] * np.ones_like(logits)
        signs[at, rivals] *= -1
        now, _ = drawn((logits + signs * by[:, None]).astype(np.float32), setting)
        changed = now != tokens
        high, low = np.where(changed, by, high), np.where(changed, low, by)
    return high


def tight(vocab=400, rows=400):
    logits = bell(rows, vocab)
    print("| setting | radius / least movement found: median | least | largest | radius 0 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, setting in SETTINGS.items():
        tokens, radii = drawn(logits, setting)
        found = least(logits, setting, tokens, np.ones(rows, bool), tokens)
        # Only what was likely, or would have come early, is a rival.
        order = np.argsort(-logits, axis=1)[:, :60]
        for place in range(order.shape[1]):
            found = np.minimum(found, least(logits, setting, tokens, np.zeros(rows, bool), order[:, place]))
        share = radii / found
        some = share[radii > 0]
        print(
            f"| {name} | {np.median(some):.4f} | {some.min():.3f} | {share.max():.4f} | {(radii == 0).mean():.1%} |",
            flush=True,
        )


def inverse():
    flat = np.random.default_rng(3).normal(0, 1.5, (16, 32_000)).astype(np.float32)
    rows = {"like a model's, 32000 ids": bell(16, 32_000), "flat, 32000 ids": flat}
    if RECORDED.is_file():
        words = np.fromfile(RECORDED, np.uint16).astype(np.uint32) << 16
        rows["SmolLM2's, 49152 ids"] = words.view(np.float32).reshape(-1, 49_152)[:16]
    print("| rows, at temperature 0.8 | way | radius: 1 % | 10 % | median |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, logits in rows.items():
        logits = np.repeat(logits, 64, axis=0)
        _, race = drawn(logits, SETTINGS["no filter"])
        t = 0.8
        weights = np.exp((logits.astype(np.float64) - logits.max(1, keepdims=True)) / t)
        sums = np.cumsum(weights, 1)
        u = np.random.default_rng(2).random(len(logits))[:, None] * sums[:, -1:]
        token = (sums <= u).sum(1)
        at = np.arange(len(logits))
        parts = np.stack([np.where(token > 0, sums[at, token - 1], 0), u[:, 0], sums[at, token]])
        with np.errstate(divide="ignore"):
            below, drawn_at, above = np.log(parts / (sums[:, -1] - parts))
        by_inverse = np.minimum(drawn_at - below, above - drawn_at) * t / 2
        for way, radii in (("race", race), ("inverse", by_inverse)):
            print(
                f"| {name} | {way} |",
                " | ".join(f"{np.quantile(radii, q):.4f}" for q in (0.01, 0.1, 0.5)),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    {"tight": tight, "inverse": inverse}[sys.argv[1]]()
