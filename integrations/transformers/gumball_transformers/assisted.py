"""The loop of `generate` with drafts, of an assistant or of n-grams of the text: no draft changes what is drawn (rule S3)."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StaticCache
from transformers.generation import logits_process as theirs
from transformers.generation.candidate_generator import (
    _prepare_attention_mask,
    _prepare_position_ids,
    _prepare_token_type_ids,
)

from gumball.errors import RefusedError
from gumball.plugins.states import steered_by

from .calls import CACHE, no_token
from .decoding import Call
from .generation import EDITS, SAMPLING
from .sequences import MOST_DRAFTS, Sequences

__all__ = ["assisted"]

# Processors of transformers' that read ids and scores and remember nothing between calls. An assistant gets copies of these, so that it drafts what
# the call edits. All others are the call's alone, because they must remember the call's tokens, not an assistant's.
_WITHOUT_MEMORY = (
    theirs.ExponentialDecayLengthPenalty,
    theirs.ForcedBOSTokenLogitsProcessor,
    theirs.ForcedEOSTokenLogitsProcessor,
    theirs.InfNanRemoveLogitsProcessor,
    theirs.MinNewTokensLengthLogitsProcessor,
    theirs.NoBadWordsLogitsProcessor,
    theirs.NoRepeatNGramLogitsProcessor,
    theirs.RepetitionPenaltyLogitsProcessor,
    theirs.SequenceBiasLogitsProcessor,
    theirs.SuppressTokensAtBeginLogitsProcessor,
    theirs.SuppressTokensLogitsProcessor,
    theirs.TemperatureLogitsWarper,
    theirs.TopHLogitsWarper,
    theirs.TopKLogitsWarper,
    theirs.TopPLogitsWarper,
    theirs.MinPLogitsWarper,
    theirs.TypicalLogitsWarper,
    theirs.EpsilonLogitsWarper,
    theirs.EtaLogitsWarper,
)


class Drafting(LogitsProcessor):
    """Lets an assistant draft the token that the request itself would draw from the assistant's logits.

    Both then take the same random words, and agree far more often than two draws of their own. The scores that this leaves have the assistant's
    probability of that token, by which transformers ends a draft (`assistant_confidence_threshold`).
    """

    # There a processor sees the last token of each row, and not whose it is.
    supports_continuous_batching = False

    def __init__(self, call: Call, sequences: Sequences) -> None:
        self.call, self.sequences = call, sequences

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids: [1, length], the call's and drafts after them. scores: [1, vocab]."""
        vocab = scores.shape[1]
        path = input_ids[0, self.call.ids.shape[1] :].tolist()
        token = self.sequences.draft(scores, path)
        if token < 0:
            return scores
        likely = scores[0].float().softmax(0)[token].item()
        likely = min(max(likely, 1.01 / vocab), 1.0)
        others = math.log((1 - likely) / (vocab - 1)) if likely < 1 else -math.inf
        return torch.full_like(scores, others).index_fill(
            1, torch.tensor([token], device=scores.device), math.log(likely)
        )


def assisted(call: Call, assistant_model: Any) -> Any:
    """Decodes one row with drafts. Raises RefusedError for what does not go with them."""
    _refuse(call, assistant_model)
    model, model_kwargs = call.model, call.model_kwargs
    model_kwargs[CACHE].activate_past_recording()
    vocab = model.config.get_text_config().vocab_size
    sequences = call.sequences(torch.empty((1, vocab), device=call.ids.device), drafts=True)
    drafter = _drafter(call, assistant_model, sequences)
    first = True
    while True:
        length = call.ids.shape[1]
        candidates, _ = drafter.get_candidates(call.ids)
        candidates = candidates.to(call.ids.device)[:, : length + MOST_DRAFTS]
        outputs = _verifying_pass(call, candidates, first)
        logits = outputs.logits[0, length - candidates.shape[1] - 1 :].to(call.ids.device)
        drafts = candidates[0, length:].tolist()
        accept = _stepped if call.processors else _verified
        count, ended = accept(call, sequences, logits, drafts)
        # The drafts that were refused leave the cache; the last token is not in it yet.
        outputs[CACHE].crop(count - 1 - len(drafts))
        drafter.update_candidate_strategy(call.ids, logits[None], count - 1)
        call.model_kwargs = model._update_model_kwargs_for_generation(outputs, call.model_kwargs, num_new_tokens=count)
        if call.streamer is not None:
            call.streamer.put(call.ids[:, length:].cpu())
        if ended:
            return call.finish()
        first = False


def _verified(call: Call, sequences: Sequences, logits: torch.Tensor, drafts: list[int]) -> tuple[int, bool]:
    """Draws while drafts are accepted, and one token more, in one call of the pool. Returns how many tokens were appended, and whether the text has ended.

    logits: [1 + drafts, vocab]. Criteria look at each token in turn, so that the text ends where it would without drafts.
    """
    drawn = sequences.verify(logits, drafts)
    count, ended = 0, False
    while count < len(drawn.tokens) and not ended:
        ended = _appended(call, drawn, count, logits[count])
        count += 1
    sequences.shorten(len(drawn.tokens) - count)
    return count, ended


def _stepped(call: Call, sequences: Sequences, logits: torch.Tensor, drafts: list[int]) -> tuple[int, bool]:
    """As `_verified` where processors stay: a step of the pool for each token.

    A processor is called once for each token of the text, in sequence and behind that text, as without drafts, and never behind a draft that is
    refused. So it may remember what it has seen.
    """
    count = 0
    while True:
        drawn = sequences.step(call.edited(call.ids, logits[count : count + 1]), [True])
        ended = _appended(call, drawn, 0, logits[count])
        accepted = count < len(drafts) and int(drawn.tokens[0]) == drafts[count]
        count += 1
        if ended or not accepted:
            return count, ended


def _appended(call: Call, drawn: Any, place: int, logits: torch.Tensor) -> bool:
    """Appends a drawn token. Returns whether it ends the text. logits: the model's for it, [vocab]."""
    if drawn.tokens[place] < 0:
        raise no_token(0, call.ids.shape[1])
    call.record.drawn(drawn, [place], logits[None])
    call.ids = torch.cat([call.ids, drawn.tokens[None, place : place + 1]], 1)
    return bool(call.stopped(call.ids).all())


def _verifying_pass(call: Call, candidates: torch.Tensor, first: bool) -> Any:
    """A pass of the model over what its cache lacks, with logits for the last token and each draft."""
    model, drafts = call.model, candidates.shape[1] - call.ids.shape[1]
    model_kwargs = _prepare_attention_mask(copy.copy(call.model_kwargs), candidates.shape[1], False)
    model_kwargs = _prepare_token_type_ids(model_kwargs, candidates.shape[1])
    positions = model_kwargs.get("position_ids")
    if positions is not None and drafts > 0:
        model_kwargs = _prepare_position_ids(model_kwargs, drafts + positions.shape[-1], False)
    inputs = model.prepare_inputs_for_generation(
        candidates,
        next_sequence_length=None if first else drafts + 1,
        is_first_iteration=first,
        **model_kwargs,
    )
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = drafts + 1
    return model(**inputs)


def _drafter(call: Call, assistant_model: Any, sequences: Sequences) -> Any:
    """transformers' own generator of candidates, which takes what `Drafting` leaves it."""
    config = copy.deepcopy(call.config)
    for name in (*SAMPLING, *EDITS):
        if hasattr(config, name):
            setattr(config, name, None)
    config.do_sample, config.min_length = False, 0
    # Copies, because transformers' own keep tensors where they were called first, and an assistant may be on another device.
    edits = [copy.deepcopy(one) for one in call.processors if type(one) in _WITHOUT_MEMORY]
    processors = LogitsProcessorList([*edits, Drafting(call, sequences)])
    return call.model._get_candidate_generator(
        generation_config=config,
        input_ids=call.ids,
        inputs_tensor=call.ids,
        assistant_model=assistant_model,
        logits_processor=processors if assistant_model is not None else LogitsProcessorList(),
        model_kwargs=call.model_kwargs,
    )


def _refuse(call: Call, assistant_model: Any) -> None:
    def refuse(what: str, do: str = "leave the assistant out") -> None:
        raise RefusedError(f"{what}, which does not go with drafts; {do}")

    config = call.config
    rows = call.ids.shape[0]
    if rows != 1:
        refuse(f"the batch has {rows} rows", "generate a row a call, or leave the assistant out")
    steered = steered_by(call.params[0])
    if steered:
        refuse(f"{steered} is asked for")
    if call.encodes:
        refuse("the model has an encoder")
    if call.head is not None:
        refuse("the model has a replaced head")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            refuse(f"{name} is True")
    if call.model._is_stateful:
        refuse(f"{type(call.model).__name__} is stateful")
    cache = call.model_kwargs.get(CACHE)
    if not call.model_kwargs["use_cache"] or cache is None:
        refuse("use_cache is False", "pass use_cache=True, or leave the assistant out")
    if isinstance(cache, StaticCache):
        refuse("the cache is static", "leave cache_implementation out, or the assistant")
    if assistant_model is None:
        return
    ours, theirs = (one.config.get_text_config().vocab_size for one in (call.model, assistant_model))
    if ours != theirs:
        refuse(
            f"the assistant has a vocabulary of {theirs}, and the model one of {ours}",
            "take another assistant, or none",
        )
