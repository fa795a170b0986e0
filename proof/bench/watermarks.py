"""How many tokens of a marked text its detector needs: `python watermarks.py [FOLDER]`, on the CPU, with torch and transformers.

Our mark stands beside transformers' SynthID and its green lists (KGW), over the same logits: rows of a stated entropy that follow from the last token, and those of the
model in FOLDER. A text is drawn by each mark, without filters; some of its tokens are replaced by others at random; and the least number of tokens is looked for after
which the p-value is below 10^-6. A prediction by the law of our mark's scores, f(p) = sum over k of 1 / (k (1 + k p)), stands beside.
"""

import math
import statistics
import sys

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor, WatermarkLogitsProcessor

import gumball
from gumball import Pool, SamplingParams, Watermark

TEXTS, LENGTH, LIMIT = 24, 240, 1e-6
CHANGED = (0.0, 0.1, 0.3, 0.5)
MARKS = {"ours": Watermark(key=1, context=4), "ours, context 1": Watermark(key=1, context=1)}
DEPTH = 30
WEIGHTS = torch.linspace(10, 1, DEPTH)


def tail(z):
    """The p-value of a normal deviate."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def synthid():
    keys = torch.randint(1, 2**20, (DEPTH,), generator=torch.Generator().manual_seed(5)).tolist()
    return SynthIDTextWatermarkLogitsProcessor(5, keys, 2**16, 0, 1024, torch.device("cpu"))


def green(vocab):
    return WatermarkLogitsProcessor(vocab, "cpu", greenlist_ratio=0.25, bias=2.0, context_width=1)


def drawn(logits_of, vocab, way, temperature):
    """Texts by one mark, with the unmarked logprobs and entropies, in bits, of their tokens."""
    torch.manual_seed(1)
    ids = torch.randint(vocab, (TEXTS, 5))
    processor = {"SynthID": synthid, "green lists": lambda: green(vocab)}.get(way)
    processors = LogitsProcessorList([processor()] if processor else [])
    pool = Pool(vocab, slots=TEXTS)
    params = [SamplingParams(temperature=temperature, seed=i, watermark=MARKS.get(way)) for i in range(TEXTS)]
    slots = [pool.admit(one, text) for one, text in zip(params, ids.tolist(), strict=True)]
    chances, entropies = [], []
    for _ in range(LENGTH):
        logits = logits_of(ids)
        own = (logits / temperature).log_softmax(-1)
        if processor:
            scores = processors(ids, logits / temperature)
            new = torch.multinomial(scores.softmax(-1), 1)[:, 0]
        else:
            new = torch.from_numpy(pool.step(logits, slots).tokens.astype(np.int64))
        chances.append(own.gather(1, new[:, None])[:, 0])
        entropies.append(-(own.exp() * own.clamp(min=-1e4)).sum(1) / math.log(2))
        ids = torch.cat([ids, new[:, None]], 1)
    return ids, torch.stack(chances, 1), torch.stack(entropies, 1)


def p_values(ids, way, vocab):
    """The p-value after each number of tokens."""
    if way in MARKS:
        text = ids[5:].tolist()
        return [gumball.detect(text[: n + 1], MARKS[way], prompt=ids[:5].tolist()).p_value for n in range(LENGTH)]
    if way == "SynthID":
        # Of each token the weighted sum of its g-values, which are -0.5 or 0.5 without a mark.
        values = (synthid().compute_g_values(ids[None, 1:])[0].float() - 0.5) @ WEIGHTS
        width, mean, deviation = 5, 0.0, 0.5 * float(WEIGHTS.norm())
    else:
        lists = green(vocab)
        values = [ids[place] in lists._get_greenlist_ids(ids[:place]) for place in range(5, 5 + LENGTH)]
        width, mean, deviation = 2, 0.25, math.sqrt(0.25 * 0.75)
    seen, total, out = set(), 0.0, []
    for place in range(5, 5 + LENGTH):
        gram = tuple(ids[place - width + 1 : place + 1].tolist())
        if gram not in seen:
            seen.add(gram)
            total += float(values[place - 5]) - mean
        out.append(tail(total / (deviation * math.sqrt(len(seen)))))
    return out


def needed(texts, way, vocab, share, seed=3):
    random, counts = np.random.default_rng(seed), []
    for text in texts:
        text = text.clone()
        places = np.flatnonzero(random.random(LENGTH) < share) + 5
        text[places] = torch.from_numpy(random.integers(0, vocab, len(places)))
        found = p_values(text, way, vocab)
        counts.append(next((n + 1 for n, p in enumerate(found) if p < LIMIT), LENGTH + 1))
    return statistics.median(counts)


def foreseen(chances):
    """After how many tokens of our mark the sum of f(p) over the drawn tokens is beyond the limit: the median over texts."""
    p = chances.double().exp().clamp(1e-12, 1)
    scores = (torch.digamma(1 + 1 / p) + np.euler_gamma).numpy()  # The sum over k of 1 / (k (1 + k p)).
    counts = []
    for text in np.cumsum(scores, 1):
        below = [n + 1 for n, x in enumerate(text) if n >= 4 and erlang(n - 3, x - text[3]) < LIMIT]
        counts.append(below[0] if below else LENGTH + 1)
    return statistics.median(counts)


def erlang(n, x):
    """The p-value of a sum of n scores."""
    terms = np.log(np.maximum(x, 1e-300)) * np.arange(n) - np.array([math.lgamma(k + 1) for k in range(n)])
    return float(np.exp(np.logaddexp.reduce(terms) - x))


def report(name, logits_of, vocab, temperature):
    for way in (*MARKS, "SynthID", "green lists", "none"):
        torch.manual_seed(7)
        texts, chances, entropies = drawn(logits_of, vocab, way, temperature)
        bits = float(entropies.mean())
        loss = -float(chances.mean()) / math.log(2)
        cells = [f"{needed(texts, way, vocab, share):g}" for share in CHANGED] if way != "none" else ["-"] * 4
        cells = [f"> {LENGTH}" if cell == f"{LENGTH + 1}" else cell for cell in cells]
        law = f"{foreseen(chances):g}" if way == "ours" else "-"
        print(f"| {name} | {way} | {bits:.2f} | {loss:.2f} |", " | ".join(cells), f"| {law} |", flush=True)


def followed(spread, vocab=2000):
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(2)) * spread
    return lambda ids: table[ids[:, -1]]


def main():
    gumball.add_watermark_keys("1 3c6ef372fe94f82ba54ff53a5f1d36f1")
    print(
        "| rows | mark | entropy, bits | bits of the text's tokens | tokens needed | 10 % changed | 30 % | 50 % | by the law |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for spread in (5.0, 3.5, 2.0):
        report(f"followed, spread {spread:g}", followed(spread), 2000, 1.0)
    if len(sys.argv) > 1:
        from transformers import AutoModelForCausalLM

        net = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
        caches = {}

        def logits_of(ids):
            new = ids if ids.shape[1] == 5 else ids[:, -1:]
            with torch.no_grad():
                out = net(new, past_key_values=None if ids.shape[1] == 5 else caches["of"], use_cache=True)
            caches["of"] = out.past_key_values
            return out.logits[:, -1].float()

        for temperature in (1.0, 0.7):
            report(f"SmolLM2, T {temperature:g}", logits_of, net.config.vocab_size, temperature)


if __name__ == "__main__":
    main()
