"""The samplers of vLLM's model runner V1, with tokens and logprobs of Gumball's pool.

They are vLLM's own classes with another `forward`. Prompt logprobs, which the runner asks of its sampler by other methods, stay vLLM's; so do
the batches without requests by which it warms up, and grammars, whose bitmask the runner applies to the logits before.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler as VllmRejectionSampler
from vllm.v1.sample.sampler import Sampler as VllmSampler

from gumball.compat.vllm import Drawn, biased, draw, verify

from .requests import Follower, follower_of

__all__ = ["RejectionSampler", "Sampler"]


def _width(metadata: Any) -> int | None:
    """How many logprobs a batch asks for beside those of its tokens; None for none."""
    named = metadata.logprob_token_ids or {}
    if metadata.max_num_logprobs is None and not named:
        return None
    return max([metadata.max_num_logprobs or 0, *map(len, named.values())])


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
        width = _width(sampling_metadata)
        ours = width is not None and self._lists(follower, edited is logits)
        drawn = draw(follower.requests, edited, width=width if ours else None)
        if width is None:
            logprobs = None
        elif drawn.logprobs is not None:
            logprobs = LogprobsTensors(*drawn.logprobs)
        else:
            logprobs = self.logprobs_of(logits, drawn.tokens, width, sampling_metadata)
        return SamplerOutput(sampled_token_ids=drawn.tokens.unsqueeze(-1), logprobs_tensors=logprobs)

    def _lists(self, follower: Follower, untouched: bool) -> bool:
        """Whether the pool makes the logprobs; if not, vLLM's functions make them of the logits as they came."""
        if self.logprobs_mode == "processed_logprobs":
            return True
        long = any(request is not None and request.has_long_logprobs for request in follower.requests.rows)
        return self.logprobs_mode == "raw_logprobs" and untouched and not long

    def logprobs_of(self, logits: torch.Tensor, tokens: torch.Tensor, width: int, metadata: Any) -> LogprobsTensors:
        """The logprobs of tokens by vLLM's own functions, of the logits as they came. tokens: one for each row."""
        raw = self.logprobs_mode == "raw_logits"
        scores = logits.to(torch.float32) if raw else self.compute_logprobs(logits)
        tokens = tokens.long()
        if metadata.logprob_token_ids:
            return self.gather_specific_token_logprobs(scores, metadata.logprob_token_ids, tokens)
        return self.gather_logprobs(scores, min(width, scores.shape[1]), tokens)

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
        sampler = self.sampler
        width = _width(sampling_metadata)
        ours = width is not None and sampler._lists(follower, True)
        drawn = verify(
            follower.requests,
            logits,
            metadata.num_draft_tokens,
            metadata.draft_token_ids,
            width=width if ours else None,
        )
        if width is None:
            logprobs = None
        elif drawn.logprobs is not None:
            logprobs = LogprobsTensors(*drawn.logprobs)
        else:
            logprobs = self._logprobs_of(metadata, logits, drawn, width, sampling_metadata)
        return SamplerOutput(sampled_token_ids=drawn.tokens, logprobs_tensors=logprobs)

    def _logprobs_of(
        self, metadata: Any, logits: torch.Tensor, drawn: Drawn, width: int, sampling_metadata: Any
    ) -> LogprobsTensors:
        """Logprobs by vLLM's own functions, for every place of the tokens; those without a token are not read."""
        steps = drawn.tokens.shape[1]
        ends = metadata.cu_num_sampled_tokens
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        rows = (starts.unsqueeze(1) + torch.arange(steps, device=starts.device)).clamp(max=len(logits) - 1).flatten()
        tokens = drawn.tokens.flatten().clamp(min=0)
        if sampling_metadata.logprob_token_ids:
            named = sampling_metadata.logprob_token_ids.items()
            spread = {row * steps + step: ids for row, ids in named for step in range(steps)}
            scores = self.sampler.compute_logprobs(logits[rows])
            return self.sampler.gather_specific_token_logprobs(scores, spread, tokens.long())
        return self.sampler.logprobs_of(logits[rows], tokens, width, sampling_metadata)
