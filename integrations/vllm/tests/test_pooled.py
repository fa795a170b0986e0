"""Model runner V2's sampler over a pool: vLLM's own class with requests that come, go, are preempted and come back, on the emulated device.

The runner itself needs a GPU; its batches and request states stand here as far as the sampler reads them.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.sampler import Sampler

import gumball
from gumball import Mirostat
from gumball_compat.vllm import Requests
from gumball_compat.vllm import pooled as pooled_module
from gumball_compat.vllm.pooled import Sequences, drafted, pooled

VOCAB, MOST, STEPS, LENGTH = 40, 6, 3, 14
ROWS = torch.randn(23, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
# Hidden states and weights whose products are these rows.
HIDDEN, WEIGHTS = torch.eye(23), ROWS.T.contiguous()
emulated = pytest.mark.skipif(not gumball._gumball.EMULATOR, reason="the package is built without the emulator")


def row(history: list[int], of: Any = ROWS) -> Any:
    return of[(history[-1] * 5 + len(history)) % len(of)]


class Counted(TorchDispatchMode):
    """Counts torch's operations, each of which costs a host some microseconds, and most of them a GPU a launch."""

    count = 0

    def __torch_dispatch__(self, call: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
        self.count += 1
        return call(*given, **(named or {}))


class Runner:
    """The states of requests by index, and a batch of them in each step."""

    def __init__(self, most_drafts: int, with_head: bool) -> None:
        self.states = SimpleNamespace(max_num_reqs=MOST, req_id_to_index={})
        self.free = list(range(MOST))
        self.sequences = Sequences(
            self.states, VOCAB, "emulated", most_drafts=most_drafts, seed=0, logprobs_mode="raw_logprobs", top_n=5
        )
        self.given = HIDDEN if with_head else ROWS
        if with_head:
            head = gumball.Head.certified(WEIGHTS)
            self.sequences.head = head.to("emulated", rows=MOST * (1 + most_drafts))
        sampler = Sampler.__new__(Sampler)
        sampler.__dict__ |= {
            "req_states": self.states,
            "compute_nans": False,
            "logprobs_mode": "raw_logprobs",
            "logits_processors": [None, None, None],
            "logprob_token_ids_state": None,
            "thinking_budget_state": SimpleNamespace(enabled=False),
            "get_logprobs_dims": lambda indices: (2, 0),
        }
        self.sampler, self.verifier = pooled(sampler, self.sequences)
        # Of each request in flight: how many tokens of its prompt and output are computed, and how many it came with.
        self.computed: dict[int, int] = {}
        self.prefill: dict[int, int] = {}

    def add(self, one: Any) -> None:
        index = self.free.pop()
        self.states.req_id_to_index[one.name] = index
        ids = [*one.prompt, *one.output]
        new = SimpleNamespace(
            req_id=one.name, sampling_params=one.params, prefill_token_ids=ids, prompt_len=len(one.prompt)
        )
        self.sequences.add(index, new)
        one.index, self.computed[index], self.prefill[index] = index, 0, len(ids)

    def remove(self, one: Any) -> None:
        self.sequences.remove(one.name)
        self.free.append(self.states.req_id_to_index.pop(one.name))

    def step(self, batch: list[Any], scheduled: list[int], drafts: list[list[int]] | None) -> Any:
        """scheduled: how many tokens of each request are computed, without its drafts."""
        indices = np.array([one.index for one in batch])
        lines, inputs = [], []
        for one, guesses in zip(batch, drafts or [[] for _ in batch], strict=True):
            history = [*one.prompt, *one.output]
            lines += [row(history + guesses[:j], self.given) for j in range(len(guesses) + 1)]
            inputs += [history[-1], *guesses]
        counts = np.array([len(line) for line in drafts] if drafts else [0] * len(batch))
        ends = np.cumsum([0, *(counts + 1)])
        made = SimpleNamespace(
            req_ids=[one.name for one in batch],
            num_reqs=len(batch),
            idx_mapping=torch.tensor(indices),
            idx_mapping_np=indices,
            expanded_idx_mapping=torch.tensor(np.repeat(indices, counts + 1)),
            num_draft_tokens_per_req=counts if drafts else None,
            num_computed_tokens_np=np.array([self.computed[i] for i in indices]),
            num_scheduled_tokens=np.array(scheduled) + counts,
            prefill_len_np=np.array([self.prefill[i] for i in indices]),
            cu_num_logits=torch.tensor(ends),
            cu_num_logits_np=ends,
            input_ids=torch.tensor(inputs, dtype=torch.int32),
            logits_indices=torch.arange(len(inputs)),
        )
        logits = torch.stack(lines)
        with Counted() as counted:
            out = self.sampler(logits, made) if not drafts else self.verifier(logits, made)
        self.operations = counted.count
        for index, count in zip(indices, scheduled, strict=True):
            self.computed[index] += count
        return out


KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"top_p": 0.9}, {"top_p": 0.9}),
    ({"temperature": 0.0, "frequency_penalty": 0.7}, {"temperature": 0.0, "frequency_penalty": 0.7}),
    ({"extra_args": {"mirostat_tau": 2.0}}, {"mirostat": Mirostat(2.0, 0.1)}),
    (
        {"repetition_penalty": 1.3, "logit_bias": {3: 2.0}},
        {"repetition_penalty": 1.3, "logit_bias": {3: 2.0}, "bias_first": True},
    ),
    ({"extra_args": {"xtc_probability": 0.5, "xtc_threshold": 0.1}}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}),
]


@emulated
@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize("most_drafts", [0, STEPS])
def test_requests_keep_their_tokens_through_every_change_of_the_batch(
    most_drafts: int, with_head: bool, monkeypatch: Any
) -> None:
    # None of these logprobs are vLLM's own.
    monkeypatch.setattr(pooled_module, "compute_topk_scores", None)
    rng, runner, everybody = random.Random(7 + most_drafts), Runner(most_drafts, with_head), []
    for i in range(24):
        given, ours = KINDS[i % len(KINDS)]
        prompt = [rng.randrange(VOCAB) for _ in range(1 + i % 5)]
        listed = gumball.LogprobsParams(top_n=2) if i % 2 else None
        alone = gumball.Sampler(gumball.SamplingParams(seed=i, logprobs=listed, **ours), VOCAB, prompt=prompt)
        lines: list[Any] = []
        while len(alone.output) < LENGTH:
            alone.sample(row(alone.history).numpy())
            if listed is not None:
                found = [alone.logprobs.token, *alone.logprobs.top]
                lines.append(([one.id for one in found], [one.logprob for one in found]))
        params = SamplingParams(seed=i, logprobs=2 if i % 2 else None, **given)
        everybody.append(
            SimpleNamespace(name=f"r{i}", params=params, prompt=prompt, output=[], wanted=alone.output, lines=lines)
        )
    waiting, running, accepted = list(everybody), [], 0
    while waiting or running:
        if waiting and runner.free and rng.random() < 0.6:
            running.append(waiting.pop(0))
            runner.add(running[-1])
        if running and rng.random() < 0.2:
            # Preempted; a token in flight may be dropped.
            one = running.pop(rng.randrange(len(running)))
            runner.remove(one)
            if len(one.prompt) + len(one.output) > runner.prefill[one.index] and rng.random() < 0.5:
                del one.output[-1]
            waiting.append(one)
        batch = [one for one in running if rng.random() < 0.8]
        rng.shuffle(batch)
        if not batch:
            continue
        left = [len(one.prompt) + len(one.output) - runner.computed[one.index] for one in batch]
        scheduled = [rng.randrange(1, n + 1) for n in left]
        drawing = [count == n for count, n in zip(scheduled, left, strict=True)]
        drafts = None
        if most_drafts and rng.random() < 0.7:
            drafts = [
                [id if rng.random() < 0.8 else 0 for id in one.wanted[len(one.output) :][:STEPS]]
                if now and one.output
                else []
                for one, now in zip(batch, drawing, strict=True)
            ]
        if drafts is not None and not any(drafts):
            drafts = None
        out = runner.step(batch, scheduled, drafts)
        found = out.logprobs_tensors.to_cpu_nonblocking().tolists()
        bounds = found.cu_num_generated_tokens or list(range(len(batch)))
        for i, (one, now) in enumerate(zip(batch, drawing, strict=True)):
            count = int(out.num_sampled[i])
            emitted = out.sampled_token_ids[i].tolist()[:count]
            assert (count > 0) == now and min(emitted, default=0) >= 0
            assert int(out.num_rejected[i]) == (len(drafts[i]) + 1 - count if drafts and now else 0)
            for j, token in enumerate(emitted):
                line = bounds[i] + j
                assert found.logprob_token_ids[line, 0] == token
                if one.params.logprobs:
                    scores = row([*one.prompt, *one.output, *emitted[:j]]).log_softmax(0)
                    assert found.logprob_token_ids[line, 1] == scores.argmax()
                    if len(one.output) + j < LENGTH:
                        # No matter which other requests are in the batch.
                        ids, logprobs = (part[line].tolist() for part in found[:2])
                        assert (ids, logprobs) == one.lines[len(one.output) + j]
            accepted += max(0, count - 1)
            one.output += emitted
            runner.computed[one.index] += max(0, count - 1)
        for one in [one for one in running if len(one.output) >= LENGTH]:
            running.remove(one)
            runner.remove(one)
    for one in everybody:
        assert one.output[:LENGTH] == one.wanted, one.params
    assert (accepted > 0) == (most_drafts > 0)
    assert len(runner.sequences.pool) == 0


@emulated
@pytest.mark.parametrize(("drafts", "most"), [(0, 3), (STEPS, 14)])
def test_a_step_of_the_same_requests_is_a_handful_of_operations(drafts: int, most: int) -> None:
    runner, counts = Runner(STEPS, with_head=False), []
    everybody = [
        SimpleNamespace(name=f"r{i}", params=SamplingParams(seed=i, logprobs=2), prompt=[1 + i], output=[])
        for i in range(4)
    ]
    for one in everybody:
        runner.add(one)
    for _ in range(3):
        out = runner.step(everybody, [1] * 4, [[0] * drafts] * 4 if drafts else None)
        counts.append(runner.operations)
        for one, line in zip(everybody, out.sampled_token_ids.tolist(), strict=True):
            one.output.append(line[0])
    assert counts[0] > counts[1] == counts[2] <= most


@emulated
def test_nothing_lies_in_the_memory_in_which_a_model_is_loaded() -> None:
    # vLLM makes samplers while it loads the model, in memory that sleep of level 2 throws away.
    with Counted() as counted:
        runner = Runner(STEPS, with_head=False)
    assert counted.count == 0
    runner.sequences.tensors.zero  # noqa: B018
    with Counted() as counted:
        Requests(rows=MOST, most_drafts=STEPS)
    assert counted.count == 0


@emulated
@pytest.mark.parametrize("most_drafts", [0, STEPS])
def test_kernels_are_made_before_the_first_request(most_drafts: int) -> None:
    runner, requests = (
        Runner(most_drafts, with_head=False),
        Requests(rows=MOST, most_drafts=most_drafts, device="emulated"),
    )
    for sequences in (runner.sequences, requests):
        sequences.warm_up(ROWS[:1])
        assert len(sequences.pool) == 0
    one = SimpleNamespace(name="r", params=SamplingParams(seed=1), prompt=[1], output=[])
    runner.add(one)
    (token,) = runner.step([one], [1], None).sampled_token_ids.flatten().tolist()
    assert token == gumball.Sampler(gumball.SamplingParams(seed=1), VOCAB, prompt=[1]).sample(row([1]).numpy())


def test_drafts_of_the_targets_rows_are_its_tokens() -> None:
    seeds, temperature = torch.tensor([5, -7, 9]), torch.tensor([1.0, 0.7, 0.0])
    indices, before = torch.tensor([1, 0, 2, -1]), torch.tensor([4, 0, 7, 3])
    drafts = drafted(ROWS[:4], indices, temperature, seeds, before)
    assert drafts.dtype == torch.int64
    for at, index in enumerate(indices.tolist()):
        params = gumball.SamplingParams(seed=int(seeds[index]) % 2**64, temperature=float(temperature[index]))
        alone = gumball.Sampler(params, VOCAB, prompt=[0] * (int(before[at]) + 1))
        assert alone.sample(ROWS[at].numpy()) == drafts[at]


@emulated
def test_vllms_states_get_the_pools_seed_and_no_list_that_is_too_long_for_them() -> None:
    told: list[Any] = []
    runner = Runner(0, with_head=False)
    one = SimpleNamespace(
        name="r", params=SamplingParams(allowed_token_ids=[1, 2], logit_bias={3: 1.0}), prompt=[1], output=[]
    )
    runner.add(one)
    seeds = np.zeros(MOST, np.int64)
    runner.sampler.sampling_states = SimpleNamespace(
        seeds=SimpleNamespace(np=seeds), add_request=lambda *given: bool(told.append(given))
    )
    runner.sampler.logits_processors = []
    runner.sampler.needs_logits_processing = np.zeros(MOST, bool)
    runner.sampler.thinking_budget_state = runner.sampler.logprob_token_ids_state = runner.sampler.sampling_states
    runner.sampler.trace_replay_state = None
    runner.sampler.add_request(one.index, one.params)
    assert int(seeds[one.index]) % 2**64 == runner.sequences.seeds[one.index] != 0
    assert len(told) == 3 and all(theirs.allowed_token_ids is theirs.logit_bias is None for _, theirs in told)
    assert one.params.allowed_token_ids == [1, 2]
