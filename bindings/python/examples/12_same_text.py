"""The text that each request has alone, out of batches whose logits differ: only steps with a small radius are computed again.

    python 12_same_text.py

The model is a small transformer in bfloat16, whose logits move by some hundredths from one batch to another, as a server's do. A token whose radius is
above what a batch moves logits by is the token of the request alone, whatever the batch was; the others are computed again, one by one, and drawn
again. The last lines compare all texts with those of requests that ran alone, and say what share of the steps was computed twice.
"""

from typing import Any

import torch
import torch.nn.functional as F

from gumball import LogprobsParams, Pool, SamplingParams

VOCAB, WIDTH, LAYERS, REQUESTS, LENGTH = 2000, 256, 2, 16, 20
torch.manual_seed(1)
EMBEDDING, HEAD = torch.randn(VOCAB, WIDTH).bfloat16(), torch.randn(WIDTH, VOCAB) / 3
LAYER = [
    [(torch.randn(WIDTH, n) / WIDTH**0.5).bfloat16() for n in (3 * WIDTH, WIDTH, 4 * WIDTH)] for _ in range(LAYERS)
]
DOWN = [(torch.randn(4 * WIDTH, WIDTH) / (4 * WIDTH) ** 0.5).bfloat16() for _ in range(LAYERS)]


def product(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Adds up in two parts for a batch, as kernels of a GPU split sums by the size of the batch; a CPU's have one order for all."""
    if len(x) == 1:
        return x @ weights
    half = len(weights) // 2
    return x[..., :half] @ weights[:half] + x[..., half:] @ weights[half:]


def model(texts: list[list[int]]) -> torch.Tensor:
    """Logits after each of the texts, which have one length, [texts, VOCAB] float32."""
    x = EMBEDDING[torch.tensor(texts)]
    for (attention, out, up), down in zip(LAYER, DOWN, strict=True):
        q, k, v = (
            part.unflatten(2, (4, -1)).transpose(1, 2)
            for part in product(F.rms_norm(x, (WIDTH,)), attention).chunk(3, 2)
        )
        x = x + product(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), out)
        x = x + product(F.silu(product(F.rms_norm(x, (WIDTH,)), up)), down)
    return product(F.rms_norm(x[:, -1].float(), (WIDTH,)), HEAD)


def write(params: list[SamplingParams], size: int, noise: float | None) -> tuple[list[list[int]], int]:
    """Texts of requests that are decoded `size` at a time, and how many steps were computed again. noise: the most that a batch moves a logit by; None to
    leave all tokens as the batch has them."""
    texts = [[1, 2, 3 + number] for number in range(len(params))]
    pool, again = Pool(VOCAB, slots=len(params)), 0
    slots = [pool.admit(one, text) for one, text in zip(params, texts, strict=True)]
    for _ in range(LENGTH):
        for start in range(0, len(texts), size):
            batch = range(start, min(start + size, len(texts)))
            out = pool.step(model([texts[i] for i in batch]), [slots[i] for i in batch])
            for place, i in enumerate(batch):
                token = int(out.tokens[place])
                if noise is not None and out.second_logprobs[place] <= noise:
                    again += 1
                    pool.shorten([slots[i]], [1])
                    token = int(pool.step(model([texts[i]]), [slots[i]]).tokens[0])
                texts[i].append(token)
    return texts, again


asked = LogprobsParams(mode=["raw", "radius"])
settings: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 40}]
for setting in settings:
    params = [SamplingParams(seed=seed, logprobs=asked, **setting) for seed in range(REQUESTS)]
    alone, _ = write(params, 1, None)
    # The most that a batch moved a logit of other texts by, and twice that for safety.
    others = torch.randint(VOCAB, (REQUESTS, LENGTH)).tolist()
    noise = 2 * float((model(others) - torch.cat([model([text]) for text in others])).abs().max())
    batch, _ = write(params, REQUESTS, None)
    same, again = write(params, REQUESTS, noise)
    differ = sum(a != b for a, b in zip(batch, alone, strict=True))
    print(
        f"{setting}: a batch moves logits by less than {noise:.3f}; left alone, it changes {differ} of {REQUESTS} texts"
    )
    print(
        f"  {again / (REQUESTS * LENGTH):.1%} of the steps computed again: {sum(a != b for a, b in zip(same, alone, strict=True))} texts differ"
    )
    assert same == alone
