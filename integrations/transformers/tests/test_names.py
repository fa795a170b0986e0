"""Every parameter of ours by every door that transformers has for its own: it counts the same, or is refused by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gumball import SamplingParams, add_watermark_keys
from gumball.errors import InvalidTypeError
from gumball_transformers import FOLDER, GumballOutput, generate
from gumball_transformers.generation import SAMPLING
from gumball_transformers.params import CALL_NAMES

VOCAB = 64
IDS = torch.tensor([[5, 6, 7, 5, 6]])
# A pipeline has a temperature of its own where the call gives none.
PLAIN = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 24}
LISTED = {"return_dict_in_generate": True, "logprobs": 2}
# So that ids of the prompt are drawn.
BIASED = {"sequence_bias": [[[5], 9.0], [[6], 9.0], [[7], 9.0]]}
REPEATED = {"repetition_penalty": 3.0, "presence_penalty": 9.0} | BIASED
# What must not be left out where another name stands.
NEEDED = ("dynamic_temperature_max", "dynamic_temperature_min", "logprobs", "mirostat_tau", "section_close")
NEEDED += ("loops_close", "loops_end")
# A section without an id that opens it begins with the output.
SECTION = {"section_close": [9], "section_budget": 3}
LOOPS = {"loops_min_copies": 2, "loops_min_tokens": 0, "loops_every": 1} | BIASED
ENDED = LOOPS | {"loops_end": [9]}
add_watermark_keys("0 000102030405060708090a0b0c0d0e0f\n1 f0e0d0c0b0a090807060504030201000")

# For each name a value, and the arguments that it needs to count.
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "top_n_sigma": (0.5, {}),
    "top_a": (0.9, {}),
    "p_less": (True, {}),
    "min_keep": (8, {"top_p": 0.01}),
    "xtc_probability": (1.0, {"xtc_threshold": 0.001}),
    "xtc_threshold": (0.001, {"xtc_probability": 1.0}),
    "xtc_exempt_ids": (list(range(VOCAB)), {"xtc_probability": 1.0, "xtc_threshold": 0.001}),
    "repetition_scope": ("output", REPEATED),
    "penalty_scope": ("both", REPEATED),
    "penalty_window": (1, REPEATED),
    "no_repeat_ngram_scope": ("output", {"no_repeat_ngram_size": 2} | BIASED),
    "no_repeat_ngram_window": (2, {"no_repeat_ngram_size": 2} | BIASED),
    "no_repeat_ngram_exempt_ids": ([5, 6, 7], {"no_repeat_ngram_size": 2} | BIASED),
    "order": ("min_p,top_p", {"min_p": 0.9, "top_p": 0.5, "temperature": 3.0}),
    "temperature_last": (True, {"temperature": 3.0, "min_p": 0.5}),
    "dry_multiplier": (9.0, {"dry_allowed_length": 1} | BIASED),
    "dry_base": (9.0, {"dry_multiplier": 1.0, "dry_allowed_length": 1} | BIASED),
    "dry_allowed_length": (1, {"dry_multiplier": 9.0} | BIASED),
    "dry_breakers": ([5, 6, 7], {"dry_multiplier": 9.0, "dry_allowed_length": 1} | BIASED),
    "dry_window": (4, {"dry_multiplier": 9.0, "dry_allowed_length": 1} | BIASED),
    "adaptive_target": (0.0, {}),
    "adaptive_decay": (0.0, {"adaptive_target": 0.5}),
    "mirostat_tau": (0.5, {}),
    "mirostat_eta": (1.0, {"mirostat_tau": 1.0}),
    "mirostat_mu": (0.1, {"mirostat_tau": 1.0}),
    "dynamic_temperature_min": (0.01, {"dynamic_temperature_max": 0.1}),
    "dynamic_temperature_max": (0.1, {"dynamic_temperature_min": 0.01}),
    "dynamic_temperature_exponent": (9.0, {"dynamic_temperature_min": 0.01, "dynamic_temperature_max": 9.0}),
    "section_open": ([6], SECTION),
    "section_close": ([9], {"section_budget": 3}),
    "section_end": ([8, 9], SECTION),
    "section_budget": (3, {"section_close": [9]}),
    "section_min": (20, {"section_close": [9], "sequence_bias": [[[9], 99.0]]}),
    "loops_min_period": (2, ENDED),
    "loops_max_period": (1, ENDED | {"bad_words_ids": [[5, 5], [6, 6]], "sequence_bias": [[[5], 99.0], [[6], 99.0]]}),
    "loops_min_copies": (5, ENDED),
    "loops_min_tokens": (12, ENDED),
    "loops_every": (7, ENDED),
    "loops_close": (True, LOOPS | {"section_close": [9]}),
    "loops_end": ([9], LOOPS),
    "watermark_key": (1, {}),
    "watermark_context": (1, {"watermark_key": 0}),
    "watermark_scope": ("both", {"watermark_key": 0}),
    "watermark_window": (1, {"watermark_key": 0, "watermark_context": 1} | BIASED),
    "frequency_penalty": (9.0, {}),
    "presence_penalty": (9.0, {}),
    "seed": (8, {}),
    "logprobs": (3, LISTED),
    "logprobs_mode": ("processed", LISTED | {"temperature": 0.3}),
    "logprob_ids": ([9, 4], LISTED),
}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCAB, **sizes)).eval()
    made.lm_head.weight.data.mul_(15)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(id): id for id in range(VOCAB)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", unk_token="0")


def config(**said: Any) -> Any:
    return transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, **said)


def found(out: Any) -> list[Any]:
    """What a call returns, as lists."""
    if not isinstance(out, GumballOutput):
        return [out.tolist()]
    fields = ("sequences", "logprobs", "ranks", "top_ids", "top_logprobs", "id_logprobs", "id_ranks")
    return [None if out[name] is None else out[name].tolist() for name in fields if name in out]


def by_door(door: str, model: Any, said: dict[str, Any], tokenizer: Any, folder: Path) -> list[Any]:
    """Calls generate with arguments by one of the ways."""
    model.generation_config = config()
    named = {"custom_generate": FOLDER, "trust_remote_code": True}
    if door == "argument":
        return found(generate(model, inputs=IDS, **said))
    if door == "a config of the call":
        return found(generate(model, inputs=IDS, generation_config=config(**said)))
    if door == "the model's file":
        config(**said).save_pretrained(folder)
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        return found(generate(model, inputs=IDS))
    if door == "custom_generate":
        return found(model.generate(IDS, **said, **named))
    if door == "custom_generate, a config of the call":
        return found(model.generate(IDS, generation_config=config(**said), **named))
    model.generation_config = config(**said) if door == "a pipeline, the model's file" else config()
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    if door == "a pipeline, a config of the call":
        said = {"generation_config": config(**said)}
    elif door == "a pipeline, the model's file":
        said = {}
    words = " ".join(map(str, IDS[0].tolist()))
    return [[pipe(words, return_tensors=True, **said, **named)[0]["generated_token_ids"]]]


DOORS = (
    "argument",
    "a config of the call",
    "the model's file",
    "custom_generate",
    "custom_generate, a config of the call",
    "a pipeline",
    "a pipeline, a config of the call",
    "a pipeline, the model's file",
)


def test_every_name_has_a_value_here() -> None:
    assert set(VALUES) == set(CALL_NAMES)


@pytest.mark.parametrize("name", [name for name in CALL_NAMES if name not in NEEDED])
def test_each_value_counts(name: str, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    value, beside = VALUES[name]
    said = PLAIN | {"seed": 7} | beside
    with_it, without = (by_door("argument", model, one, tokenizer, tmp_path) for one in (said | {name: value}, said))
    assert with_it != without


@pytest.mark.parametrize("door", DOORS)
def test_each_parameter_counts_by_every_door(door: str, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for name, (value, beside) in VALUES.items():
        said = PLAIN | {"seed": 7} | beside | {name: value}
        wanted = by_door("argument", model, said, tokenizer, tmp_path)
        # A pipeline hands no logprobs on.
        if "pipeline" in door:
            if "return_dict_in_generate" in said:
                continue
            wanted = wanted[:1]
        assert by_door(door, model, said, tokenizer, tmp_path) == wanted, name


@pytest.mark.parametrize("door", DOORS)
def test_a_name_of_sampling_params_that_generate_does_not_read_is_refused_by_every_door(
    door: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"logit_bias": [[5, 1.0]], "allowed_ids": [5], "banned_ids": [5], "bad_words": [[5]]}
    values |= {"bias_first": True, "min_tokens": 3, "stop_ids": [5], "no_repeat_ngram": 2, "dry": {"multiplier": 1.0}}
    values |= {
        "mirostat": {"tau": 1.0},
        "dynamic_temperature": {"min": 0.1},
        "section": {"close": [5]},
        "loops": {"every": 5},
        "watermark": {"key": 0},
    }
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert fields - {*CALL_NAMES, *SAMPLING} == set(values)
    for name, value in values.items():
        with pytest.raises(ValueError, match=f"^{name} is for SamplingParams; generate reads .* instead"):
            by_door(door, model, PLAIN | {name: value}, tokenizer, tmp_path)


def test_an_argument_stands_above_a_config_of_the_call_and_that_above_the_models(model: Any) -> None:
    model.generation_config = config(presence_penalty=1.0, seed=1)
    of_call = config(presence_penalty=2.0, seed=2, **PLAIN)
    wanted = generate(model, inputs=IDS, **PLAIN, presence_penalty=3.0, seed=3)
    assert torch.equal(generate(model, inputs=IDS, generation_config=of_call, presence_penalty=3.0, seed=3), wanted)
    wanted = generate(model, inputs=IDS, **PLAIN, presence_penalty=2.0, seed=2)
    assert torch.equal(generate(model, inputs=IDS, generation_config=of_call), wanted)
    # None switches off what a config says, as for transformers' own.
    wanted = generate(model, inputs=IDS, **PLAIN, presence_penalty=0.0, seed=1)
    assert torch.equal(generate(model, inputs=IDS, presence_penalty=None, **PLAIN), wanted)


def test_what_a_config_says_of_sampling_does_not_count_beside_params(model: Any) -> None:
    params = SamplingParams(temperature=0.9, seed=3)
    model.generation_config = config()
    wanted = generate(model, params, inputs=IDS, max_new_tokens=9)
    model.generation_config = config(presence_penalty=9.0, seed=9, min_tokens=3)
    of_call = config(max_new_tokens=9, frequency_penalty=9.0, logprobs=2)
    assert torch.equal(generate(model, params, inputs=IDS, generation_config=of_call), wanted)


WRONG: dict[str, tuple[Any, str]] = {
    "a prompt": (
        IDS,
        "params must be a SamplingParams or a list of them, not Tensor; pass the prompt as inputs= or input_ids=",
    ),
    "an array": (IDS.numpy(), "not ndarray; pass the prompt as inputs="),
    "a dict": (
        {"temperature": 0.5},
        r"not dict; write \*\*params for the arguments of generate, or SamplingParams\(\*\*params\)",
    ),
    "a config": (config(), "not GenerationConfig; pass it as generation_config="),
    "a list of other things": ([SamplingParams(), {}], r"params\[1\] must be a SamplingParams, not dict"),
    "a number": (7, "params must be a SamplingParams or a list of them, not int"),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_object_in_the_place_of_params_is_told(what: str, model: Any) -> None:
    value, text = WRONG[what]
    with pytest.raises(InvalidTypeError, match=text):
        generate(model, value, max_new_tokens=3)


def test_another_object_in_the_place_of_the_model_is_told() -> None:
    for what in ("gpt2", IDS, None, torch.nn.Linear(2, 2)):
        with pytest.raises(
            InvalidTypeError, match=f"model must be a model of transformers .*, not {type(what).__name__}"
        ):
            generate(what, SamplingParams())
