"""Drafts where vLLM lets a drafter draw: on model runner V2 by the random words and the filters of their requests, on V1 the most likely tokens."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from gumball import operators

from . import checks

__all__ = ["Filters", "NeverDraws", "copying", "drafted", "drafting", "follow_filters"]


class Filters:
    """The filters of a runner's requests, by the runner's index, in tensors that stay where a drafter's CUDA graphs read them."""

    def __init__(self, states: Any) -> None:
        self._theirs = states
        self._columns = {name: torch.empty_like(getattr(states, name).gpu) for name in ("top_k", "top_p", "min_p")}
        self.follow()

    def follow(self) -> None:
        """Takes over what vLLM wrote into its states since."""
        for name, column in self._columns.items():
            column.copy_(getattr(self._theirs, name).gpu)
        # vLLM's top-k of the whole vocabulary cuts nothing.
        self._columns["top_k"].remainder_(self._theirs.vocab_size)

    def of(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """The filters of these requests, as an operator's arguments."""
        return {name: column[indices] for name, column in self._columns.items()}


def drafted(
    logits: torch.Tensor,
    indices: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    before: torch.Tensor,
    filters: Filters | None = None,
) -> torch.Tensor:
    """Draws drafts as the pool draws tokens, by the same random words, so that the two mostly agree; [rows] int64.

    logits: the drafter's, [rows, vocab]. indices: the runner's, [rows], -1 for padding. temperature, seeds: by the runner's index, the seeds as
    `_Pooled.add_request` left them. before: the position of the token before each draft. filters: the requests', else none.
    """
    drawn = operators.sample(
        logits,
        temperature=temperature[indices],
        seed=seeds[indices],
        position=before.to(torch.int64) + 1,
        draw=0,
        zero_for_none=True,
        dtype="int64",
        **({} if filters is None else filters.of(indices)),
    )
    return torch.as_tensor(drawn)


def follow_filters(runner: Any, config: Any) -> None:
    """Gives the drafter of a runner, if it is to draw its drafts, the filters of the requests, before its graphs are captured."""
    speculator = getattr(runner, "speculator", None)
    if checks.samples_drafts(config) and speculator is not None and hasattr(speculator, "sample_draft"):
        speculator.gumball_filters = Filters(runner.sampler.sampling_states)


class NeverDraws:
    """In the place of the attribute by which a drafter of model runner V1 draws its drafts: it is False, so that the most likely tokens are its drafts.

    It would draw by random numbers of its own, of which few give what the request draws.
    """

    def __get__(self, drafter: Any, kind: Any = None) -> bool:
        return False

    def __set__(self, drafter: Any, draws: bool) -> None:
        if draws:
            logging.getLogger("gumball").warning(
                'draft_sample_method is "probabilistic", but a drafter of model runner V1 draws by random numbers of its own, and few of its drafts would '
                "be what a request draws: it drafts the most likely tokens. On model runner V2 it draws by the request's numbers"
            )


def copying(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the method of vLLM's drafters that takes over what a batch's requests ask for, with their filters."""

    @functools.wraps(original)
    def _copy_request_inputs(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        filters = getattr(self, "gumball_filters", None)
        if filters is not None:
            filters.follow()

    return _copy_request_inputs


def drafting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of vLLM's drafters that draws drafts."""

    @functools.wraps(original)
    def sample_draft(
        self: Any,
        hidden_states: Any,
        sample_src_positions: Any,
        idx_mapping: Any,
        temperature: Any,
        seeds: Any,
        draft_step: Any,
        draft_logits: Any,
        spec_step_idx: int = 0,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if draft_logits is None or checks.draws_alone(self.vllm_config):
            return original(
                *(self, hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits),
                *(spec_step_idx, *rest),
                **named,
            )
        logits = self.compute_draft_logits(hidden_states, spec_step_idx)
        filters = getattr(self, "gumball_filters", None)
        return drafted(logits, idx_mapping, temperature, seeds, sample_src_positions, filters)

    return sample_draft
