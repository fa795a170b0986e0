"""The real model with a head of Gumball's in the place of its last product: tokens are drawn from its hidden states."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gumball_vllm import heads, samplers
from gumball_vllm.head_choice import HEAD, chosen_head
from gumball_vllm.params import params_of
from real_model import PROMPTS
from safetensors import safe_open
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.worker.gpu_worker import Worker

import gumball
import recorded_model
from conftest import closing
from gumball import Hidden

PROGRAM = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.v1.worker.gpu_worker import Worker
print(Worker.load_model.__globals__["__name__"])
"""
LENGTH = 12
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"temperature": 1.0, "extra_args": {"section_close": [30], "section_end": [253, 30], "section_budget": 5}},
    {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 1.0, "logit_bias": {100: 5.0}, "repetition_penalty": 1.2, "min_tokens": 4},
    {"temperature": 1.0, "extra_args": {"xtc_probability": 0.5, "xtc_threshold": 0.05}},
]


def test_a_model_that_makes_its_logits_otherwise_is_refused(model: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(HEAD, "auto")
    monkeypatch.setattr(Worker, "load_model", heads.loader(Worker.load_model))
    with pytest.raises(ValueError, match=f"{HEAD} is 'auto', but RecordedForCausalLM changes logits"):
        recorded_model.engine(recorded_model.write(tmp_path, model))
    cleanup_dist_env_and_memory()


def test_what_an_engine_with_a_head_cannot_be_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv(HEAD, "fast")
    plain = {
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
        "model_config": {"enable_sleep_mode": False, "logprobs_mode": "raw_logprobs"},
    }
    for part, name, value, what in (
        ("parallel_config", "tensor_parallel_size", 2, "tensor parallelism"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline parallelism"),
        ("model_config", "enable_sleep_mode", True, "sleep mode"),
        ("model_config", "logprobs_mode", "raw_logits", "--logprobs-mode raw_logits"),
        ("", "lora_config", object(), "LoRA"),
        ("", "weight_transfer_config", object(), "weight transfer"),
    ):
        parts: dict[str, Any] = {one: SimpleNamespace(**fields) for one, fields in plain.items()}
        config = SimpleNamespace(**parts, lora_config=None, weight_transfer_config=None)
        heads.refuse_configuration(config)
        setattr(parts[part] if part else config, name, value)
        with pytest.raises(ValueError, match=f"{HEAD} is 'fast', but {what}"):
            heads.refuse_configuration(config)


@pytest.fixture(scope="module", params=["auto", "clustered"])
def served(request: Any, model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """An engine with a head, and a head of all logits over the same weights."""
    with safe_open(model / "model.safetensors", "pt") as file:
        weights = file.get_tensor("model.embed_tokens.weight")
    setting = request.param
    if setting == "clustered":
        made = gumball.Head.clustered(weights, iterations=1)
        path = tmp_path_factory.mktemp("clusters") / "clusters.safetensors"
        made.save(path)
        setting += f",file={path},probes=600"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HEAD, setting)
        patch.setattr(Worker, "load_model", heads.loader(Worker.load_model))
        options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8}
        for llm in closing(LLM(str(model), max_logprobs=200, **options)):
            yield llm, gumball.Head.auto(weights, screen=False)


def test_tokens_are_those_of_the_head(served: Any, monkeypatch: Any) -> None:
    llm, exact = served
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    head = heads.follower_of(runner.input_batch.logitsprocs).requests.head
    states: dict[tuple[int, int], Any] = {}
    draw = samplers.draw

    def watched(requests: Any, hidden: Any, **named: Any) -> Any:
        assert hidden.shape[1] == head.width
        for row, request in enumerate(requests.rows):
            states[request.seed, len(request.output)] = hidden[row].numpy().copy()
        return draw(requests, hidden, **named)

    monkeypatch.setattr(samplers, "draw", watched)
    params = [SamplingParams(seed=i, max_tokens=LENGTH, ignore_eos=True, **one) for i, one in enumerate(ASKED)]
    outs = llm.generate(PROMPTS, params, use_tqdm=False)
    counts = {"tokens": 0, "tokens of the exact head": 0}
    pool = gumball.Pool(head.vocab, slots=1, top_n=3)
    for i, out in enumerate(outs):
        translated = params_of(params[i], vocab=head.vocab)
        alone = gumball.Sampler(translated, head.vocab, prompt=out.prompt_token_ids)
        slot = pool.admit(translated, out.prompt_token_ids)
        (line,) = out.outputs
        assert len(line.token_ids) == LENGTH
        for j, token in enumerate(line.token_ids):
            hidden = states[i, j][None]
            drawn = pool.step(Hidden(head, hidden), [slot])
            assert drawn.tokens[0] == token
            if line.logprobs:
                assert line.logprobs[j][token].logprob == drawn.logprobs[0]
            counts["tokens"] += 1
            counts["tokens of the exact head"] += alone.sample(exact.logits(hidden)[0]) == token
            if alone.output[-1] != token:
                alone.shorten(1)
                alone.push(token)
        pool.release(slot)
    if head.kind == "auto":
        assert counts["tokens of the exact head"] == counts["tokens"]
    else:
        assert 0.6 < counts["tokens of the exact head"] / counts["tokens"] < 1


def test_logprobs_of_prompts_are_vllms(served: Any) -> None:
    llm, _ = served
    (out,) = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=1, prompt_logprobs=2), use_tqdm=False)
    sums = [sum(np.exp(one.logprob) for one in line.values()) for line in out.prompt_logprobs[1:]]
    assert all(0 < total < 1.001 for total in sums)


def test_what_a_head_has_not_is_refused(served: Any) -> None:
    llm, _ = served
    kind = chosen_head()["kind"]
    refused: dict[str, dict[str, Any]] = {
        "structured_outputs": {"structured_outputs": StructuredOutputsParams(regex="a+")},
        "logprobs 150": {"logprobs": 150},
    }
    allowed = {"allowed_token_ids": [5, 6]}
    if kind == "clustered":
        refused["allowed_token_ids"] = allowed
    else:
        (out,) = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=3, ignore_eos=True, **allowed), use_tqdm=False)
        assert set(out.outputs[0].token_ids) <= {5, 6}
    for what, given in refused.items():
        with pytest.raises(VLLMValidationError, match=f"it has {what}.*by a {kind} head"):
            llm.generate(PROMPTS[:1], SamplingParams(**given), use_tqdm=False)
    with pytest.raises(RuntimeError, match="a head was made of them"):
        llm.collective_rpc("reload_weights")


def test_the_setting(monkeypatch: Any) -> None:
    for value, wanted in (
        ("", None),
        ("auto", {"kind": "auto"}),
        ("auto,screen=off", {"kind": "auto", "screen": False}),
        (
            "clustered,file=a/b=c.safetensors,probes=256",
            {"kind": "clustered", "file": "a/b=c.safetensors", "probes": 256},
        ),
        ("clustered,fast,probes=8", {"kind": "clustered", "fast": True, "probes": 8}),
    ):
        monkeypatch.setenv(HEAD, value)
        assert chosen_head() == wanted
    for value, what in (
        ("clusters", "the kind must be one of auto"),
        ("clustered,probes=-3", "'probes=-3' is neither"),
        ("clustered,256", "'256' is neither"),
        ("auto,screen=on", "'screen=on' is neither"),
        ("auto,fast", "fast is not for kind auto"),
        ("clustered,fast=1", "'fast=1' is neither"),
        ("fast,probes=3", "probes is not for kind fast"),
    ):
        monkeypatch.setenv(HEAD, value)
        with pytest.raises(ValueError, match=f"{HEAD} is '{value}', but .*{what}"):
            chosen_head()


def test_the_place_is_taken_where_a_head_is_asked_for() -> None:
    for value, wanted in (("auto", "gumball_vllm.heads"), ("", "vllm.v1.worker.gpu_worker")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ | {HEAD: value}
        )
        assert done.stdout.split()[-1:] == [wanted], done.stderr
