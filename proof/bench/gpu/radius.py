"""What the radius of tokens costs on a GPU, and what it foresees: `python radius.py times` and `python radius.py moved FOLDER`.

`times` prints the microseconds of a step of rows like a model's: without logprobs, with the raw logprob, with that over the kept set besides, and with
the radius besides. `moved` computes the logits of texts by the model in FOLDER, which transformers loads, in bf16: of a batch that
decodes step by step with a cache, and of each of its texts alone and at once. It draws each token from both rows, and prints how many tokens differ, and how many of these have a radius above the largest difference of their
logits: none may. Needs torch with CUDA.
"""

import statistics
import sys

import torch

from gumball import LogprobsParams, Pool, SamplingParams, Step
from inputs import model

VOCAB = 151_936
SETTINGS = {
    "greedy": dict(temperature=0),
    "no filter": dict(temperature=0.8),
    "no filter, T 0.7": dict(temperature=0.7),
    "top-k 50, top-p 0.9, T 0.7": dict(temperature=0.7, top_k=50, top_p=0.9),
    "top-k 50": dict(temperature=0.8, top_k=50),
    "top-k 50, top-p 0.9": dict(temperature=0.8, top_k=50, top_p=0.9),
    "top-p 0.9": dict(temperature=0.8, top_p=0.9),
    "min-p 0.05": dict(temperature=0.8, min_p=0.05),
    "min-p 0.05 before top-p 0.9": dict(temperature=0.8, min_p=0.05, top_p=0.9, order=["min_p", "top_p"]),
}
MODES = {"none": None, "raw": "raw", "raw, processed": ["raw", "processed"], "raw, radius": ["raw", "radius"]}
TEXTS = [
    "The sky is blue because",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "The capital of France is",
    "Q: What is 12 times 12?\nA:",
    "A recipe for pancakes: first,",
    "In 1969 the first",
    "The three laws of robotics are",
]


def microseconds(logits, setting, mode, calls=40):
    """The median time of a step between two events of its stream."""
    rows = len(logits)
    pool = Pool(VOCAB, device="cuda:0", slots=rows, rows=rows, keep_histories=True)
    asked = LogprobsParams(mode=mode) if mode else None
    pool.assign([pool.admit(SamplingParams(seed=seed, logprobs=asked, **setting), [1]) for seed in range(rows)])
    times = []
    for call in range(calls + 5):
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000)  # The host is ahead by the time of this.
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        pool.enqueue([Step(logits)])
        end.record()
        end.synchronize()
        times += [1000 * start.elapsed_time(end)] if call >= 5 else []
    return statistics.median(times)


def times():
    print("| setting | rows |", " | ".join(MODES), "| radius / raw |")
    for name, setting in SETTINGS.items():
        for rows in (1, 8, 32, 128, 512):
            logits = model((1, rows, VOCAB))[0].cuda()
            found = [microseconds(logits, setting, mode) for mode in MODES.values()]
            print(
                f"| {name} | {rows} |",
                " | ".join(f"{us:.1f}" for us in found),
                f"| {found[3] / found[1]:.2f} |",
                flush=True,
            )


def moved(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    torch.manual_seed(1)
    length, batch = 80, 64
    starts = [tokenizer(TEXTS[number % 8], return_tensors="pt").input_ids[0, :5] for number in range(batch)]
    ids, cache, rows = torch.stack(starts).cuda(), None, []
    with torch.no_grad():
        new = ids
        for _ in range(length):
            out = net(new, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append(out.logits[:, -1].float())
            new = torch.multinomial((rows[-1] / 0.9).softmax(-1), 1)
            ids = torch.cat([ids, new], 1)
        together = torch.stack(rows, 1)
        alone = torch.stack([net(text[None, :-1]).logits[0, -length:].float() for text in ids])
    vocab = alone.shape[-1]
    alone, together = alone.reshape(-1, vocab), together.reshape(-1, vocab)
    apart = (alone - together).abs().amax(1).cpu().numpy()
    print(
        f"{len(apart)} rows of {vocab} ids; the largest difference of a row: median {statistics.median(apart):.4f}, most {apart.max():.4f}"
    )
    print(
        "| setting | tokens differ | radius at most the difference | differ with a larger radius | at most the median difference |"
    )
    for name, setting in SETTINGS.items():
        drawn = []
        for logits in (alone, together):
            rows = len(logits)
            pool = Pool(vocab, device="cuda:0", slots=rows, rows=rows)
            asked = LogprobsParams(mode=["raw", "radius"])
            slots = [pool.admit(SamplingParams(seed=seed, logprobs=asked, **setting), [1]) for seed in range(rows)]
            drawn.append(pool.step(logits, slots))
        radii = drawn[0].second_logprobs
        differ = drawn[0].tokens != drawn[1].tokens
        near = radii <= apart
        low = (radii <= statistics.median(apart)).mean()
        share = "{:.2%}".format
        print(
            f"| {name} | {share(differ.mean())} | {share(near.mean())} | {(differ & ~near).sum()} | {share(low)} |",
            flush=True,
        )


if __name__ == "__main__":
    {"times": times, "moved": moved}[sys.argv[1]](*sys.argv[2:])
