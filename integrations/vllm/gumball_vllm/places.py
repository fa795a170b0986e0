"""The places in vLLM where Gumball's samplers go, and nothing else of vLLM is changed.

| place | what is there then |
| --- | --- |
| `vllm.v1.sample.sampler.Sampler`, `vllm.v1.sample.rejection_sampler.RejectionSampler` | the samplers of model runner V1 |
| `vllm.v1.sample.logits_processor.build_logitsprocs` | our follower of requests in place of vLLM's own processors, whose work the pool does |
| `InputBatch.add_request` of model runner V1 | the same, and the follower hears the request's name |
| `ModelState.custom_sampler` of model runner V2 | the samplers of that runner; a model that has its own keeps it |
| `InputProcessor._build_logits_processors_params_validator` | a check of each request before it enters the engine |
| `to_sampling_params` of the OpenAI server's requests | a check of their unknown fields |

The model runner takes the first three by name when it is imported, which is later than this, or else here.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gumball
from gumball.compat.vllm import RejectionSampler, sampler_of

__all__ = ["take"]

_RUNNER = "vllm.v1.worker.gpu_model_runner"


def _find(module: str, *names: str) -> Any:
    """A module of vLLM that has these names. Raises RuntimeError if it has not."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise _unknown(module) from error
    for name in names:
        owner: Any = found
        for part in name.split("."):
            if not hasattr(owner, part):
                raise _unknown(f"{module}.{name}")
            owner = getattr(owner, part)
    return found


def _unknown(name: str) -> RuntimeError:
    import vllm

    return RuntimeError(
        f"gumball-vllm {gumball.__version__} was written for vLLM 0.32, but this is {vllm.__version__}, which has no {name}; "
        "install a release of both that fit, or set GUMBALL_VLLM=0 for vLLM's own sampler"
    )


def take() -> None:
    """Puts our parts into their places, once. Raises RuntimeError if one of these is missing; none is taken then."""
    sampler = _find("vllm.v1.sample.sampler", "Sampler.forward")
    rejection = _find("vllm.v1.sample.rejection_sampler", "RejectionSampler.forward")
    processors = _find("vllm.v1.sample.logits_processor", "build_logitsprocs", "LogitsProcessors")
    inputs = _find(
        "vllm.v1.engine.input_processor", "InputProcessor._build_logits_processors_params_validator"
    ).InputProcessor
    batches = _find("vllm.v1.worker.gpu_input_batch", "InputBatch.add_request").InputBatch
    states = _find("vllm.v1.worker.gpu.model_states.interface", "ModelState.custom_sampler").ModelState
    from . import fields, requests, samplers

    if sampler.Sampler is samplers.Sampler:
        return
    build = requests.builder(processors.build_logitsprocs)
    runner = sys.modules.get(_RUNNER)
    for holder, name, ours in (
        (sampler, "Sampler", samplers.Sampler),
        (rejection, "RejectionSampler", samplers.RejectionSampler),
        (processors, "build_logitsprocs", build),
    ):
        setattr(holder, name, ours)
        if runner is not None:
            setattr(runner, name, ours)
    inputs._build_logits_processors_params_validator = requests.validator(
        inputs._build_logits_processors_params_validator
    )
    batches.add_request = requests.namer(batches.add_request)
    states.custom_sampler = _custom_sampler
    fields.take()
    from vllm.logger import init_logger

    # Of vLLM's own loggers, so that it is seen wherever theirs are.
    init_logger("vllm.plugins.gumball").info(
        "tokens are drawn by Gumball %s; GUMBALL_VLLM=0 switches it off", gumball.__version__
    )


def _custom_sampler(self: Any, sampler: Any) -> tuple[Any, Any]:
    """What `ModelState.custom_sampler` of model runner V2 returns: the sampler, and the one that verifies drafts."""
    ours = sampler_of(sampler)
    speculation = self.vllm_config.speculative_config
    return ours, None if speculation is None else RejectionSampler(ours, speculation, self.device)
