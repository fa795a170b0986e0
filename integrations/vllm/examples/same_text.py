"""The text that each request has alone, from a vLLM whose logits differ from batch to batch: only steps with a small radius are computed again.

    python same_text.py MODEL [TEMPERATURE [NOISE]]

vLLM writes the texts of all requests at once. A token whose radius is above what a batch moves logits by is the token of the request alone. Any other is drawn
again, by a request of its own that reads prompt and text so far; if that draws another token, vLLM goes on from there. So the texts are those that such
requests write token by token. NOISE: the most that a batch moves a logit by; twice what other texts show, by default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from vllm import LLM, SamplingParams

RADII = {"return_radii": True}
STARTS = (
    "The sea",
    "In the year",
    "A recipe for",
    "My first",
    "The reason",
    "When we",
    "Once",
    "How to",
    "It is",
    "There was",
    "On a",
    "The law",
)


def generate(llm: LLM, texts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Any]:
    """The outputs behind the ids of each text."""
    outs = llm.generate([{"prompt_token_ids": text} for text in texts], list(params), use_tqdm=False)
    return [out.outputs[0] for out in outs]


def until(params: SamplingParams, length: int) -> SamplingParams:
    """The same request for at most this many tokens."""
    made = params.clone()
    made.max_tokens = length
    return made


def same_texts(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams], noise: float
) -> tuple[list[list[int]], int]:
    """The text of each request as it is alone, and how many steps were computed again.

    params: with a seed, `logprobs` and radii, and without what depends on where the prompt ends: presence and frequency penalties, marks, a least length.
    noise: the most that a batch moves a logit by.
    """
    texts: list[list[int]] = [[] for _ in prompts]
    again, going = 0, list(range(len(prompts)))
    while going:
        left = [until(params[i], (params[i].max_tokens or 1) - len(texts[i])) for i in going]
        outs, batch, going = generate(llm, [prompts[i] + texts[i] for i in going], left), going, []
        for i, out in zip(batch, outs, strict=True):
            for token, listed in zip(out.token_ids, out.logprobs, strict=True):
                own, ends = token, False
                if listed[token].radius <= noise:
                    again += 1
                    (alone,) = generate(llm, [prompts[i] + texts[i]], [until(params[i], 1)])
                    (own,), ends = alone.token_ids, alone.finish_reason == "stop"
                texts[i].append(own)
                if own != token:
                    # What vLLM wrote behind it belongs to another text.
                    going += [i] if not ends and len(texts[i]) < (params[i].max_tokens or 1) else []
                    break
    return texts, again


def noise_of(llm: LLM, prompts: list[list[int]], length: int = 8) -> float:
    """The most by which a batch moves a logit of the likeliest ones, seen in texts of `length` tokens; a movement of all at once moves no token."""
    asked = SamplingParams(temperature=1.0, seed=1, max_tokens=length, logprobs=20, ignore_eos=True)
    most = 0.0
    for prompt, out in zip(prompts, generate(llm, prompts, [asked] * len(prompts)), strict=True):
        for place, batch in enumerate(out.logprobs):
            (alone,) = generate(llm, [prompt + list(out.token_ids[:place])], [until(asked, 1)])
            apart = [batch[id].logprob - one.logprob for id, one in alone.logprobs[0].items() if id in batch]
            most = max(most, (max(apart) - min(apart)) / 2)
    return most


def main(model: str, temperature: float = 0.0, noise: float | None = None, length: int = 32) -> None:
    """Writes texts in both ways, and prints how many steps were computed again."""
    llm = LLM(model=model, enable_prefix_caching=False, max_model_len=512)
    prompts = [llm.get_tokenizer().encode(start) for start in STARTS]
    noise = 2 * noise_of(llm, [prompt[::-1] for prompt in prompts]) if noise is None else noise
    asked = dict(temperature=temperature, logprobs=0, max_tokens=length, ignore_eos=True, extra_args=RADII)
    params = [SamplingParams(seed=seed, **asked) for seed in range(len(prompts))]
    batch = [list(out.token_ids) for out in generate(llm, prompts, params)]
    same, again = same_texts(llm, prompts, params, noise)
    alone: list[list[int]] = [[] for _ in prompts]
    for prompt, text, one in zip(prompts, alone, params, strict=True):
        for _ in range(length):
            text += generate(llm, [prompt + text], [until(one, 1)])[0].token_ids
    apart = [sum(a != b for a, b in zip(texts, alone, strict=True)) for texts in (batch, same)]
    print(f"a batch moves logits by less than {noise:.4f}; left alone, it changes {apart[0]} of {len(prompts)} texts")
    print(f"{again / (len(prompts) * length):.1%} of the steps computed again: {apart[1]} texts differ")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
