"""transformers on a GPU: every token of `generate` equals the token that a `Sampler` draws on a CPU from the model's very logits.

A model of random weights, in float32 and bfloat16; by names and by `SamplingParams`, in a batch and alone, with drafts of n-grams and without.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from gumball import Dry, Sampler, SamplingParams
from gumball_transformers import FOLDER, generate

VOCAB, ROWS, LENGTH = 32_000, 8, 32
NAMED = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2}
KEPT = {"max_new_tokens": LENGTH, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.8, "min_p": 0.05, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 1.1, "typical_p": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.1, "dry": Dry(multiplier=0.8)},
    {"temperature": 0.7, "top_p": 0.95, "logit_bias": {11: 8.0}, "no_repeat_ngram": 2},
    {"temperature": 1.0, "top_n_sigma": 1.5, "banned_ids": list(range(100))},
]


def differing(out: Any, prompts: torch.Tensor, params: list[SamplingParams]) -> int:
    """How many rows have another text than samplers draw from the logits."""
    texts = out.sequences[:, prompts.shape[1] :].tolist()
    logits = torch.stack(out.logits, 1).float().cpu().numpy()
    count = 0
    for row, one in enumerate(params):
        sampler = Sampler(one, VOCAB, prompt=prompts[row].tolist())
        for step in range(len(texts[row])):
            sampler.sample(logits[row, step])
        count += sampler.output != texts[row]
    return count


def main() -> None:
    torch.manual_seed(1)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, tie_word_embeddings=False, **shape)).eval()
    model.lm_head.weight.data.normal_(0, 3 / 16)
    prompts = torch.randint(VOCAB, (ROWS, 12)).cuda()
    params = [SamplingParams(seed=100 + row, **asked) for row, asked in enumerate(ASKED)]
    named = [SamplingParams(seed=row, **NAMED) for row in range(ROWS)]
    texts = found = 0
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to("cuda", dtype)
        for drafts in ({}, {"prompt_lookup_num_tokens": 3}):
            # transformers looks drafts up for one row alone.
            for rows in [slice(row, row + 1) for row in range(ROWS)] + ([] if drafts else [slice(ROWS)]):
                some = prompts[rows]
                by_params = generate(model, params[rows], inputs=some, **KEPT, **drafts)
                door = {"custom_generate": FOLDER, "trust_remote_code": True, "do_sample": True}
                seeds = list(range(ROWS))[rows]
                by_names = model.generate(some, seed=seeds, **NAMED, **KEPT, **drafts, **door)
                texts += 2 * len(some)
                found += differing(by_params, some, params[rows]) + differing(by_names, some, named[rows])
    card = torch.cuda.get_device_name()
    print(f"transformers {transformers.__version__} on {card}: {texts} texts of {LENGTH} tokens, {found} differ")
    assert found == 0 and texts


if __name__ == "__main__":
    main()
