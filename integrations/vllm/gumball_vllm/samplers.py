"""The samplers of vLLM's model runner V1, with tokens and logprobs of Gumball's pool.

They are vLLM's own classes with another `forward`. Prompt logprobs, which the runner asks of its sampler by other methods, stay vLLM's; so do
the batches without requests by which it warms up, and grammars, whose bitmask the runner applies to the logits before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler as VllmRejectionSampler
from vllm.v1.sample.sampler import Sampler as VllmSampler

from .draws import Drawn, draw, verify
from .follower import Follower, follower_of
from .kept import Sets
from .listed import Apart
from .params import TOP_LIMIT

__all__ = ["RejectionSampler", "Sampler"]


def _forget_generators(metadata: Any) -> None:
    """Drops torch's generators of requests with seeds, which nobody draws from.

    The runner winds one back where a prompt comes in parts, which on a CPU is an error of torch's that ends the engine.
    """
    metadata.generators.clear()


def _leave_sets(follower: Follower, drawn: Drawn) -> None:
    """Leaves a step's kept sets for :func:`.kept.with_sets`, since the output of this runner's samplers has no place for them."""
    if drawn.kept is not None:
        follower.requests.sets = Sets(drawn.kept, drawn.firsts)


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
        edited, width = self._edited(follower, logits), follower.width(sampling_metadata)
        drawn = draw(follower.requests, edited, width=None if width is None else min(width, TOP_LIMIT))
        _leave_sets(follower, drawn)
        if width is not None and drawn.logprobs is not None:
            apart = follower.requests.listed_apart(bool(follower.others))
            if apart.any():
                named = sampling_metadata.logprob_token_ids
                drawn.logprobs.apart = self.lists_of(
                    logits, drawn.tokens, width, named, np.where(apart, np.arange(len(apart)), -1)
                )
        return SamplerOutput(drawn.tokens.unsqueeze(-1), drawn.logprobs)

    def lists_of(
        self,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        width: int,
        named: dict[int, list[int]] | None,
        lines: NDArray[np.int64],
    ) -> list[Apart]:
        """The logprobs of tokens by vLLM's own functions, of the logits as they came.

        tokens: one for each row. width: how many are listed beside it. named: the ids that rows name in place of the most likely ones.
        lines: for each line of the pool's outputs the row that it is to have, -1 for none.
        """
        raw = self.logprobs_mode == "raw_logits"
        scores = logits.to(torch.float32) if raw else self.compute_logprobs(logits)
        tokens = tokens.long()
        made = [Apart(self.gather_logprobs(scores, min(width, scores.shape[1]), tokens), lines)]
        if named:
            made.append(
                Apart(
                    self.gather_specific_token_logprobs(scores, named, tokens),
                    np.where(np.isin(lines, list(named)), lines, -1),
                )
            )
        return made

    def _edited(self, follower: Follower, logits: torch.Tensor) -> torch.Tensor:
        """The logits after what comes before the penalties; the same tensor if that is nothing."""
        if not follower.others:
            return logits
        edited = logits.to(torch.float32, copy=True)
        for processor in follower.others:
            edited = processor.apply(edited)
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
        width, requests = follower.width(sampling_metadata), follower.requests
        wanted = None if width is None else min(width, TOP_LIMIT)
        drawn = verify(requests, logits, metadata.num_draft_tokens, metadata.draft_token_ids, width=wanted)
        _leave_sets(follower, drawn)
        if width is not None and drawn.logprobs is not None:
            apart = requests.listed_apart(False)
            if apart.any():
                drawn.logprobs.apart = self._lists_of(
                    metadata, logits, drawn, width, sampling_metadata.logprob_token_ids, apart
                )
        return SamplerOutput(drawn.tokens, drawn.logprobs)

    def _lists_of(
        self,
        metadata: Any,
        logits: torch.Tensor,
        drawn: Any,
        width: int,
        named: dict[int, list[int]] | None,
        apart: NDArray[np.bool_],
    ) -> list[Apart]:
        """Logprobs by vLLM's own functions, for every place of the tokens; those without a token are not read."""
        tokens, owners = drawn.tokens, drawn.logprobs.owners
        steps = tokens.shape[1]
        ends = metadata.cu_num_sampled_tokens
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        rows = (starts.unsqueeze(1) + torch.arange(steps, device=starts.device)).clamp(max=len(logits) - 1).flatten()
        spread = {row * steps + step: ids for row, ids in (named or {}).items() for step in range(steps)}
        places = owners * steps + np.arange(len(owners)) - np.searchsorted(owners, owners)
        lines = np.where(apart[owners], places, -1)
        made: list[Apart] = self.sampler.lists_of(logits[rows], tokens.flatten().clamp(min=0), width, spread, lines)
        return made
