"""transformers: generate draws with Gumball, row by row what a sampler draws from the same logits."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from gumball import Dry, Head, LogprobsParams, Mirostat, Sampler, SamplingParams, State

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gumball.transformers import generate

VOCAB = 128


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    made.generation_config.top_k = 1  # Must not count: parameters are ours.
    return made


def by_hand(model: Any, prompt: list[int], sampler: Sampler, steps: int) -> list[int]:
    for _ in range(steps):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sampler.output])).logits[0, -1]
        sampler.sample(logits)
    return sampler.output


def test_generate_draws_what_a_sampler_draws(model: Any) -> None:

    params = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.2, seed=7)
    prompt = [5, 6, 7]
    ids = torch.tensor([prompt, [9, 9, 2]])
    seen = generate(model, params, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
    for row in range(2):
        prompt = ids[row].tolist()
        sampler = Sampler.resume(params, VOCAB, State(prompt, seed=7, position=3, draw=row))
        assert seen[row, 3:].tolist() == by_hand(model, prompt, sampler, 12)


def test_several_sequences_of_a_prompt_are_told_apart_by_the_draw_index(model: Any) -> None:

    params = SamplingParams(temperature=1.3, top_k=50, seed=7)
    ids = torch.tensor([[5, 6, 7]])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "num_return_sequences": 3}
    seen = generate(model, params, input_ids=ids, **asked)
    for row in range(3):
        sampler = Sampler.resume(params, VOCAB, State([5, 6, 7], seed=7, position=3, draw=row))
        assert seen[row, 3:].tolist() == by_hand(model, [5, 6, 7], sampler, 6)
    assert len({tuple(row) for row in seen.tolist()}) > 1


def test_rows_may_have_parameters_of_their_own_and_padding(model: Any) -> None:

    params = [SamplingParams(temperature=0), SamplingParams(seed=3, min_p=0.1)]
    ids, mask = torch.tensor([[0, 0, 8], [4, 5, 6]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    seen = generate(model, params, input_ids=ids, attention_mask=mask, max_new_tokens=5)
    assert seen.shape == (2, 8)
    assert seen[1, 3:].tolist() == by_hand(model, [4, 5, 6], Sampler(params[1], VOCAB, prompt=[4, 5, 6]), 5)
    again = generate(model, params, input_ids=ids, attention_mask=mask, max_new_tokens=5)
    assert torch.equal(seen, again)


# What a model's own generation_config may say, each of which would choose or forbid tokens here.
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
}


@pytest.mark.parametrize("name", OWN)
def test_what_a_models_own_config_says_does_not_count(model: Any, name: str) -> None:

    params, ids = SamplingParams(temperature=1.5, seed=3), torch.tensor([[5, 6, 7]])
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "eos_token_id": 2}
    wanted = generate(model, params, **asked).tolist()
    before = getattr(model.generation_config, name)
    setattr(model.generation_config, name, OWN[name])
    try:
        assert generate(model, params, **asked).tolist() == wanted
        assert getattr(model.generation_config, name) == OWN[name]
    finally:
        setattr(model.generation_config, name, before)


def test_edits_that_are_handed_to_the_call_act_before_the_draw(model: Any) -> None:

    params, ids = SamplingParams(temperature=1.5, seed=3), torch.tensor([[5, 6, 7]])
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 12}
    plain = generate(model, params, **asked)[0, 3:].tolist()
    seen = generate(model, params, suppress_tokens=plain, **asked)[0, 3:].tolist()
    assert not set(seen) & set(plain)
    banned = SamplingParams(temperature=1.5, seed=3, banned_ids=plain)
    assert generate(model, banned, **asked)[0, 3:].tolist() == seen


PADDED = torch.tensor([[5, 6, 7, 8, 9, 10], [0, 0, 0, 7, 8, 9]])
REPEATS = SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.5)


def test_padding_is_what_transformers_takes_for_padding(model: Any) -> None:

    params = [REPEATS, REPEATS.replace(seed=4)]
    for head in (False, True):
        with Head.replace(model, kind="exact") if head else contextlib.nullcontext():
            alone = generate(model, params[1:], input_ids=PADDED[1:, 3:], max_new_tokens=9)[0, 3:]
            for mask in (None, (PADDED != 0).long()):
                found = generate(model, params, input_ids=PADDED, attention_mask=mask, max_new_tokens=9)
                assert found[1, 6:].tolist() == alone.tolist()


def test_a_prompt_of_embeddings_is_an_empty_one(model: Any) -> None:

    ids = torch.tensor([[5, 6, 7, 8]])
    states = model.get_input_embeddings()(ids)
    sampler, wanted = Sampler(REPEATS, VOCAB), []
    while len(wanted) < 5:
        behind = model.get_input_embeddings()(torch.tensor([wanted], dtype=torch.long))
        with torch.no_grad():
            wanted.append(sampler.sample(model(inputs_embeds=torch.cat([states, behind], 1)).logits[0, -1]))
    for more in ({}, {"attention_mask": torch.ones_like(ids)}):
        assert generate(model, REPEATS, inputs_embeds=states, max_new_tokens=5, **more)[0].tolist() == wanted


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
    source = torch.tensor([[5, 6, 2, 1, 1], [7, 8, 9, 10, 2]])
    asked = {"input_ids": source, "attention_mask": (source != 1).long(), "max_new_tokens": 8, "eos_token_id": 89}
    asked |= {
        "return_dict_in_generate": True,
        "output_attentions": True,
        "output_hidden_states": True,
        "output_logits": True,
    }
    named = {} if params else {"do_sample": True, "temperature": 0.9, "top_k": 0, "seed": 3, "repetition_penalty": 1.5}
    bart.set_attn_implementation("eager")
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

    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 6}
    wanted = generate(model, REPEATS, **asked)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert torch.equal(generate(model, REPEATS, **asked, synced_gpus=True), wanted)
        with pytest.raises(ValueError, match="synced_gpus.*does not go with drafts"):
            generate(model, REPEATS, **asked, synced_gpus=True, prompt_lookup_num_tokens=3)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("loose", [False, True])
def test_what_a_calls_own_config_says_counts_as_its_arguments_do(model: Any, loose: bool) -> None:

    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 9}

    def said(**named: Any) -> Any:
        more = named if loose else {"generation_config": transformers.GenerationConfig(pad_token_id=0, **named)}
        return generate(model, REPEATS, **asked, **more)

    few = said(suppress_tokens=list(range(64)))[0, 3:].tolist()
    wanted = generate(model, REPEATS.replace(banned_ids=list(range(64))), **asked)[0, 3:].tolist()
    assert few == wanted and min(few) >= 64
    with pytest.raises(ValueError, match="num_beams is 3"):
        said(num_beams=3)
    # Drafts change nothing.
    assert torch.equal(said(prompt_lookup_num_tokens=3), said())
    assert said(num_return_sequences=2, do_sample=True).shape == (2, 12)


def test_a_models_own_drafts_do_not_count(model: Any, monkeypatch: Any) -> None:
    asked = {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7], [5, 6, 7, 8, 6, 7]]), "max_new_tokens": 6}
    wanted = generate(model, REPEATS, **asked)
    monkeypatch.setattr(model.generation_config, "prompt_lookup_num_tokens", 3)
    assert torch.equal(generate(model, REPEATS, **asked), wanted)


@pytest.mark.parametrize("drafts", ["assistant_model", "prompt_lookup_num_tokens"])
def test_drafts_do_not_change_what_params_say(model: Any, drafts: str) -> None:
    params = SamplingParams(temperature=0.7, seed=3, dry=Dry(1.0), frequency_penalty=0.3)
    asked = {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7]]), "max_new_tokens": 24}
    wanted = generate(model, params, **asked)
    more = {drafts: model if drafts == "assistant_model" else 3}
    assert torch.equal(generate(model, params, **asked, **more), wanted)


def test_what_says_again_how_tokens_are_drawn_is_refused(model: Any) -> None:
    for more in ({"temperature": 0.1}, {"do_sample": False}, {"seed": 3}, {"logprobs": 1}, {"xtc_probability": 0.5}):
        with pytest.raises(ValueError, match=f"{next(iter(more))} is .*, but params say how tokens are drawn"):
            generate(model, REPEATS, input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=2, **more)


def test_each_row_has_its_logprobs_and_scores(model: Any) -> None:
    asked = {"input_ids": torch.tensor([[5, 6, 7]] * 3), "max_new_tokens": 6, "return_dict_in_generate": True}
    params = [
        SamplingParams(seed=3, top_k=9, logprobs=LogprobsParams(mode="processed", top_n=2)),
        SamplingParams(temperature=0),
        SamplingParams(seed=4, mirostat=Mirostat(3.0, 0.1)),
    ]
    out = generate(model, params, **asked, output_scores=True)
    assert torch.equal(
        out.sequences, generate(model, [one.replace(logprobs=None) for one in params], **asked).sequences
    )
    drawn = out.sequences[:, 3:]
    expected = torch.stack(out.scores, 1).log_softmax(-1).gather(2, drawn[..., None])[..., 0]
    torch.testing.assert_close(out.logprobs[0], expected[0], rtol=1e-5, atol=1e-5)
    assert out.logprobs[1:].isneginf().all() and out.top_ids.shape == (3, 6, 2)
    assert [int(row.isfinite().sum()) for row in out.scores[0][:2]] == [9, VOCAB]
    with pytest.raises(ValueError, match="pass return_dict_in_generate=True"):
        generate(model, params, **(asked | {"return_dict_in_generate": False}))
    with pytest.raises(ValueError, match="ids of logprobs"):
        generate(model, SamplingParams(logprobs=LogprobsParams(ids=[3])), **(asked | {"output_scores": True}))


def test_a_replaced_head_has_scores_and_logits(model: Any) -> None:
    params = SamplingParams(seed=3, top_k=9, logprobs=LogprobsParams(top_n=2))
    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 5, "return_dict_in_generate": True}
    asked |= {"output_scores": True, "output_logits": True}
    wanted = generate(model, params, **asked)
    with Head.replace(model, kind="certified"):
        found = generate(model, params, **asked)
        by_names = generate(model, seed=3, do_sample=True, top_k=9, logprobs=2, **asked)
    for out in (found, by_names):
        assert torch.equal(out.sequences, wanted.sequences)
        torch.testing.assert_close(
            (out.scores, out.logits, out.top_logprobs), (wanted.scores, wanted.logits, wanted.top_logprobs)
        )


def test_stop_strings_and_streamers_work(model: Any) -> None:

    class Streamer:
        seen: list[int] = []

        def put(self, ids: Any) -> None:
            self.seen += ids.flatten().tolist()

        def end(self) -> None:
            self.seen.append(-1)

    ids = torch.tensor([[5, 6, 7]])
    found = generate(model, REPEATS, input_ids=ids, max_new_tokens=4, streamer=Streamer())
    assert Streamer.seen == [*found[0].tolist(), -1]
    with pytest.raises(ValueError, match="stop_strings are given without a tokenizer"):
        generate(model, REPEATS, input_ids=ids, max_new_tokens=4, stop_strings=["x"])


def test_a_row_without_a_token_is_an_error_that_names_it(model: Any) -> None:
    none = [lambda ids, scores: scores.index_fill(0, torch.tensor([1]), -float("inf"))]
    with pytest.raises(RuntimeError, match="row 1 has no token above -inf behind 2 tokens"):
        generate(model, SamplingParams(), input_ids=torch.tensor([[3, 1], [3, 2]]), logits_processor=none)


def test_what_does_not_fit_is_told(model: Any) -> None:
    ids = torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="num_beams is 2"):
        generate(model, SamplingParams(), input_ids=ids, num_beams=2)
    with pytest.raises(ValueError, match="params has length 2, but must have one per row, 1"):
        generate(model, [SamplingParams()] * 2, input_ids=ids, max_new_tokens=1)
    with pytest.raises(ValueError, match="banned_ids is 128"):
        generate(model, SamplingParams(banned_ids=[128]), input_ids=ids, max_new_tokens=1)
