"""What `generate` returns under `return_dict_in_generate`: transformers' own outputs, and logprobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from gumball.params import LogprobsParams

from .calls import CACHE
from .sequences import Drawn

__all__ = ["GumballEncoderDecoderOutput", "GumballOutput", "Recorder"]


@dataclass(eq=False)
class _Logprobs:
    """The logprobs that were asked for.

    logprobs, ranks: [rows, new tokens] float32 and int64, the natural logprob of each token and its rank from 1; NaN and 0 for padding behind a
    row's end, -inf and 0 in a row that asks for none. top_ids, top_logprobs: [rows, new tokens, n] int64 and float32, the most likely tokens; -1 and -inf where there are fewer.
    second_logprobs: [rows, new tokens] float32, of each token in the second of two modes, filled as logprobs are.
    id_logprobs, id_ranks: [rows, new tokens, ids] float32 and int64, of the ids that were named, in their sequence; -inf and 0 where a row names fewer, or has ended.
    What was not asked for is None.
    """

    logprobs: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    second_logprobs: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None
    id_logprobs: torch.Tensor | None = None
    id_ranks: torch.Tensor | None = None

    # Tensors are neither equal nor unequal, so an output equals itself alone.
    __eq__, __hash__ = object.__eq__, object.__hash__


@dataclass(eq=False)
class GumballOutput(_Logprobs, GenerateDecoderOnlyOutput):
    """transformers' output of a model without an encoder, with logprobs."""


@dataclass(eq=False)
class GumballEncoderDecoderOutput(_Logprobs, GenerateEncoderDecoderOutput):
    """transformers' output of a model with an encoder, with logprobs."""


class Recorder:
    """Collects what a call of `generate` is to return besides the tokens.

    config: the call's GenerationConfig. logprobs: what each row asks for; None for none. encodes: whether the model has an encoder.
    """

    def __init__(self, config: Any, logprobs: Sequence[LogprobsParams | None], *, encodes: bool) -> None:
        self.on = bool(config.return_dict_in_generate)
        asked = [one for one in logprobs if one is not None]
        # The names of the lists, and the value that fills an ended row.
        self._filling: dict[str, float] = {"logprobs": math.nan, "ranks": 0} if asked else {}
        if any(not isinstance(one.mode, str) or "," in one.mode for one in asked):
            self._filling |= {"second_logprobs": math.nan}
        if any(one.top_n for one in asked):
            self._filling |= {"top_ids": -1, "top_logprobs": -math.inf}
        if any(len(one.ids) for one in asked):
            self._filling |= {"id_logprobs": -math.inf, "id_ranks": 0}
        self._renormalizes = bool(config.renormalize_logits)
        self.scores: list[torch.Tensor] | None = [] if self.on and config.output_scores else None
        self.logits: list[torch.Tensor] | None = [] if self.on and config.output_logits else None
        # Of a model's outputs, by the names that they have there.
        before = "decoder_" if encodes else ""
        names = [before + "attentions", *(["cross_attentions"] if encodes else [])] if config.output_attentions else []
        names += [before + "hidden_states"] if config.output_hidden_states else []
        self._steps: dict[str, list[Any]] = {name: [] for name in names} if self.on else {}
        self._encoder = encodes
        self._listed: dict[str, list[torch.Tensor]] = {name: [] for name in self._filling}

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
        if not self._filling:
            return
        places = [drawn.places[line] for line in lines]
        tokens = drawn.tokens[list(lines)]
        for name, filling in self._filling.items():
            found = getattr(drawn.outputs, name)[places]
            column = torch.from_numpy(found if "logprobs" in name else found.astype("int64")).to(tokens.device)
            ended = (tokens < 0).reshape(-1, *[1] * (column.dim() - 1))
            self._listed[name].append(column.masked_fill(ended, filling))

    def output(self, ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> Any:
        """Returns what `generate` returns. ids: [rows, prompt and new tokens]."""
        named = {name: tuple(steps) for name, steps in self._steps.items()}
        if self._encoder:
            encoded = model_kwargs["encoder_outputs"]
            named |= {f"encoder_{name}": encoded.get(name) for name in ("attentions", "hidden_states")}
        return (GumballEncoderDecoderOutput if self._encoder else GumballOutput)(
            sequences=ids,
            scores=None if self.scores is None else tuple(self.scores),
            logits=None if self.logits is None else tuple(self.logits),
            **named,
            **{CACHE: model_kwargs.get(CACHE)},
            **{name: torch.stack(parts, 1) for name, parts in self._listed.items()},
        )
