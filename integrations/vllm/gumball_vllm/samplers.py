"""The samplers of vLLM's model runner V1, with tokens and logprobs of Gumball's pool.

They are vLLM's own classes with another `forward`. Prompt logprobs, which the runner asks of its sampler by other methods, stay vLLM's; so do
the batches without requests by which it warms up, and grammars, whose bitmask the runner applies to the logits before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler as VllmRejectionSampler
from vllm.v1.sample.sampler import Sampler as VllmSampler

from gumball_compat.vllm import biased, draw, verify
from gumball_compat.vllm.listed import Listed, merged, upload
from gumball_compat.vllm.params import TOP_LIMIT

from .requests import Follower, follower_of

__all__ = ["RejectionSampler", "Sampler"]


def _width(metadata: Any) -> int | None:
    """How many logprobs a batch asks for beside those of its tokens; None for none."""
    named = metadata.logprob_token_ids or {}
    if metadata.max_num_logprobs is None and not named:
        return None
    return max([metadata.max_num_logprobs or 0, *map(len, named.values())])


def _joined(ours: Listed | None, theirs: Listed | None, apart: NDArray[np.bool_]) -> Listed | None:
    """The pool's lists, with vLLM's in the lines that are listed apart."""
    if ours is None or theirs is None:
        return ours if theirs is None else theirs
    return merged(theirs, ours, upload(~apart, ours.logprobs, torch.bool))


def _output(tokens: torch.Tensor, lists: Listed | None) -> SamplerOutput:
    return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None if lists is None else LogprobsTensors(*lists))


def _forget_generators(metadata: Any) -> None:
    """Drops torch's generators of requests with seeds, which nobody draws from.

    The runner winds one back where a prompt comes in parts, which on a CPU is an error of torch's that ends the engine.
    """
    metadata.generators.clear()


class Sampler(VllmSampler):
    """vLLM's sampler, whose tokens are drawn by the pool of the batch's requests."""

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """Draws a token of each row, as vLLM's method of this name is asked to."""
        follower = follower_of(sampling_metadata.logitsprocs)
        if follower is None:
            return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
        _forget_generators(sampling_metadata)
        edited = self._edited(follower, logits, sampling_metadata)
        width, requests = _width(sampling_metadata), follower.requests
        if width is None:
            return _output(draw(requests, edited).tokens.unsqueeze(-1), None)
        apart = requests.listed_apart(bool(follower.others))
        drawn = draw(requests, edited, width=None if apart.all() else min(width, TOP_LIMIT))
        theirs = (
            self.logprobs_of(logits, drawn.tokens, width, sampling_metadata.logprob_token_ids) if apart.any() else None
        )
        return _output(drawn.tokens.unsqueeze(-1), _joined(drawn.logprobs, theirs, apart))

    def logprobs_of(
        self, logits: torch.Tensor, tokens: torch.Tensor, width: int, named: dict[int, list[int]] | None
    ) -> Listed:
        """The logprobs of tokens by vLLM's own functions, of the logits as they came.

        tokens: one for each row. width: how many are listed beside it. named: the ids that rows name in place of the most likely ones.
        """
        raw = self.logprobs_mode == "raw_logits"
        scores = logits.to(torch.float32) if raw else self.compute_logprobs(logits)
        tokens = tokens.long()
        made = Listed(*self.gather_logprobs(scores, min(width, scores.shape[1]), tokens)[:3])
        if not named:
            return made
        lines = torch.zeros(len(tokens), dtype=torch.bool)
        lines[list(named)] = True
        specific = Listed(*self.gather_specific_token_logprobs(scores, named, tokens)[:3])
        return merged(made, specific, upload(lines, logits, torch.bool))

    def _edited(self, follower: Follower, logits: torch.Tensor, metadata: Any) -> torch.Tensor:
        """The logits after what comes before the penalties; the same tensor if that is nothing."""
        edited = biased(follower.requests, logits)
        holder = metadata.thinking_budget_state_holder
        budgeted = holder is not None and holder.has_tracked_requests()
        if (follower.others or budgeted) and edited is logits:
            edited = logits.to(torch.float32, copy=True)
        for processor in follower.others:
            edited = processor.apply(edited)
        if budgeted:
            holder.update_state(metadata.output_token_ids, metadata.spec_token_ids, repeat_indices=None)
            edited = holder.apply_to_logits(edited, False, metadata.spec_token_ids)
        return edited


class RejectionSampler(VllmRejectionSampler):
    """vLLM's sampler of drafts: accepts them while they equal what the request draws, so that no draft changes its text."""

    def forward(
        self, metadata: Any, draft_probs: torch.Tensor | None, logits: torch.Tensor, sampling_metadata: Any
    ) -> SamplerOutput:
        """Verifies the drafts of a batch, as vLLM's method of this name is asked to. What the drafter thought of them does not enter."""
        follower = follower_of(sampling_metadata.logitsprocs)
        if follower is None:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        _forget_generators(sampling_metadata)
        width, requests, counts = _width(sampling_metadata), follower.requests, metadata.num_draft_tokens
        if width is None:
            return _output(verify(requests, logits, counts, metadata.draft_token_ids).tokens, None)
        apart = requests.listed_apart(False)
        wanted = None if apart.all() else min(width, TOP_LIMIT)
        drawn = verify(requests, logits, counts, metadata.draft_token_ids, width=wanted)
        theirs = None
        if apart.any():
            theirs = self._logprobs_of(metadata, logits, drawn.tokens, width, sampling_metadata.logprob_token_ids)
        return _output(drawn.tokens, _joined(drawn.logprobs, theirs, np.repeat(apart, drawn.tokens.shape[1])))

    def _logprobs_of(
        self, metadata: Any, logits: torch.Tensor, tokens: torch.Tensor, width: int, named: dict[int, list[int]] | None
    ) -> Listed:
        """Logprobs by vLLM's own functions, for every place of the tokens; those without a token are not read."""
        steps = tokens.shape[1]
        ends = metadata.cu_num_sampled_tokens
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        rows = (starts.unsqueeze(1) + torch.arange(steps, device=starts.device)).clamp(max=len(logits) - 1).flatten()
        spread = {row * steps + step: ids for row, ids in (named or {}).items() for step in range(steps)}
        return self.sampler.logprobs_of(logits[rows], tokens.flatten().clamp(min=0), width, spread)
