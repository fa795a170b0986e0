"""How many tokens of a marked text its detector needs: `python watermarks.py [FOLDER [TEXTS LENGTH]]`, on the CPU, in an environment of `ci/plugin engines`
with gumball installed. `python watermarks.py begin` says what it takes to leave an output's first tokens without a mark, by more texts and keys, and how many
of 64 samples of one prompt differ.

Our mark stands beside vLLM's and SGLang's, by their own functions, and transformers' SynthID and its green lists (KGW), over the same logits: rows of a
stated entropy that follow from the last token, and those of the model in FOLDER. A text is drawn by each mark, without filters; some of its tokens are replaced by others
at random; and the least number of tokens is looked for after which the p-value is below 10^-6. A prediction by the law of our mark's scores,
f(p) = sum over k of 1 / (k (1 + k p)), stands beside.
"""

import math
import statistics
import sys

import numpy as np
import torch
from sglang.srt.sampling.watermarking.core import _hash_contexts, select_watermark_tokens_torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor, WatermarkLogitsProcessor
from vllm.v1.watermarking.gumbel import DualKeyGumbelWatermarkDetector, GumbelWatermarker

import gumball
from gumball import Pool, SamplingParams, Watermark

TEXTS, LENGTH, LIMIT, PROMPT = 24, 240, 1e-6, 5
CHANGED = (0.0, 0.1, 0.3, 0.5)
OURS = {
    "ours": Watermark(key=1, context=4),
    "ours, of the prompt too": Watermark(key=1, context=4, scope="both"),
    "ours, context 1": Watermark(key=1, context=1),
}
# The engines' marks, by how many ids their contexts have.
ENGINES = {"vLLM": 4, "vLLM, context 1": 1, "SGLang": 4, "SGLang, context 1": 1}
KEY = 0x0123456789ABCDEF
KEYS = f"1 3c6ef372fe94f82ba54ff53a5f1d36f1\n2 {KEY:#x}"
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


def context_of(way, text):
    """The context of a text's next token: vLLM's is of the output alone, in front of which stands -1."""
    width = ENGINES[way]
    return tuple(([-1] * width + text[PROMPT:] if way.startswith("vLLM") else text)[-width:])


def by_engine(way, logits, contexts):
    """The token of each row by an engine's own functions."""
    contexts = torch.tensor(contexts)
    if way.startswith("vLLM"):
        return GumbelWatermarker(KEY, contexts.shape[1]).sample(logits, contexts).token_ids
    hashes = _hash_contexts(contexts, torch.full((len(contexts),), contexts.shape[1]))
    return select_watermark_tokens_torch(logits.softmax(-1), hashes, torch.full((len(contexts),), KEY))


def drawn(logits_of, vocab, way, temperature, prompts=None):
    """Texts by one mark, with the unmarked logprobs and entropies, in bits, of their tokens. prompts: how many different ones; by default one for each text."""
    torch.manual_seed(1)
    ids = torch.randint(vocab, (TEXTS, PROMPT))[torch.arange(TEXTS) % (prompts or TEXTS)]
    processor = {"SynthID": synthid, "green lists": lambda: green(vocab)}.get(way)
    processors = LogitsProcessorList([processor()] if processor else [])
    pool = Pool(vocab, slots=TEXTS)
    params = [SamplingParams(temperature=temperature, seed=i, watermark=OURS.get(way)) for i in range(TEXTS)]
    slots = [pool.admit(one, text) for one, text in zip(params, ids.tolist(), strict=True)]
    seen = [set() for _ in range(TEXTS)]
    chances, entropies = [], []
    for _ in range(LENGTH):
        logits = logits_of(ids)
        own = (logits / temperature).log_softmax(-1)
        if processor or way in ENGINES:
            scores = processors(ids, logits / temperature)
            new = torch.multinomial(scores.softmax(-1), 1)[:, 0]
        else:
            new = torch.from_numpy(pool.step(logits, slots).tokens.astype(np.int64))
        if way in ENGINES:
            # A context that came before leaves the token to chance.
            contexts = [context_of(way, text) for text in ids.tolist()]
            first = torch.tensor([context not in of for context, of in zip(contexts, seen, strict=True)])
            new = torch.where(first, by_engine(way, logits / temperature, contexts), new)
            for context, of in zip(contexts, seen, strict=True):
                of.add(context)
        chances.append(own.gather(1, new[:, None])[:, 0])
        entropies.append(-(own.exp() * own.clamp(min=-1e4)).sum(1) / math.log(2))
        ids = torch.cat([ids, new[:, None]], 1)
    return ids, torch.stack(chances, 1), torch.stack(entropies, 1)


def p_values(ids, way, vocab):
    """The p-value after each number of tokens; of one key of an engine by `gumball.detect`, whose p-values are the engine's detector's."""
    prompt, text = ids[:PROMPT].tolist(), ids[PROMPT:].tolist()
    prefixes = [text[: n + 1] for n in range(len(text))]
    if way in OURS:
        return (gumball.detect(prefix, OURS[way], prompt=prompt).p_value for prefix in prefixes)
    if way in ENGINES:
        mark, scheme = Watermark(key=2, context=ENGINES[way]), way.split(",")[0].lower()
        return (gumball.detect(prefix, mark, prompt=prompt, scheme=scheme).p_value for prefix in prefixes)
    if way == "vLLM, two keys":
        return (DualKeyGumbelWatermarkDetector(KEY).detect(prefix).p_value for prefix in prefixes)
    return of_deviations(ids, way, vocab)


def of_deviations(ids, way, vocab):
    if way == "SynthID":
        # Of each token the weighted sum of its g-values, which are -0.5 or 0.5 without a mark.
        values = (synthid().compute_g_values(ids[None, 1:])[0].float() - 0.5) @ WEIGHTS
        width, mean, deviation = 5, 0.0, 0.5 * float(WEIGHTS.norm())
    else:
        lists = green(vocab)
        values = [ids[place] in lists._get_greenlist_ids(ids[:place]) for place in range(PROMPT, PROMPT + LENGTH)]
        width, mean, deviation = 2, 0.25, math.sqrt(0.25 * 0.75)
    seen, total = set(), 0.0
    for place in range(PROMPT, PROMPT + LENGTH):
        gram = tuple(ids[place - width + 1 : place + 1].tolist())
        if gram not in seen:
            seen.add(gram)
            total += float(values[place - PROMPT]) - mean
        yield tail(total / (deviation * math.sqrt(len(seen))))


def needed(texts, way, vocab, share, seed=3):
    random, counts = np.random.default_rng(seed), []
    for text in texts:
        text = text.clone()
        places = np.flatnonzero(random.random(len(text) - PROMPT) < share) + PROMPT
        text[places] = torch.from_numpy(random.integers(0, vocab, len(places)))
        found = p_values(text, way, vocab)
        counts.append(next((n + 1 for n, p in enumerate(found) if p < LIMIT), LENGTH + 1))
    median = statistics.median(counts)
    return f"> {LENGTH}" if median > LENGTH else f"{median:g}"


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
    for way in (*OURS, *ENGINES, "SynthID", "green lists", "none"):
        torch.manual_seed(7)
        texts, chances, entropies = drawn(logits_of, vocab, way, temperature)
        bits = float(entropies.mean())
        loss = -float(chances.mean()) / math.log(2)
        cells = [needed(texts, way, vocab, share) for share in CHANGED] if way != "none" else ["-"] * 4
        law = f"{foreseen(chances):g}" if way == "ours" else "-"
        print(f"| {name} | {way} | {bits:.2f} | {loss:.2f} |", " | ".join(cells), f"| {law} |", flush=True)


def followed(spread, vocab=2000):
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(2)) * spread
    return lambda ids: table[ids[:, -1]]


def begin(keys=6, vocab=2000):
    global TEXTS, LENGTH, KEY
    LENGTH, logits_of, random = 80, followed(5.0), np.random.default_rng(11)
    print("| mark | tokens needed | by key | score of a token that counts | of 64 samples of one prompt differ |")
    print("| --- | ---: | ---: | ---: | ---: |")
    ways = [*list(OURS)[:2], "vLLM", "SGLang"]
    found = {way: [] for way in ways}
    for number in range(10, 10 + 2 * keys, 2):
        KEY = int(random.integers(1 << 63))
        gumball.add_watermark_keys(f"{number} {random.bytes(16).hex()}\n{number + 1} {KEY:#x}")
        for way in ways:
            TEXTS = 200
            if way in OURS:
                OURS[way] = mark = Watermark(key=number, context=4, scope=OURS[way].scope)
                scheme = "gumball"
            else:
                mark, scheme = Watermark(key=number + 1, context=4), way.lower()
            counts, score, tokens = [], 0.0, 0
            for text in drawn(logits_of, vocab, way, 1.0)[0].tolist():
                prompt, text = text[:PROMPT], text[PROMPT:]
                prefixes = (gumball.detect(text[:n], mark, prompt=prompt, scheme=scheme) for n in range(1, LENGTH + 1))
                evidence = list(prefixes)
                counts.append(next((n + 1 for n, one in enumerate(evidence) if one.p_value < LIMIT), LENGTH + 1))
                score, tokens = score + evidence[-1].score, tokens + evidence[-1].tokens
            TEXTS = 64
            differ = len({tuple(text[PROMPT:]) for text in drawn(logits_of, vocab, way, 1.0, 1)[0].tolist()})
            found[way].append((counts, score, tokens, differ))
    for way, keyed in found.items():
        medians = [statistics.median(counts) for counts, *_ in keyed]
        median = statistics.median(count for counts, *_ in keyed for count in counts)
        mean = sum(score for _, score, *_ in keyed) / sum(tokens for *_, tokens, _ in keyed)
        differ = [differ for *_, differ in keyed]
        print(
            f"| {way} | {median:g} | {min(medians):g} to {max(medians):g} | {mean:.2f} | {min(differ)} to {max(differ)} |"
        )


def main():
    if sys.argv[1:] == ["begin"]:
        return begin()
    gumball.add_watermark_keys(KEYS)
    print(
        "| rows | mark | entropy, bits | bits of the text's tokens | tokens needed | 10 % changed | 30 % | 50 % | by the law |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for spread in (5.0, 3.5, 2.0):
        report(f"followed, spread {spread:g}", followed(spread), 2000, 1.0)
    if len(sys.argv) > 1:
        if len(sys.argv) > 3:
            global TEXTS, LENGTH
            TEXTS, LENGTH = map(int, sys.argv[2:4])
        from transformers import AutoModelForCausalLM

        net = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
        caches = {}

        def logits_of(ids):
            new = ids if ids.shape[1] == PROMPT else ids[:, -1:]
            with torch.no_grad():
                out = net(new, past_key_values=None if ids.shape[1] == PROMPT else caches["of"], use_cache=True)
            caches["of"] = out.past_key_values
            return out.logits[:, -1].float()

        for temperature in (1.0, 0.7):
            report(f"SmolLM2, T {temperature:g}", logits_of, net.config.vocab_size, temperature)


if __name__ == "__main__":
    main()
