"""`generate` of small models, with parameters of ours: row by row what a sampler draws, from hidden states and on every device, too."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gumball
from gumball import Dry, Head, Hidden, Pool, Sampler, SamplingParams, State
from gumball._gumball import EMULATOR
from gumball_transformers import generate, replace_head
from gumball_transformers.sequences import Sequences, words_of

VOCAB = 128
PLAIN = SamplingParams(temperature=1.5, seed=3)
REPEATS = SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.5)
ONE = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}


def made(**config: Any) -> Any:
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=None)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ids, **config)).eval()


@pytest.fixture
def model() -> Any:
    model = made()
    model.generation_config.top_k = 1  # Must not count: parameters are ours.
    return model


def by_hand(model: Any, prompt: list[int], params: SamplingParams, steps: int, draw: int = 0) -> list[int]:
    sampler = Sampler(params, VOCAB, prompt=prompt, draw=draw)
    for _ in range(steps):
        with torch.no_grad():
            sampler.sample(model(torch.tensor([prompt + sampler.output])).logits[0, -1])
    return sampler.output


@pytest.mark.parametrize("head", [False, True])
def test_generate_draws_what_a_sampler_draws(model: Any, head: bool) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [0, 0, 0, 7, 8, 9]])
    with replace_head(model) if head else contextlib.nullcontext():
        seen = generate(model, REPEATS, input_ids=ids[:, 3:], attention_mask=torch.ones(2, 3), max_new_tokens=8)
        for row in range(2):
            assert seen[row, 3:].tolist() == by_hand(model, ids[row, 3:].tolist(), REPEATS, 8, row)
        several = generate(model, PLAIN, **ONE, max_new_tokens=6, num_return_sequences=3)
        assert several[2, 3:].tolist() == by_hand(model, [5, 6, 7], PLAIN, 6, 2)
        # Rows of their own parameters; padding is what transformers takes for padding.
        params = [SamplingParams(temperature=0), REPEATS.replace(seed=4)]
        for mask in (None, (ids != 0).long()):
            found = generate(model, params, input_ids=ids, attention_mask=mask, max_new_tokens=9)
            assert found[1, 6:].tolist() == by_hand(model, [7, 8, 9], params[1], 9)
        chunks = generate(model, params[0], input_ids=ids[:1], max_new_tokens=9, prefill_chunk_size=2)
        assert chunks[0].tolist() == found[0].tolist()


# Settings of a model's own generation_config, each of which would choose or forbid tokens here.
OWN = {
    "bad_words_ids": [[token] for token in range(2, VOCAB, 2)],
    "suppress_tokens": list(range(3, VOCAB, 2)),
    "begin_suppress_tokens": list(range(1, VOCAB - 1)),
    "sequence_bias": [[[9], 1e6]],
    "no_repeat_ngram_size": 1,
    "min_length": 50,
    "min_new_tokens": 50,
    "forced_bos_token_id": 4,
    "forced_eos_token_id": 4,
    "repetition_penalty": 5.0,
    "exponential_decay_length_penalty": [1, 2.0],
    "num_beams": 3,
    "do_sample": True,
    "temperature": 0.01,
    "prompt_lookup_num_tokens": 3,
}


@pytest.mark.parametrize("name", OWN)
def test_what_a_models_own_config_says_does_not_count(model: Any, name: str) -> None:
    asked = ONE | {"max_new_tokens": 8, "eos_token_id": 2}
    wanted = generate(model, PLAIN, **asked).tolist()
    setattr(model.generation_config, name, OWN[name])
    assert generate(model, PLAIN, **asked).tolist() == wanted
    assert getattr(model.generation_config, name) == OWN[name]


@pytest.mark.parametrize("loose", [False, True])
def test_edits_and_a_config_that_are_handed_to_the_call_count(model: Any, loose: bool) -> None:
    def said(**named: Any) -> Any:
        more = named if loose else {"generation_config": transformers.GenerationConfig(pad_token_id=0, **named)}
        return generate(model, REPEATS, **ONE, max_new_tokens=9, **more)

    few = said(suppress_tokens=list(range(64)))[0, 3:].tolist()
    assert few == generate(model, REPEATS.replace(banned_ids=list(range(64))), **ONE, max_new_tokens=9)[0, 3:].tolist()
    # Drafts change nothing.
    assert torch.equal(said(prompt_lookup_num_tokens=3), said())
    assert said(num_return_sequences=2, do_sample=True).shape == (2, 12)


def test_the_mask_of_an_encoder_is_not_laid_over_the_decoders_ids() -> None:
    torch.manual_seed(0)
    size = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=90, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **size)
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    source, start = torch.tensor([[5, 6, 1, 0, 0]]), torch.tensor([[0, 20, 21, 22, 23]])
    given = {"input_ids": source, "attention_mask": (source != 0).long(), "max_new_tokens": 3}
    assert generate(t5, REPEATS, **given).shape == (1, 4)
    # Both of the best stand in the decoder's prompt, where the source has padding.
    bias = {22: 50.0, 23: 49.0, 30: 40.0}
    params = SamplingParams(temperature=0, presence_penalty=1000.0, penalty_scope="prompt", logit_bias=bias)
    assert generate(t5, params, decoder_input_ids=start, **given)[0, 5:].tolist() == [30, 30, 30]


@pytest.mark.parametrize("params", [None, REPEATS])
def test_a_model_with_an_encoder_draws_what_a_sampler_draws(params: Any) -> None:
    torch.manual_seed(0)
    size = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    config = transformers.BartConfig(vocab_size=90, decoder_start_token_id=2, forced_eos_token_id=None, **size, **heads)
    bart = transformers.BartForConditionalGeneration(config).eval()
    bart.set_attn_implementation("eager")
    source, parts = torch.tensor([[5, 6, 2, 1, 1], [7, 8, 9, 10, 2]]), ("attentions", "hidden_states", "logits")
    asked = {"input_ids": source, "attention_mask": (source != 1).long(), "max_new_tokens": 8, "eos_token_id": 89}
    asked |= {"return_dict_in_generate": True} | {f"output_{part}": True for part in parts}
    named = {} if params else {"do_sample": True, "temperature": 0.9, "top_k": 0, "seed": 3, "repetition_penalty": 1.5}
    out, theirs = generate(bart, params, **asked, **named), bart.generate(**asked)
    for row in range(2):
        sampler = Sampler(REPEATS, 90, prompt=[2], draw=row)
        for logits in out.logits:
            if 89 not in sampler.output:
                sampler.sample(logits[row])
        assert out.sequences[row, 1 : 1 + len(sampler.output)].tolist() == sampler.output
    for name in ("encoder_attentions", "encoder_hidden_states"):
        torch.testing.assert_close(getattr(out, name), getattr(theirs, name))
    for name in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
        torch.testing.assert_close(getattr(out, name)[0], getattr(theirs, name)[0])


def test_processes_that_step_together_are_waited_for(model: Any) -> None:
    from torch import distributed

    asked = ONE | {"max_new_tokens": 6}
    wanted = generate(model, REPEATS, **asked)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert torch.equal(generate(model, REPEATS, **asked, synced_gpus=True), wanted)
        with pytest.raises(ValueError, match="synced_gpus.*does not go with drafts"):
            generate(model, REPEATS, **asked, synced_gpus=True, prompt_lookup_num_tokens=3)
    finally:
        distributed.destroy_process_group()


def test_what_does_not_fit_is_told(model: Any) -> None:
    said = dict(temperature=0.1, do_sample=False, seed=3, logprobs=1, xtc_probability=0.5)
    asked: list[tuple[Any, dict[str, Any], str]] = [
        *((PLAIN, {name: said[name]}, f"{name} is given, but params say how tokens are drawn") for name in said),
        ([PLAIN] * 2, {}, "params has length 2, but must have one per row, 1"),
        (SamplingParams(banned_ids=[128]), {}, "banned_ids is 128"),
        (PLAIN, {"stop_strings": ["x"]}, "stop_strings are given without a tokenizer"),
    ]
    for params, more, text in asked:
        with pytest.raises(ValueError, match=text):
            generate(model, params, **ONE, max_new_tokens=2, **more)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["auto", "clustered"])
def test_a_head_takes_the_place_of_the_output_layer_until_it_is_restored(tied: bool, kind: str) -> None:
    model, ids = made(tie_word_embeddings=tied), torch.tensor([[5, 6, 7], [1, 2, 3]])
    layer, more = model.lm_head, dict(capacity=8, probes=16, special_ids=[0]) if kind == "clustered" else {}
    with torch.no_grad():
        own = model(ids).logits
    with replace_head(model, kind=kind, **more) as replaced:
        assert model.lm_head is replaced.layer and replaced.head.kind == kind
        assert model.lm_head.weight is layer.weight and model.lm_head.bias is None
        assert not tied or layer.weight is model.model.embed_tokens.weight
        with torch.no_grad():
            seen, hidden = model(ids), model.model(ids).last_hidden_state
        assert seen.logits.dtype == torch.float32 and torch.allclose(seen.logits, own, atol=1e-5)
        assert np.array_equal(seen.logits[1], replaced.head.logits(hidden[1]))
        # Tokens are drawn from hidden states, of a clustered head from the logits that it probes.
        drawn, pool = generate(model, PLAIN, **ONE, max_new_tokens=12)[0, 3:].tolist(), Pool(VOCAB)
        slot = pool.admit(PLAIN, [5, 6, 7])
        for _ in range(12):
            with torch.no_grad():
                hidden = model.model(torch.tensor([[5, 6, 7, *pool.output(slot)]])).last_hidden_state[0, -1]
            pool.step(Hidden(replaced.head, hidden), [slot])
        assert pool.output(slot) == drawn
        with pytest.raises(RuntimeError, match="no gradients"):
            model(ids)
        with pytest.raises(ValueError, match="is a head already"):
            replace_head(model)
    assert model.lm_head is layer
    replaced.restore()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, own)


def test_other_passes_and_calls_meanwhile_have_their_own_hidden_states(model: Any) -> None:
    ids, seeds = torch.tensor([[5, 6, 7]]), range(4)
    with replace_head(model), torch.no_grad():
        logits = model(ids).logits
        wanted = [generate(model, PLAIN.replace(seed=seed), **ONE, max_new_tokens=12).tolist() for seed in seeds]
        seen: list[bool] = []

        def passes() -> None:
            with torch.no_grad():
                while not done.is_set():
                    seen.append(torch.equal(model(ids).logits, logits))

        class Looks(transformers.StoppingCriteria):
            """Runs the model between two tokens of a call, in the same thread."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                seen.append(torch.equal(model(ids).logits, logits))
                return torch.zeros(len(input_ids), dtype=torch.bool)

        done = threading.Event()
        other = threading.Thread(target=passes)
        other.start()
        try:
            with ThreadPoolExecutor(4) as threads:
                calls = [
                    threads.submit(
                        generate,
                        model,
                        PLAIN.replace(seed=seed),
                        **ONE,
                        max_new_tokens=12,
                        stopping_criteria=[Looks()],
                    )
                    for _ in range(3)
                    for seed in seeds
                ]
                assert [call.result().tolist() for call in calls] == wanted * 3
        finally:
            done.set()
            other.join()
        assert len(seen) > 12 * 12 and all(seen)


class After(transformers.StoppingCriteria):
    """Does something after each token of a call."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.does()
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("has_head", [False, True])
def test_an_output_layer_is_not_replaced_under_a_call_which_goes_on(model: Any, has_head: bool) -> None:
    began, goes_on, layer = threading.Event(), threading.Event(), model.lm_head
    replaced = replace_head(model) if has_head else None
    wanted = generate(model, PLAIN, **ONE, max_new_tokens=5)

    def waits() -> None:
        began.set()
        assert goes_on.wait(60)

    change = replaced.restore if replaced is not None else lambda: replace_head(model)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(generate, model, PLAIN, **ONE, max_new_tokens=5, stopping_criteria=[After(waits)])
        assert began.wait(60)
        try:
            with pytest.raises(gumball.CallError, match="a call of generate runs with this model"):
                change()
        finally:
            goes_on.set()
        assert torch.equal(call.result(), wanted)
    # In the same thread, too; and a call that failed holds nothing.
    with pytest.raises(gumball.CallError, match="a call of generate runs"):
        generate(model, PLAIN, **ONE, max_new_tokens=5, stopping_criteria=[After(change)])
    change()
    assert (model.lm_head is layer) == has_head


def test_a_head_that_is_taken_out_during_a_call_is_told(model: Any) -> None:
    layer = model.lm_head
    with replace_head(model), pytest.raises(gumball.CallError, match=r"there were passes over \[\]; leave the head in"):
        generate(
            model, PLAIN, **ONE, max_new_tokens=3, stopping_criteria=[After(lambda: model.set_output_embeddings(layer))]
        )


def test_a_head_reads_a_prompt_in_chunks(model: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    with replace_head(model):
        wanted = generate(model, PLAIN, inputs=ids, max_new_tokens=6)
        assert torch.equal(generate(model, PLAIN, inputs=ids, max_new_tokens=6, prefill_chunk_size=3), wanted)


def test_a_head_that_does_not_fit_and_edits_of_logits_that_are_not_there_are_refused(model: Any) -> None:
    moved = Head.clustered(torch.clone(model.lm_head.weight.detach()), capacity=8, in_place=True)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"head": Head.auto(np.zeros((600, 40), np.float32))}, r"head is \[600, 40\], but must be \[128, 32\]"),
        ({"head": moved}, "head has permuted the rows of its weights in place"),
        ({"head": moved, "kind": "clustered"}, "kind is for a head that is made here"),
        ({"kind": "fast"}, "kind is 'fast', but must be"),
        ({"kind": "clustered", "in_place": True}, "in_place is True, but must be False"),
    ]
    for given, text in cases:
        with pytest.raises(ValueError, match=text):
            replace_head(model, **given)
    head = Head.auto(model.lm_head.weight)
    with replace_head(model, head=head) as replaced:
        assert replaced.head is head
        for more, text in (
            ({"suppress_tokens": [2]}, "SuppressTokensLogitsProcessor edits logits"),
            ({"logits_processor": [lambda ids, scores: scores]}, "function edits logits"),
        ):
            with pytest.raises(ValueError, match=text):
                generate(model, PLAIN, **ONE, max_new_tokens=3, **more)
        model.config.final_logit_softcapping = 30.0
        with pytest.raises(ValueError, match="final_logit_softcapping is 30.0"):
            generate(model, **ONE, max_new_tokens=3)
        layer = replaced.layer
        model.set_output_embeddings(torch.nn.Linear(32, VOCAB))
        with pytest.raises(RuntimeError, match="was replaced again"):
            replaced.restore()
        model.set_output_embeddings(layer)
    model.lm_head = torch.nn.Identity()
    with pytest.raises(TypeError, match="must be a torch.nn.Linear, not Identity"):
        replace_head(model)


# The rows of a call as sequences of a pool, on every device.
DEVICES = ["cpu", *(["emulated"] if EMULATOR else []), *(["cuda:0"] if torch.cuda.is_available() else [])]
ROWS = torch.randn(17, 60, generator=torch.Generator().manual_seed(1)) * 3
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, no_repeat_ngram=3, min_tokens=4, stop_ids=[2]),
    SamplingParams(temperature=1.5, dry=Dry(1.0), xtc_probability=0.5, banned_ids=[3, 4]),
]


def rows_of(histories: list[list[int]], device: str) -> Any:
    rows = torch.stack([ROWS[(history[-1] * 5 + len(history)) % len(ROWS)] for history in histories])
    return rows.to(device) if device.startswith("cuda") else rows


def sequences(device: str, params: SamplingParams, prompts: list[list[int]], seed: Any, **more: Any) -> Sequences:
    chosen = {
        "vocab": 60,
        "device": rows_of([[1]], device).device,
        "pool_device": device if device == "emulated" else None,
    }
    return Sequences([params] * len(prompts), prompts, words_of(params, seed, len(prompts)), **(chosen | more))


def alone(params: SamplingParams, prompt: list[int], seed: int, draw: int, length: int) -> list[int]:
    state = State(prompt, seed=seed, position=len(prompt), draw=draw)
    sampler = Sampler.resume(params.replace(seed=seed), 60, state)
    for _ in range(length):
        sampler.sample(rows_of([sampler.history], "cpu")[0])
    return sampler.output


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("params", PARAMS)
def test_rows_draw_what_samplers_draw_and_drafts_are_taken_back(device: str, params: SamplingParams) -> None:
    prompts: list[list[int]] = [[5], [6, 7], [8, 9, 10]]
    for seed, words in ((7, [(7, 0), (7, 1), (7, 2)]), ([4, 5, 6], [(4, 0), (5, 0), (6, 0)])):
        made, texts = sequences(device, params, prompts, seed), [[], [], []]
        for step in range(9):
            # Rows that have ended stand still.
            takes_part = [True, step < 4, step < 7]
            rows = rows_of([prompt + text for prompt, text in zip(prompts, texts)], device)
            for text, token, part in zip(texts, made.step(rows, takes_part).tokens.tolist(), takes_part):
                assert (token >= 0) == part
                text += [token] * part
        assert texts == [alone(params, *each) for each in zip(prompts, *zip(*words), (9, 4, 7))]
    made, text = sequences(device, params, [[5, 6]], 7, drafts=True), []
    while len(text) < 12:
        drafts: list[int] = []
        for _ in range(3):
            drafts.append(made.draft(rows_of([[5, 6] + text + drafts], device), drafts))
        drafts[2] = (drafts[2] + 1) % 60
        rows = rows_of([[5, 6] + text + drafts[:count] for count in range(4)], device)
        emitted = made.verify(rows, drafts).tokens.tolist()
        assert emitted[:2] == drafts[:2] and len(emitted) == 3
        made.shorten(1)
        text += emitted[:2]
    assert text == alone(params, [5, 6], 7, 0, len(text))


def test_a_seed_is_a_whole_number_of_any_kind() -> None:
    # Digits are no seeds, one by one.
    for seed in ("7", b"7", ["7"], 7.5, [7.0], True):
        with pytest.raises(ValueError, match="seed is .*, but must be a whole number"):
            words_of(SamplingParams(), seed, 2)
    for seed in ([8, 9], np.array([8, 9]), torch.tensor([8, 9]), range(8, 10)):
        assert words_of(SamplingParams(), seed, 4, 2) == [(8, 0), (8, 1), (9, 0), (9, 1)]
    for seed in (7, np.uint64(7), torch.tensor(7), np.array(7)):
        assert words_of(SamplingParams(), seed, 2) == [(7, 0), (7, 1)]
