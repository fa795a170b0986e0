"""On recorded logits: `generate` draws the tokens of a `gumball.Sampler`, alone, in batches, and with drafts of any kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer

import recorded_model
from calls import CASES, LENGTH, OURS, PROMPT, alone, generate, new
from recorded_model import EOS, PAD

PROMPTS = [[5, 6, 7 + i, 8, 28, 253][: 1 + i % 6] for i in range(7)]


def wanted(model: Any, name: str, prompt: list[int] = PROMPT, seed: int = 7, length: int = LENGTH) -> list[int]:
    theirs, ours = CASES[name]
    return alone(model.rows, prompt, length, stops=theirs.get("eos_token_id"), **({"seed": seed} | ours))


@pytest.mark.parametrize("name", CASES)
def test_a_call_draws_what_a_sampler_draws_alone_and_among_others(recorded: Any, name: str) -> None:
    theirs, _ = CASES[name]
    assert new(recorded, [PROMPT], seed=7, **theirs) == [wanted(recorded, name)]
    if "min_length" in theirs:
        # transformers counts the padding, too.
        return
    prompts = [*PROMPTS[:4], PROMPT, *PROMPTS[4:]]
    seeds = [3, 4, 5, 6, 7, 8, 9, 10]
    found = new(recorded, prompts, seed=seeds, **theirs)
    assert found == [wanted(recorded, name, prompt, seed) for prompt, seed in zip(prompts, seeds)]


@pytest.mark.parametrize("name", [name for name in CASES if name != "mirostat"])
def test_no_assistant_changes_a_text(recorded: Any, name: str) -> None:
    theirs, _ = CASES[name]
    noise = torch.randn(recorded.rows.shape, generator=torch.Generator().manual_seed(1))
    assistant = recorded_model.model(recorded.rows + noise / 4)
    recorded.passes = 0
    assert new(recorded, [PROMPT], seed=7, assistant_model=assistant, **theirs) == [wanted(recorded, name)]
    assert recorded.passes < len(wanted(recorded, name))


def test_drafts_of_the_texts_own_ngrams_do_not_change_it(recorded: Any) -> None:
    prompt = [*PROMPT, *PROMPT, *PROMPT]
    text = new(recorded, [prompt], seed=7, temperature=0.5, max_new_tokens=60)
    recorded.passes = 0
    assert new(recorded, [prompt], seed=7, temperature=0.5, max_new_tokens=60, prompt_lookup_num_tokens=5) == text
    assert recorded.passes < 60


def test_an_assistant_that_is_the_model_has_all_its_drafts_accepted(recorded: Any) -> None:
    twin = recorded_model.model(recorded.rows)
    twin.generation_config.assistant_confidence_threshold = 0.0
    twin.generation_config.num_assistant_tokens = 7
    recorded.passes = 0
    new(recorded, [PROMPT], seed=7, assistant_model=twin)
    assert recorded.passes == LENGTH // 8


def test_rows_of_one_seed_have_draw_indices(recorded: Any) -> None:
    found = new(recorded, [PROMPT, PROMPTS[5]], seed=7, num_return_sequences=2)
    prompts = [PROMPT, PROMPT, PROMPTS[5], PROMPTS[5]]
    assert found == [alone(recorded.rows, prompt, LENGTH, seed=7, draw=row) for row, prompt in enumerate(prompts)]
    # With a seed for each prompt they count among the texts of a prompt.
    found = new(recorded, [PROMPT, PROMPTS[5]], seed=[7, 8], num_return_sequences=2)
    words = [(7, 0), (7, 1), (8, 0), (8, 1)]
    assert found == [alone(recorded.rows, prompt, LENGTH, seed=s, draw=d) for (s, d), prompt in zip(words, prompts)]


def test_without_a_seed_torchs_generator_says_which(recorded: Any) -> None:
    torch.manual_seed(3)
    first, second = new(recorded, [PROMPT]), new(recorded, [PROMPT])
    assert first != second
    torch.manual_seed(3)
    assert new(recorded, [PROMPT]) == first


def test_a_row_that_has_ended_is_padded_and_draws_no_more(recorded: Any) -> None:
    named = {"sequence_bias": [[[EOS], 9.0]], "eos_token_id": EOS, "return_dict_in_generate": True, "logprobs": 2}
    seeds = list(range(7))
    out = generate(recorded, PROMPTS, seed=seeds, **named)
    rows = out.sequences[:, 6:].tolist()
    lengths = [row.index(EOS) + 1 if EOS in row else len(row) for row in rows]
    assert len(set(lengths)) > 3
    for row, length, seed, prompt in zip(rows, lengths, seeds, PROMPTS):
        assert row == alone(recorded.rows, prompt, LENGTH, stops=EOS, seed=seed, logit_bias={EOS: 9.0}) + [PAD] * (
            len(row) - length
        )
    for row, length in enumerate(lengths):
        assert torch.isnan(out.logprobs[row]).tolist() == [step >= length for step in range(len(rows[0]))]
        assert (out.top_ids[row, length:] == -1).all()


@pytest.mark.parametrize(
    "named",
    [{"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 2}, {"logits_to_keep": 0}],
    ids=["no cache", "a static cache", "a prompt in chunks", "logits of the whole prompt"],
)
def test_how_the_model_is_run_does_not_matter(recorded: Any, named: dict[str, Any]) -> None:
    assert new(recorded, [PROMPT], seed=7, top_p=0.9, **named) == [
        alone(recorded.rows, PROMPT, LENGTH, seed=7, top_p=0.9)
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_are_read_as_they_are(recorded: Any, dtype: torch.dtype) -> None:
    rows = recorded.rows.to(dtype)
    model = recorded_model.model(rows)
    assert new(model, [PROMPT], seed=7, top_p=0.9) == [alone(rows, PROMPT, LENGTH, seed=7, top_p=0.9)]
    # Processors that stay are handed float32, as transformers does it.
    biased = {"sequence_bias": [[[PROMPT[-1], 28], 2.0]]}
    assert new(model, [PROMPT], seed=7, **biased) == new(recorded_model.model(rows.float()), [PROMPT], seed=7, **biased)


class EndsBehind(StoppingCriteria):
    """Ends a row after a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("pads", [False, True], ids=["no pad", "a pad"])
@pytest.mark.parametrize("ends", [False, True], ids=["no end", "an end"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "drawn"])
def test_rows_that_a_criterion_ends_are_what_transformers_makes_of_them(
    recorded: Any, monkeypatch: Any, pads: bool, ends: bool, sampled: bool
) -> None:
    monkeypatch.setattr(recorded.generation_config, "pad_token_id", PAD if pads else None)
    monkeypatch.setattr(recorded.generation_config, "eos_token_id", None)
    # Of rows of the same length, so that none has padding before it; tokens that come early in some of their texts.
    ids = torch.tensor([[5, 6, 7 + i] for i in range(6)])
    named = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": LENGTH}
    plain = recorded.generate(**named)[:, 3:]
    bans = [Bans(sorted({*range(49152)} - {*plain.unique().tolist()}))]
    token, end = (plain[row, step].item() for row, step in ((0, 4), (1, 7)))
    named |= {"stopping_criteria": [EndsBehind(token)], "eos_token_id": end if ends else None}
    wanted = recorded.generate(**named)
    assert wanted.shape[1] > 3 + 5
    if not sampled:
        assert torch.equal(recorded.generate(**named, **OURS), wanted)
        return
    drawn = {"do_sample": True, "top_k": 0, "seed": 7, "logprobs": 0, "return_dict_in_generate": True}
    drawn["logits_processor"] = bans
    out = recorded.generate(**(named | drawn), **OURS)
    rows = out.sequences[:, 3:]
    for row, logprobs in zip(rows.tolist(), out.logprobs):
        ended = next((i + 1 for i, one in enumerate(row) if one == token or (ends and one == end)), len(row))
        padding = [PAD if pads else end] * (len(row) - ended)
        # Padded only where there is an end of texts.
        assert not ends or row[ended:] == padding
        assert torch.isnan(logprobs).tolist() == [ends and step >= ended for step in range(len(row))]


def test_padding_that_there_is_none_of_is_refused_before_the_model_is_run(recorded: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorded.generation_config, "pad_token_id", None)
    ends = EndsBehind(28)
    ends.eos_token_id = torch.tensor([28])
    recorded.passes = 0
    with pytest.raises(ValueError, match="there is no pad_token_id; pass one"):
        new(recorded, [PROMPT, PROMPT], stopping_criteria=[ends])
    assert recorded.passes == 0


class Heard(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("drafts", [False, True])
def test_criteria_and_streamers_see_each_token(recorded: Any, tokenizer: Any, drafts: bool) -> None:
    more = {"assistant_model": recorded_model.model(recorded.rows)} if drafts else {}
    (text,) = new(recorded, [PROMPT], seed=7)
    at = next(i for i, token in enumerate(text) if i > 4 and token not in text[:i])
    heard = Heard()
    (ended,) = new(recorded, [PROMPT], seed=7, stopping_criteria=[EndsBehind(text[at])], streamer=heard, **more)
    assert ended == text[: at + 1] and heard.tokens == PROMPT + ended and heard.ended
    # Strings, which need the tokenizer.
    string = tokenizer.decode(text[at])
    (ended,) = new(recorded, [PROMPT], seed=7, stop_strings=[string], tokenizer=tokenizer, **more)
    assert len(ended) <= at + 1 and ended == text[: len(ended)] and string in tokenizer.decode(ended)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    new(recorded, [PROMPT], seed=7, streamer=streamer, **more)
    assert "".join(streamer) == tokenizer.decode(text)


class Bans(LogitsProcessor):
    """A processor of the caller's: takes ids away."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor(self.ids), -float("inf"))


def test_processors_of_the_caller_act_where_transformers_lets_them(recorded: Any) -> None:
    (plain,) = new(recorded, [PROMPT], seed=7, repetition_penalty=1.3, top_p=0.9)
    params = {"seed": 7, "repetition_penalty": 1.3, "top_p": 0.9}
    named = {"seed": 7, "repetition_penalty": 1.3, "top_p": 0.9}
    assert new(recorded, [PROMPT], logits_processor=[Bans(plain)], **named) == [
        alone(recorded.rows, PROMPT, LENGTH, banned_ids=plain, **params)
    ]
    allowed = [28, 30, 253, 260, 281, 284]
    found = new(recorded, [PROMPT], prefix_allowed_tokens_fn=lambda row, ids: allowed, **named)
    assert found == [alone(recorded.rows, PROMPT, LENGTH, allowed_ids=allowed, **params)]


def test_min_length_counts_padding_as_in_transformers(recorded: Any) -> None:
    named = {"min_length": 12, "sequence_bias": [[[EOS], 40.0]], "eos_token_id": EOS, "seed": [7, 7]}
    short, long = PROMPT[:2], PROMPT * 2
    (text, _) = new(recorded, [short, long], **named)
    assert len(text) == 12 - len(long) + 1
    assert [len(text) for text in new(recorded, [short], **(named | {"seed": 7}))] == [12 - len(short) + 1]


def test_a_bias_before_the_repetition_penalty_stays_before_it(recorded: Any) -> None:
    bias = {100: 25.0, 338: 30.0}
    biased = recorded.rows.clone()
    for id, value in bias.items():
        biased[:, id] += value
    found = new(recorded, [PROMPT], seed=7, repetition_penalty=1.5, sequence_bias=[[[i], b] for i, b in bias.items()])
    assert found == [alone(biased, PROMPT, LENGTH, seed=7, repetition_penalty=1.5)]


def test_a_row_without_a_token_is_an_error(recorded: Any) -> None:
    with pytest.raises(RuntimeError, match="row 0 has no token above -inf behind 5 tokens"):
        new(recorded, [PROMPT], logits_processor=[Bans(list(range(49152)))])
