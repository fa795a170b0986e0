"""Steps by TokenSpeed's own executor: its rule which rows are sampled and which verified, over the backend that its registry makes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gumball_tokenspeed.params import params_of
from test_backend import on, on_host_or_emulated
from test_requests import VOCAB, Step, entered, state_of

from gumball import Sampler

REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 1},
    {"min_p": 0.05, "frequency_penalty": 0.7, "seed": 2, "logprobs": 0},
    {"min_new_tokens": 4, "logit_bias": {"2": 50.0}, "seed": 3},
    {"temperature": 0.0},
    {"seed": 5, "custom_params": {"dry_multiplier": 2.0, "xtc_probability": 0.5}},
    {
        "seed": 6,
        "custom_params": {"section_open": [7], "section_close": [9], "section_end": [8, 9], "section_budget": 1},
    },
]
COUNT = len(REQUESTS)


def rows_of(step: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(step)) * 3


class Engine:
    """What TokenSpeed's loop and executor call of themselves, with their own methods."""

    def __init__(self, server_args: Any, width: int, requests: list[dict[str, Any]] = REQUESTS) -> None:
        from tokenspeed.runtime.sampling.registry import create_sampling_backend

        self.width = width
        self.sampling_backend = create_sampling_backend(
            server_args,
            max_bs=COUNT,
            max_draft_tokens_per_req=width,
            device="cpu",
            max_req_pool_size=2 * COUNT,
            vocab_size=VOCAB,
            tp_group=(0,),
        )
        self.tree_spec = None
        self.cached = torch.zeros(2 * COUNT + 1, dtype=torch.int32)
        states = {f"r{i}": state_of(entered(server_args, one)) for i, one in enumerate(requests)}
        self.output_processor = SimpleNamespace(rid_to_state=states)

    def _apply_force_single_token_verify(self, lengths: torch.Tensor, *_: Any) -> torch.Tensor:
        return lengths

    def step(
        self,
        extending: list[int],
        decoding: list[int],
        logits: torch.Tensor,
        drafts: Any = None,
        parts: Any = None,
        at: int = 1,
    ) -> Any:
        """Returns the tokens and lengths of the requests, and their logprobs.

        parts: those of the prompts, by default whole ones. at: the pool index of the first request.
        """
        from tokenspeed.runtime.engine.event_loop import EventLoop
        from tokenspeed.runtime.execution.model_executor import ModelExecutor
        from tokenspeed.runtime.execution.output_layout import ForwardOutputLayout
        from tokenspeed.runtime.layers.logits_processor import LogitsProcessorOutput
        from tokenspeed.runtime.sampling.sampling_batch_info import SamplingBatchInfo

        ids = [f"r{i}" for i in extending + decoding]
        places = [i + at for i in extending + decoding]
        operation: Any = Step(ids, *(parts or [(0, 3, 3)] * len(extending)))
        self.sampling_backend.prepare_step(
            request_ids=ids,
            request_pool_indices=places,
            sampling_params_list=EventLoop._gather_sampling_params(self, operation),
            num_tokens_per_req=self.width,
        )
        layout = ForwardOutputLayout(len(extending), len(extending), len(decoding), self.width)
        context = SimpleNamespace(num_extends=len(extending), bs=len(ids), output_layout=layout, decode_input_ids=None)
        output = LogitsProcessorOutput(next_token_logits=logits)
        info = SamplingBatchInfo(
            vocab_size=VOCAB,
            req_pool_indices=torch.tensor(places),
            valid_cache_lengths=self.cached,
            device="cpu",
        )
        tokens, lengths = ModelExecutor._run_sampling(self, output, info, context, drafts)
        assert tokens.dtype == lengths.dtype == torch.int32
        self.cached[places] += lengths
        return tokens, lengths, output.next_token_logprobs

    def samplers(self) -> list[Sampler]:
        params = [params_of(state.sampling_params) for state in self.output_processor.rid_to_state.values()]
        made = [Sampler(one, VOCAB, prompt=[5, 6, 7] if one.xtc_probability or one.section else []) for one in params]
        # The least number of tokens is one before the model's end, of which only the engine knows.
        made[2] = Sampler(params[2].replace(min_tokens=4, stop_ids=[2]), VOCAB)
        return made


def test_tokens_are_those_of_samplers_whether_rows_are_sampled_or_verified(served: Any) -> None:
    engine = Engine(served(), 1)
    alone, everyone = engine.samplers(), list(range(COUNT))
    for step, (extending, decoding) in enumerate([(everyone, []), ([], everyone), ([0, 1], [2, 4, 3]), ([], [4, 1])]):
        rows = extending + decoding
        logits = rows_of(step, len(rows))
        candidates = torch.zeros(len(decoding), 1, dtype=torch.int64) if decoding else None
        tokens, lengths, logprobs = engine.step(extending, decoding, logits.clone(), candidates)
        wanted = [alone[i].sample(row) for i, row in zip(rows, logits, strict=True)]
        assert tokens.tolist() == wanted and lengths.tolist() == [1] * len(rows)
        scores = torch.log_softmax(logits, -1)[range(len(rows)), wanted]
        torch.testing.assert_close(logprobs, scores, rtol=0, atol=1e-5)


def test_a_least_number_of_tokens_holds_back_the_models_end(served: Any) -> None:
    engine = Engine(served(), 1)
    drawn = [int(engine.step([], [2], rows_of(step, 1), torch.zeros(1, 1, dtype=torch.int64))[0]) for step in range(6)]
    assert [token == 2 for token in drawn] == [False] * 4 + [True] * 2


def test_a_prompt_in_parts_draws_as_a_whole_one_does(served: Any) -> None:
    engine = Engine(served(), 1)
    alone = engine.samplers()
    for parts in [(0, 1, 3), (1, 1, 3)]:
        engine.step([1], [], rows_of(0, 1), parts=[parts])
    for step, (extending, decoding) in enumerate([([1], []), ([], [1]), ([], [1])]):
        row = rows_of(step, 1)
        candidates = torch.zeros(1, 1, dtype=torch.int64) if decoding else None
        tokens, _, _ = engine.step(extending, decoding, row.clone(), candidates, parts=[(2, 1, 3)] * len(extending))
        assert tokens.tolist() == [alone[1].sample(row[0])]


@pytest.mark.parametrize("i", [1, 4, 5])
def test_a_request_that_was_retracted_goes_on_behind_its_tokens(served: Any, i: int) -> None:
    """Another one has its pool index meanwhile, and its prompt comes back with its tokens after it, in two parts."""
    engine = Engine(served(), 1)
    alone, state = engine.samplers()[i], engine.output_processor.rid_to_state[f"r{i}"]

    def drawn(step: int, extending: list[int], decoding: list[int], **named: Any) -> None:
        row = rows_of(step, 1)
        candidates = torch.zeros(1, 1, dtype=torch.int64) if decoding else None
        [token] = engine.step(extending, decoding, row.clone(), candidates, **named)[0].tolist()
        assert token == alone.sample(row[0])
        state.output_ids.append(token)

    drawn(0, [i], [])
    drawn(1, [], [i])
    engine.step([0], [], rows_of(7, 1), at=i + 1)
    engine.step([i], [], rows_of(8, 1), parts=[(0, 2, 5)], at=6)
    drawn(2, [i], [], parts=[(2, 3, 5)], at=6)
    drawn(3, [], [i], at=6)


def text_model(history: list[int]) -> torch.Tensor:
    return rows_of(sum((i + 1) * token for i, token in enumerate(history)) + len(history), 1)[0]


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_drafts_change_no_token(served: Any, right: float, device: str) -> None:
    """Decoding with drafts, a share of which is right, yields what decoding without them does."""
    on_host_or_emulated(device)
    width, rng, wanted, steps = 4, random.Random(1), [], 0
    engine = Engine(served(), width)
    on(device, engine.sampling_backend)
    for alone in engine.samplers():
        while len(alone.output) < 20:
            alone.sample(text_model(alone.output).numpy())
        wanted.append(alone.output)
    got: list[list[int]] = [[] for _ in wanted]
    while min(map(len, got)) < 20:
        steps += 1
        drafts = []
        for ids, text in zip(got, wanted, strict=True):
            line = [id if rng.random() < right else (id + 1) % VOCAB for id in text[len(ids) :][: width - 1]]
            drafts.append(line + [0] * (width - 1 - len(line)))
        logits = torch.stack([text_model(got[i] + line[:j]) for i, line in enumerate(drafts) for j in range(width)])
        candidates = torch.tensor([[0, *line] for line in drafts])
        tokens, lengths, _ = engine.step([], list(range(COUNT)), logits, candidates)
        for ids, line, length in zip(got, tokens.view(COUNT, width).tolist(), lengths.tolist(), strict=True):
            ids += line[:length]
    assert [ids[:20] for ids in got] == wanted
    # The third request ends with each token behind its fourth, and an end is the last token of a verification.
    assert steps == {0.0: 20, 1.0: 17}.get(right, steps) and 17 <= steps <= 20
