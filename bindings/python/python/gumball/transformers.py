"""Lets ``model.generate`` of Hugging Face's transformers draw with Gumball.

::

    from gumball.transformers import generate

    ids = generate(model, SamplingParams(temperature=0.8, top_p=0.9, seed=7), **tokenizer(text, return_tensors="pt"))

`GumballLogitsProcessor` is what does it: the last of the processors, it draws each row's token, on the device where the scores
are, and leaves that token alone above -inf. So whatever generate does next, it takes that one. Put it into `logits_processor`
yourself to keep processors of your own before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ._gumball import Pool
from .generation import switched_off
from .params import SamplingParams, State
from .torch import tokens_of

__all__ = ["GumballLogitsProcessor", "generate"]


class GumballLogitsProcessor(LogitsProcessor):
    """Draws the token of each row of a batch, and allows no other.

    params: for all rows, which then draw under their row's number as the draw index; or one for each row. attention_mask:
    that of the prompt, [rows, length], so that padding is no part of a row's history. One processor serves one call of
    generate; beams are not supported, as they choose between tokens themselves.

    Raises ValueError where the parameters do not fit the vocabulary, or are not as many as the rows.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
    ) -> None:
        self.params = SamplingParams() if params is None else params
        self.attention_mask = attention_mask
        self.pool: Pool | None = None
        self.slots: list[int] = []
        self.length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores in which each row has 0 at its token and -inf elsewhere.

        input_ids: [rows, length]. scores: [rows, vocab], float32, bfloat16 or float16.
        """
        if self.pool is None:
            self.pool = self._admitted(input_ids, scores)
        elif input_ids.shape[1] != self.length + 1:
            raise ValueError(
                f"input_ids has length {input_ids.shape[1]}, but must have {self.length + 1}: a token a step"
            )
        self.length = input_ids.shape[1]
        self.pool.enqueue(scores if scores.stride(-1) == 1 else scores.contiguous())
        drawn = tokens_of(self.pool)[:, None].long()
        # A row with no token at all stays as it was, which generate will tell in its own words.
        one = torch.full_like(scores, float("-inf")).scatter_(1, drawn.clamp(min=0), 0.0)
        return torch.where(drawn < 0, scores, one)

    def _admitted(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Pool:
        """A pool with a sequence for each row, after its prompt."""
        rows, vocab = scores.shape
        params = [self.params] * rows if isinstance(self.params, SamplingParams) else list(self.params)
        if len(params) != rows:
            raise ValueError(f"params has length {len(params)}, but must have one per row, {rows}")
        pool = Pool(vocab, device=scores.device, slots=rows, rows=rows)
        prompts = self._prompts(input_ids)
        if isinstance(self.params, SamplingParams):
            # Sequences of one request: of one seed, told apart by the draw index.
            first = pool.admit(params[0], prompts[0])
            seed, mu = pool.seed(first), pool.state(first).mu
            pool.release(first)
            states = [
                State(prompt, seed=seed, position=len(prompt), draw=row, mu=mu) for row, prompt in enumerate(prompts)
            ]
            self.slots = [pool.resume(one, state) for one, state in zip(params, states)]
        else:
            self.slots = [pool.admit(one, prompt) for one, prompt in zip(params, prompts)]
        pool.assign(self.slots)
        return pool

    def _prompts(self, input_ids: torch.Tensor) -> list[list[int]]:
        if self.attention_mask is None:
            return [list(row) for row in input_ids.tolist()]
        # Rows of generate may be several for one of the prompt.
        mask = self.attention_mask.to(input_ids.device)
        mask = mask.repeat_interleave(input_ids.shape[0] // mask.shape[0], 0).bool()
        return [row[keep].tolist() for row, keep in zip(input_ids, mask)]


def generate(model: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, **inputs: Any) -> Any:
    """Calls ``model.generate(**inputs)`` with every token drawn by Gumball, and returns what it returns.

    params: as for `GumballLogitsProcessor`. inputs: generate's own, as input_ids, attention_mask, max_new_tokens, streamer,
    num_return_sequences. Its parameters of sampling are not read: temperature, top_k and the like stand in `params`. What the model's
    own generation_config says is off for this call, sampling, beams and all that changes scores (bad_words_ids, suppress_tokens,
    sequence_bias, no_repeat_ngram_size, min_new_tokens, min_length, forced tokens), so that `params` alone count; lengths and ends
    stay. Edits that are handed to the call itself, and processors, act before the draw.

    Raises ValueError for beams, and as the processor does.
    """
    off = switched_off(model.generation_config, inputs)
    processor = GumballLogitsProcessor(params, attention_mask=inputs.get("attention_mask"))
    processors = LogitsProcessorList([*(inputs.pop("logits_processor", None) or []), processor])
    return model.generate(**(inputs | off), logits_processor=processors)
