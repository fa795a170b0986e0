"""What drafts cost a mark, and a mark costs drafts: `python marked_drafts.py`, on the CPU, in the environment of watermarks.py.

Texts are made of chains of 3 drafts from a drafter whose logits are the target's with normal noise. Ours draws drafts by the request's own race and accepts what it
would draw itself. vLLM and SGLang draw by their own functions; how they accept is written here after their sources, whose kernels need a GPU: vLLM by rejection, with
fresh random numbers, and its mark in the drafts (of two keys) and in what replaces them, or there alone; SGLang the drafter's likeliest token if the mark takes it.
"""

import statistics

import torch
from vllm.v1.watermarking.gumbel import DualKeyGumbelWatermarker, GumbelWatermarker
from watermarks import CHANGED, KEY, KEYS, LENGTH, OURS, PROMPT, TEXTS, by_engine, context_of, followed, needed

import gumball
from gumball import Batch, Drafts, Pool, SamplingParams

CHAIN, VOCAB, SPREAD = 3, 2000, 5.0
DUAL = DualKeyGumbelWatermarker(KEY)
MARKERS = {
    "vLLM, two keys": (DUAL.draft_watermarker, DUAL.target_watermarker),
    "vLLM, drafts without a mark": (None, GumbelWatermarker(KEY)),
}
WAYS = ("ours", "ours, the drafter's likeliest token", *MARKERS, "SGLang", "no mark, by rejection")


def by_gumball(way, target, drafter, texts):
    """Returns how many drafts of each chain were accepted; the texts grow."""
    mark = OURS["ours"] if way.startswith("ours") else None
    pool, accepted = Pool(VOCAB, slots=TEXTS), []
    params = [SamplingParams(seed=i, watermark=mark) for i in range(TEXTS)]
    slots = [pool.admit(one, text) for one, text in zip(params, texts, strict=True)]
    batch = Batch(slots, mode="coupled" if mark else "rejection")
    while min(map(len, texts)) < PROMPT + LENGTH:
        paths, probs = [[] for _ in slots], []
        for _ in range(CHAIN):
            rows = drafter(torch.tensor([[(text + path)[-1]] for text, path in zip(texts, paths, strict=True)]))
            probs.append(rows.softmax(-1))
            if way == "ours, the drafter's likeliest token":
                new = rows.argmax(-1)[:, None]
            else:
                new = pool.draft(rows, batch, paths)
            for path, (id,) in zip(paths, new.tolist(), strict=True):
                path.append(id)
        last = [[id] for text, path in zip(texts, paths, strict=True) for id in (text[-1], *path)]
        # A row for each row of logits, of which the last of a chain is not read.
        probs = torch.stack([*probs, probs[-1]], 1).flatten(0, 1).numpy()
        drafts = Drafts(paths) if mark else Drafts(paths, probs=probs)
        out = pool.verify(target(torch.tensor(last)), batch, drafts)
        accepted += out.accepted.tolist()
        for text, new in zip(texts, out.emitted(), strict=True):
            text.extend(new)
    return accepted


def by_engines(way, target, drafter, texts):
    """As `by_gumball`, but drafts are drawn and judged by an engine's functions."""
    of_sglang, accepted = way == "SGLang", []
    drafting, replacing = MARKERS.get(way, (None, None))
    context = "SGLang" if of_sglang else "vLLM"

    def draw(marker, logits, text):
        """A token by a mark, or by chance where there is none or the context came before."""
        at, first = context_of(context, text), PROMPT
        seen = at in (context_of(context, text[:end]) for end in range(first, len(text)))
        if seen or not (marker or of_sglang):
            return int(torch.multinomial(logits.softmax(-1), 1))
        if of_sglang:
            return int(by_engine(context, logits[None], [at]))
        return int(marker.sample(logits[None], torch.tensor([at])).token_ids)

    for text in texts:
        while len(text) < PROMPT + LENGTH:
            path = []
            for _ in range(CHAIN):
                row = drafter(torch.tensor([[(text + path)[-1]]]))[0]
                path.append(int(row.argmax()) if of_sglang else draw(drafting, row, text + path))
            took = 0
            for draft in [*path, None]:
                row = target(torch.tensor([[text[-1]]]))[0]
                if of_sglang or draft is None:
                    new = draw(replacing, row, text)
                else:
                    p, q = row.softmax(-1), drafter(torch.tensor([[text[-1]]]))[0].softmax(-1)
                    if torch.rand(()) < p[draft] / q[draft]:
                        new = draft
                    else:
                        new = draw(replacing, (p - q).clamp(min=0).log(), text)
                text.append(new)
                if new != draft:
                    break
                took += 1
            accepted.append(took)
    return accepted


def main():
    gumball.add_watermark_keys(KEYS)
    print("| noise | mark | accepted of 3 | tokens needed | 10 % changed | 30 % | 50 % |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    target = followed(SPREAD, VOCAB)
    noise = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(9)) * SPREAD
    for share in (0.1, 0.3):

        def drafter(ids, share=share):
            return target(ids) + share * noise[ids[:, -1]]

        for way in WAYS:
            torch.manual_seed(1)
            texts = torch.randint(VOCAB, (TEXTS, PROMPT)).tolist()
            run = by_engines if way.startswith(("vLLM", "SGLang")) else by_gumball
            mean = statistics.mean(run(way, target, drafter, texts))
            cells = ["-"] * len(CHANGED)
            if way[0] != "n":
                ids = torch.tensor([text[: PROMPT + LENGTH] for text in texts])
                by = way if way == "vLLM, two keys" else way.split(",")[0]
                cells = [needed(ids, by, VOCAB, changed) for changed in CHANGED]
            print(f"| {share:g} | {way} | {mean:.2f} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
