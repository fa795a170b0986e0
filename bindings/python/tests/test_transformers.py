"""transformers: generate draws with Gumball, row by row what a sampler draws from the same logits."""

from __future__ import annotations

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


def test_what_does_not_fit_is_told(model: Any) -> None:
    from gumball.transformers import generate

    ids = torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="num_beams is 2"):
        generate(model, input_ids=ids, num_beams=2)
    with pytest.raises(ValueError, match="params has length 2, but must have one per row, 1"):
        generate(model, [SamplingParams()] * 2, input_ids=ids, max_new_tokens=1)
    with pytest.raises(ValueError, match="banned_ids is 128"):
        generate(model, SamplingParams(banned_ids=[128]), input_ids=ids, max_new_tokens=1)
