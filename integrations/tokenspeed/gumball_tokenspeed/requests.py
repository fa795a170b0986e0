"""Checks TokenSpeed's requests where they enter, and hands the sampler their tokens so far and their end ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gumball.errors import RefusedError
from gumball.plugins.marks import refuse_lone_key
from gumball.plugins.states import steered_by

from . import kept
from .params import KNOWN, params_of

__all__ = ["refuse", "told"]

# What may end a request before its least number of tokens; stop ids cannot, as the sampler bans them until then.
_ENDS = {"stop_strs": "stop", "json_schema": "", "regex": "", "ebnf": "", "structural_tag": ""}


def refuse(request: Any, vocab: int, drafts: bool) -> None:
    """Raises RefusedError for a request that asks for what TokenSpeed or the backend would leave undone.

    request: TokenSpeed's TokenizedGenerateReqInput, whose parameters TokenSpeed has verified; one for embeddings draws nothing.
    drafts: whether the server verifies drafts.
    """
    params = request.sampling_params
    if getattr(request, "custom_logit_processor", None) is not None:
        raise RefusedError("custom_logit_processor is given, which TokenSpeed hands on and calls nowhere; leave it out")
    if params.thinking_budget is not None:
        raise RefusedError(
            f"thinking_budget is {params.thinking_budget}, which TokenSpeed reads nowhere; give section_close and section_budget in custom_params"
        )
    for field, name in _ENDS.items():
        if params.min_new_tokens > 0 and getattr(params, field):
            raise RefusedError(
                f"min_new_tokens is {params.min_new_tokens} beside {name or field}, at which TokenSpeed may end before; leave one out"
            )
    for name in params.custom_params or {}:
        if name.startswith("__"):
            raise RefusedError(f"custom_params has {name!r}, but names with __ are not the client's")
    try:
        # As they are where the server has logprobs.
        made = params_of(params, logprobs=True, vocab=vocab)
        made.validate(vocab)
        refuse_lone_key(made)
        steered = steered_by(made)
        if drafts and steered:
            raise RefusedError(f"{steered} is given, but goes without drafts, which this server has for every request")
        kept.refuse_unless_told(params, made)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"Gumball refuses the request: {error}") from error


def told(states: Mapping[str, Any], step: Any) -> list[Any]:
    """Returns the parameters of a step's requests, with what their states say; None for a row of a prompt that a later step ends.

    states: TokenSpeed's RequestState of each request. step: its scheduler's operation, whose first rows are of prompts. What is drawn before a
    prompt's end TokenSpeed drops, so it must not count; of a request that was retracted the prompt has the tokens that it had.
    """
    extends = step.num_extends()
    lengths = zip(
        step.extend_prefix_lens[:extends], step.input_lengths[:extends], step.prefill_lengths[:extends], strict=True
    )
    ends = [before + count >= length for before, count, length in lengths]
    ends += [True] * (len(step.request_ids) - extends)
    return [_told(states[name]) if end else None for name, end in zip(step.request_ids, ends, strict=True)]


def _told(state: Any) -> Any:
    params = state.sampling_params
    if KNOWN in (params.custom_params or ()):
        return params
    if params.min_new_tokens > 0 and not params.ignore_eos:
        state.set_cached_id()
        alone = state._eos_token_id_cached
        ends = {*(state.eos_token_ids or ()), *(state._additional_stop_token_ids_cached or ())}
        params.stop_token_ids = {*(params.stop_token_ids or ()), *ends, *(() if alone is None else (alone,))}
    # The lists, not the state, which would hold itself.
    params.custom_params = {**(params.custom_params or {}), KNOWN: (state.prompt_input_ids_unpadded, state.output_ids)}
    return params
