"""What transformers' generate would do by itself is switched off: told apart without transformers."""

from __future__ import annotations

from types import SimpleNamespace

from gumball.generation import DRAFTS, EDITS, SAMPLING, said_by, switched_off

CONFIG = SimpleNamespace(**dict.fromkeys((*SAMPLING, *EDITS, *DRAFTS), 1), num_beams=4, num_return_sequences=None)


def test_all_that_a_models_config_may_say_is_off_but_what_the_call_says_itself() -> None:
    off = switched_off(CONFIG, {"max_new_tokens": 3})
    wanted = dict.fromkeys((*SAMPLING, *EDITS, *DRAFTS)) | {"min_length": 0, "num_beams": 1, "do_sample": False}
    assert off == wanted
    # What a version does not know, and a model does not say, is not named.
    few = SimpleNamespace(top_k=3, suppress_tokens=None)
    assert switched_off(few, {}) == {"top_k": None, "num_beams": 1, "do_sample": False}
    off = switched_off(CONFIG, {"suppress_tokens": [3], "temperature": 2.0, "prompt_lookup_num_tokens": 3})
    assert not {"suppress_tokens", "prompt_lookup_num_tokens"} & off.keys() and off["temperature"] is None
    assert off["min_new_tokens"] is None and off["assistant_early_exit"] is None
    # Several sequences are sampled, and beams stay those of the call.
    assert switched_off(CONFIG, {"num_return_sequences": 2})["do_sample"] is True
    assert switched_off(CONFIG, {"num_beams": 2})["num_beams"] == 2


def test_a_call_says_what_its_config_says_unless_its_arguments_say_otherwise() -> None:
    config = SimpleNamespace(suppress_tokens=[3], num_beams=3, min_length=None, top_k=5)
    said = said_by({"generation_config": config, "num_beams": 1, "top_k": None, "max_new_tokens": 2})
    said.pop("generation_config")
    assert said == {"suppress_tokens": [3], "num_beams": 1, "max_new_tokens": 2}
    assert said_by({"generation_config": None, "num_beams": 2}) == {"num_beams": 2}
