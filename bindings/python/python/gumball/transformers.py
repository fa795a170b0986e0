"""Lets ``model.generate`` of Hugging Face's transformers draw with Gumball.

::

    from gumball.transformers import generate

    ids = generate(model, SamplingParams(temperature=0.8, top_p=0.9, seed=7), **tokenizer(text, return_tensors="pt"))

`GumballLogitsProcessor` does the work. As the last of the processors, it draws each row's token on the scores' device
and leaves only that token above -inf, so generate can only take that one. To run processors of your own before it,
put it into `logits_processor` yourself.
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
    """Draws the token of each row of a batch and masks all others.

    params: one for all rows, which then use their row index as the draw index; or one per row. attention_mask: that
    of the prompt, [rows, length], so that padding is not part of a row's history. One processor serves one call of
    generate. Beams are not supported, because they choose between tokens themselves.

    Raises ValueError if the parameters do not fit the vocabulary, or their number differs from the rows'.
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
        # A row without a token stays as it was; generate then raises its own error.
        one = torch.full_like(scores, float("-inf")).scatter_(1, drawn.clamp(min=0), 0.0)
        return torch.where(drawn < 0, scores, one)

    def _admitted(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Pool:
        """Returns a pool that has a sequence for each row, with the row's prompt."""
        rows, vocab = scores.shape
        params = [self.params] * rows if isinstance(self.params, SamplingParams) else list(self.params)
        if len(params) != rows:
            raise ValueError(f"params has length {len(params)}, but must have one per row, {rows}")
        pool = Pool(vocab, device=scores.device, slots=rows, rows=rows)
        prompts = self._prompts(input_ids)
        if isinstance(self.params, SamplingParams):
            # All sequences belong to one request: they share its seed and differ in the draw index.
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
        # generate may have several rows for one row of the prompt.
        mask = self.attention_mask.to(input_ids.device)
        mask = mask.repeat_interleave(input_ids.shape[0] // mask.shape[0], 0).bool()
        return [row[keep].tolist() for row, keep in zip(input_ids, mask)]


def generate(model: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, **inputs: Any) -> Any:
    """Calls ``model.generate(**inputs)``, draws every token with Gumball, and returns the result of generate.

    params: as for `GumballLogitsProcessor`. inputs: the arguments of generate, such as input_ids, attention_mask,
    max_new_tokens, streamer, num_return_sequences. Its sampling parameters, such as temperature and top_k, are not
    read; set them in `params`. In the model's generation_config this call turns off sampling, beams and everything
    that changes scores: bad_words_ids, suppress_tokens, sequence_bias, no_repeat_ngram_size, min_new_tokens,
    min_length, forced tokens. Its lengths and stop conditions stay. Edits passed to the call itself, and processors,
    act before the draw.

    Raises ValueError for beams, and the errors of the processor.
    """
    off = switched_off(model.generation_config, inputs)
    processor = GumballLogitsProcessor(params, attention_mask=inputs.get("attention_mask"))
    processors = LogitsProcessorList([*(inputs.pop("logits_processor", None) or []), processor])
    return model.generate(**(inputs | off), logits_processor=processors)
