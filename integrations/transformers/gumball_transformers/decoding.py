"""The loop of `generate`: a pass of the model, the processors that stay, and a step of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList

from gumball import LogprobsParams
from gumball.compat.transformers import (
    CACHE,
    RefusedError,
    Sequences,
    no_token,
    prompts_of,
    taken,
    words_of,
)

from .outputs import Recorder

__all__ = ["Call", "decode"]


class Call:
    """A call of `generate`: what was asked for, and from `start` on what transformers has made of it.

    ours: parameters by the names of `OUR_NAMES`. seed, logprobs, logprobs_mode, streamer: as of `generate`.
    """

    ids: torch.Tensor
    """The prompts and what was drawn, [rows, length], with padding."""
    processors: LogitsProcessorList
    """Those that stay and are run before the draw."""

    def __init__(
        self,
        model: Any,
        ours: Mapping[str, Any],
        seed: int | Sequence[int] | None,
        logprobs: int | None,
        logprobs_mode: str,
        streamer: Any,
    ) -> None:
        self.model, self.streamer = model, streamer
        self._ours, self._seed, self._logprobs, self._logprobs_mode = ours, seed, logprobs, logprobs_mode
        self._sequences: Sequences | None = None

    def start(
        self, ids: torch.Tensor, processors: Any, criteria: Any, config: Any, model_kwargs: dict[str, Any]
    ) -> None:
        """Takes what transformers has prepared. Raises RefusedError for parameters that cannot be had."""
        self.ids, self.criteria, self.config, self.model_kwargs = ids, criteria, config, model_kwargs
        self._prompts = prompts_of(ids, model_kwargs.get("attention_mask"))
        self.record = Recorder(config, self._logprobs)
        if self._logprobs is not None and not self.record.on:
            raise RefusedError(
                "logprobs are asked for, but have no place in what is returned; pass return_dict_in_generate=True"
            )
        self.params, left = taken(
            processors,
            length=ids.shape[1],
            padding=[ids.shape[1] - len(prompt) for prompt in self._prompts],
            do_sample=bool(config.do_sample),
            ours=self._ours,
            # Greedy scores are all of a row's, so bans must be among them.
            edits=self.record.scores is None or bool(config.do_sample),
        )
        if self._logprobs is not None:
            try:
                listed = LogprobsParams(mode=self._logprobs_mode, top_n=self._logprobs)
                self.params = self.params.replace(logprobs=listed)
            except (TypeError, ValueError) as error:
                raise RefusedError(f"Gumball refuses the request: {error}") from error
        self._words = words_of(self.params, self._seed, ids.shape[0], config.num_return_sequences or 1)
        self.processors = LogitsProcessorList(left)

    def sequences(self, logits: torch.Tensor, *, drafts: bool = False) -> Sequences:
        """The call's sequences, made when the first logits are there. logits: rows of which vocabulary and device count."""
        if self._sequences is None:
            self._sequences = Sequences(
                self.params,
                self._prompts,
                self._words,
                vocab=logits.shape[-1],
                device=logits.device,
                keep_scores=self.record.scores is not None,
                drafts=drafts,
            )
        return self._sequences

    def edited(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Logits after the processors that stay. ids: [rows, length]. logits: [rows, vocab], which stay as they are."""
        if not self.processors:
            return logits
        return self.processors(ids, logits.to(torch.float32, copy=True))

    def stopped(self, ids: torch.Tensor) -> torch.Tensor:
        """Which rows one of the criteria ends, [rows] bool."""
        return self.criteria(ids, None if self.record.scores is None else tuple(self.record.scores))

    def finish(self) -> Any:
        """Returns what `generate` returns."""
        if self.streamer is not None:
            self.streamer.end()
        if not self.record.on:
            return self.ids
        return self.record.output(self.ids, self.model_kwargs.get(CACHE))


def decode(call: Call) -> Any:
    """Decodes a batch, a token of each row at a time."""
    model, config, model_kwargs = call.model, call.config, call.model_kwargs
    rows = call.ids.shape[0]
    # As in transformers: only where a criterion is about the end of texts do rows that have ended get padding. Ended by any other, they go on
    # until all rows have ended.
    pads = any(hasattr(criterion, "eos_token_id") for criterion in call.criteria)
    pad = config._pad_token_tensor if pads else None
    if pads and pad is None and rows > 1:
        raise RefusedError("a criterion ends rows by tokens (eos_token_id), but there is no pad_token_id; pass one")
    pad = None if pad is None else pad.to(call.ids.device)
    unfinished = torch.ones(rows, dtype=torch.bool, device=call.ids.device)
    compiled = model._valid_auto_compile_criteria(model_kwargs, config)
    forward = model.get_compiled_call(config.compile_config) if compiled else model
    outputs = model._prefill(call.ids, config, model_kwargs, is_first_iteration=True)
    with model._optimize_model_for_decode():
        while True:
            model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
            call.model_kwargs = model_kwargs
            logits = outputs.logits[:, -1].to(call.ids.device)
            if outputs.logits.shape[1] > 1:
                # Those of a whole prompt may be large, so nothing holds them during the next pass.
                logits = logits.clone()
            sequences = call.sequences(logits)
            call.record.logits(logits)
            call.record.model(outputs)
            del outputs
            takes_part = unfinished.tolist() if pads else [True] * rows
            drawn = sequences.step(call.edited(call.ids, logits), takes_part)
            call.record.drawn(drawn, range(rows))
            tokens = _padded(drawn.tokens, takes_part, pad, call.ids.shape[1])
            call.ids = torch.cat([call.ids, tokens[:, None]], 1)
            if call.streamer is not None:
                call.streamer.put(tokens.cpu())
            unfinished &= ~call.stopped(call.ids)
            if not unfinished.any():
                return call.finish()
            length = 1 if model_kwargs["use_cache"] else None
            inputs = model.prepare_inputs_for_generation(call.ids, next_sequence_length=length, **model_kwargs)
            outputs = forward(**inputs, return_dict=True)


def _padded(tokens: torch.Tensor, takes_part: Sequence[bool], pad: torch.Tensor | None, length: int) -> torch.Tensor:
    """Tokens with padding in the rows that take no part. Raises RuntimeError for another row without a token."""
    found = tokens.tolist()
    for row, part in enumerate(takes_part):
        if part and found[row] < 0:
            raise no_token(row, length)
    return tokens if pad is None or all(takes_part) else torch.where(tokens < 0, pad, tokens)
