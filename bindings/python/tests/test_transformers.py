"""transformers: generate draws with Gumball, row by row what a sampler draws from the same logits."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from gumball import Sampler, SamplingParams, State

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

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
    from gumball.transformers import generate

    params = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.2, seed=7)
    prompt = [5, 6, 7]
    ids = torch.tensor([prompt, [9, 9, 2]])
    seen = generate(model, params, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
    for row in range(2):
        prompt = ids[row].tolist()
        sampler = Sampler.resume(params, VOCAB, State(prompt, seed=7, position=3, draw=row))
        assert seen[row, 3:].tolist() == by_hand(model, prompt, sampler, 12)


def test_several_sequences_of_a_prompt_are_told_apart_by_the_draw_index(model: Any) -> None:
    from gumball.transformers import generate

    params = SamplingParams(temperature=1.3, top_k=50, seed=7)
    ids = torch.tensor([[5, 6, 7]])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "num_return_sequences": 3}
    seen = generate(model, params, input_ids=ids, **asked)
    for row in range(3):
        sampler = Sampler.resume(params, VOCAB, State([5, 6, 7], seed=7, position=3, draw=row))
        assert seen[row, 3:].tolist() == by_hand(model, [5, 6, 7], sampler, 6)
    assert len({tuple(row) for row in seen.tolist()}) > 1


def test_rows_may_have_parameters_of_their_own_and_padding(model: Any) -> None:
    from gumball.transformers import generate

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
    from gumball.transformers import generate

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
    from gumball.transformers import generate

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
    from gumball import Head
    from gumball.transformers import generate

    params = [REPEATS, REPEATS.replace(seed=4)]
    for head in (False, True):
        with Head.replace(model, kind="exact") if head else contextlib.nullcontext():
            alone = generate(model, params[1:], input_ids=PADDED[1:, 3:], max_new_tokens=9)[0, 3:]
            for mask in (None, (PADDED != 0).long()):
                found = generate(model, params, input_ids=PADDED, attention_mask=mask, max_new_tokens=9)
                assert found[1, 6:].tolist() == alone.tolist()


def test_a_prompt_of_embeddings_is_an_empty_one(model: Any) -> None:
    from gumball.transformers import GumballLogitsProcessor, generate

    ids = torch.tensor([[5, 6, 7, 8]])
    states, mask = model.get_input_embeddings()(ids), torch.ones_like(ids)
    sampler, wanted = Sampler(REPEATS, VOCAB), []
    while len(wanted) < 5:
        behind = model.get_input_embeddings()(torch.tensor([wanted], dtype=torch.long))
        with torch.no_grad():
            wanted.append(sampler.sample(model(inputs_embeds=torch.cat([states, behind], 1)).logits[0, -1]))
    assert generate(model, REPEATS, inputs_embeds=states, max_new_tokens=5)[0].tolist() == wanted
    ours = [GumballLogitsProcessor(REPEATS, attention_mask=mask)]
    given = {"inputs_embeds": states, "attention_mask": mask, "max_new_tokens": 5, "logits_processor": ours}
    assert model.generate(**given)[0].tolist() == wanted


def test_the_mask_of_an_encoder_is_not_laid_over_the_decoders_ids() -> None:
    from gumball.transformers import generate

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


@pytest.mark.parametrize("loose", [False, True])
def test_what_a_calls_own_config_says_counts_as_its_arguments_do(model: Any, loose: bool) -> None:
    from gumball.transformers import generate

    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 9}

    def said(**named: Any) -> Any:
        more = named if loose else {"generation_config": transformers.GenerationConfig(pad_token_id=0, **named)}
        return generate(model, REPEATS, **asked, **more)

    few = said(suppress_tokens=list(range(64)))[0, 3:].tolist()
    wanted = generate(model, REPEATS.replace(banned_ids=list(range(64))), **asked)[0, 3:].tolist()
    assert few == wanted and min(few) >= 64
    with pytest.raises(ValueError, match="num_beams is 3"):
        said(num_beams=3)
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens is 3"):
        said(prompt_lookup_num_tokens=3)
    assert said(num_return_sequences=2, do_sample=True).shape == (2, 12)


def test_a_models_own_drafts_do_not_count_and_an_assistant_is_refused(model: Any, monkeypatch: Any) -> None:
    from gumball.transformers import generate

    asked = {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7]]), "max_new_tokens": 6}
    wanted = generate(model, REPEATS, **asked)
    monkeypatch.setattr(model.generation_config, "prompt_lookup_num_tokens", 3)
    assert torch.equal(generate(model, REPEATS, **asked), wanted)
    with pytest.raises(ValueError, match="assistant_model is given.*gumball-transformers"):
        generate(model, REPEATS, assistant_model=model, **asked)


def test_sampling_that_is_not_read_is_said_once(model: Any, caplog: Any) -> None:
    from gumball import transformers as ours

    ours._said.clear()
    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 2, "temperature": 0.1, "do_sample": True}
    for _ in range(2):
        ours.generate(model, REPEATS, **asked)
    assert [record.message.split(" of a call")[0] for record in caplog.records] == ["temperature, do_sample"]


def test_stop_strings_and_streamers_work(model: Any) -> None:
    from gumball.transformers import generate

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


def test_a_processor_serves_one_call() -> None:
    from gumball.transformers import GumballLogitsProcessor

    scores = torch.zeros(2, 20).index_fill_(1, torch.tensor([3]), 5.0)
    params = SamplingParams(temperature=0)
    first = torch.tensor([[3, 1], [3, 2]])
    # Ids of another call: another prompt, another length, other tokens after the same prompt.
    for second in ([[4, 4, 4], [4, 4, 4]], [[3, 1], [3, 2]], [[3, 1, 5], [3, 2, 5]], [[3, 2, 3], [3, 2, 3]]):
        one = GumballLogitsProcessor(params)
        one(first, scores)
        with pytest.raises(ValueError, match="one processor serves one call of generate"):
            one(torch.tensor(second), scores)
    # A row that has ended goes on with padding.
    one = GumballLogitsProcessor(params)
    for ids in ([[3, 1], [3, 2]], [[3, 1, 3], [3, 2, 0]], [[3, 1, 3, 3], [3, 2, 0, 0]]):
        assert one(torch.tensor(ids), scores).argmax(-1).tolist() == [3, 3]


def test_a_row_without_a_token_is_an_error_that_names_it() -> None:
    from gumball.transformers import GumballLogitsProcessor

    scores = torch.zeros(2, 20)
    scores[1] = -float("inf")
    with pytest.raises(RuntimeError, match="row 1 has no token above -inf behind 2 tokens"):
        GumballLogitsProcessor()(torch.tensor([[3, 1], [3, 2]]), scores)


def test_what_does_not_fit_is_told(model: Any) -> None:
    from gumball.transformers import GumballLogitsProcessor, generate

    ids = torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="num_beams is 2"):
        generate(model, input_ids=ids, num_beams=2)
    with pytest.raises(ValueError, match="params has length 2, but must have one per row, 1"):
        generate(model, [SamplingParams()] * 2, input_ids=ids, max_new_tokens=1)
    with pytest.raises(ValueError, match="banned_ids is 128"):
        generate(model, SamplingParams(banned_ids=[128]), input_ids=ids, max_new_tokens=1)
    asked = {"input_ids": ids, "max_new_tokens": 1}
    mask = torch.ones((1, 3), dtype=torch.long)
    with pytest.raises(ValueError, match=r"attention_mask is \[1, 3\], but must be \[1, 2\]"):
        ours = GumballLogitsProcessor(attention_mask=mask)
        model.generate(**asked, logits_processor=[ours])
