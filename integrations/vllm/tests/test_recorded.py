"""On recorded logits: what vLLM's requests draw is what a `gumball.Sampler` draws, alone, in batches, and after preemption."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gumball_vllm.receipts import receipt_of
from vllm import SamplingParams, envs
from vllm.exceptions import VLLMValidationError
from vllm.logprobs import FlatLogprobs
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams
from vllm.v1.core.sched.utils import check_sequence_repetition

import gumball
from gumball import Dry, LogprobsParams, Mirostat, Section, Watermark, verify_receipt
from gumball.plugins import marks
from gumball.plugins.states import seed_of
from recorded_model import row_of


class Commas(ReasoningParser):
    """Reasoning between a comma, id 28, and a full stop, id 30."""

    reasoning_start_str, reasoning_end_str = ",", "."


ReasoningParserManager.register_module("commas", module=Commas)
REASONING = {"reasoning_parser": "commas", "reasoning_end_str": " so it is."}
COMMAS = {"open": [28], "close": [30], "end": [588, 357, 314, 30]}

OPTIONS: dict[str, Any] = {
    "num_gpu_blocks_override": 80,
    "block_size": 32,
    "max_logprobs": 200,
    "reasoning_config": REASONING,
}
gumball.add_watermark_keys("3 000102030405060708090a0b0c0d0e0f")
PROMPT, LENGTH = [1, 4093, 338, 264, 1123], 24
EOS = 2

# What a request of vLLM says, and what it is here.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "greedy": ({"temperature": 0}, {"temperature": 0}),
    "top-k, top-p": ({"temperature": 0.8, "top_k": 50, "top_p": 0.9}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9}),
    "min-p alone": ({"min_p": 0.05}, {"min_p": 0.05}),
    "min-p before top-p": (
        {"min_p": 0.1, "top_p": 0.8, "top_k": 40},
        {"min_p": 0.1, "top_p": 0.8, "top_k": 40, "order": ["min_p", "top_k", "top_p"]},
    ),
    "penalties": (
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.3},
    ),
    "greedy with penalties": (
        {"temperature": 0, "repetition_penalty": 1.2},
        {"temperature": 0, "repetition_penalty": 1.2},
    ),
    "bias": ({"logit_bias": {100: 9.0, 7: -100.0}}, {"logit_bias": {100: 9.0, 7: -100.0}}),
    "allowed ids": (
        {"allowed_token_ids": list(range(300, 340))},
        {"allowed_ids": list(range(300, 340))},
    ),
    "min tokens": (
        {"min_tokens": 12, "temperature": 1.5, "logit_bias": {EOS: 20.0}, "ignore_eos": False},
        {"min_tokens": 12, "temperature": 1.5, "logit_bias": {EOS: 20.0}, "stop_ids": [EOS]},
    ),
    "dry": (
        {"temperature": 0.5, "extra_args": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_breakers": [28]}},
        {"temperature": 0.5, "dry": Dry(2.0, allowed_length=1, breakers=(28,))},
    ),
    "n-grams by DeepSeek-OCR's names": (
        {"temperature": 0, "extra_args": {"ngram_size": 3, "window_size": 8, "whitelist_token_ids": [198]}},
        {"temperature": 0, "no_repeat_ngram": 3, "no_repeat_ngram_scope": "output", "no_repeat_ngram_window": 8}
        | {"no_repeat_ngram_exempt_ids": [198]},
    ),
    "xtc": (
        {"extra_args": {"xtc_probability": 0.7, "xtc_threshold": 0.05}},
        {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    ),
    "typical-p": ({"extra_args": {"typical_p": 0.7}}, {"typical_p": 0.7}),
    "top-n-sigma": ({"extra_args": {"top_n_sigma": 1.5}}, {"top_n_sigma": 1.5}),
    "mirostat": ({"extra_args": {"mirostat_tau": 3.0}}, {"mirostat": Mirostat(3.0, 0.1)}),
    "thinking": ({"thinking_token_budget": 3}, {"section": Section(**COMMAS, budget=3)}),
    "greedy thinking": (
        {"temperature": 0, "thinking_token_budget": 2**40, "extra_args": {"section_min": 3}, "logit_bias": {30: 4.0}},
        {"temperature": 0, "section": Section(**COMMAS, min=3), "logit_bias": {30: 4.0}},
    ),
    "no thinking": (
        {"thinking_token_budget": 0, "allowed_token_ids": [28, 198, 1232]},
        {"section": Section(**COMMAS, budget=0), "allowed_ids": [28, 198, 1232]},
    ),
    "a section": (
        {"extra_args": {"section_close": [198, 1232], "section_end": [7], "section_budget": 9, "section_min": 4}},
        {"section": Section(close=[198, 1232], end=[7], budget=9, min=4)},
    ),
    "a mark": (
        {"extra_args": {"watermark_key": 3, "watermark_context": 2, "watermark_scope": "both"}},
        {"watermark": Watermark(key=3, context=2, scope="both")},
    ),
    "large seed": ({"seed": -5}, {"seed": 2**64 - 5}),
}


def asked(named: dict[str, Any], seed: int, **more: Any) -> SamplingParams:
    chosen = {"seed": seed, "max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**(chosen | named | more))


def alone(rows: Any, prompt: list[int], params: gumball.SamplingParams, length: int, stop: int = -1) -> list[int]:
    """What a sampler of Gumball draws from the rows behind its own tokens."""
    sampler = gumball.Sampler(params, rows.shape[1], prompt=prompt)
    while len(sampler.output) < length and (not sampler.output or sampler.output[-1] != stop):
        sampler.sample(rows[row_of(sampler.history[-1], len(rows))])
    return sampler.output


def tokens(engine: Any, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(out.outputs[0].token_ids) for out in engine.generate(given, params, use_tqdm=False)]


def test_a_servers_mark_is_in_texts_that_say_nothing(engine: Any, recorded: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(marks, "SERVER", marks.Server({"watermark_key": 3}))
    found = tokens(engine, [PROMPT] * 2, [asked({}, 7), asked({"extra_args": {"watermark": False}}, 7)])
    params = [gumball.SamplingParams(seed=7, watermark=mark) for mark in (Watermark(key=3), None)]
    assert found == [alone(recorded, PROMPT, one, LENGTH) for one in params] and found[0] != found[1]


@pytest.mark.parametrize("name", CASES)
def test_a_request_draws_what_a_sampler_draws_alone_and_among_others(engine: Any, recorded: Any, name: str) -> None:
    theirs, ours = CASES[name]
    seed = theirs.get("seed", 7)
    stop = EOS if theirs.get("ignore_eos") is False else -1
    wanted = alone(recorded, PROMPT, gumball.SamplingParams(**({"seed": seed} | ours)), LENGTH, stop)
    assert tokens(engine, [PROMPT], [asked(theirs, seed)]) == [wanted]
    # Among others of every kind, of which some have prompts that come in parts.
    others = [case for case, _ in CASES.values()]
    params = [asked(others[i % len(others)], 1000 + i) for i in range(31)]
    prompts = [[5, 6, 7 + i, 8] * (1 + 30 * (i % 5 == 0)) for i in range(31)]
    at = len(name) % 31
    params.insert(at, asked(theirs, seed))
    prompts.insert(at, PROMPT)
    assert tokens(engine, prompts, params)[at] == wanted


def test_a_bias_comes_before_the_repetition_penalty(engine: Any, recorded: Any) -> None:
    bias = {100: 25.0, 338: 30.0}
    biased = recorded.copy()
    for id, value in bias.items():
        biased[:, id] += np.float32(value)
    params = gumball.SamplingParams(seed=7, repetition_penalty=1.5)
    wanted = alone(biased, PROMPT, params, LENGTH)
    given = asked({"logit_bias": bias, "repetition_penalty": 1.5, "logprobs": 2}, 7)
    (out,) = engine.generate([{"prompt_token_ids": PROMPT}], [given], use_tqdm=False)
    assert list(out.outputs[0].token_ids) == wanted
    # Logprobs are of the logits as they came.
    row = recorded[row_of(PROMPT[-1], len(recorded))].astype(np.float64)
    expected = row[wanted[0]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert abs(out.outputs[0].logprobs[0][wanted[0]].logprob - expected) < 1e-4


def test_requests_that_are_preempted_go_on_with_the_same_tokens(engine: Any, recorded: Any) -> None:
    # 32 requests of 160 tokens do not fit into 80 blocks of 32.
    names = list(CASES)
    params, prompts, wanted = [], [], []
    for i in range(32):
        theirs, ours = CASES[names[i % len(names)]]
        if "min_tokens" in theirs:
            theirs, ours = CASES["mirostat"]
        seed = theirs.get("seed", 500 + i)
        prompts.append([1, 40 + i] * 20)
        params.append(asked(theirs, seed, max_tokens=120))
        wanted.append(alone(recorded, prompts[i], gumball.SamplingParams(**({"seed": seed} | ours)), 120))
    before = preemptions(engine)
    assert tokens(engine, prompts, params) == wanted
    assert preemptions(engine) > before


def preemptions(engine: Any) -> int:
    return sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")


def test_the_runner_waits_for_no_tokens_of_requests_with_edits(engine: Any) -> None:
    inner = engine.llm_engine
    params = SamplingParams(
        max_tokens=3, repetition_penalty=1.2, presence_penalty=0.1, bad_words=["the"], thinking_token_budget=1
    )
    inner.add_request("edited", {"prompt_token_ids": PROMPT}, params)
    inner.step()
    runner = inner.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    metadata = runner.input_batch.sampling_metadata
    assert runner.input_batch.num_reqs == 1 and metadata.no_penalties
    assert not metadata.output_token_ids and metadata.prompt_token_ids is None
    assert metadata.thinking_budget_state_holder is None
    while inner.has_unfinished_requests():
        inner.step()


def test_bad_words_are_not_completed(engine: Any, recorded: Any) -> None:
    tokenizer = engine.get_tokenizer()
    free = tokens(engine, [PROMPT], [asked({"temperature": 0}, 7)])[0]
    word = tokenizer.decode(free[3:4]).strip()
    given = asked({"temperature": 0, "bad_words": [word]}, 7)
    banned = [tokenizer.encode(word, add_special_tokens=False), tokenizer.encode(" " + word, add_special_tokens=False)]
    params = gumball.SamplingParams(temperature=0, seed=7, bad_words=banned)
    wanted = alone(recorded, PROMPT, params, LENGTH)
    assert tokens(engine, [PROMPT], [given]) == [wanted] != [free]


def end_at_repetitions(engine: Any, recorded: Any) -> None:
    """Holds that vLLM's scheduler ends requests at the first repetition in their tokens."""
    given, wanted, ended = [], [], 0
    for i, temperature in enumerate((0, 0.3, 0.5, 0.7) * 4):
        detected = {"min_count": 2 + i % 3, "max_pattern_size": 3 + i, "min_pattern_size": i % 4}
        found = RepetitionDetectionParams(**detected)
        given.append(asked({"temperature": temperature, "repetition_detection": found}, i, max_tokens=60))
        line = alone(recorded, PROMPT, gumball.SamplingParams(seed=i, temperature=temperature), 60)
        ends = [n for n in range(1, 61) if check_sequence_repetition(line[:n], found)]
        ended += bool(ends)
        wanted.append((line[: ends[0]] if ends else line, "repetition" if ends else "length"))
    prompts = [{"prompt_token_ids": PROMPT}] * len(given)
    outs = engine.generate(prompts, given, use_tqdm=False)
    assert [(list(out.outputs[0].token_ids), out.outputs[0].finish_reason) for out in outs] == wanted
    assert 0 < ended < len(given)


def test_vllms_scheduler_ends_repetitions(engine: Any, recorded: Any) -> None:
    end_at_repetitions(engine, recorded)


def test_without_a_seed_requests_differ(engine: Any) -> None:
    params = [asked({"seed": None}, 0) for _ in range(8)]
    first = tokens(engine, [PROMPT] * 8, params)
    assert len({tuple(line) for line in first}) == 8
    assert not {tuple(line) for line in first} & {tuple(line) for line in tokens(engine, [PROMPT] * 8, params)}


def test_the_seed_of_a_request_without_one_is_told_by_its_answers_id(engine: Any, recorded: Any) -> None:
    given = asked({"n": 2}, 0)
    given.seed = None
    outs = engine.generate([{"prompt_token_ids": PROMPT}] * 2, [given] * 2, use_tqdm=False)
    for out in outs:
        seed = seed_of(out.request_id)
        wanted = [alone(recorded, PROMPT, gumball.SamplingParams(seed=seed + j), LENGTH) for j in range(2)]
        assert [list(one.token_ids) for one in out.outputs] == wanted
        assert [one.seed_used for one in out.outputs] == [seed, seed + 1]
    assert given.seed is None


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_samples_of_a_request_have_the_seeds_that_follow(engine: Any, recorded: Any, kind: Any) -> None:
    (out,) = engine.generate([{"prompt_token_ids": PROMPT}], [asked({"n": 4}, -5)], use_tqdm=False)
    seeds = [2**64 - 5 + j for j in range(4)]
    wanted = [alone(recorded, PROMPT, gumball.SamplingParams(seed=seed), LENGTH) for seed in seeds]
    assert [list(one.token_ids) for one in out.outputs] == wanted
    assert [one.seed_used for one in out.outputs] == seeds
    inner = engine.llm_engine
    inner.add_request("in parts", {"prompt_token_ids": PROMPT}, asked({"output_kind": kind}, -3))
    parts = [part for _ in range(LENGTH) for part in inner.step()]
    assert len(parts) > 2 and {part.outputs[0].seed_used for part in parts} == {2**64 - 3}


def same_flat_logprobs(engine: Any, recorded: Any) -> None:
    """Holds that `flat_logprobs` are the dicts' numbers, and with `logprobs=0` one list with a sampler's logprob of each token."""
    kinds: list[dict[str, Any]] = [{"logprobs": 0}, {"logprobs": 3}, {"logprob_token_ids": [4, 100]}, {"logprobs": 150}]
    given = [
        asked(kind | {"temperature": 0.3, "flat_logprobs": flat, "n": 2, "max_tokens": 40}, 7)
        for flat in (True, False)
        for kind in kinds
    ]
    outs = engine.generate([{"prompt_token_ids": PROMPT}] * len(given), given, use_tqdm=False)
    for flat, plain in zip(outs[: len(kinds)], outs[len(kinds) :], strict=True):
        for one, other in zip(flat.outputs, plain.outputs, strict=True):
            assert isinstance(one.logprobs, FlatLogprobs) and list(one.logprobs) == other.logprobs
    for seed, one in zip((7, 8), outs[0].outputs, strict=True):
        params = gumball.SamplingParams(seed=seed, temperature=0.3, logprobs=LogprobsParams())
        sampler, told = gumball.Sampler(params, recorded.shape[1], prompt=PROMPT), []
        for token in one.token_ids:
            assert sampler.sample(recorded[row_of(sampler.history[-1], len(recorded))]) == token
            told.append(sampler.logprobs.token.logprob)
        assert one.logprobs.logprobs == told and one.logprobs.token_ids == list(one.token_ids)


def test_flat_logprobs_are_the_same_numbers(engine: Any, recorded: Any) -> None:
    same_flat_logprobs(engine, recorded)


def test_logprobs_are_the_samplers(engine: Any, recorded: Any) -> None:
    kinds: list[dict[str, Any]] = [
        {"logprobs": 0},
        {"logprobs": 5},
        {"logprob_token_ids": [4, 100, 7]},
        {"logprobs": None},
    ]
    given = [asked(kind | {"top_p": 0.9, "temperature": 0.7}, 7) for kind in kinds]
    outs = [engine.generate([{"prompt_token_ids": PROMPT}], [one], use_tqdm=False)[0].outputs[0] for one in given]
    # Beside requests whose lists vLLM's functions make.
    others = [
        asked(one, 3) for one in ({"logprobs": 200}, {"logprobs": 2, "logit_bias": {9: 9.0}, "repetition_penalty": 1.5})
    ]
    batched = engine.generate([{"prompt_token_ids": PROMPT}] * 6, [*given, *others], use_tqdm=False)
    assert [len(out.outputs[0].logprobs[-1]) in sizes for out, sizes in zip(batched[4:], [(200, 201), (2, 3)])] == [
        True
    ] * 2
    for kind, out in [*zip(kinds, outs, strict=True), *zip(kinds, (one.outputs[0] for one in batched))]:
        if kind.get("logprobs", 0) is None:
            assert out.logprobs is None
            continue
        ids = kind.get("logprob_token_ids", ())
        wanted = LogprobsParams(top_n=kind.get("logprobs", 0), ids=ids)
        params = gumball.SamplingParams(seed=7, top_p=0.9, temperature=0.7, logprobs=wanted)
        sampler = gumball.Sampler(params, recorded.shape[1], prompt=PROMPT)
        for token, found in zip(out.token_ids, out.logprobs, strict=True):
            assert sampler.sample(recorded[row_of(sampler.history[-1], len(recorded))]) == token
            ours = sampler.logprobs
            assert found[token].logprob == ours.token.logprob
            listed = [*ours.top, *ours.ids]
            assert set(found) == {token, *(one.id for one in listed)}
            assert all(found[one.id].logprob == one.logprob for one in listed)
            if not ids:
                assert found[token].rank == ours.token.rank and all(found[one.id].rank == one.rank for one in ours.top)


# Of the last one no radius is known.
RECEIPTS = ("plain", "top-k, top-p", "penalties", "bias", "dry", "min-p before top-p", "mirostat")


def test_a_receipt_is_made_of_an_answer_and_drawn_again(engine: Any, recorded: Any) -> None:
    given = [asked(CASES[name][0] | {"logprobs": 5}, 7) for name in RECEIPTS]
    for params in given[:2]:
        params.extra_args = RADII
    two = asked({"n": 2, "logprobs": 1}, 0)
    two.seed = None
    outs = engine.generate([{"prompt_token_ids": PROMPT}] * (len(given) + 1), [*given, two], use_tqdm=False)
    vocab = recorded.shape[1]
    cases = [(out, params, 0) for out, params in zip(outs, [*given, two], strict=True)] + [(outs[-1], two, 1)]
    for number, (out, params, index) in enumerate(cases):
        receipt = receipt_of(out, params, vocab=vocab, index=index).to_json()
        before = [PROMPT[-1], *out.outputs[index].token_ids[:-1]]
        rows = [recorded[row_of(token, len(recorded))] for token in before]
        assert verify_receipt(receipt, rows) == ["equal"] * LENGTH
        assert len(json.loads(receipt)["radii"]) == (LENGTH if number < 2 else 0)
        near = [row.astype(np.float32) + np.float32(0.001) for row in rows]
        if number != 6:
            assert set(verify_receipt(receipt, near, tolerance=0.002)) <= {"equal", "within"}
    refused = {
        "whose ids the engine adds": asked({"bad_words": ["the"], "logprobs": 1}, 7),
        "logprobs is None": asked({}, 7),
        "hand them over as masks": asked({"structured_outputs": StructuredOutputsParams(regex="a+"), "logprobs": 1}, 7),
    }
    for text, params in refused.items():
        with pytest.raises(ValueError, match=text):
            receipt_of(outs[0], params, vocab=vocab)


RADII = {"return_radii": True}


def same_radii(engine: Any, recorded: Any) -> None:
    """Radii of the requests of a batch that ask, and of a stream, are the samplers'."""
    names = [name for name in CASES if name != "min tokens"]
    given, length = [], 2 * LENGTH
    for i, name in enumerate(names):
        theirs = {"logprobs": i % 4} | CASES[name][0]
        given.append(asked(theirs, theirs.get("seed", 7), max_tokens=length))
        if i % 3:
            given[-1].extra_args = (given[-1].extra_args or {}) | RADII
    # A list of vLLM's own, which has more columns.
    given.append(asked({"logprobs": 200}, 7, max_tokens=length))
    outs = engine.generate([{"prompt_token_ids": PROMPT}] * len(given), given, use_tqdm=False)
    stream = asked({"logprobs": 0, "top_p": 0.9, "extra_args": RADII}, 7, max_tokens=length)
    stream.output_kind = RequestOutputKind.DELTA
    engine.llm_engine.add_request("stream", {"prompt_token_ids": PROMPT}, stream)
    parts = []
    while engine.llm_engine.has_unfinished_requests():
        parts += [out.outputs[0] for out in engine.llm_engine.step()]
    line, found = [id for part in parts for id in part.token_ids], [one for part in parts for one in part.logprobs]
    cases = [
        (CASES[name][1] | {"seed": params.seed % 2**64}, out.outputs[0].token_ids, out.outputs[0].logprobs, i % 3 > 0)
        for i, (name, params, out) in enumerate(zip(names, given, outs, strict=False))
    ]
    firm = 0
    for ours, ids, logprobs, asks in [*cases, ({"top_p": 0.9, "seed": 7}, line, found, True)]:
        sampler = gumball.Sampler(
            gumball.SamplingParams(**ours, logprobs=LogprobsParams(["raw", "radius"])), recorded.shape[1], prompt=PROMPT
        )
        assert len(ids) == len(logprobs) == length
        for token, one in zip(ids, logprobs, strict=True):
            assert sampler.sample(recorded[row_of(sampler.history[-1], len(recorded))]) == token
            assert sampler.logprobs is not None and getattr(one[token], "radius", None) == (
                sampler.logprobs.second if asks else None
            )
            firm += asks and sampler.logprobs.second > 0.01
    assert firm > length and len(outs[-1].outputs[0].logprobs[0]) in (200, 201)


def test_radii_stand_beside_logprobs(engine: Any, recorded: Any) -> None:
    same_radii(engine, recorded)


def test_logprobs_of_more_tokens_than_a_pool_lists_are_vllms(engine: Any, recorded: Any) -> None:
    plain = tokens(engine, [PROMPT], [asked({}, 7)])[0]
    (out,) = engine.generate([{"prompt_token_ids": PROMPT}], [asked({"logprobs": 200}, 7)], use_tqdm=False)
    assert list(out.outputs[0].token_ids) == plain and all(
        len(found) in (200, 201) for found in out.outputs[0].logprobs
    )


REFUSED = {
    "radii without logprobs": ({"extra_args": {"return_radii": True}}, "radii stand beside the tokens' logprobs"),
    "radii of long lists": ({"logprobs": 150, "extra_args": {"return_radii": True}}, "ask for logprobs of 0 to 128"),
    "radii in words": ({"extra_args": {"return_radii": "yes"}}, "return_radii = 'yes', but it must be true or false"),
    "typical": ({"extra_args": {"typicalp": 0.5}}, "do you mean 'typical_p'"),
    "range": ({"extra_args": {"typical_p": -1.0}}, "typical_p"),
    "type": ({"extra_args": {"xtc_probability": "often"}}, "must be a number"),
    "part": ({"extra_args": {"mirostat_eta": 0.2}}, "without mirostat_tau"),
    "mirostat beside filters": ({"top_p": 0.5, "extra_args": {"mirostat_tau": 3.0}}, "mirostat"),
    **{
        name: ({"extra_args": {**more, name: [3, id]}}, f"{name} with {id}, which is no id of a vocabulary of")
        for name, more, id in (
            ("banned_ids", {}, 10**7),
            ("dry_breakers", {"dry_multiplier": 1.0}, 999999),
            ("loops_end", {}, 10**7),
            ("section_close", {}, -1),
            ("section_open", {"section_close": [3]}, 10**7),
            ("no_repeat_ngram_exempt_ids", {"no_repeat_ngram": 3}, 10**7),
        )
    },
    "n-grams twice": ({"extra_args": {"ngram_size": 2, "no_repeat_ngram": 2}}, "no_repeat_ngram beside ngram_size"),
    "n-grams of no size": ({"extra_args": {"ngram_size": 0}}, "ngram_size = 0, but it must be a whole number above 0"),
    "a budget and a section": (
        {"thinking_token_budget": 5, "extra_args": {"section_close": [5], "section_min": 1}},
        "section of its own beside thinking_token_budget",
    ),
    "a section without ids": ({"extra_args": {"section_budget": 5}}, "section.close has length 0"),
    "vLLM's own": ({"extra_args": {"top_p": 0.5}}, "'top_p', which is a parameter of vLLM's own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused(engine: Any, name: str) -> None:
    theirs, text = REFUSED[name]
    with pytest.raises(VLLMValidationError, match=f"^Gumball refuses the request: .*{text}"):
        engine.generate([{"prompt_token_ids": PROMPT}], [asked(theirs, 7)], use_tqdm=False)
    assert tokens(engine, [PROMPT], [asked({"extra_args": {"kv_transfer_params": {"a": 1}}, "max_tokens": 2}, 7)])


def test_a_key_that_only_this_process_has_is_refused_where_others_sample(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(key: int = 3) -> None:
        marked = asked({"extra_args": {"watermark_key": key}}, 7)
        engine.llm_engine.input_processor._build_logits_processors_params_validator()(marked)

    check()
    with pytest.raises(VLLMValidationError, match="watermark_key is 99, .*has no key of that number, and add_waterm"):
        engine.generate(
            [{"prompt_token_ids": PROMPT}], [asked({"extra_args": {"watermark_key": 99}}, 7)], use_tqdm=False
        )
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True, raising=False)
    with pytest.raises(VLLMValidationError, match="watermark_key is 3, which only this process has"):
        check()
    with pytest.raises(VLLMValidationError, match="watermark_key is 4, but GUMBALL_WATERMARK_KEYS has no key of that"):
        check(4)
    monkeypatch.setattr(marks, "_SHARED", {3})
    check()
