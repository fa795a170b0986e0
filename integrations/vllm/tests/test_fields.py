"""Names in requests that nothing reads: ours are refused, others are said once."""

from __future__ import annotations

from typing import Any

import pytest
from gumball_vllm import params
from gumball_vllm.fields import checked, take
from gumball_vllm.params import params_of
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from gumball.errors import RefusedError
from gumball.plugins import marks

KINDS = [
    (CompletionRequest, {"model": "m", "prompt": "The"}),
    (ChatCompletionRequest, {"model": "m", "messages": [{"role": "user", "content": "The"}]}),
]


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    params._said.clear()


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_our_names_at_the_top_of_a_request_are_refused(kind: Any, body: dict[str, Any], caplog: Any) -> None:
    made = checked(kind.to_sampling_params)

    def asked(**more: Any) -> Any:
        return made(kind(**body, **more), 16, {})

    for name, text in (
        ("xtc_probability", "'xtc_probability', which is not read there; give it in vllm_xargs"),
        ("extra_args", "'extra_args', which is not read there"),
        ("xtc_probabilty", "do you mean 'xtc_probability'"),
    ):
        with pytest.raises(VLLMValidationError, match=f"^Gumball refuses the request: the request has .*{text}"):
            asked(**{name: 0.5})
    with pytest.raises(
        VLLMValidationError, match="vllm_xargs has return_radii, for which this server's answers have no place"
    ):
        asked(vllm_xargs={"return_radii": 1}, logprobs=None)
    # vLLM itself refuses a null in there, as the page says.
    with pytest.raises(ValueError, match="vllm_xargs"):
        kind(**body, vllm_xargs={"typical_p": None})
    # Null is absent, and a neutral value changes nothing.
    asked(xtc_probability=0, xtc_threshold=0.1, order="default", extra_args=None, typical_p=None, dry_multiplier=0.0)
    for _ in range(2):
        assert asked(somebody_elses=1, vllm_xargs={"xtc_probability": 0.5}).extra_args == {"xtc_probability": 0.5}
    assert [record.message.split(":")[0] for record in caplog.records] == ["'somebody_elses' in a request"]


# What OpenAI's interface has and vLLM's requests may lack.
OPENAI = """audio best_of frequency_penalty function_call functions instructions logit_bias max_completion_tokens metadata modalities parallel_tool_calls prediction
previous_response_id prompt_cache_key prompt_cache_retention reasoning reasoning_effort response_format safety_identifier service_tier store stream_options suffix
system text tool_choice tools truncation user verbosity web_search_options""".split()


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_a_strict_server_refuses_near_misses_of_every_name(kind: Any, body: dict[str, Any], monkeypatch: Any) -> None:
    made = checked(kind.to_sampling_params)

    def asked(**more: Any) -> Any:
        return made(kind(**body, **more), 16, {})

    near = [name + "x" for name in kind.model_fields if name + "x" not in kind.model_fields]
    asked(repetition_penalti=1.2, **{name: None for name in near})
    monkeypatch.setenv("GUMBALL_VLLM_NAMES", "strict")
    for name in ("repetition_penalti", "max_tokns", "xtc_probabilty", *near):
        with pytest.raises(VLLMValidationError, match=f"the request has '{name}', which is no parameter; do you mean"):
            asked(**{name: 1})
    known = kind.model_fields
    # What OpenAI's clients may send is no near miss, and neither is a null.
    asked(repetition_penalti=None, somebody_elses=1, **{name: "x" for name in OPENAI if name not in known})
    for extra, name in (
        ({"repetition_penalti": 1.2}, "repetition_penalty"),
        ({"dry_multiplir": 1.0}, "dry_multiplier"),
    ):
        with pytest.raises(RefusedError, match=f"do you mean '{name}'"):
            params_of(SamplingParams(extra_args=extra))
    monkeypatch.setenv("GUMBALL_VLLM_NAMES", "Strict")
    with pytest.raises(ValueError, match="GUMBALL_VLLM_NAMES is 'Strict', but must be lenient"):
        take()


@pytest.mark.parametrize(("kind", "body"), KINDS)
def test_true_and_false_are_read_as_the_server_hands_them_on(
    kind: Any, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "SERVER", marks.Server({"watermark_key": 3}))
    for value in (False, True):
        asked = kind(**body, vllm_xargs={"watermark": value, "temperature_last": value}).to_sampling_params(16, {})
        # Numbers stand there by now.
        assert not any(isinstance(one, bool) for one in asked.extra_args.values())
        made = params_of(asked)
        assert (made.watermark is not None, made.temperature_last) == (value, value)


def test_other_names_among_the_extra_ones_are_said_once(caplog: Any) -> None:
    theirs = SamplingParams(extra_args={"somebody_elses": 1, "kv_transfer_params": {}, "top_n_sigma": 1.5})
    for _ in range(2):
        assert params_of(theirs).top_n_sigma == 1.5
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "'somebody_elses' in extra_args of a request"
    ]


def test_nulls_are_absent_and_other_engines_names_of_ours_are_refused() -> None:
    nulls = dict.fromkeys(("top_p", "xtc_probability", "dry_breakers", "xtc_probabilty", "dry_sequence_breakers"))
    assert params_of(SamplingParams(extra_args=nulls)) == params_of(SamplingParams())
    with pytest.raises(RefusedError, match="'dry_sequence_breakers', .* do you mean 'dry_breakers'"):
        params_of(SamplingParams(extra_args={"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]}))
    assert params_of(SamplingParams(extra_args={"no_repeat_ngram": 3.0})).no_repeat_ngram == 3


def test_names_that_are_said_are_not_remembered_without_end(caplog: Any) -> None:
    for count in range(2 * params._MOST_SAID):
        params.say_once(f"name {count}", "a test")
    assert len(caplog.records) == len(params._said) == params._MOST_SAID
