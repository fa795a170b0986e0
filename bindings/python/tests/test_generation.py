"""What transformers' generate would do by itself is switched off: told apart without transformers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gumball.generation import EDITS, SAMPLING, switched_off

CONFIG = SimpleNamespace(**dict.fromkeys((*SAMPLING, *EDITS)), num_beams=4, num_return_sequences=None)


def test_all_that_a_models_config_may_say_is_off() -> None:
    off = switched_off(CONFIG, {"max_new_tokens": 3})
    assert off == dict.fromkeys((*SAMPLING, *EDITS)) | {"num_beams": 1, "do_sample": False}


def test_what_a_version_does_not_know_is_not_named() -> None:
    assert switched_off(SimpleNamespace(top_k=3), {}) == {"top_k": None, "num_beams": 1, "do_sample": False}


def test_edits_of_the_call_itself_stay_and_its_sampling_does_not() -> None:
    off = switched_off(CONFIG, {"suppress_tokens": [3], "temperature": 2.0, "min_length": None})
    assert "suppress_tokens" not in off and off["temperature"] is None and off["min_length"] is None


def test_several_sequences_are_sampled_and_beams_refused() -> None:
    assert switched_off(CONFIG, {"num_return_sequences": 2})["do_sample"] is True
    assert switched_off(CONFIG, {"num_beams": 1})["num_beams"] == 1
    with pytest.raises(ValueError, match="num_beams is 2, but must be 1"):
        switched_off(CONFIG, {"num_beams": 2})


def test_continuous_batching_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_implementation is 'paged'"):
        switched_off(CONFIG, {"cache_implementation": "paged"})
