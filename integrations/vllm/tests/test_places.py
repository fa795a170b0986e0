"""The places in vLLM that the plug-in takes, the switch, and what of model runner V2 runs without a GPU."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gumball_vllm
import numpy as np
import pytest
import torch
from gumball_vllm import places

import gumball

PROGRAM = """
from vllm.plugins import load_general_plugins
load_general_plugins()
load_general_plugins()
import vllm.v1.sample.sampler, vllm.v1.sample.rejection_sampler
from vllm.v1.worker import gpu_model_runner as runner
print(runner.Sampler.__module__, runner.RejectionSampler.__module__, runner.build_logitsprocs.__module__)
"""


def modules(**variables: str) -> list[str]:
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-3:]


def test_vllm_finds_the_plugin_and_its_switches() -> None:
    ours = ["gumball_vllm.samplers", "gumball_vllm.samplers", "gumball_vllm.follower"]
    assert modules() == ours
    theirs = modules(GUMBALL_VLLM="0")
    assert all(name.startswith("vllm.") for name in theirs)
    assert modules(VLLM_PLUGINS="") == theirs


def test_the_log_says_at_the_level_of_warnings_who_draws_and_of_which_release_that_was_not_tried() -> None:
    program = "from vllm import logger; logger._configure_vllm_root_logger();"
    program += "import gumball_vllm; gumball_vllm.TRIED = ('90', '91'); gumball_vllm.register()"
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "WARNING"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "umball" in line]
    # Both as vLLM writes its own.
    assert any("tokens are drawn by Gumball" in line and "WARNING" in line for line in lines), lines
    assert any("was tried with" in line and "WARNING" in line for line in lines), lines


def test_a_switch_that_is_neither_and_a_place_that_is_gone_are_errors(monkeypatch: Any) -> None:
    monkeypatch.setenv(gumball_vllm.SWITCH, "off")
    with pytest.raises(ValueError, match="'off', but must be 1"):
        gumball_vllm.register()
    monkeypatch.setenv(gumball_vllm.SWITCH, "1")
    monkeypatch.delattr("vllm.v1.worker.gpu_input_batch.InputBatch.add_request")
    with pytest.raises(RuntimeError, match="vLLM from 0.32 and below 0.34.*no attribute 'add_request'.*GUMBALL_VLLM=0"):
        gumball_vllm.register()


def test_the_replaced_methods_have_vllms_parameters() -> None:
    places.take()
    from gumball_vllm import runner_v2, samplers
    from vllm.v1.worker.gpu.sample.sampler import Sampler as Newer

    pairs = [
        (samplers.Sampler.forward, samplers.VllmSampler.forward),
        (samplers.RejectionSampler.forward, samplers.VllmRejectionSampler.forward),
    ]
    for ours, theirs in pairs:
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    # Hints for kernels stand at the end.
    ours, theirs = (list(inspect.signature(one._sample_random).parameters) for one in (runner_v2._Draws, Newer))
    assert ours[:-1] == theirs[: len(ours) - 1] and theirs[-1] == "use_fused_sampler"


def test_a_drafter_of_runner_v1_that_is_to_draw_takes_the_most_likely_tokens_and_the_log_says_so(caplog: Any) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    places.take()
    assert "self._enable_probabilistic_draft_probs = (" in inspect.getsource(SpecDecodeBaseProposer.__init__)
    drafter, logits = object.__new__(SpecDecodeBaseProposer), torch.tensor([[0.0, 2.0, 1.0]])
    for draws in (False, True):
        drafter._enable_probabilistic_draft_probs = draws
        assert len(caplog.records) == draws
        drafts, probs = drafter._sample_from_logits(logits, SimpleNamespace(all_greedy=False))
        assert drafts.tolist() == [1] and probs is None
    assert "it drafts the most likely tokens" in caplog.text


def backed(values: Any) -> Any:
    return SimpleNamespace(gpu=values, np=values.numpy())


def test_the_sampler_of_runner_v2_draws_by_seed_and_position() -> None:
    """vLLM's own class and filters, with the state that its draw reads."""
    from gumball_vllm.runner_v2 import RejectionSampler
    from vllm.v1.worker.gpu.model_states.interface import ModelState
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    places.take()
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.0])
    states = SimpleNamespace(temperature=backed(temperature), seeds=backed(torch.tensor([1, -2, 3, 4])))
    top_k = torch.tensor([50, 50, 7, 50])
    states.get_top_k_top_p = lambda index, index_np: (top_k[index], None)
    states.any_greedy = states.any_explicit_seed = lambda index_np: True
    theirs = Sampler.__new__(Sampler)
    theirs.__dict__ |= {
        "sampling_states": states,
        "needs_logits_processing": np.zeros(4, bool),
        "use_flashinfer": False,
        "use_xpu_sampler": False,
        "logprobs_mode": "raw_logprobs",
    }
    # A server that forces traces edits and filters the logits itself.
    model, parallel = SimpleNamespace(enable_trace_replay=True), SimpleNamespace()
    config = SimpleNamespace(speculative_config=None, model_config=model, parallel_config=parallel)
    ours, verifier = ModelState.custom_sampler(SimpleNamespace(vllm_config=config, device="cpu"), theirs)
    assert verifier is None and isinstance(ours, Sampler) and ours.sampling_states is states
    index = torch.tensor([2, 0, 3, 1])
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)) * 2
    scaled = logits / torch.where(temperature == 0, 1, temperature)[index].unsqueeze(1)
    pos = torch.tensor([0, 4, 9, 2])
    sampled, _ = ours.sample(scaled.clone(), index, index, index.numpy(), pos, index, index, index.numpy())
    assert sampled.dtype == torch.int64
    for row, state in enumerate(index.tolist()):
        params = gumball.SamplingParams(
            temperature=float(temperature[state] != 0),
            top_k=int(top_k[state]),
            seed=int(states.seeds.gpu[state]) % 2**64,
        )
        # The token at `pos` is the last of the history.
        alone = gumball.Sampler(params, 50, prompt=[0] * (int(pos[row]) + 1))
        assert alone.sample(scaled[row].numpy()) == sampled[row]
    speculation = SimpleNamespace(rejection_sample_method="block", num_speculative_tokens=3)
    config = SimpleNamespace(speculative_config=speculation, model_config=SimpleNamespace(), parallel_config=parallel)
    ours, verifier = ModelState.custom_sampler(SimpleNamespace(vllm_config=config, device="cpu"), theirs)
    assert isinstance(verifier, RejectionSampler) and verifier.sampler is ours
