"""What `generate` returns under `return_dict_in_generate`: transformers' own outputs, and logprobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from .calls import CACHE
from .sequences import Drawn

__all__ = ["GumballEncoderDecoderOutput", "GumballOutput", "Recorder"]


@dataclass
class _Logprobs:
    """The logprobs that were asked for.

    logprobs, ranks: [rows, new tokens] float32 and int64, the natural logprob of each token and its rank from 1; NaN and 0 for padding behind a
    row's end, -inf and 0 in a row that asks for none. top_ids, top_logprobs: [rows, new tokens, n] int64 and float32, the most likely tokens; -1 and -inf where there are fewer.
    """

    logprobs: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


@dataclass
class GumballOutput(_Logprobs, GenerateDecoderOnlyOutput):
    """transformers' output of a model without an encoder, with logprobs."""


@dataclass
class GumballEncoderDecoderOutput(_Logprobs, GenerateEncoderDecoderOutput):
    """transformers' output of a model with an encoder, with logprobs."""


class Recorder:
    """Collects what a call of `generate` is to return besides the tokens.

    config: the call's GenerationConfig. logprobs: how many of the most likely tokens to list; None for no logprobs. encodes: whether the
    model has an encoder.
    """

    def __init__(self, config: Any, logprobs: int | None, *, encodes: bool) -> None:
        self.on = bool(config.return_dict_in_generate)
        self.logprobs = logprobs
        self._renormalizes = bool(config.renormalize_logits)
        self.scores: list[torch.Tensor] | None = [] if self.on and config.output_scores else None
        self.logits: list[torch.Tensor] | None = [] if self.on and config.output_logits else None
        # Of a model's outputs, by the names that they have there.
        before = "decoder_" if encodes else ""
        names = [before + "attentions", *(["cross_attentions"] if encodes else [])] if config.output_attentions else []
        names += [before + "hidden_states"] if config.output_hidden_states else []
        self._steps: dict[str, list[Any]] = {name: [] for name in names} if self.on else {}
        self._encoder = encodes
        self._listed: list[tuple[torch.Tensor, ...]] = []

    def model(self, outputs: Any) -> None:
        """Records what a pass of the model gives besides logits."""
        for name, steps in self._steps.items():
            steps.append(getattr(outputs, name))

    def drawn(self, drawn: Drawn, lines: Sequence[int], logits: torch.Tensor) -> None:
        """Records a step. lines: the line of `drawn` that has each row's token. logits: the model's, [rows, vocab]."""
        if self.logits is not None:
            self.logits.append(logits.to(torch.float32, copy=True))
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

    def output(self, ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> Any:
        """Returns what `generate` returns. ids: [rows, prompt and new tokens]."""
        named = {name: tuple(steps) for name, steps in self._steps.items()}
        if self._encoder:
            encoded = model_kwargs["encoder_outputs"]
            named |= {f"encoder_{name}": encoded.get(name) for name in ("attentions", "hidden_states")}
        listed = dict(zip(("logprobs", "ranks", "top_ids", "top_logprobs"), zip(*self._listed)))
        return (GumballEncoderDecoderOutput if self._encoder else GumballOutput)(
            sequences=ids,
            scores=None if self.scores is None else tuple(self.scores),
            logits=None if self.logits is None else tuple(self.logits),
            **named,
            **{CACHE: model_kwargs.get(CACHE)},
            **{name: torch.stack(parts, 1) for name, parts in listed.items()},
        )
