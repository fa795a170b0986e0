"""The places in vLLM where Gumball's samplers go, and nothing else of vLLM is changed.

| place | what is there then |
| --- | --- |
| `vllm.v1.sample.sampler.Sampler`, `vllm.v1.sample.rejection_sampler.RejectionSampler` | the samplers of model runner V1 |
| `vllm.v1.sample.logits_processor.build_logitsprocs` | our follower of requests in place of vLLM's own processors, whose work the pool does |
| `InputBatch.add_request` of model runner V1 | the same, and the follower hears the request's name |
| `ModelState.custom_sampler` of model runner V2 | the samplers of that runner, and its requests' coming and going; a model that has its own keeps it; beside vLLM's watermarks its sampler stays and draws by ours |
| `InputProcessor._build_logits_processors_params_validator` | a check of each request before it enters the engine |
| `InputProcessor.process_inputs` | a seed, made of its id, for a request without one |
| `RequestState.from_new_request`, `._new_completion_output` | the seed of each sample, in its `CompletionOutput` |
| `to_sampling_params` of the OpenAI server's requests | a check of their unknown fields |
| `VllmConfig._verify_sampling_replay_config` | a check that lets model runner V1 return kept sets, too |
| `SamplingMaskLists.to_nested_list`, `SamplingMask` of the output processor, `Worker.sample_tokens` | kept sets as arrays, as bitmasks where these are smaller; those of model runner V1 |
| `LogprobsProcessor._update_sample_logprobs` | radii beside the logprobs of tokens |
| `SamplingParams._validate_spec_decode` | nothing: the pool verifies what vLLM refuses beside drafts |
| `DraftModelSpeculator.sample_draft`, `_copy_request_inputs` of model runner V2 | drafts by the random words and filters of their requests, where vLLM lets a drafter draw |
| `SpecDecodeBaseProposer._enable_probabilistic_draft_probs` of model runner V1 | False: the most likely tokens in the place of drafts that are drawn |
| `Worker.compile_or_warm_up_model` | the same, and Gumball's kernels |
| `Worker.load_model`, if GUMBALL_VLLM_HEAD is set | a head of Gumball's in the place of the model's last product |

The model runner takes the first three by name when it is imported, which is later than this, or else here.
"""

from __future__ import annotations

import sys
from typing import Any

import gumball
from gumball.plugins.releases import taking_places

from . import SWITCH, TRIED, checks, follower, heads, starts
from .head_choice import chosen_head

__all__ = ["take"]

_RUNNER = "vllm.v1.worker.gpu_model_runner"


def take() -> None:
    """Puts our parts into their places, once. Raises RuntimeError if one of these is missing; none is taken then."""
    with taking_places("gumball-vllm", "vLLM", TRIED, f"set {SWITCH}=0 for vLLM's own sampler"):
        from vllm import SamplingParams
        from vllm.config import VllmConfig
        from vllm.v1.engine import output_processor
        from vllm.v1.engine.input_processor import InputProcessor
        from vllm.v1.engine.logprobs import LogprobsProcessor
        from vllm.v1.engine.output_processor import RequestState
        from vllm.v1.outputs import SamplingMaskLists
        from vllm.v1.sample import logits_processor, rejection_sampler, sampler
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
        from vllm.v1.worker.gpu.model_states.interface import ModelState
        from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
        from vllm.v1.worker.gpu_input_batch import InputBatch
        from vllm.v1.worker.gpu_worker import Worker

        build, check = logits_processor.build_logitsprocs, InputProcessor._build_logits_processors_params_validator
        enter = InputProcessor.process_inputs
        begin, complete = RequestState.from_new_request, RequestState._new_completion_output
        add, _ = InputBatch.add_request, (ModelState.custom_sampler, logits_processor.LogitsProcessors)
        _ = sampler.Sampler.forward, rejection_sampler.RejectionSampler.forward
        draft, copy = DraftModelSpeculator.sample_draft, DraftModelSpeculator._copy_request_inputs
        warm_up, load = Worker.compile_or_warm_up_model, Worker.load_model
        _ = SamplingParams._validate_spec_decode, SamplingMaskLists.to_nested_list, output_processor.SamplingMask
        take_logprobs = LogprobsProcessor._update_sample_logprobs
        check_masks, end_step = VllmConfig._verify_sampling_replay_config, Worker.sample_tokens
    from . import drafting, fields, kept, listed, samplers

    if sampler.Sampler is samplers.Sampler:
        return
    runner = sys.modules.get(_RUNNER)
    for holder, name, ours in (
        (sampler, "Sampler", samplers.Sampler),
        (rejection_sampler, "RejectionSampler", samplers.RejectionSampler),
        (logits_processor, "build_logitsprocs", follower.builder(build)),
    ):
        setattr(holder, name, ours)
        if runner is not None:
            setattr(runner, name, ours)
    InputProcessor._build_logits_processors_params_validator = checks.validator(check)
    InputProcessor.process_inputs = checks.seeded(enter)
    RequestState.from_new_request = checks.seed_noted(begin)
    RequestState._new_completion_output = checks.telling_seed(complete)
    InputBatch.add_request = follower.namer(add)
    ModelState.custom_sampler = _custom_sampler
    SamplingParams._validate_spec_decode = checks.check_of_drafts
    VllmConfig._verify_sampling_replay_config = checks.check_of_masks(check_masks)
    SamplingMaskLists.to_nested_list, Worker.sample_tokens = kept.itself, kept.with_sets(end_step)
    output_processor.SamplingMask = kept.Mask
    LogprobsProcessor._update_sample_logprobs = listed.with_radii(take_logprobs)
    SpecDecodeBaseProposer._enable_probabilistic_draft_probs = drafting.NeverDraws()
    DraftModelSpeculator.sample_draft = drafting.drafting(draft)
    DraftModelSpeculator._copy_request_inputs = drafting.copying(copy)
    Worker.compile_or_warm_up_model = starts.warmer(warm_up)
    if chosen_head() is not None:
        Worker.load_model = heads.loader(load)
    fields.take()
    from vllm.logger import init_logger

    # A warning, since a server's texts are other ones with it.
    init_logger("vllm.plugins.gumball").warning(
        "tokens are drawn by Gumball %s; GUMBALL_VLLM=0 switches it off", gumball.__version__
    )


def _custom_sampler(self: Any, sampler: Any) -> tuple[Any, Any] | None:
    """What `ModelState.custom_sampler` of model runner V2 returns: the sampler, and the one that verifies drafts; None where vLLM's own stay.

    A model's state is told of every request that comes and goes, and of its prompt, so our sequences listen there.
    """
    speculation = self.vllm_config.speculative_config
    checks.refuse_two_marks(self.vllm_config)
    if checks.draws_alone(self.vllm_config):
        from .runner_v2 import RejectionSampler, draw_by_gumball, sampler_of

        if checks.writes_theirs(self.vllm_config):
            # Beside its watermarks vLLM takes no sampler but its own, which verifies drafts by the keys that its detector expects.
            draw_by_gumball(sampler)
            return None
        ours = sampler_of(sampler)
        return ours, None if speculation is None else RejectionSampler(ours, speculation, self.device)
    from .pooled import Sequences, pooled

    model = self.vllm_config.model_config
    sequences = Sequences(
        sampler.req_states,
        sampler.sampling_states.vocab_size,
        self.device,
        most_drafts=0 if speculation is None else speculation.num_speculative_tokens,
        seed=model.seed or 0,
        logprobs_mode=model.logprobs_mode,
        top_n=model.max_logprobs,
        kept=model.return_sampling_mask,
        reasoning=self.vllm_config.reasoning_config,
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
