"""What `generate` returns under `return_dict_in_generate`: transformers' own outputs, and logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from gumball.compat.transformers import CACHE, Drawn

__all__ = ["GumballOutput", "Recorder"]


@dataclass
class GumballOutput(GenerateDecoderOnlyOutput):
    """transformers' output of a model without an encoder, and the logprobs that were asked for.

    logprobs, ranks: [rows, new tokens] float32 and int64, the natural logprob of each token and its rank from 1; NaN and 0 for padding behind a
    row's end. top_ids, top_logprobs: [rows, new tokens, n] int64 and float32, the most likely tokens; -1 and -inf where there are fewer.
    """

    logprobs: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


class Recorder:
    """Collects what a call of `generate` is to return besides the tokens.

    config: the call's GenerationConfig. logprobs: how many of the most likely tokens to list; None for no logprobs.
    """

    def __init__(self, config: Any, logprobs: int | None) -> None:
        self.on = bool(config.return_dict_in_generate)
        self.logprobs = logprobs
        self._renormalizes = bool(config.renormalize_logits)
        self.scores: list[torch.Tensor] | None = [] if self.on and config.output_scores else None
        self._logits: list[torch.Tensor] | None = [] if self.on and config.output_logits else None
        self._attentions: list[Any] | None = [] if self.on and config.output_attentions else None
        self._hidden_states: list[Any] | None = [] if self.on and config.output_hidden_states else None
        self._listed: list[tuple[torch.Tensor, ...]] = []

    def logits(self, rows: torch.Tensor) -> None:
        """Records a step's logits as the model gave them, [rows, vocab]."""
        if self._logits is not None:
            self._logits.append(rows.to(torch.float32, copy=True))

    def model(self, outputs: Any) -> None:
        """Records what a pass of the model gives besides logits."""
        if self._attentions is not None:
            self._attentions.append(outputs.attentions)
        if self._hidden_states is not None:
            self._hidden_states.append(outputs.hidden_states)

    def drawn(self, drawn: Drawn, lines: Sequence[int]) -> None:
        """Records the step in which each row has drawn one of these lines."""
        if self.scores is not None and drawn.scores is not None:
            scores = drawn.scores[list(lines)]
            self.scores.append(scores.log_softmax(-1) if self._renormalizes else scores)
        if self.logprobs is None:
            return
        places = [drawn.places[line] for line in lines]
        device = drawn.tokens.device
        tokens = drawn.tokens[list(lines)]
        out = drawn.outputs
        named = (out.logprobs[places], out.ranks[places].astype("int64"))
        logprobs, ranks = (torch.from_numpy(part).to(device) for part in named)
        ended = tokens < 0
        listed = [logprobs.masked_fill(ended, float("nan")), ranks.masked_fill(ended, 0)]
        if self.logprobs:
            ids = torch.from_numpy(out.top_ids[places].astype("int64")).to(device)
            top = torch.from_numpy(out.top_logprobs[places]).to(device)
            listed += [ids.masked_fill(ended[:, None], -1), top.masked_fill(ended[:, None], float("-inf"))]
        self._listed.append(tuple(listed))

    def output(self, ids: torch.Tensor, cache: Any) -> GumballOutput:
        """Returns what `generate` returns. ids: [rows, prompt and new tokens]."""
        listed = dict(zip(("logprobs", "ranks", "top_ids", "top_logprobs"), zip(*self._listed)))
        return GumballOutput(
            sequences=ids,
            scores=_tuple(self.scores),
            logits=_tuple(self._logits),
            attentions=_tuple(self._attentions),
            hidden_states=_tuple(self._hidden_states),
            **{CACHE: cache},
            **{name: torch.stack(parts, 1) for name, parts in listed.items()},
        )


def _tuple(parts: list[Any] | None) -> tuple[Any, ...] | None:
    return None if parts is None else tuple(parts)
