"""Receipts of vLLM's answers, made by the client from the answer alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gumball
from gumball.errors import RefusedError
from gumball.plugins.states import seed_of

from .params import params_of

__all__ = ["receipt_of"]


def receipt_of(
    output: Any,
    params: Any,
    *,
    vocab: int,
    index: int = 0,
    logprobs_mode: str = "raw_logprobs",
    engine_seed: int = 0,
    reasoning: Any = None,
    masks: Iterable[Any] | None = None,
) -> gumball.Receipt:
    """Returns the receipt of an answer, which `gumball verify-receipt` and `gumball.verify_receipt` draw again from logits.

    output: vLLM's `RequestOutput`, of a request with `logprobs` of at least 1 to an engine whose tokens Gumball draws; the receipt has radii if it asked for `return_radii`. params: vLLM's `SamplingParams` of the
    request. vocab: the length of a row of the model's logits. index: which of the request's samples. logprobs_mode, engine_seed, reasoning: the engine's
    `--logprobs-mode`, `--seed` and `ReasoningConfig`. masks: of each token the bitmask of structured output, which an answer does not have.

    Raises RefusedError for an answer without logprobs that the pool listed, for parameters that only the engine completes (bad words, least lengths),
    and for structured output without masks.
    """
    if params.bad_words and params.bad_words_token_ids is None or params.min_tokens and not params.all_stop_token_ids:
        raise RefusedError(
            "params has bad_words or min_tokens, whose ids the engine adds; hand over the parameters with update_from_tokenizer and "
            "update_from_generation_config called"
        )
    if params.structured_outputs is not None and masks is None:
        raise RefusedError(
            "params has structured_outputs, whose bitmasks an answer does not have; hand them over as masks"
        )
    ours = params_of(params, logprobs_mode=logprobs_mode, vocab=vocab, reasoning=reasoning)
    if ours.logprobs is None or ours.logprobs.top_n == 0:
        raise RefusedError(f"logprobs is {params.logprobs}, but a receipt needs 1 or more, as many as a pool lists")
    seed = seed_of(output.request_id, engine_seed) if ours.seed is None else ours.seed
    seed = (seed + index) % 2**64
    receipt = gumball.Receipt(ours, vocab, prompt=output.prompt_token_ids, seed=seed)
    completion = output.outputs[index]
    masks = [None] * len(completion.token_ids) if masks is None else masks
    for token, found, mask in zip(completion.token_ids, completion.logprobs, masks, strict=True):
        ranked = sorted((one.rank, id, one.logprob) for id, one in found.items())
        top = [(id, logprob) for rank, id, logprob in ranked if rank <= ours.logprobs.top_n and logprob > float("-inf")]
        receipt.push_listed(token, top, radius=getattr(found[token], "radius", None), mask=mask)
    return receipt
