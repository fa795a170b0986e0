"""Requests through TokenSpeed's own doors: carried whole, or refused by name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from gumball_tokenspeed import places
from gumball_tokenspeed.backend import GumballSamplingBackend
from gumball_tokenspeed.params import known_of, params_of
from gumball_tokenspeed.requests import told

from gumball import Dry, add_watermark_keys

VOCAB = 300
EOS = 2

REFUSED = [
    ({"thinking_budget": 5}, "thinking_budget is 5, which TokenSpeed reads nowhere; give section_close"),
    ({"min_new_tokens": 4, "stop": ["a"]}, "min_new_tokens is 4 beside stop"),
    ({"min_new_tokens": 4, "regex": "a"}, "min_new_tokens is 4 beside regex"),
    ({"min_new_tokens": 4, "structural_tag": "{}"}, "min_new_tokens is 4 beside structural_tag"),
    ({"custom_params": {"mirostat_tua": 5.0}}, "do you mean 'mirostat_tau'"),
    ({"custom_params": {"top_p": 0.5}}, "custom_params has 'top_p', which is TokenSpeed's own"),
    ({"custom_params": {"colour": 1}}, "custom_params has 'colour', but takes only typical_p"),
    ({"custom_params": {"__known__": [[1], []]}}, "not the client's"),
    ({"custom_params": {"section_budget": 3}}, "section.close has length 0"),
    ({"custom_params": {"typical_p": "x"}}, "typical_p = 'x', but it must be a number"),
    (
        {"custom_params": {"dry_multiplier": 1, "dry_breakers": [300]}},
        "dry_breakers with 300, which is no id of a vocabulary of 300",
    ),
    ({"custom_params": {"watermark_key": 5}}, "watermark_key is 5, which only this process has"),
    (
        {"custom_params": {"watermark_key": 6}},
        "watermark_key is 6, but GUMBALL_WATERMARK_KEYS has no key of that number",
    ),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
]
add_watermark_keys("5 000102030405060708090a0b0c0d0e0f")
# TokenSpeed itself.
THEIRS = [({"top_k": 200}, "top_k"), ({"logprobs": 3}, "logprobs=3"), ({"top_p": 0.0}, "top_p")]


def frontend(server_args: Any) -> Any:
    """TokenSpeed's input processor, with the attributes of the engine that it reads."""
    from tokenspeed.runtime.engine.input_processor import InputProcessor

    made = InputProcessor.__new__(InputProcessor)
    made.engine = SimpleNamespace(
        server_args=server_args,
        model_config=SimpleNamespace(vocab_size=VOCAB, is_multimodal=False),
        tokenizer=None,
        is_generation=True,
        max_req_input_len=90,
        context_len=100,
    )
    return made


def entered(server_args: Any, params: dict[str, Any], **fields: Any) -> Any:
    from tokenspeed.runtime.engine.io_struct import GenerateReqInput

    asked = GenerateReqInput(input_ids=[5, 6, 7], sampling_params=dict(params), **fields)
    asked.rid = "r"
    asked.normalize_batch_and_arguments()
    return asyncio.run(frontend(server_args).tokenize_one_request(asked))


def wired(params: dict[str, Any]) -> Any:
    """The request as it comes by ZMQ, with TokenSpeed's verdict."""
    from tokenspeed.runtime.engine import zmq_wire
    from tokenspeed.runtime.engine.io_struct import TokenizedGenerateReqInput
    from tokenspeed.runtime.engine.zmq_msgpack import MsgpackRecvSocket
    from tokenspeed.runtime.sampling.sampling_params import SamplingParams

    asked = TokenizedGenerateReqInput(rid="r", input_ids=[5, 6, 7], sampling_params=SamplingParams(**params))
    [got] = zmq_wire.decode_request_frames([zmq_wire.REQ_TYPE_ADD, msgspec.msgpack.encode(asked)])
    socket = MsgpackRecvSocket(None, VOCAB, enable_output_logprobs=True, supports_prompt_logprobs=False)
    return got, socket._validation_error(got)


@pytest.mark.parametrize(("params", "text"), REFUSED + THEIRS)
def test_what_cannot_be_carried_is_refused_where_it_enters(served: Any, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        entered(served(), params)
    if "stop" not in params:
        assert text in wired(params)[1]


@pytest.mark.parametrize(("name", "value"), [("mirostat_tau", 4.0), ("adaptive_target", 0.3)])
def test_what_draws_steer_is_refused_where_there_are_drafts(
    name: str, value: float, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, params = served(), {"custom_params": {name: value}}
    assert entered(arguments, params).sampling_params.custom_params and wired(params)[1] is None
    monkeypatch.setattr(arguments, "speculative_algorithm", "EAGLE3")
    monkeypatch.setattr(GumballSamplingBackend, "drafts", True)
    with pytest.raises(ValueError, match=f"{name} is given"):
        entered(arguments, params)
    assert f"{name} is given" in wired(params)[1]


def test_a_custom_logit_processor_is_refused_by_name(served: Any) -> None:
    with pytest.raises(ValueError, match="custom_logit_processor is given"):
        entered(served(), {}, custom_logit_processor="x")


@pytest.mark.parametrize("params", [params for params, _ in REFUSED])
def test_other_backends_requests_stay_as_they_are(served: Any, params: dict[str, Any]) -> None:
    made = entered(served("--sampling-backend", "greedy"), params)
    for name, value in params.items():
        assert getattr(made.sampling_params, name) == value
    assert wired(params)[1] is None


WHOLE = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.4,
    "repetition_penalty": 1.2,
    "min_new_tokens": 3,
    "stop_token_ids": [9],
    "logit_bias": {"4": 1.5},
    "seed": 2**63 + 5,
    "custom_params": {"dry_multiplier": 0.8, "typical_p": 0.95, "repetition_scope": "both"},
}


class Step:
    """What a scheduler says of a step, by its requests and the parts of prompts in its first rows: before, in the step, and in all."""

    def __init__(self, ids: list[str], *parts: tuple[int, int, int]) -> None:
        self.request_ids = ids
        self.extend_prefix_lens, self.input_lengths, self.prefill_lengths = (
            zip(*parts, strict=True) if parts else ((), (), ())
        )
        self.num_extends = lambda: len(parts)


def state_of(request: Any, **tokenizer: Any) -> Any:
    """A scheduler's state of the request."""
    from tokenspeed.runtime.engine.generation_output_processor import RequestState

    return RequestState.from_recv_req(request, SimpleNamespace(**tokenizer), [EOS], computes_prompt_logprobs=True)


@pytest.mark.parametrize("door", ["frontend", "wire"])
def test_every_parameter_reaches_the_sampler(served: Any, door: str) -> None:
    arguments = served()
    request, verdict = (entered(arguments, WHOLE), None) if door == "frontend" else wired(WHOLE)
    assert verdict is None
    [params] = told({"r": state_of(request, eos_token_id=3, additional_stop_token_ids=[8])}, Step(["r"]))
    got = params_of(params)
    names = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "seed",
    )
    assert [getattr(got, name) for name in names] == [WHOLE[name] for name in names]
    assert got.logit_bias == {4: 1.5} and got.min_tokens == 3 and got.typical_p == 0.95
    assert got.dry == Dry(multiplier=0.8) and got.repetition_scope == "both" and known_of(params) == ([5, 6, 7], [])
    # The end ids of the model and of its tokenizer end a request, too.
    assert list(got.stop_ids) == [EOS, 3, 8, 9]


def test_every_field_of_tokenspeeds_parameters_is_known() -> None:
    """A field that a newer release adds is neither carried nor refused until this list names it."""
    from tokenspeed.runtime.sampling.sampling_params import SamplingParams

    carried = {*WHOLE, "json_schema", "regex", "ebnf", "structural_tag", "logprobs"}
    engines = {
        "max_new_tokens",
        "stop",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
    }
    engines |= {"stream_interval", "n", "stop_strs", "stop_str_max_len", "is_normalized"}
    assert set(SamplingParams.__struct_fields__) == carried | engines | {"thinking_budget"}


def test_a_request_without_a_seed_has_one_of_its_id(served: Any) -> None:
    seeds = {entered(served(), {}).sampling_params.seed, wired({})[0].sampling_params.seed}
    assert len(seeds) == 1 and None not in seeds


def test_sample_j_of_n_has_the_seed_plus_j(served: Any) -> None:
    from tokenspeed.runtime.engine.parallel_sampling import prepare_parallel_sampling_replica

    whole, copied = entered(served(), {"seed": -2}), SimpleNamespace(regenerate_rid=lambda: "r")
    samples = [prepare_parallel_sampling_replica(copied, whole, j) for j in range(3)]
    assert [params_of(one.sampling_params).seed for one in samples] == [2**64 - 2, 2**64 - 1, 0]


@pytest.mark.parametrize("more", [{}, {"ignore_eos": True, "min_new_tokens": 3}])
def test_what_a_request_does_not_look_at_it_is_not_told(served: Any, more: dict[str, Any]) -> None:
    states = {"r": state_of(entered(served(), more), eos_token_id=3)}
    for _ in range(2):
        [params] = told(states, Step(["r"]))
        assert params.stop_token_ids is None and known_of(params) == ([], [])
        assert params_of(params).min_tokens == 0


def test_the_servers_seed_and_own_parameters_arrive(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = pytest.importorskip("smg_grpc_proto.generated.tokenspeed_scheduler_pb2")
    servicer = pytest.importorskip("smg_grpc_servicer.tokenspeed.servicer").TokenSpeedSchedulerServicer
    own = {"dry_multiplier": 0.8, "dry_allowed_length": 3, "banned_ids": [4, 5]}
    asked = messages.GenerateRequest(request_id="r")
    asked.tokenized.input_ids.extend([5, 6, 7])
    asked.sampling_params.sampling_seed = WHOLE["seed"]
    asked.sampling_params.custom_params.update(own)
    server = SimpleNamespace(server_args=served(), _sampling_params_from_proto=servicer._sampling_params_from_proto)
    assert "seed" not in servicer._build_generate_req(server, asked).sampling_params, "the server drops it itself"
    # Undone after the test.
    monkeypatch.setattr(servicer, "_build_generate_req", servicer._build_generate_req)
    places.take_servicer()
    params = params_of(entered(served(), servicer._build_generate_req(server, asked).sampling_params).sampling_params)
    assert params.seed == WHOLE["seed"] and list(params.banned_ids) == [4, 5] and params.dry.allowed_length == 3
    server.server_args = served("--sampling-backend", "greedy")
    assert "seed" not in servicer._build_generate_req(server, asked).sampling_params
