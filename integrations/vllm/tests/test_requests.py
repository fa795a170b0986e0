"""Requests of model runner V1 that come, go, move and are preempted, and what of their parameters is refused.

The batch below changes as vLLM's `InputBatch` does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gumball_vllm.draws import draw, verify
from gumball_vllm.params import params_of
from gumball_vllm.requests import Requests

from gumball import LogprobsParams, Mirostat, Sampler, SamplingParams, Section
from gumball.errors import RefusedError

VOCAB, LENGTH = 40, 12
ROWS = torch.randn(23, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
# Hidden states and weights whose products are these rows.
HIDDEN, WEIGHTS = torch.eye(23), ROWS.T.contiguous()


def theirs(**chosen: Any) -> Any:
    """A request of vLLM's, with its defaults."""
    fields = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
    }
    fields |= {"presence_penalty": 0.0, "allowed_token_ids": None, "bad_words_token_ids": None, "min_tokens": 0}
    fields |= {"all_stop_token_ids": set(), "seed": None, "logprobs": None, "logprob_token_ids": None}
    fields |= {"logit_bias": None, "extra_args": None, "thinking_token_budget": None}
    return SimpleNamespace(**(fields | chosen))


# An engine's reasoning, which begins with id 5 and ends with 6, and with 7 before it where it is forced to.
REASONING = SimpleNamespace(
    enabled=True,
    reasoning_start_token_ids=[5],
    natural_reasoning_end_token_ids=[6],
    reasoning_end_token_ids=[7, 6],
)


def on(device: str, **given: Any) -> Requests:
    """Requests with their pool on a device; the emulated one reads the host's memory."""
    return Requests(device=None if device == "cpu" else device, **given)


def there(logits: Any, device: str) -> Any:
    return logits.to(device) if device.startswith("cuda") else logits


def row(history: list[int], of: Any = ROWS) -> Any:
    return of[(history[-1] * 5 + len(history)) % len(of)]


def test_a_list_that_the_engine_shortens_under_asynchronous_scheduling_takes_no_token_back(device: str) -> None:
    """vLLM fills the list with -1, and a request with penalties that joins makes it one token long again; its counts stay right."""
    requests = on(device, rows=2)
    lengths = [0, 0]
    requests.lengths = lambda rows: np.array(lengths[:rows])
    prompts, drawn = [[1], [2, 3]], [[], []]
    given = [theirs(seed=5, temperature=0.8), theirs(seed=6, repetition_penalty=1.2)]
    alone = [
        Sampler(SamplingParams(seed=5, temperature=0.8), VOCAB, prompt=prompts[0]),
        Sampler(SamplingParams(seed=6, repetition_penalty=1.2), VOCAB, prompt=prompts[1]),
    ]
    lists: list[list[int]] = [[], []]
    requests.update([], [(0, "a", given[0], prompts[0], lists[0])], [], 1)
    for step in range(20):
        if step == 10:
            requests.update([], [(1, "b", given[1], prompts[1], lists[1])], [], 2)
        if step >= 10:
            lists[0][:] = drawn[0][-1:]
        there_now = len(requests.rows)
        z = torch.stack([row([*prompts[i], *drawn[i]]) for i in range(there_now)])
        for i in range(there_now):
            alone[i].sample(z[i].numpy())
        for i, token in enumerate(draw(requests, there(z, device)).tokens.tolist()):
            drawn[i].append(token)
            lists[i].append(-1)
            lengths[i] += 1
    assert drawn == [one.output for one in alone]
    # A request that was taken out of the batch for a step comes back with tokens in flight that only the pool knows.
    requests.update([0], [], [(1, 0, False)], 1)
    lengths[:] = lengths[::-1]
    alone[1].sample(row([*prompts[1], *drawn[1]]).numpy())
    assert (
        draw(requests, there(row([*prompts[1], *drawn[1]]).unsqueeze(0), device)).tokens.tolist()
        == alone[1].output[-1:]
    )
    requests.update([], [(1, "a", given[0], prompts[0], [7, *drawn[0][:-1]])], [], 2)
    lengths[0] += 1
    z = torch.stack([row([*prompts[1], *alone[1].output]), row([*prompts[0], *drawn[0]])])
    wanted = [alone[1].sample(z[0].numpy()), alone[0].sample(z[1].numpy())]
    assert draw(requests, there(z, device)).tokens.tolist() == wanted


def test_requests_beyond_the_pools_slots_come_back_by_their_tokens(device: str) -> None:
    requests, outputs = on(device, rows=2), {}
    params = theirs(seed=3, frequency_penalty=0.7)
    alone = Sampler(SamplingParams(seed=3, frequency_penalty=0.7), VOCAB, prompt=[1])
    for _ in range(6):
        alone.sample(row(alone.history).numpy())
    # Seven requests take turns in a batch of one row and a pool of four slots.
    for turn in range(42):
        name = turn % 7
        output = outputs.setdefault(name, [])
        requests.update([0] if turn else [], [(0, name, params, [1], output)], [], 1)
        output += draw(requests, there(row([1, *output]).unsqueeze(0), device)).tokens.tolist()
    assert requests.pool is not None and len(requests.pool) == 4
    assert list(outputs.values()) == [alone.output] * 7


def seeds(requests: Requests) -> list[int]:
    return [one.seed for one in requests.rows if one is not None]


def test_requests_without_seeds_differ_and_keep_theirs_when_they_come_back() -> None:
    requests = Requests(rows=4, seed=3)
    params, prompt = theirs(), [1]
    # Samples of one request, with the same parameters, and so far with the same tokens.
    outputs: list[list[int]] = [[], [], []]
    requests.update([], [(i, f"{i}_x", params, prompt, outputs[i]) for i in range(3)], [], 3)
    first = seeds(requests)
    assert len(set(first)) == 3 and first[0] == 20217277168403916
    # They left while their prompt was read, and one is gone for good.
    draw(requests, row([1]).repeat(3, 1))
    requests.update([0, 1, 2], [], [], 0)
    requests.update([], [(i, f"{2 - i}_x", params, prompt, outputs[2 - i]) for i in range(2)], [], 2)
    assert seeds(requests) == [first[2], first[1]]
    forced = torch.full((2, VOCAB), -torch.inf)
    forced[:, 7] = 0
    for _ in range(4):
        assert draw(requests, forced).tokens.tolist() == [7, 7]
        for output in outputs[1:]:
            # With asynchronous scheduling vLLM lists -1 for a token that it has not read yet.
            output.append(-1)
    requests.update([0, 1], [], [], 0)
    requests.update([], [(0, "1_x", params, prompt, [7, 7]), (1, "2_x", params, prompt, [7, 7, 7, 7])], [], 2)
    assert seeds(requests) == [first[1], first[2]]
    for engine_seed, equal in ((3, True), (4, False)):
        other = Requests(rows=4, seed=engine_seed)
        other.update([], [(0, "0_x", params, [1], [])], [], 1)
        assert (seeds(other) == first[:1]) == equal


@pytest.mark.parametrize("dropped", [0, 1, 8, 12])
@pytest.mark.parametrize(
    ("extra_args", "ours"),
    [({"mirostat_tau": 2.0}, {"mirostat": Mirostat(2.0, 0.1)}), ({"adaptive_target": 0.1}, {"adaptive_target": 0.1})],
)
def test_what_draws_steer_goes_on_where_the_engine_took_tokens_away(
    extra_args: dict[str, Any], ours: dict[str, Any], dropped: int, device: str
) -> None:
    # A device has the last two of mirostat's limits, or of adaptive-p's means.
    dropped = dropped if device == "cpu" else min(dropped, 1)
    given = theirs(seed=4, extra_args=extra_args)
    requests = on(device, rows=2)
    alone = Sampler(SamplingParams(seed=4, **ours), VOCAB, prompt=[1])
    for _ in range(20):
        alone.sample(row(alone.history).numpy())
    output: list[int] = []

    def go_on() -> None:
        while len(output) < 12:
            output.extend(draw(requests, there(row([1, *output]).unsqueeze(0), device)).tokens.tolist())

    requests.update([], [(0, "a", given, [1], output)], [], 1)
    go_on()
    requests.update([0], [], [], 0)
    output = output[: 12 - dropped]
    requests.update([], [(0, "a", given, [1], output)], [], 1)
    go_on()
    assert output == alone.output[:12]


def test_logprobs_are_laid_out_as_vllms(device: str) -> None:
    requests = on(device, rows=4, top_n=5)
    z = torch.stack([row([i]) for i in range(3)])
    z[1, 3:] = -torch.inf
    added = [theirs(seed=1, logprobs=2), theirs(seed=2, logprobs=5), theirs(seed=3, logprob_token_ids=[7, 8, 9])]
    requests.update([], [(i, i, one, [1], []) for i, one in enumerate(added)], [], 3)
    drawn = draw(requests, there(z, device), width=5)
    assert drawn.logprobs is not None
    ids, logprobs, ranks = map(torch.from_numpy, drawn.logprobs.laid_out())
    assert ids.shape == logprobs.shape == (3, 6) and ids.dtype == torch.int32 and ranks.dtype == torch.int64
    scores = z.log_softmax(1)
    assert ids[:, 0].tolist() == drawn.tokens.tolist()
    assert torch.allclose(logprobs[:, 0], scores.gather(1, drawn.tokens.cpu().long().unsqueeze(1))[:, 0], atol=1e-5)
    assert ids[0, 1:3].tolist() == scores[0].topk(2).indices.tolist()
    # Where fewer tokens are possible than are listed, others fill the list, none twice, with -inf.
    assert len(set(ids[1, 1:].tolist())) == 5 and logprobs[1, 4:].isneginf().all()
    assert ids[2, 1:4].tolist() == [7, 8, 9] and torch.allclose(logprobs[2, 1:4], scores[2, 7:10], atol=1e-5)
    assert (ranks >= 1).all()


def test_a_row_without_a_token_gives_token_0_and_goes_on(device: str) -> None:
    requests = on(device, rows=2, most_drafts=2)
    output: list[int] = []
    requests.update([], [(0, "a", theirs(seed=1), [1], output)], [], 1)
    nothing = there(torch.full((1, VOCAB), -torch.inf), device)
    assert draw(requests, nothing).tokens.tolist() == [0]
    output.append(0)
    drafts = there(torch.tensor([4, 5]), device)
    assert verify(requests, nothing.expand(3, VOCAB).contiguous(), [2], drafts).tokens.tolist() == [[0, -1, -1]]
    output.append(0)
    pool = requests.pool
    assert pool is not None
    slot = int(requests.slots(nothing)[0])
    # A device is not waited for, so there the sequence is not told.
    assert pool.output(slot) == ([0, 0] if device == "cpu" else [])


@pytest.mark.parametrize("width", [None, 2])
def test_the_tokens_behind_a_row_without_a_token_are_those_of_a_sequence_with_token_0(
    width: int | None, device: str
) -> None:
    chosen = {"logprobs": width, "temperature": 2.0, "seed": 9}
    given = [theirs(**chosen, allowed_token_ids=[5, 6, 7]), theirs(**chosen), theirs(**chosen)]
    allowed = SamplingParams(seed=9, temperature=2.0, allowed_ids=[5, 6, 7])
    alone = [Sampler(one, VOCAB, prompt=[1]) for one in (allowed, *[SamplingParams(seed=9, temperature=2.0)] * 2)]
    requests, outputs = on(device, rows=3, top_n=2), [[], [], []]
    requests.update([], [(i, i, one, [1], outputs[i]) for i, one in enumerate(given)], [], 3)
    for step in range(10):
        z = torch.stack([row([1, *output]) for output in outputs])
        if step in (2, 3):
            # What a grammar excludes is all that is allowed; a row of NaN; the last row is as ever.
            z[0, 5:8], z[1] = -torch.inf, torch.nan
        for i, one in enumerate(alone):
            if step in (2, 3) and i < 2:
                if device == "cpu":
                    one.push(0)
            else:
                one.sample(z[i].numpy())
        for output, token in zip(outputs, draw(requests, there(z, device), width=width).tokens.tolist(), strict=True):
            output.append(token)
    wanted = [one.output for one in alone]
    if device != "cpu":
        wanted[:2] = [[*line[:2], 0, 0, *line[2:]] for line in wanted[:2]]
    assert outputs == wanted
    assert outputs[0][2:4] == outputs[1][2:4] == [0, 0] and len(set(outputs[2])) > 3
    # All of them may leave, with tokens that the engine drops.
    for output in outputs:
        del output[-1]
    requests.update([0, 1, 2], [], [], 0)
    assert requests.rows == []


def test_a_bias_is_added_before_the_penalties() -> None:
    requests = Requests(rows=1)
    both = theirs(temperature=0.0, logit_bias={3: 1.0}, repetition_penalty=2.0)
    requests.update([], [(0, "a", both, [3], [])], [], 1)
    z = torch.zeros(1, VOCAB)
    # (2 + 1) / 2 lies above 1.25, 2 / 2 + 1 would lie above 1.75 too.
    z[0, 3], z[0, 5] = 2.0, 1.75
    assert draw(requests, z).tokens.tolist() == [5]


def test_a_name_that_comes_again_with_another_prompt_is_another_request() -> None:
    requests, params, lines = Requests(rows=1), theirs(seed=3), []
    for name, prompt in (("a", [1, 2]), ("a", [1, 9]), ("b", [1, 9])):
        output: list[int] = []
        requests.update([0] if lines else [], [(0, name, params, prompt, output)], [], 1)
        for _ in range(LENGTH):
            output += draw(requests, row([*prompt, *output]).unsqueeze(0)).tokens.tolist()
        assert requests.pool is not None
        lines.append([*requests.pool.state(int(requests.slots(ROWS)[0])).prompt, *output])
    assert lines[1] == lines[2] != lines[0]


def test_parameters_are_translated() -> None:
    assert params_of(theirs()) == SamplingParams()
    # What vLLM has set off for a greedy request.
    assert params_of(theirs(temperature=1e-6)) == SamplingParams(temperature=0)
    given = theirs(seed=-1, min_tokens=3, all_stop_token_ids={5, 2}, top_k=-1, logprobs=4, bad_words_token_ids=[[1, 2]])
    wanted = SamplingParams(
        seed=2**64 - 1, min_tokens=3, stop_ids=[2, 5], bad_words=[[1, 2]], logprobs=LogprobsParams(top_n=4)
    )
    assert params_of(given) == wanted
    assert params_of(theirs(min_p=0.1, top_p=0.5)).order[1:6] == ("top_h", "min_p", "top_k", "typical_p", "top_p")
    extra = {
        "order": "top_k, top_p",
        "temperature_last": 1,
        "dynamic_temperature_min": 0.5,
        "dynamic_temperature_max": 1,
    }
    made = params_of(theirs(extra_args=extra))
    assert made.order == ["top_k", "top_p"] and made.temperature_last and made.dynamic_temperature is not None
    ngrams = params_of(theirs(extra_args={"ngram_size": 30, "whitelist_token_ids": {9, 5}}))
    assert ngrams == SamplingParams(
        no_repeat_ngram=30,
        no_repeat_ngram_scope="output",
        no_repeat_ngram_window=100,
        no_repeat_ngram_exempt_ids=[5, 9],
    )
    thinking = theirs(thinking_token_budget=2**32, extra_args={"section_min": 1})
    assert params_of(thinking, reasoning=REASONING).section == Section(open=[5], close=[6], end=[7, 6], min=1)
    assert params_of(theirs(logprobs=-1)).logprobs is None
    assert params_of(theirs(logprobs=3), logprobs_mode="raw_logits").logprobs is None


@pytest.mark.parametrize(("size", "window", "free"), [(2, 5, []), (2, 6, [3, 7, 11]), (3, 100, []), (3, 12, [3])])
def test_ngrams_by_deepseek_ocrs_names_are_those_of_vllms_processor(size: int, window: int, free: list[int]) -> None:
    from vllm.model_executor.models.deepseek_ocr import NoRepeatNGramLogitsProcessor

    extra = {"ngram_size": size, "window_size": window, "whitelist_token_ids": free}
    processor = NoRepeatNGramLogitsProcessor(size, window, set(free))
    sampler, banned = Sampler(params_of(theirs(temperature=0.0, extra_args=extra)), VOCAB, prompt=[3, 7, 3, 7, 3]), 0
    for step in range(60):
        # Four tokens, of which one is far above.
        z = torch.full((VOCAB,), -torch.inf)
        z[[3, 7, 11, 12]] = ROWS[step % len(ROWS), :4]
        edited = processor(sampler.output, z.clone())
        banned += bool((edited != z).any())
        assert sampler.sample(z.numpy()) == (int(edited.argmax()) if edited.max() > -torch.inf else None)
    assert banned > 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"extra_args": {"xtc_treshold": 0.1}}, "xtc_threshold"),
        ({"extra_args": {"typical_p": "much"}}, "must be a number"),
        ({"extra_args": {"dry_allowed_length": 1.5}}, "whole number"),
        ({"extra_args": {"dry_breakers": 7}}, "list of ids"),
        ({"extra_args": {"mirostat_eta": 0.1}}, "without mirostat_tau"),
        ({"extra_args": {"mirostat_tau": 3}, "top_p": 0.5}, "mirostat"),
        ({"extra_args": {"banned_ids": [VOCAB]}}, "banned_ids"),
        ({"extra_args": {"order": "top_q"}}, "top_q"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"thinking_token_budget": 5, "extra_args": {"section_budget": 5}}, "beside thinking_token_budget"),
        ({"thinking_token_budget": 1, "extra_args": {"section_min": 2}}, "section.min is 2"),
    ],
)
def test_what_cannot_be_had_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        params_of(theirs(**given), vocab=VOCAB, reasoning=REASONING)


@pytest.mark.parametrize("reasoning", [None, SimpleNamespace(enabled=False)])
def test_a_budget_without_ids_of_reasoning_is_refused(reasoning: Any) -> None:
    with pytest.raises(RefusedError, match="thinking_token_budget is 5, but the server has no ids of reasoning"):
        params_of(theirs(thinking_token_budget=5), reasoning=reasoning)


def test_long_lists_of_processed_logprobs_are_refused() -> None:
    with pytest.raises(RefusedError, match="at most 128"):
        params_of(theirs(logprobs=-1), logprobs_mode="processed_logprobs")
