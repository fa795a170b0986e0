"""vLLM's requests, followed through the batches of model runner V1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    MoveDirectionality,
)

from .checks import refuse_configuration
from .requests import Requests

__all__ = ["Follower", "builder", "follower_of", "namer"]

# Processors of vLLM whose edits the pool makes itself.
_BUILT_IN = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)


class Follower(LogitsProcessor):
    """A logits processor that touches no logits: vLLM tells it of every change of the batch."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        model, speculation = vllm_config.model_config, vllm_config.speculative_config
        self.requests = Requests(
            rows=vllm_config.scheduler_config.max_num_seqs,
            most_drafts=0 if speculation is None else speculation.num_speculative_tokens,
            seed=model.seed or 0,
            logprobs_mode=model.logprobs_mode,
            top_n=model.max_logprobs,
            kept=model.return_sampling_mask,
            reasoning=vllm_config.reasoning_config,
        )
        # The engine's names of the requests that were added since the last change, by row.
        self.names: dict[int, str] = {}
        # Processors of the user's, which edit logits before the penalties.
        self.others: list[LogitsProcessor] = []
        self._metadata: Any = None
        self._width: int | None = None

    def width(self, metadata: Any) -> int | None:
        """How many logprobs a batch asks for beside those of its tokens; None for none. metadata: vLLM's, which it makes anew for a change."""
        if metadata is not self._metadata:
            named = metadata.logprob_token_ids or {}
            none = metadata.max_num_logprobs is None and not named
            self._width = None if none else max([metadata.max_num_logprobs or 0, *map(len, named.values())])
            self._metadata = metadata
        return self._width

    def is_argmax_invariant(self) -> bool:
        """True: it leaves logits as they are."""
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        return logits

    def update_state(self, batch_update: Any) -> None:
        """Takes over a change of the batch."""
        if batch_update is None:
            return
        swap = MoveDirectionality.SWAP
        moved = [(one, other, how == swap) for one, other, how in batch_update.moved]
        added = [(row, self.names[row], *what) for row, *what in batch_update.added]
        self.names.clear()
        self.requests.update(batch_update.removed, added, moved, batch_update.batch_size)


def follower_of(processors: LogitsProcessors) -> Follower | None:
    """The follower among a batch's processors; None for the batches by which vLLM warms up."""
    return next((one for one in processors.argmax_invariant if isinstance(one, Follower)), None)


def namer(original: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
    """Returns the method of vLLM's `InputBatch` that adds a request, with a word to our follower about its name and the batch's lengths.

    Logits processors are not told the name, and samples of one request may have the same parameters, prompt and tokens. The list of output
    tokens that they are told is shorter than the output after a request with penalties joined under asynchronous scheduling; the batch's own
    counts are right.
    """

    def add_request(self: Any, request: Any) -> int:
        row = original(self, request)
        follower = follower_of(self.logitsprocs)
        if follower is not None:
            follower.names[row] = request.req_id
            _leave_edits_to_the_pool(self, row, request.req_id)
            follower.requests.lengths = lambda rows: self.num_tokens_no_spec[:rows] - self.num_prompt_tokens[:rows]
        return row

    return add_request


def _leave_edits_to_the_pool(batch: Any, row: int, name: str) -> None:
    """Lets a batch of vLLM's forget which edits a request asks for.

    For these the runner would wait for the last step's tokens in every step, and copy prompts to the device; the pool has its own histories.
    """
    for names in (batch.frequency_penalties_reqs, batch.presence_penalties_reqs, batch.repetition_penalties_reqs):
        names.discard(name)
    batch.bad_words_token_ids.pop(row, None)
    batch.thinking_budget_state_holder = None


def builder(original: Callable[..., LogitsProcessors]) -> Callable[..., LogitsProcessors]:
    """Returns vLLM's `build_logitsprocs` with a follower in place of its own processors.

    Processors of the user's stay. What it returns raises ValueError for one that edits logits after the temperature, and for what else the
    engine cannot be configured to.
    """

    def build_logitsprocs(
        vllm_config: Any,
        device: torch.device,
        is_pin_memory: bool,
        is_pooling_model: bool,
        custom_logitsprocs: Any = (),
    ) -> LogitsProcessors:
        processors = original(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
        if is_pooling_model:
            return processors
        refuse_configuration(vllm_config)
        follower = Follower(vllm_config, device, is_pin_memory)
        follower.others = [one for one in processors.all if not isinstance(one, _BUILT_IN)]
        for one in follower.others:
            if one.is_argmax_invariant():
                raise ValueError(
                    f"the logits processor {type(one).__name__} says that it is argmax invariant, so vLLM would call it behind the "
                    "temperature; Gumball calls none there. Let is_argmax_invariant return False if it may come before the "
                    "penalties, or set GUMBALL_VLLM=0"
                )
        return LogitsProcessors([follower, *follower.others])

    return build_logitsprocs
