"""What transformers' generate would do by itself is switched off: told apart without transformers."""

from __future__ import annotations

from types import SimpleNamespace

from gumball.generation import DRAFTS, EDITS, SAMPLING, said_by, switched_off

CONFIG = SimpleNamespace(**dict.fromkeys((*SAMPLING, *EDITS, *DRAFTS), 1), num_beams=4, num_return_sequences=None)


def test_all_that_a_models_config_may_say_is_off() -> None:
    off = switched_off(CONFIG, {"max_new_tokens": 3})
    wanted = dict.fromkeys((*SAMPLING, *EDITS, *DRAFTS)) | {"min_length": 0, "num_beams": 1, "do_sample": False}
    assert off == wanted


def test_what_a_version_does_not_know_and_a_model_does_not_say_is_not_named() -> None:
    config = SimpleNamespace(top_k=3, suppress_tokens=None)
    assert switched_off(config, {}) == {"top_k": None, "num_beams": 1, "do_sample": False}


def test_edits_of_the_call_itself_stay_and_its_sampling_does_not() -> None:
    off = switched_off(CONFIG, {"suppress_tokens": [3], "temperature": 2.0})
    assert "suppress_tokens" not in off and off["temperature"] is None and off["min_new_tokens"] is None


def test_a_call_says_what_its_config_says_unless_its_arguments_say_otherwise() -> None:
    config = SimpleNamespace(suppress_tokens=[3], num_beams=3, min_length=None, top_k=5)
    said = said_by({"generation_config": config, "num_beams": 1, "top_k": None, "max_new_tokens": 2})
    said.pop("generation_config")
    assert said == {"suppress_tokens": [3], "num_beams": 1, "max_new_tokens": 2}
    assert said_by({"generation_config": None, "num_beams": 2}) == {"num_beams": 2}


def test_several_sequences_are_sampled_and_beams_stay_those_of_the_call() -> None:
    assert switched_off(CONFIG, {"num_return_sequences": 2})["do_sample"] is True
    assert switched_off(CONFIG, {"num_beams": 2})["num_beams"] == 2


def test_drafts_of_the_call_itself_stay() -> None:
    off = switched_off(CONFIG, {"prompt_lookup_num_tokens": 3})
    assert "prompt_lookup_num_tokens" not in off and off["assistant_early_exit"] is None
