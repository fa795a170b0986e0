"""The loop of `generate`: a pass of the model, the processors that stay, and a step of the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessorList

from gumball import detect
from gumball.errors import RefusedError
from gumball.params import LogprobsParams, SamplingParams

from .calls import no_token, prompts_of
from .heads import HeadLayer, last_states
from .outputs import Recorder
from .params import LOGPROBS_NAMES, OUR_NAMES, taken
from .sequences import Sequences, Words, of_decoding, words_of

__all__ = ["Asked", "Call", "decode"]


class Asked(NamedTuple):
    """A call of `generate`, as far as Gumball reads it.

    params: how tokens are drawn; None where transformers' processors say it, and `ours`, parameters by the names of `CALL_NAMES`. decoding: how many
    decodings of the same call came before. head: where `replace_head` has put one.
    """

    params: SamplingParams | Sequence[SamplingParams] | None
    ours: Mapping[str, Any]
    decoding: int
    head: HeadLayer | None


class Call:
    """A call of `generate`, with what transformers has made of it. Raises RefusedError for what cannot be had.

    ids: the prompts and what was drawn, [rows, length], with padding. processors: those that stay and are run before the draw.
    """

    def __init__(
        self,
        model: Any,
        asked: Asked,
        streamer: Any,
        ids: torch.Tensor,
        processors: Any,
        criteria: Any,
        config: Any,
        model_kwargs: dict[str, Any],
    ) -> None:
        self.model, self.streamer, self.head = model, streamer, asked.head
        self.ids, self.criteria, self.config, self.model_kwargs = ids, criteria, config, model_kwargs
        self.encodes = bool(model.config.is_encoder_decoder)
        # That of an encoder is of its own ids.
        mask = model_kwargs.get("decoder_attention_mask" if self.encodes else "attention_mask")
        self._prompts = prompts_of(ids, mask)
        self._sequences: Sequences | None = None
        self._states: list[torch.Tensor] = []
        if asked.params is None:
            self.params, self._words, left = self._of_processors(asked, processors)
        else:
            self.params, self._words = _one_a_row(asked.params, ids.shape[0], asked.decoding)
            left = processors
        for mark in {id(one): one.watermark for one in self.params}.values():
            if mark:
                # Raises for a key that this process has not.
                detect([], mark)
        listed = [one.logprobs for one in self.params if one.logprobs is not None]
        self.record = Recorder(config, [one.logprobs for one in self.params], encodes=self.encodes)
        if listed and not self.record.on:
            raise RefusedError(
                "logprobs are asked for, but have no place in what is returned; pass return_dict_in_generate=True"
            )
        self.processors = LogitsProcessorList(left)
        if self.head is not None and left:
            raise RefusedError(
                f"{type(left[0]).__name__} edits logits, but with a replaced head none are computed; set it in params"
            )

    def _of_processors(self, asked: Asked, processors: Any) -> tuple[list[SamplingParams], list[Words], list[Any]]:
        """The parameters and random words of each row, and the processors that stay."""
        config, (rows, length) = self.config, self.ids.shape
        params, left = taken(
            processors,
            length=length,
            padding=[length - len(prompt) for prompt in self._prompts],
            do_sample=bool(config.do_sample),
            ours={name: value for name, value in asked.ours.items() if name in OUR_NAMES},
            # Greedy scores are all of a row's, so bans must be among them.
            edits=not (config.return_dict_in_generate and config.output_scores) or bool(config.do_sample),
        )
        seed, logprobs, mode, ids = (asked.ours.get(name) for name in ("seed", *LOGPROBS_NAMES))
        if logprobs is not None or ids is not None:
            try:
                named = LogprobsParams(mode="raw" if mode is None else mode, top_n=logprobs or 0, ids=ids or ())
                params = params.replace(logprobs=named)
            except (TypeError, ValueError) as error:
                raise RefusedError(f"Gumball refuses the request: {error}") from error
        elif mode is not None:
            raise RefusedError(f"logprobs_mode is {mode!r}, but no logprobs are asked for; pass logprobs=0 or more too")
        return [params] * rows, words_of(params, seed, rows, config.num_return_sequences or 1, asked.decoding), left

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Runs one pass of the model, which leaves a replaced head its hidden states."""
        if self.head is None:
            yield
            return
        with self.head.keeping() as self._states:
            yield

    def states(self, rows: int, chunks: bool) -> torch.Tensor:
        """Returns the hidden states of the last pass, as :func:`.heads.last_states` does."""
        return last_states(self._states, rows, chunks=chunks)

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
        return self.record.output(self.ids, self.model_kwargs) if self.record.on else self.ids


def _one_a_row(
    params: SamplingParams | Sequence[SamplingParams], rows: int, decoding: int
) -> tuple[list[SamplingParams], list[Words]]:
    """The parameters and random words of each row: of one request, told apart by the draw index, or of one for each row."""
    if isinstance(params, SamplingParams):
        return [params] * rows, words_of(params, params.seed, rows, decoding=decoding)
    if len(params) != rows:
        raise RefusedError(f"params has length {len(params)}, but must have one per row, {rows}{of_decoding(decoding)}")
    return list(params), [words_of(one, one.seed, 1, decoding=decoding)[0] for one in params]


def decode(call: Call, synced: bool) -> Any:
    """Decodes a batch, a token of each row at a time. synced: whether processes run the model in step, until the last of them has ended."""
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
    compiled = call.head is None and model._valid_auto_compile_criteria(model_kwargs, config)
    forward = model.get_compiled_call(config.compile_config) if compiled else model
    with call.passing():
        outputs = model._prefill(call.ids, config, model_kwargs, is_first_iteration=True)
    chunks = bool(config.prefill_chunk_size)
    ended = False
    with model._optimize_model_for_decode():
        while model._has_unfinished_sequences(ended, synced, device=call.ids.device):
            if outputs is None:
                length = 1 if model_kwargs["use_cache"] else None
                inputs = model.prepare_inputs_for_generation(call.ids, next_sequence_length=length, **model_kwargs)
                with call.passing():
                    outputs = forward(**inputs, return_dict=True)
            model_kwargs = model._update_model_kwargs_for_generation(
                outputs, model_kwargs, is_encoder_decoder=call.encodes
            )
            call.model_kwargs = model_kwargs
            if not ended:
                unfinished &= ~_stepped(call, outputs, unfinished.tolist() if pads else [True] * rows, pad, chunks)
                ended = not unfinished.any()
            # The logits of a whole prompt may be large, so nothing holds them during the next pass.
            outputs, chunks = None, False
    return call.finish()


def _stepped(
    call: Call, outputs: Any, takes_part: Sequence[bool], pad: torch.Tensor | None, chunks: bool
) -> torch.Tensor:
    """Appends a token to each row. Returns which rows have ended, [rows] bool. outputs: of a pass of the model, the last of several of a prompt in chunks."""
    logits = outputs.logits[:, -1].to(call.ids.device)
    if outputs.logits.shape[1] > 1:
        logits = logits.clone()
    sequences = call.sequences(logits)
    if call.head is None:
        head, rows = None, call.edited(call.ids, logits)
    else:
        head, rows = call.head.head, call.states(len(takes_part), chunks)
        if call.record.logits is not None:
            logits = torch.from_numpy(head.logits(rows))
    call.record.model(outputs)
    drawn = sequences.step(rows, takes_part, head)
    call.record.drawn(drawn, range(len(takes_part)), logits)
    tokens = _padded(drawn.tokens, takes_part, pad, call.ids.shape[1])
    call.ids = torch.cat([call.ids, tokens[:, None]], 1)
    if call.streamer is not None:
        call.streamer.put(tokens.cpu())
    return call.stopped(call.ids)


def _padded(tokens: torch.Tensor, takes_part: Sequence[bool], pad: torch.Tensor | None, length: int) -> torch.Tensor:
    """Tokens with padding in the rows that take no part. Raises RuntimeError for another row without a token."""
    found = tokens.tolist()
    for row, part in enumerate(takes_part):
        if part and found[row] < 0:
            raise no_token(row, length)
    return tokens if pad is None or all(takes_part) else torch.where(tokens < 0, pad, tokens)
