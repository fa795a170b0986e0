"""The sampler of the backend `gumball`: SGLang's class with another draw."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import sampler as theirs
from torch import distributed

from gumball.plugins import marks
from gumball.plugins.kept import Guess

from .draws import draw, logprobs
from .masks import masks_of
from .radii import leave

__all__ = ["Sampler", "refuse_marks"]


def refuse_marks(server_args: Any) -> None:
    """Refuses a server that is to write Gumball's marks, where SGLang looks at its arguments. Raises ValueError."""
    if marks.SERVER is not None and server_args.sampling_backend == "gumball":
        raise ValueError(
            "GUMBALL_WATERMARK is set, but the sampling backend gumball gets no histories and writes SGLang's watermarks alone; leave the variable out, "
            "and start the server with --enable-watermark"
        )


class Sampler(theirs.Sampler):
    """SGLang's sampler, whose tokens Gumball draws from the logits that the engine has edited.

    Raises ValueError if the server is deterministic after a policy (`rl_on_policy_target`), which asks for SGLang's own arithmetic.
    """

    def __init__(self) -> None:
        super().__init__()
        if self.rl_on_policy_target is not None:
            raise ValueError(
                f"rl_on_policy_target is {self.rl_on_policy_target!r}, which needs SGLang's own sampler; leave --sampling-backend out"
            )
        self._guess = Guess()

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
        *,
        logprob_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Draws a token of each row and writes logprobs, sampling masks and radii to `logits_output`, as SGLang's method is asked to."""
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        tokens = draw(logits, sampling_info, positions)
        leave(logits_output, logits, sampling_info, positions)
        if return_logprob:
            rows = logits
            if logprob_logits is not None:
                # Those before a watermark.
                rows = self._preprocess_logits(logprob_logits, sampling_info)
            listed = logprobs(rows, sampling_info, theirs.SGLANG_RETURN_ORIGINAL_LOGPROB)
            found = self.output_logprob_processor.compute_logprobs(
                listed, top_logprobs_nums, token_ids_logprobs, tokens
            )
            found.write_output_to(logits_output)
        self._sync_token_ids_across_tp(tokens, sampling_info)
        if sampling_info.sampling_mask_batch_indices is not None:
            masks = masks_of(logits, tokens, sampling_info, self.sampling_mask_max_tokens, self._guess)
            # All ranks must abort the same requests.
            for group in (self.tp_sync_group, self.cp_sync_group) if distributed.is_initialized() else ():
                if group is not None and distributed.get_world_size(group) > 1:
                    distributed.all_reduce(masks.statuses, op=distributed.ReduceOp.MAX, group=group)
            logits_output.sampling_mask_output = masks
        return tokens
