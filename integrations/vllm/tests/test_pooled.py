"""Model runner V2's sampler over a pool: vLLM's own class on the emulated device. Batches that change are in `test_changes.py`.

The runner itself needs a GPU; its batches and request states stand here as far as the sampler reads them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gumball_vllm.drafting import Filters, copying, drafted
from gumball_vllm.pooled import Sequences, pooled
from gumball_vllm.requests import Requests
from test_requests import REASONING
from torch.utils._python_dispatch import TorchDispatchMode
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.sampler import Sampler

import gumball

VOCAB, MOST, STEPS = 40, 6, 3
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

    def __init__(self, most_drafts: int, with_head: bool, kept: bool = False) -> None:
        self.states = SimpleNamespace(max_num_reqs=MOST, req_id_to_index={})
        self.free = list(range(MOST))
        self.sequences = Sequences(
            *(self.states, VOCAB, "emulated"),
            most_drafts=most_drafts,
            seed=0,
            logprobs_mode="raw_logprobs",
            top_n=5,
            kept=kept,
            reasoning=REASONING,
        )
        self.given = HIDDEN if with_head else ROWS
        if with_head:
            head = gumball.Head.auto(WEIGHTS)
            self.sequences.head = head.to("emulated", rows=MOST * (1 + most_drafts))
        sampler = Sampler.__new__(Sampler)
        sampler.__dict__ |= {
            "req_states": self.states,
            "compute_nans": False,
            "logprobs_mode": "raw_logprobs",
            "logits_processors": [None, None, None],
            "logprob_token_ids_state": None,
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
        Requests(rows=MOST, most_drafts=most_drafts, kept=True, device="emulated"),
    )
    for sequences in (runner.sequences, requests):
        sequences.warm_up(ROWS[:1])
        assert len(sequences.pool) == 0
    one = SimpleNamespace(name="r", params=SamplingParams(seed=1), prompt=[1], output=[])
    runner.add(one)
    (token,) = runner.step([one], [1], None).sampled_token_ids.flatten().tolist()
    assert token == gumball.Sampler(gumball.SamplingParams(seed=1), VOCAB, prompt=[1]).sample(row([1]).numpy())


@pytest.mark.parametrize("filtered", [False, True])
def test_drafts_of_the_targets_rows_are_its_tokens(filtered: bool) -> None:
    seeds, temperature = torch.tensor([5, -7, 9]), torch.tensor([1.0, 0.7, 0.0])
    indices, before = torch.tensor([1, 0, 2, -1]), torch.tensor([4, 0, 7, 3])
    # As vLLM has them: off is a top-k of the whole vocabulary, a top-p of 1 and a min-p of 0.
    columns = {"top_k": torch.tensor([5, VOCAB, VOCAB], dtype=torch.int32), "top_p": torch.tensor([1.0, 0.3, 1.0])}
    columns["min_p"] = torch.tensor([0.0, 0.0, 0.5])
    states = SimpleNamespace(vocab_size=VOCAB, **{name: SimpleNamespace(gpu=one) for name, one in columns.items()})
    filters = Filters(states) if filtered else None
    if filters is not None:
        # Requests that came since.
        states.top_k.gpu = torch.tensor([2, 9, VOCAB], dtype=torch.int32)
        copying(lambda self: None)(SimpleNamespace(gumball_filters=filters))
        columns["top_k"] = torch.tensor([2, 9, 0])
    drafts = drafted(ROWS[:4], indices, temperature, seeds, before, filters)
    assert drafts.dtype == torch.int64
    for at, index in enumerate(indices.tolist()):
        cuts = {name: one[index].item() for name, one in columns.items()} if filtered else {}
        params = gumball.SamplingParams(seed=int(seeds[index]) % 2**64, temperature=float(temperature[index]), **cuts)
        alone = gumball.Sampler(params, VOCAB, prompt=[0] * (int(before[at]) + 1))
        assert alone.sample(ROWS[at].numpy()) == drafts[at]


@emulated
def test_vllms_states_get_the_pools_seed_and_nothing_that_the_pool_does() -> None:
    told: list[Any] = []
    runner = Runner(0, with_head=False)
    one = SimpleNamespace(
        name="r",
        params=SamplingParams(allowed_token_ids=[1, 2], logit_bias={3: 1.0}, thinking_token_budget=2),
        prompt=[1],
        output=[],
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
    for _, given in told:
        assert given.allowed_token_ids is given.logit_bias is given.thinking_token_budget is None
    assert len(told) == 3 and one.params.allowed_token_ids == [1, 2] and one.params.thinking_token_budget == 2
