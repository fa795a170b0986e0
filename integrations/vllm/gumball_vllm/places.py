"""The places in vLLM where Gumball's samplers go, and nothing else of vLLM is changed.

| place | what is there then |
| --- | --- |
| `vllm.v1.sample.sampler.Sampler`, `vllm.v1.sample.rejection_sampler.RejectionSampler` | the samplers of model runner V1 |
| `vllm.v1.sample.logits_processor.build_logitsprocs` | our follower of requests in place of vLLM's own processors, whose work the pool does |
| `InputBatch.add_request` of model runner V1 | the same, and the follower hears the request's name |
| `ModelState.custom_sampler` of model runner V2 | the samplers of that runner, and its requests' coming and going; a model that has its own keeps it |
| `InputProcessor._build_logits_processors_params_validator` | a check of each request before it enters the engine |
| `to_sampling_params` of the OpenAI server's requests | a check of their unknown fields |
| `Worker.load_model`, if GUMBALL_VLLM_HEAD is set | a head of Gumball's in the place of the model's last product |

The model runner takes the first three by name when it is imported, which is later than this, or else here.
"""

from __future__ import annotations

import sys
from typing import Any

import gumball
from gumball.releases import taking_places
from gumball_compat.vllm import RejectionSampler, sampler_of
from gumball_compat.vllm.heads import chosen_head

from . import SWITCH, TRIED, heads, requests

__all__ = ["take"]

_RUNNER = "vllm.v1.worker.gpu_model_runner"


def take() -> None:
    """Puts our parts into their places, once. Raises RuntimeError if one of these is missing; none is taken then."""
    with taking_places("gumball-vllm", f"vLLM {TRIED[0]}", f"set {SWITCH}=0 for vLLM's own sampler"):
        from vllm.v1.engine.input_processor import InputProcessor
        from vllm.v1.sample import logits_processor, rejection_sampler, sampler
        from vllm.v1.worker.gpu.model_states.interface import ModelState
        from vllm.v1.worker.gpu_input_batch import InputBatch

        build, check = logits_processor.build_logitsprocs, InputProcessor._build_logits_processors_params_validator
        add, _ = InputBatch.add_request, (ModelState.custom_sampler, logits_processor.LogitsProcessors)
        _ = sampler.Sampler.forward, rejection_sampler.RejectionSampler.forward
        worker = None
        if chosen_head() is not None:
            from vllm.v1.worker.gpu_worker import Worker as worker

            _ = worker.load_model
    from . import fields, samplers

    if sampler.Sampler is samplers.Sampler:
        return
    runner = sys.modules.get(_RUNNER)
    for holder, name, ours in (
        (sampler, "Sampler", samplers.Sampler),
        (rejection_sampler, "RejectionSampler", samplers.RejectionSampler),
        (logits_processor, "build_logitsprocs", requests.builder(build)),
    ):
        setattr(holder, name, ours)
        if runner is not None:
            setattr(runner, name, ours)
    InputProcessor._build_logits_processors_params_validator = requests.validator(check)
    InputBatch.add_request = requests.namer(add)
    ModelState.custom_sampler = _custom_sampler
    if worker is not None:
        worker.load_model = heads.loader(worker.load_model)
    fields.take()
    from vllm.logger import init_logger

    # Of vLLM's own loggers, so that it is seen wherever theirs are.
    init_logger("vllm.plugins.gumball").info(
        "tokens are drawn by Gumball %s; GUMBALL_VLLM=0 switches it off", gumball.__version__
    )


def _custom_sampler(self: Any, sampler: Any) -> tuple[Any, Any]:
    """What `ModelState.custom_sampler` of model runner V2 returns: the sampler, and the one that verifies drafts.

    A model's state is told of every request that comes and goes, and of its prompt, so our sequences listen there.
    """
    speculation = self.vllm_config.speculative_config
    if requests.draws_alone(self.vllm_config):
        ours = sampler_of(sampler)
        return ours, None if speculation is None else RejectionSampler(ours, speculation, self.device)
    from gumball_compat.vllm.pooled import Sequences, pooled

    model = self.vllm_config.model_config
    sequences = Sequences(
        sampler.req_states,
        sampler.sampling_states.vocab_size,
        self.device,
        most_drafts=0 if speculation is None else speculation.num_speculative_tokens,
        seed=model.seed or 0,
        logprobs_mode=model.logprobs_mode,
        top_n=model.max_logprobs,
    )
    add, remove = self.add_request, self.remove_request

    def add_request(index: int, new: Any) -> None:
        add(index, new)
        sequences.add(index, new)

    def remove_request(name: str) -> None:
        sequences.remove(name)
        remove(name)

    self.add_request, self.remove_request = add_request, remove_request
    return pooled(sampler, sequences)
