"""What cannot be had is refused by a text that says what to do, before the model is run."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import T5Config, T5ForConditionalGeneration

import recorded_model
from calls import PROMPT, generate
from gumball_transformers import replace_head

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 3}, "num_beams is 3, but beams choose between tokens themselves; set it to 1"),
    "beams that sample": ({"num_beams": 2, "do_sample": True}, "num_beams is 2"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4, "do_sample": False}, "generation mode is contrastive_search"),
    "layers": ({"dola_layers": "low"}, "generation mode is dola_generation"),
    "paged": ({"cache_implementation": "paged"}, "cache_implementation is 'paged', which is continuous batching"),
    "healing": ({"token_healing": True}, "token_healing"),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit is 1"),
    "logprobs without a place": ({"logprobs": 1}, "pass return_dict_in_generate=True"),
    "fewer than no logprobs": ({"logprobs": -1, "return_dict_in_generate": True}, "top_n"),
    "a mode of logprobs": ({"logprobs": 1, "logprobs_mode": "sorted", "return_dict_in_generate": True}, "sorted"),
    "mirostat and top-k": (
        {"mirostat_tau": 3.0, "top_k": None},
        "top_k=0 among them, which is 50 where nobody sets it",
    ),
    "greedy xtc": ({"xtc_probability": 0.5, "do_sample": False}, "pass do_sample=True"),
    "a scope of nothing": ({"repetition_scope": "output"}, "there is no repetition_penalty"),
    "a window of nothing": (
        {"penalty_window": 9},
        "there is no repetition_penalty or frequency_penalty or presence_penalty",
    ),
    "a range": ({"xtc_probability": 1.5}, "xtc_probability"),
    "a type": ({"dry_multiplier": "much"}, "dry_multiplier = 'much', but it must be a number"),
    "half a part": ({"mirostat_eta": 0.5}, "generate has mirostat_eta without mirostat_tau$"),
    "a key that nobody has": ({"watermark_key": 99}, "key is 99"),
    "a name": ({"xtc_probabillity": 0.5}, "xtc_probabillity"),
    "a seed": ({"seed": -1}, "seed"),
    "seeds": ({"seed": [1, 2]}, "seed has length 2, but must have one for each prompt, 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_reason(recorded: Any, name: str) -> None:
    named, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        generate(recorded, [PROMPT], **named)


# With an assistant.
NOT_WITH_DRAFTS: dict[str, tuple[dict[str, Any], str]] = {
    "mirostat": (
        {"mirostat_tau": 3.0},
        "mirostat_tau is asked for, which does not go with drafts; leave the assistant out",
    ),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    "no cache": ({"use_cache": False}, "use_cache"),
    "a static cache": ({"cache_implementation": "static"}, "static"),
    "an ensemble": ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight is 0.5"),
    "another tokenizer": ({"assistant_tokenizer": "one"}, "assistant_tokenizer"),
}


@pytest.mark.parametrize("name", NOT_WITH_DRAFTS)
def test_what_does_not_go_with_drafts_is_refused(recorded: Any, name: str) -> None:
    named, text = NOT_WITH_DRAFTS[name]
    with pytest.raises(ValueError, match=text):
        generate(recorded, [PROMPT], assistant_model=recorded_model.model(recorded.rows), **named)


def test_drafts_are_for_a_row_alone_and_a_vocabulary_alone(recorded: Any) -> None:
    with pytest.raises(ValueError, match="the batch has 2 rows"):
        generate(recorded, [PROMPT, PROMPT], assistant_model=recorded_model.model(recorded.rows))
    with pytest.raises(ValueError, match="the assistant has a vocabulary of 100, and the model one of 49152"):
        generate(recorded, [PROMPT], assistant_model=recorded_model.model(recorded.rows[:, :100]))


def test_drafts_of_a_model_with_an_encoder_or_a_replaced_head_are_refused(recorded: Any) -> None:
    config = T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(ValueError, match="the model has an encoder, which does not go with drafts"):
        generate(T5ForConditionalGeneration(config).eval(), [[3, 4]], prompt_lookup_num_tokens=2)
    with replace_head(recorded), pytest.raises(ValueError, match="a replaced head, which does not go with drafts"):
        generate(recorded, [PROMPT], prompt_lookup_num_tokens=2)


def test_nothing_is_run_before(recorded: Any) -> None:
    recorded.passes = 0
    for named, _ in REFUSED.values():
        with pytest.raises(ValueError):
            generate(recorded, [PROMPT], **named)
    assert recorded.passes == 0
