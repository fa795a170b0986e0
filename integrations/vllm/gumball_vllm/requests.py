"""vLLM's requests: checked where they enter, and followed through the batches of model runner V1."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    MoveDirectionality,
)

from gumball.flat import FLAT_NAMES
from gumball_compat.vllm import RefusedError, Requests, params_of
from gumball_compat.vllm.heads import chosen_head, refuse_without_logits
from gumball_compat.vllm.params import refuse_misplaced

from . import DRAFTS, SWITCH

__all__ = [
    "Follower",
    "builder",
    "check_of_drafts",
    "draws_alone",
    "follower_of",
    "namer",
    "refuse_watermarks",
    "validator",
]

# vLLM's check of a request beside drafts.
THEIR_CHECK = SamplingParams._validate_spec_decode

# The most drafts that a pool verifies for a request.
MOST_DRAFTS = 64

# What these do, the pool does.
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
        _refuse_configuration(vllm_config)
        if samples_drafts(vllm_config):
            logging.getLogger("gumball").warning(
                'draft_sample_method is "probabilistic" on model runner V1, where drafts come from random numbers of their own: few of them '
                'are what the request draws; take "greedy", or model runner V2, where they come from the request\'s'
            )
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


def drafts_rule() -> str:
    """What the environment says of drafts: coupled, or rejection where the text may depend on them. Raises ValueError for another word."""
    value = os.environ.get(DRAFTS, "") or "coupled"
    if value not in ("coupled", "rejection"):
        raise ValueError(
            f"{DRAFTS} is {value!r}, but must be coupled (the default: drafts change no text) or rejection (drafts are judged by "
            "their probabilities, and the text depends on them)"
        )
    return value


def samples_drafts(vllm_config: Any) -> bool:
    """Whether a drafter draws its drafts and hands out their probabilities."""
    return getattr(vllm_config.speculative_config, "draft_sample_method", "greedy") == "probabilistic"


def draws_alone(vllm_config: Any) -> bool:
    """Whether model runner V2 edits and filters logits itself and Gumball only draws: if it needs something that a pool lacks.

    These are verification in blocks or by the drafter's probabilities, drafts whose number only the device knows, sampling masks, forced traces, and batches that each rank of
    a group samples a part of.
    """
    speculation, model = vllm_config.speculative_config, vllm_config.model_config
    drafts = speculation is not None and (
        speculation.rejection_sample_method == "block"
        or getattr(speculation, "enable_adaptive_verification", False)
        or (drafts_rule() == "rejection" and samples_drafts(vllm_config))
    )
    return bool(
        drafts
        or getattr(model, "return_sampling_mask", False)
        or getattr(model, "enable_trace_replay", False)
        or getattr(vllm_config.parallel_config, "enable_batch_sharded_sampling", False)
    )


def refuse_watermarks(vllm_config: Any) -> None:
    """Raises ValueError for an engine that is to write watermarks, of which Gumball knows nothing."""
    if getattr(vllm_config, "watermark_config", None) is not None:
        raise ValueError(
            "--watermark-config asks for watermarks, which Gumball's sampler does not write; "
            f"leave it out, or set {SWITCH}=0 for vLLM's own sampler"
        )


def _refuse_configuration(vllm_config: Any) -> None:
    _refuse_speculation(vllm_config.speculative_config, ("standard",))
    if vllm_config.speculative_config is not None and drafts_rule() == "rejection":
        if not samples_drafts(vllm_config):
            raise ValueError(
                f"{DRAFTS} is rejection, which judges drafts by probabilities, and this server's drafter gives none; "
                'set draft_sample_method to "probabilistic" in --speculative-config, or leave the variable out'
            )
        raise ValueError(
            f"{DRAFTS} is rejection, which is for model runner V2; leave it out, or VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if vllm_config.model_config.logprobs_mode == "processed_logits":
        raise ValueError(
            "--logprobs-mode is processed_logits, which Gumball has not, as it never makes such a row; "
            "take processed_logprobs, or set GUMBALL_VLLM=0"
        )


def _refuse_speculation(speculation: Any, methods: tuple[str, ...]) -> None:
    if speculation is None:
        return
    if speculation.num_speculative_tokens > MOST_DRAFTS:
        raise ValueError(
            f"num_speculative_tokens is {speculation.num_speculative_tokens}, but Gumball verifies at most {MOST_DRAFTS} drafts; "
            "lower it, or set GUMBALL_VLLM=0"
        )
    if speculation.rejection_sample_method not in methods:
        raise ValueError(
            f"rejection_sample_method is {speculation.rejection_sample_method}, but Gumball has {' and '.join(methods)} alone here; "
            "leave it out, or set GUMBALL_VLLM=0"
        )


def validator(original: Callable[[Any], Callable[[Any], None]]) -> Callable[[Any], Callable[[Any], None]]:
    """Returns the method of vLLM's `InputProcessor` that makes its check of requests, with ours behind it."""

    def _build_logits_processors_params_validator(self: Any) -> Callable[[Any], None]:
        theirs = original(self)
        config = self.vllm_config
        vocab, mode = config.model_config.get_vocab_size(), config.model_config.logprobs_mode
        speculates, newer = config.speculative_config is not None, config.use_v2_model_runner
        alone = newer and draws_alone(config)
        head = chosen_head()
        refuse_watermarks(config)
        if newer and alone:
            _refuse_speculation(config.speculative_config, ("standard", "block"))
        elif newer:
            _refuse_configuration(config)

        def validate(params: Any) -> None:
            theirs(params)
            try:
                if alone:
                    _refuse_extra(params)
                    _refuse_long_lists(params)
                    THEIR_CHECK(params, config.speculative_config)
                else:
                    params_of(params, logprobs_mode=mode, vocab=vocab)
                if head is not None:
                    refuse_without_logits(params, head["kind"])
            except RefusedError as error:
                raise VLLMValidationError(str(error)) from error
            if not newer and speculates and params.thinking_token_budget is not None:
                raise VLLMValidationError(
                    "thinking_token_budget beside speculation is not what Gumball does; leave it out, or start the server "
                    "without speculation or with GUMBALL_VLLM=0"
                )

        return validate

    return _build_logits_processors_params_validator


def check_of_drafts(self: Any, speculative_config: Any) -> None:
    """In the place of vLLM's check of a request beside drafts, which refuses what the pool verifies; :func:`validator` calls theirs where vLLM's kernels filter."""


def _refuse_long_lists(params: Any) -> None:
    """Raises RefusedError for lists that vLLM's kernels do not take, which it would notice within a step."""
    from vllm import envs
    from vllm.v1.worker.gpu.sample import logit_bias

    words = params.bad_words_token_ids or ()
    for name, count, most in (
        ("allowed_token_ids", len(params.allowed_token_ids or ()), logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS),
        ("logit_bias", len(params.logit_bias or ()), logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS),
        ("stop ids", len(params.all_stop_token_ids) if params.min_tokens else 0, logit_bias.MAX_NUM_STOP_TOKEN_IDS),
        ("bad_words", len(words), envs.VLLM_MAX_NUM_BAD_WORDS),
        ("bad_words in ids", sum(map(len, words)), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS),
    ):
        if count > most:
            raise RefusedError(f"{name}: {count} are given, but vLLM's kernels, which edit here, take at most {most}")


def _refuse_extra(params: Any) -> None:
    extra = params.extra_args or {}
    refuse_misplaced(extra, params)
    for name in extra:
        if name in FLAT_NAMES:
            raise RefusedError(
                f"extra_args has {name!r}, but this server's settings let vLLM edit and filter the logits itself; leave it out, "
                "or start the server with VLLM_USE_V2_MODEL_RUNNER=0"
            )
