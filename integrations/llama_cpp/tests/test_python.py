"""llama-cpp-python whose tokens Gumball draws, as a `gumball.Sampler` does from the same logits."""

from __future__ import annotations

from itertools import islice
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import gumball
from gumball import Dry, Mirostat
from gumball_compat.llama_cpp import RANDOM_SEED

TEXT, LENGTH = "The sky is blue because", 20
OFF = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# What a call of `generate` says beside OFF, what of Gumball alone, and what both are here.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "its defaults": (
        {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    ),
    "hot, behind the filters": ({"temp": 2.5, "top_p": 0.7}, {}, {"temperature": 2.5, "top_p": 0.7}),
    "typical-p": ({"typical_p": 0.6, "top_k": 100}, {}, {"typical_p": 0.6, "top_k": 100}),
    "greedy with penalties": ({"temp": 0.0, "repeat_penalty": 1.3}, {}, {"temperature": 0, "repetition_penalty": 1.3}),
    "penalties": (
        {"repeat_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        {},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.3},
    ),
    "mirostat": ({"mirostat_mode": 2, "mirostat_tau": 3.0, "temp": 0.5}, {}, {"mirostat": Mirostat(3.0, 0.1)}),
    "no filters below 0": ({"temp": -1.0, "top_k": 3}, {}, {}),
    "xtc and dry": (
        {"temp": 0.7},
        {"xtc_probability": 0.5, "dry_multiplier": 0.8, "dry_breakers": [198]},
        {"temperature": 0.7, "xtc_probability": 0.5, "dry": Dry(0.8, breakers=(198,))},
    ),
    "top-n-sigma, bans": ({}, {"top_n_sigma": 1.0, "banned_ids": [28]}, {"top_n_sigma": 1.0, "banned_ids": [28]}),
}
ORDER = ["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"]


def params(ours: dict[str, Any], seed: int) -> gumball.SamplingParams:
    last = {} if "mirostat" in ours else {"temperature_last": True, "order": ORDER}
    return gumball.SamplingParams(**({"seed": seed, "repetition_scope": "output"} | last | ours))


def prompt(llama: Any) -> list[int]:
    return llama.tokenize(TEXT.encode(), add_bos=False)


def drawn(llama: Any, seed: int, **named: Any) -> list[int]:
    llama.reset()
    llama.set_seed(seed)
    return list(islice(llama.generate(prompt(llama), **(OFF | named)), LENGTH))


def again(llama: Any, found: list[int], wanted: gumball.SamplingParams) -> list[int]:
    """What a sampler draws from the logits that the last call has left."""
    sampler = gumball.Sampler(wanted, llama.n_vocab(), prompt=prompt(llama))
    first = len(prompt(llama)) - 1
    for row in llama.scores[first : first + len(found)]:
        sampler.sample(row)
    return sampler.output


@pytest.mark.parametrize("name", CASES)
def test_a_call_draws_what_a_sampler_draws(llama: Any, name: str) -> None:
    theirs, extra, ours = CASES[name]
    with llama.gumball(**extra):
        found = drawn(llama, 7, **theirs)
    assert found == again(llama, found, params(ours, 7))
    with llama.gumball(**extra):
        assert drawn(llama, 7, **theirs) == found
        assert name == "greedy with penalties" or drawn(llama, 8, **theirs) != found


@pytest.mark.parametrize(("size", "counted"), [(3, {"penalty_window": 3}), (0, {"repetition_penalty": 1.0}), (64, {})])
def test_penalties_look_at_as_many_tokens_as_the_llama_says(
    llama: Any, monkeypatch: pytest.MonkeyPatch, size: int, counted: dict[str, Any]
) -> None:
    monkeypatch.setattr(llama, "last_n_tokens_size", size)
    found = drawn(llama, 7, temp=0.0, repeat_penalty=1.3)
    wanted = {"temperature": 0, "repetition_penalty": 1.3} | counted
    assert found == again(llama, found, params(wanted, 7))


@pytest.mark.parametrize("drafts", [False, True])
def test_a_reasoning_budget_is_a_section_between_tags(
    llama: Any, monkeypatch: pytest.MonkeyPatch, drafts: bool
) -> None:
    if drafts:
        monkeypatch.setattr(llama, "draft_model", LlamaPromptLookupDecoding(num_pred_tokens=4))

    def ids(text: str) -> list[int]:
        return llama.tokenize(text.encode(), add_bos=False, special=True)

    def calls(**ours: Any) -> list[int]:
        with llama.gumball(**ours):
            return drawn(llama, 7, temp=0.8)

    section = gumball.Section(close=ids("</think>"), end=ids(" Enough.</think>"), budget=4)
    budget = {"reasoning_budget": 4, "reasoning_budget_message": " Enough.", "reasoning_budget_start_tag": ""}
    found = calls(**budget)
    assert found[4 : 4 + len(section.end)] == section.end
    assert found == again(llama, found, params({"temperature": 0.8, "section": section}, 7))
    assert calls(**budget | {"reasoning_budget": -1}) == calls() != found
    # The prompt opens no section.
    assert calls(reasoning_budget=4) == calls()


def test_completions_chats_and_streams_repeat(llama: Any) -> None:
    asked = {"max_tokens": 12, "seed": 7, "temperature": 0.9}

    def complete(**named: Any) -> Any:
        # llama.cpp's logits are others where a part of the prompt is still in its cache.
        llama.reset()
        return llama(TEXT, **(asked | named))

    def chat() -> str:
        llama.reset()
        said = llama.create_chat_completion([{"role": "user", "content": "Say hello."}], **asked)
        return said["choices"][0]["message"]["content"]

    text = complete()["choices"][0]["text"]
    assert text == complete()["choices"][0]["text"]
    assert text == "".join(part["choices"][0]["text"] for part in complete(stream=True))
    assert text != complete(seed=8)["choices"][0]["text"]
    listed = complete(logprobs=2)["choices"][0]
    assert listed["text"] == text and len(listed["logprobs"]["token_logprobs"]) == 12
    assert chat() == chat()


@pytest.mark.parametrize("seed", [-1, RANDOM_SEED, llama_cpp.LLAMA_DEFAULT_SEED])
def test_the_seed_that_asks_for_another_does(llama: Any, seed: int) -> None:
    assert drawn(llama, seed, temp=2.0) != drawn(llama, seed, temp=2.0)
    texts = {llama(TEXT, max_tokens=12, seed=seed, temperature=2.0)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_other_seeds_below_0_repeat(llama: Any) -> None:
    assert drawn(llama, -2, temp=2.0) == drawn(llama, -2, temp=2.0)


def test_a_stream_keeps_the_parameters_of_the_call(llama: Any) -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "seed": 7, "temperature": 0.9}
    said = [{"role": "user", "content": "Say hello."}]
    calls = [
        lambda **named: llama(TEXT, **(asked | named)),
        lambda **named: llama.create_completion(TEXT, **(asked | named)),
        lambda **named: llama.create_chat_completion(said, **(asked | named)),
    ]

    def text(parts: Any) -> str:
        parts = [parts] if isinstance(parts, dict) else parts
        found = ""
        for part in parts:
            choice = part["choices"][0]
            found += (
                choice["text"] if "text" in choice else choice.get("delta", choice.get("message")).get("content", "")
            )
        return found

    for call in calls:
        llama.reset()
        plain = text(call())
        with llama.gumball(dry_multiplier=5.0, xtc_probability=1.0):
            llama.reset()
            wanted = text(call())
            parts = call(stream=True)
        assert wanted != plain
        llama.reset()
        assert text(parts) == wanted
        # A block's parameters are not for a stream that was made before it.
        parts = call(stream=True)
        llama.reset()
        with llama.gumball(dry_multiplier=5.0, xtc_probability=1.0):
            assert text(parts) == plain
    plain_ids = drawn(llama, 7)
    llama.reset()
    with llama.gumball(banned_ids=plain_ids):
        tokens = llama.generate(prompt(llama), **OFF)
        kept = llama.generate(prompt(llama), **OFF)
    assert not {*islice(tokens, LENGTH)} & {*plain_ids}
    # A stream that is not read to its end is closed, and the block's parameters are gone.
    next(kept)
    kept.close()
    assert drawn(llama, 7) == plain_ids


def test_grammars_hold(llama: Any) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("yes" | "no") ", " [0-9]+ "."', verbose=False)
    texts = set()
    for seed in range(6):
        text = llama("Is it? ", max_tokens=30, seed=seed, temperature=2.0, grammar=grammar)["choices"][0]["text"]
        assert text.startswith(("yes, ", "no, "))
        texts.add(text)
    assert len(texts) > 2


def test_processors_and_biases_act_before_the_penalties(llama: Any) -> None:
    plain = drawn(llama, 7, repeat_penalty=1.2)

    def ban(ids: Any, scores: Any) -> Any:
        scores = np.copy(scores)
        scores[plain] = -np.inf
        return scores

    found = drawn(llama, 7, repeat_penalty=1.2, logits_processor=llama_cpp.LogitsProcessorList([ban]))
    assert not set(found) & set(plain)
    wanted = params({"repetition_penalty": 1.2, "banned_ids": plain}, 7)
    assert found == again(llama, found, wanted)
    biased = llama(TEXT, max_tokens=3, temperature=0.0, logit_bias={260: 100.0})["choices"][0]["text"]
    assert biased == llama.detokenize([260] * 3).decode()


def test_drafts_change_no_text_unless_they_change_logits(llama: Any, gguf: Any) -> None:
    from gumball_llama_cpp import Llama

    drafting = Llama(
        str(gguf),
        n_ctx=512,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=3, max_ngram_size=2),
    )
    found, other = drawn(llama, 7, temp=0.6), drawn(drafting, 7, temp=0.6)
    first = len(prompt(llama)) - 1
    for step, (one, two) in enumerate(zip(found, other)):
        if one != two:
            assert not np.array_equal(llama.scores[first + step], drafting.scores[first + step])
            break
    drafting.close()


def test_processors_see_no_drafts(llama: Any) -> None:
    seen: list[list[int]] = []

    def watch(ids: Any, scores: Any) -> Any:
        seen.append(list(ids))
        return scores

    llama.reset()
    llama.set_seed(7)
    watched = llama_cpp.LogitsProcessorList([watch])
    tokens = llama.generate(prompt(llama), **(OFF | {"logits_processor": watched}))
    found = [next(tokens)]
    for _ in range(4):
        # Of these the second is never what was drawn.
        found.append(tokens.send([found[-1], llama.n_vocab() - 1]))
    assert seen == [prompt(llama) + found[:step] for step in range(5)]


def test_tokens_evaluated_by_hand_are_the_history(llama: Any) -> None:
    asked = OFF | {"repeat_penalty": 1.3}
    first = prompt(llama)

    def by_hand(tokens: list[int], count: int) -> list[int]:
        llama.reset()
        llama.eval(tokens)
        found = []
        for _ in range(count):
            found.append(llama.sample())
            llama.eval(found[-1:])
        return found

    def wanted(tokens: list[int], count: int, pushed: tuple[int, ...] = ()) -> list[int]:
        sampler = gumball.Sampler(params({"repetition_penalty": 1.3}, 7), llama.n_vocab(), prompt=tokens)
        for token in pushed:
            sampler.push(token)
        start = len(tokens) + len(pushed) - 1
        for row in llama.scores[start : start + count]:
            sampler.sample(row)
        return sampler.output

    drawn(llama, 7, repeat_penalty=asked["repeat_penalty"])
    # Shorter than the prompt of the sampler that the last call has left; another, and longer; and one that begins as that.
    for tokens in (first[:3], list(range(40, 80)), list(range(40, 80))[:10]):
        found = by_hand(tokens, 4)
        assert found == wanted(tokens, 4)
    # After the sampler's prompt, other tokens than it drew.
    found = by_hand([*tokens, 5, 6], 3)
    assert [5, 6, *found] == wanted(tokens, 3, (5, 6))


def test_a_grammar_begins_again_behind_other_tokens(llama: Any) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("yes" | "no") ", " [0-9]+ "."', verbose=False)

    def text() -> str:
        return llama.detokenize([llama_next() for _ in range(3)]).decode()

    def llama_next() -> int:
        token = llama.sample()
        llama.eval([token])
        return token

    llama.reset()
    llama.set_seed(7)
    tokens = llama.generate(prompt(llama), **(OFF | {"grammar": grammar}))
    first = llama.detokenize(list(islice(tokens, 3))).decode()
    assert first.startswith(("y", "n"))
    llama.reset()
    llama.eval([40, 41, 42])
    again = text()
    assert again.startswith(("y", "n"))
    # Back to the tokens after which it began.
    llama.reset()
    llama.eval([40, 41, 42])
    assert text().startswith(("y", "n"))


def test_tokens_of_the_caller_are_drafts(llama: Any) -> None:
    llama.reset()
    llama.set_seed(7)
    tokens = llama.generate(prompt(llama), **(OFF | {"repeat_penalty": 1.5}))
    sampler = gumball.Sampler(params({"repetition_penalty": 1.5}, 7), llama.n_vocab(), prompt=prompt(llama))
    place = len(prompt(llama)) - 1
    first = next(tokens)
    assert sampler.sample(llama.scores[place]) == first
    # None of these is what is drawn next.
    second = tokens.send([5, 6])
    assert sampler.sample(llama.scores[place + 1]) == second
    third = next(tokens)
    assert sampler.sample(llama.scores[place + 2]) == third


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"mirostat_mode": 1}, "mirostat_mode is 1, which Gumball has not; pass 2"),
        ({"top_p": -0.5}, "top_p"),
        ({"repeat_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_what_cannot_be_had_is_refused(llama: Any, named: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        drawn(llama, 7, **named)


def test_names_and_values_are_checked_where_they_are_given(llama: Any) -> None:
    with pytest.raises(ValueError, match="xtc_probabillity is no parameter"), llama.gumball(xtc_probabillity=0.5):
        pass
    with pytest.raises(ValueError, match="xtc_probability"), llama.gumball(xtc_probability=1.5):
        pass


def test_a_row_without_a_token_is_an_error(llama: Any) -> None:
    nothing = llama_cpp.LogitsProcessorList([lambda ids, scores: np.full_like(scores, -np.inf)])
    with pytest.raises(RuntimeError, match="no token is above -inf behind"):
        drawn(llama, 7, logits_processor=nothing)
