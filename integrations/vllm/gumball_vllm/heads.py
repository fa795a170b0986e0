"""The model's last product by a head of Gumball's, where the environment variable GUMBALL_VLLM_HEAD asks for one.

In the steps of requests the model's `LogitsProcessor` then returns the hidden states that it is given, and the samplers draw from these. In
prompt logprobs and in warm-ups it makes vLLM's own logits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gumball import DeviceHead, Head

from .follower import follower_of
from .head_choice import HEAD, AnyHead, chosen_head, refuse_head
from .params import BUILT_IN, MODES

__all__ = ["Deferred", "loader", "refuse_configuration", "sequences_of", "sequences_of_runner"]


def loader(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the method of vLLM's `Worker` that loads the model, and puts a head in the place of its last product then."""

    @functools.wraps(original)
    def load_model(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        options = chosen_head()
        if options is not None:
            _put(self, options)

    return load_model


def _put(worker: Any, options: dict[str, Any]) -> None:
    from vllm.logger import init_logger

    logger = init_logger("vllm.plugins.gumball")
    config, runner = worker.vllm_config, worker.model_runner
    refuse_configuration(config)
    sequences = sequences_of(runner, config)
    processor, layer, bias = _last_product(runner.get_model(), config)
    speculation = config.speculative_config
    most_drafts = 0 if speculation is None else speculation.num_speculative_tokens
    logger.info("making a %s head of the model's last product", options["kind"])
    sequences.head = head = _made(
        options,
        layer.weight.data[: processor.org_vocab_size],
        rows=config.scheduler_config.max_num_seqs * (1 + most_drafts),
        special_ids=_ends(config.model_config, processor.org_vocab_size),
        bias=None if bias is None else bias[: processor.org_vocab_size].float().cpu(),
        logit_scale=processor.scale,
        softcap=processor.soft_cap or 0.0,
    )
    deferred = Deferred(processor.forward)
    processor.forward = deferred
    if config.use_v2_model_runner:
        sample = deferred.during(runner.sample)
        # Requests with grammars are refused, but vLLM's warm-up has some.
        runner.sample = lambda hidden, batch, grammar: sample(hidden, batch, None)
    else:
        runner.execute_model = deferred.during(runner.execute_model)
    worker.reload_weights = _refuse_weights
    logger.info("tokens are drawn from hidden states by %r; %s switches it off if it is empty", head, HEAD)


class Deferred:
    """The `forward` of a model's `LogitsProcessor` that returns hidden states as they are while a step of requests runs."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward, self.on = forward, False

    def __call__(self, lm_head: Any, hidden_states: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Hidden states, or else logits."""
        return hidden_states if self.on else self.forward(lm_head, hidden_states, *rest, **named)

    def during(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method of a runner that runs such a step."""

        @functools.wraps(method)
        def step(*given: Any, **named: Any) -> Any:
            self.on = True
            try:
                return method(*given, **named)
            finally:
                self.on = False

        return step


def _made(options: dict[str, Any], weights: torch.Tensor, *, rows: int, special_ids: list[int], **what: Any) -> AnyHead:
    if options["kind"] == "fast":
        return DeviceHead(weights, fast=True, rows=rows, **what)
    if options["kind"] == "clustered":
        what["special_ids"] = special_ids
    is_here, fast = weights.device.type == "cpu", options.get("fast", False)
    if fast and (is_here or weights.dtype == torch.float32):
        refuse_head("fast heads are on GPUs, over weights of bfloat16 or float16")
    given = {name: value for name, value in options.items() if name not in ("kind", "fast")}
    head: Head = getattr(Head, options["kind"])(weights.cpu(), **given, **what)
    return head if is_here else head.to(weights.device, rows=rows, weights=weights, fast=fast)


def _ends(model: Any, vocab: int) -> list[int]:
    """The ids that end the model's texts, which a clustered head must never leave out."""
    found: set[int] = set()
    for ids in (model.hf_text_config.eos_token_id, model.try_get_generation_config().get("eos_token_id")):
        found.update([ids] if isinstance(ids, int) else ids or ())
    return sorted(id for id in found if 0 <= id < vocab)


def sequences_of_runner(runner: Any, config: Any) -> Any:
    """Our requests of a runner; None where it draws no tokens, or edits and filters the logits itself."""
    if config.use_v2_model_runner:
        return getattr(getattr(runner, "sampler", None), "sequences", None)
    follower = follower_of(runner.input_batch.logitsprocs)
    return None if follower is None else follower.requests


def sequences_of(runner: Any, config: Any) -> Any:
    """Our requests of a runner, which have no head yet."""
    sequences = sequences_of_runner(runner, config)
    if sequences is not None and config.use_v2_model_runner:
        others = runner.sampler.logits_processors[BUILT_IN:]
    elif sequences is not None:
        others = follower_of(runner.input_batch.logitsprocs).others  # type: ignore[union-attr]
    else:
        refuse_head("the engine draws no tokens, or edits and filters the logits itself")
    if others:
        refuse_head(f"the logits processor {type(others[0]).__name__} edits logits, and there are none")
    return sequences


def refuse_configuration(config: Any) -> None:
    """Raises ValueError for an engine that cannot have a head, or takes the weights away from it."""
    from vllm import envs

    model, parallel = config.model_config, config.parallel_config
    for there, what in (
        (parallel.tensor_parallel_size > 1, "tensor parallelism cuts the layer into parts"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism was not tried with one"),
        (config.lora_config is not None, "LoRA may change the layer with each request"),
        (model.enable_sleep_mode, "sleep mode takes the weights away"),
        (config.weight_transfer_config is not None, "weight transfer changes the weights"),
        (model.logprobs_mode not in MODES, f"--logprobs-mode {model.logprobs_mode} hands out logits"),
        (envs.VLLM_COMPUTE_NANS_IN_LOGITS, "VLLM_COMPUTE_NANS_IN_LOGITS counts in logits"),
    ):
        if there:
            refuse_head(what)


def _refuse_weights(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(f"the weights cannot be changed, since a head was made of them; start the server without {HEAD}")


def _last_product(model: Any, config: Any) -> tuple[Any, Any, torch.Tensor | None]:
    """The model's `LogitsProcessor`, the layer that it multiplies by, and the bias; ValueError if logits are more than that."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], torch.Tensor]] = []

    def note(module: Any, given: tuple[Any, ...], named: dict[str, Any], logits: torch.Tensor) -> None:
        calls.append((module, given, named, logits.clone()))

    found = [part for part in model.modules() if isinstance(part, LogitsProcessor)]
    hooks = [part.register_forward_hook(note, with_kwargs=True) for part in found]
    settings = config.model_config
    weight = next(model.parameters())
    states = torch.ones(2, settings.get_hidden_size(), dtype=settings.dtype, device=weight.device)
    try:
        with torch.inference_mode():
            logits = model.compute_logits(states)
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) != 1 or not torch.equal(logits, calls[0][3]):
        refuse_head(f"{type(model).__name__} changes logits behind its last product")
    processor, given, named, _ = calls[0]
    arguments = inspect.signature(processor.forward).bind(*given, **named).arguments
    layer, bias = arguments["lm_head"], arguments.get("embedding_bias")
    method = type(layer.quant_method)
    if not issubclass(method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod):
        refuse_head(f"the model's last product is quantised ({method.__name__})")
    if processor.logits_as_input or (processor.soft_cap is not None and processor.scale != 1.0):
        refuse_head("the model scales its logits behind their softcap")
    if processor.org_vocab_size != settings.get_vocab_size():
        refuse_head(f"the layer has {processor.org_vocab_size} ids, but the vocabulary {settings.get_vocab_size()}")
    return processor, layer, bias
