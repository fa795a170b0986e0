"""What a server and its requests may ask for: checked at start, and where a request enters; and the seed that one without gets there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from vllm import SamplingParams, envs
from vllm.exceptions import VLLMValidationError

from gumball.errors import RefusedError
from gumball.plugins import marks
from gumball.plugins.kept import refuse_edits
from gumball.plugins.states import seed_of

from . import DRAFTS
from .head_choice import chosen_head, refuse_without_logits
from .params import RETURN_RADII, params_of, refuse_misplaced

__all__ = [
    "check_of_drafts",
    "check_of_masks",
    "draws_alone",
    "refuse_configuration",
    "refuse_two_marks",
    "samples_drafts",
    "seed_noted",
    "seeded",
    "telling_seed",
    "validator",
    "writes_theirs",
]

# vLLM's check of a request beside drafts.
THEIR_CHECK = SamplingParams._validate_spec_decode

# The most drafts that a pool verifies for a request.
MOST_DRAFTS = 64


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

    These are vLLM's watermarks, verification in blocks or by the drafter's probabilities, drafts whose number only the device knows, forced traces, and batches
    that each rank of a group samples a part of.
    """
    speculation, model = vllm_config.speculative_config, vllm_config.model_config
    drafts = speculation is not None and (
        speculation.rejection_sample_method == "block"
        or getattr(speculation, "enable_adaptive_verification", False)
        or (drafts_rule() == "rejection" and samples_drafts(vllm_config))
    )
    return bool(
        drafts
        or writes_theirs(vllm_config)
        or getattr(model, "enable_trace_replay", False)
        or getattr(vllm_config.parallel_config, "enable_batch_sharded_sampling", False)
    )


def writes_theirs(vllm_config: Any) -> bool:
    """Whether vLLM's option `--watermark-config` has texts marked, which makes it take model runner V2."""
    return getattr(vllm_config, "watermark_config", None) is not None


def _way_out(vllm_config: Any) -> str:
    """What a server is started with so that a pool edits and filters."""
    return "without --watermark-config" if writes_theirs(vllm_config) else "with VLLM_USE_V2_MODEL_RUNNER=0"


def refuse_two_marks(vllm_config: Any) -> None:
    """Raises ValueError for an engine that is to write Gumball's watermarks where vLLM's kernels filter, its own watermarks say."""
    if marks.SERVER is not None and vllm_config.use_v2_model_runner and draws_alone(vllm_config):
        raise ValueError(
            "GUMBALL_WATERMARK is set, but this server's settings let vLLM edit and filter the logits itself, where Gumball marks no text; leave it out, "
            f"or start the server {_way_out(vllm_config)}"
        )


def refuse_configuration(vllm_config: Any) -> None:
    """Raises ValueError for an engine whose drafts or logprobs a pool does not make."""
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


def check_of_masks(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns the check of vLLM's configuration for sampling masks, which refuses model runner V1; with the pool V1 has them, too."""

    @functools.wraps(original)
    def _verify_sampling_replay_config(self: Any) -> None:
        model = self.model_config
        if model is None or not model.return_sampling_mask or self.use_v2_model_runner:
            original(self)
        elif model.logits_processors or model.logprobs_mode != "processed_logprobs":
            raise ValueError(
                "--return-sampling-mask needs --logprobs-mode processed_logprobs, whose logprobs are over the same sets, and no logits processors, "
                "whose edits a set does not tell"
            )

    return _verify_sampling_replay_config


def _without_masks(model: Any) -> Any:
    """Returns a view of a model's configuration by which vLLM's check of requests asks for no top-k and temperature above 0."""
    kind = type(model)
    view: Any = object.__new__(type(kind.__name__, (kind,), {"return_sampling_mask": property(lambda _: False)}))
    # One dictionary, so that what changes later changes in both.
    object.__setattr__(view, "__dict__", model.__dict__)
    return view


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
    """Returns the method of vLLM's `InputProcessor` that makes its check of requests, with our check after it."""

    def _build_logits_processors_params_validator(self: Any) -> Callable[[Any], None]:
        theirs = original(self)
        config = self.vllm_config
        vocab, mode = config.model_config.get_vocab_size(), config.model_config.logprobs_mode
        newer = config.use_v2_model_runner
        alone = newer and draws_alone(config)
        samples_here = not envs.VLLM_ENABLE_V1_MULTIPROCESSING and config.parallel_config.world_size == 1
        head, masks = chosen_head(), config.model_config.return_sampling_mask and not alone
        if masks:
            self.model_config = _without_masks(self.model_config)
        refuse_two_marks(config)
        if newer and alone:
            _refuse_speculation(config.speculative_config, ("standard", "block"))
        elif newer:
            refuse_configuration(config)

        def validate(params: Any) -> None:
            theirs(params)
            try:
                if alone:
                    _refuse_extra(params, config)
                    _refuse_long_lists(params)
                    THEIR_CHECK(params, config.speculative_config)
                else:
                    made = params_of(params, logprobs_mode=mode, vocab=vocab, reasoning=config.reasoning_config)
                    marks.refuse_lone_key(made, samples_here=samples_here)
                    if masks:
                        refuse_edits(made, "start the server without --return-sampling-mask", repeatable=True)
                if head is not None:
                    refuse_without_logits(params, head["kind"])
            except RefusedError as error:
                raise VLLMValidationError(str(error)) from error

        return validate

    return _build_logits_processors_params_validator


def seeded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of vLLM's `InputProcessor` that takes in a request, which then has a seed made of the id that its answer bears.

    The worker knows that id no more: vLLM's has random letters behind it there.
    """

    @functools.wraps(original)
    def process_inputs(self: Any, *given: Any, **named: Any) -> Any:
        request = original(self, *given, **named)
        params = request.sampling_params
        if params is not None and params.seed is None:
            params.seed = seed_of(request.request_id, self.model_config.seed or 0)
        return request

    return process_inputs


def seed_noted(original: Callable[..., Any]) -> classmethod[Any, ..., Any]:
    """Returns the method of vLLM's `RequestState` that makes the state of a request, or of one of its `n` samples, which then has the seed by which that one is drawn."""

    @functools.wraps(original)
    def from_new_request(_: Any, **named: Any) -> Any:
        state, params = original(**named), named["request"].sampling_params
        state.seed_used = None if params is None or params.seed is None else params.seed % 2**64
        return state

    return classmethod(from_new_request)


def telling_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of vLLM's `RequestState` that makes the `CompletionOutput` of a sample, which then has its seed, too."""

    @functools.wraps(original)
    def _new_completion_output(self: Any, *given: Any, **named: Any) -> Any:
        made = original(self, *given, **named)
        made.seed_used = self.seed_used
        return made

    return _new_completion_output


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


def _refuse_extra(params: Any, vllm_config: Any) -> None:
    extra = params.extra_args or {}
    refuse_misplaced(extra, params)
    for name in extra:
        if name in (*marks.SERVER_NAMES, RETURN_RADII):
            raise RefusedError(
                f"extra_args has {name!r}, but this server's settings let vLLM edit and filter the logits itself; leave it out, "
                f"or start the server {_way_out(vllm_config)}"
            )
