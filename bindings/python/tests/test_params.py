"""Parameters: defaults, equality, printing, pickling, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import gumball
import gumball.dist
from gumball import Dry, DynamicTemperature, LogprobsParams, Mirostat, Sampler, SamplingParams, State
from gumball.errors import RefusedError
from gumball.flat import FLAT_NAMES, flat_params, refuse_near_misses

FULL = SamplingParams(
    temperature=0.8,
    dynamic_temperature=DynamicTemperature(0.5, 1.5, exponent=2),
    top_k=50,
    top_p=0.9,
    typical_p=0.95,
    min_p=0.05,
    top_n_sigma=2.5,
    epsilon_cutoff=1e-4,
    eta_cutoff=2e-4,
    xtc_probability=0.5,
    xtc_threshold=0.2,
    repetition_penalty=1.1,
    repetition_scope="output",
    frequency_penalty=0.1,
    presence_penalty=-0.2,
    penalty_scope="both",
    penalty_window=64,
    dry=Dry(multiplier=0.8, breakers=[1, 2], window=512),
    no_repeat_ngram=3,
    logit_bias={7: 1.5},
    bias_first=True,
    allowed_ids=[1, 2, 3],
    banned_ids=[2],
    bad_words=[[1, 2], [3]],
    min_tokens=2,
    stop_ids=[0],
    seed=2**64 - 1,
    logprobs=LogprobsParams(mode="processed", top_n=5, ids=[1]),
    order="joint",
    temperature_last=True,
)


def test_they_compare_print_and_pickle() -> None:
    assert SamplingParams() == SamplingParams()
    assert repr(SamplingParams()) == "SamplingParams()"
    assert repr(SamplingParams(top_k=3, seed=1)) == "SamplingParams(top_k=3, seed=1)"
    names = {name: getattr(gumball, name) for name in gumball.__all__}
    assert eval(repr(FULL), names) == FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL == copy.deepcopy(FULL)
    assert FULL.replace(top_k=1) != FULL and FULL.replace(top_k=1).top_k == 1
    assert FULL.temperature == 0.8
    FULL.validate(1000)
    with pytest.raises(AttributeError):
        FULL.temperature = 1.0  # type: ignore[misc]
    state = State([1, 2], [3], seed=7, position=3, draw=1, mu=0.5)
    assert pickle.loads(pickle.dumps(state)) == state and eval(repr(state)) == state


# What is refused by its value, and by its type; each range's ends are below.
MISTAKES: list[tuple[type[Exception], dict[str, Any], str]] = [
    (ValueError, dict(temperature=-1), "temperature is -1, but must be 0 (greedy) or in (0, 2^100]"),
    (ValueError, dict(temperature=1e300), "temperature is inf, but must be"),
    (ValueError, dict(temperature=float("nan")), "temperature is NaN, but must be 0 (greedy) or in (0, 2^100]"),
    (ValueError, dict(dry=Dry(base=0.5)), "dry.base is 0.5, but must be in 1..=2^16"),
    (ValueError, dict(seed=2**64), "seed is 18446744073709551616, but must be in 0..2^64"),
    (ValueError, dict(top_k=2**63), "top_k is 9223372036854775808, but must be"),
    (ValueError, dict(banned_ids=[-1]), "banned_ids is -1, but must be in 0..2^32"),
    (ValueError, dict(bad_words=[[]]), "bad_words has length 0"),
    (ValueError, dict(order=["top_q"]), 'order "top_q" is not known (do you mean "top_p"?); known are: top_n_sigma'),
    (ValueError, dict(order=["top_k", "top_k"]), "order is top_k, but must be a list of distinct filters"),
    (ValueError, dict(repetition_scope="all"), 'scope "all" is not known'),
    (ValueError, dict(dynamic_temperature=DynamicTemperature(2, 1)), "dynamic_temperature.max is 1"),
    (ValueError, dict(logprobs=LogprobsParams(mode="row")), 'logprobs.mode "row" is not known'),
    (ValueError, dict(logit_bias={1: float("inf")}), "logit_bias is inf, but must be finite"),
    (
        ValueError,
        dict(logit_bias=[(1, 1.0), (1, 2.0)]),
        "logit_bias is 1, but must be an id that stands in the list once",
    ),
    (TypeError, dict(temperature="hot"), "temperature must be a number, not str"),
    (TypeError, dict(temperature=True), "temperature must be a number, not bool"),
    (TypeError, dict(top_k=np.True_), "top_k must be an integer, not bool"),
    (TypeError, dict(top_k=1.5), "top_k must be an integer, not float"),
    (TypeError, dict(seed="7"), "seed must be an integer, not str"),
    (TypeError, dict(stop_ids=[True]), "stop_ids must be an integer, not bool"),
    (TypeError, dict(mirostat=Mirostat(None, 0.1)), "mirostat.tau must be a number, not NoneType"),  # type: ignore[arg-type]
    (TypeError, dict(temperature_last="false"), "temperature_last must be True or False, not str"),
    (TypeError, dict(logit_bias={1: False}), "logit_bias must be of numbers, a ban -inf, not bool"),
    (TypeError, dict(topp=1), 'SamplingParams has no parameter topp; do you mean "top_p"?'),
    (
        TypeError,
        dict(max_tokens=1),
        "SamplingParams has no parameter max_tokens; to end a text and to draw several is the caller's part",
    ),
    (TypeError, dict(banned_ids="12"), "banned_ids must be a list of integers, not str"),
    (TypeError, dict(bad_words=5), "bad_words must be lists of ids, not int"),
    (TypeError, dict(order=3), "order must be a str or a list of filters, not int"),
    (TypeError, dict(logit_bias=5), "logit_bias must be a dict or pairs of id and bias, not int"),
    (TypeError, dict(logit_bias=[5]), "logit_bias must be pairs of id and bias, not int"),
    *(
        (TypeError, {part: 5}, f"{part} must be a gumball")
        for part in ("dry", "mirostat", "dynamic_temperature", "section", "loops")
    ),
    *((TypeError, dict(logprobs=value), "logprobs must be a gumball") for value in (True, 1.5, "5")),
    (ValueError, dict(logprobs=-1), "logprobs.top_n"),
    (ValueError, dict(top_k=-2), "top_k is -2, but must be at least -1 (0, -1: off)"),
]


@pytest.mark.parametrize(("kind", "values", "message"), MISTAKES)
def test_a_value_of_another_kind_or_range_is_named(kind: type[Exception], values: dict, message: str) -> None:
    with pytest.raises(kind) as raised:
        Sampler(SamplingParams(**values), 100)
    assert message in str(raised.value)


def test_a_number_is_rounded_to_float32_before_its_range_is_checked() -> None:
    assert SamplingParams(min_p=1.00000001) == SamplingParams(min_p=1.00000001)
    Sampler(SamplingParams(min_p=1.00000001, top_k=np.int8(3), temperature=np.float16(0.5)), 100)
    with pytest.raises(gumball.InvalidValueError, match=r"^min_p is 1.0000001, but must be in 0..=1"):
        SamplingParams(min_p=1.0000001)


def test_none_is_absent_for_every_parameter() -> None:
    for kind in (SamplingParams, Dry, LogprobsParams):
        assert kind(**dict.fromkeys(kind.__dataclass_fields__)) == kind()  # type: ignore[arg-type]
    params = SamplingParams(temperature=None, dry=Dry(base=None))  # type: ignore[arg-type]
    assert (params.temperature, params.dry.base) == (1.0, 1.75)
    assert DynamicTemperature(1, 2, None).exponent == 1  # type: ignore[arg-type]


def test_spellings_of_other_engines_are_taken() -> None:
    assert SamplingParams(logprobs=5) == SamplingParams(logprobs=np.int64(5)) == SamplingParams(logprobs={"top_n": 5})  # type: ignore[arg-type]
    assert SamplingParams(mirostat={"tau": 5}).mirostat == Mirostat(5) == Mirostat(5, 0.1)  # type: ignore[arg-type]
    logits = np.random.default_rng(1).normal(size=100).astype(np.float32)
    for off in (dict(top_k=-1), dict(top_k=-1, order="top_p"), dict(top_k=-1, mirostat=Mirostat(5))):
        params = SamplingParams(seed=1, **off)  # type: ignore[arg-type]
        assert Sampler(params, 100).sample(logits) == Sampler(params.replace(top_k=0), 100).sample(logits)
    assert gumball.sample(logits[None], top_k=-1, seed=1, position=0) == gumball.sample(
        logits[None], seed=1, position=0
    )


def test_flat_names_hold_to_the_same_ranges_and_types() -> None:
    for flat in FLAT_NAMES:
        for value in (-1e39, 1e39, float("nan"), "x", {}):
            with pytest.raises(gumball.Error):
                SamplingParams(**flat_params({"mirostat_tau": 5, flat: value}, "the request"))
        assert flat_params({flat: None}, "the request") == {}
    for value in (True, "1", [1]):
        with pytest.raises(RefusedError, match="typical_p = .*, but it must be a number"):
            flat_params({"typical_p": value}, "the request")
    for flag in ("p_less", "bias_first", "temperature_last"):
        with pytest.raises(RefusedError, match=f"{flag} = 'false'"):
            flat_params({flag: "false"}, "the request")
    for given, needed in (
        ({"mirostat_mu": 5}, "mirostat_mu without mirostat_tau"),
        ({"dynamic_temperature_min": 0.5}, "dynamic_temperature_min without dynamic_temperature_max"),
        (
            {"dynamic_temperature_exponent": 2},
            "dynamic_temperature_exponent without dynamic_temperature_min and dynamic_temperature_max",
        ),
        ({"watermark_context": 1}, "watermark_context without watermark_key"),
    ):
        with pytest.raises(RefusedError, match=f"^the request has {needed}$"):
            flat_params(given, "the request")
    with pytest.raises(RefusedError, match="do you mean 'xtc_probability'"):
        refuse_near_misses({"xtc_probabilty": 1}, "the request")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_in_parameters_compare_print_and_pickle_as_lists(dtype: type) -> None:
    def params(ids: Any) -> SamplingParams:
        return SamplingParams(
            stop_ids=ids,
            allowed_ids=ids,
            banned_ids=ids,
            bad_words=[ids],
            dry=Dry(breakers=ids),
            logprobs=LogprobsParams(ids=ids),
        )

    of_array, of_list = params(np.array([5, 6], dtype)), params([5, 6])
    assert of_array == of_list and repr(of_array) == repr(of_list)
    assert pickle.loads(pickle.dumps(of_array)) == of_list
    assert SamplingParams(bad_words=np.array([[1, 2], [3, 4]], dtype)) == SamplingParams(bad_words=[[1, 2], [3, 4]])
    assert SamplingParams(stop_ids=(one for one in (5, 6))).stop_ids == [5, 6]  # type: ignore[arg-type]


def test_parameters_are_values() -> None:
    torch = pytest.importorskip("torch")
    number, array, ids, biases, words = torch.tensor(0.5), np.array(0.25), [1, 2], {5: 1.5}, [[1, 2], [3]]
    made = SamplingParams(
        temperature=number,
        min_p=array,  # type: ignore[arg-type]
        top_k=torch.tensor(3),
        stop_ids=ids,
        logit_bias=biases,
        bad_words=words,
        dry=Dry(multiplier=number, breakers=ids),
    )
    wanted = SamplingParams(
        temperature=0.5,
        min_p=0.25,
        top_k=3,
        stop_ids=[1, 2],
        logit_bias={5: 1.5},
        bad_words=[[1, 2], [3]],
        dry=Dry(multiplier=0.5, breakers=[1, 2]),
    )
    assert made == wanted and repr(made) == repr(wanted)
    number.fill_(5), array.fill(5), ids.append(9), words[0].append(9), biases.update({6: 1.0})  # type: ignore[func-returns-value]
    assert made == wanted and repr(made) == repr(wanted)
    position = torch.tensor(4)
    state = State([1], [2], position=position)
    position.fill_(5)
    assert state == State([1], [2], position=4)


def test_a_class_is_none_of_its_instances() -> None:
    parts = dict(
        logprobs=LogprobsParams, dry=Dry, section=gumball.Section, loops=gumball.Loops, watermark=gumball.Watermark
    )
    for name, part in parts.items():
        with pytest.raises(gumball.InvalidTypeError, match=f"{name} must be a gumball.* not type"):
            SamplingParams(**{name: part})  # type: ignore[arg-type]
    with pytest.raises(gumball.InvalidTypeError, match="params must be a gumball.SamplingParams, not type"):
        Sampler(SamplingParams, 8)  # type: ignore[arg-type]
    with pytest.raises(gumball.InvalidTypeError, match="state must be a gumball.State, not type"):
        Sampler.resume(SamplingParams(), 8, State)  # type: ignore[arg-type]


def test_what_stands_in_the_place_of_the_vocabulary_is_told() -> None:
    for swapped in (lambda: Sampler(8, SamplingParams()), lambda: gumball.Pool(SamplingParams(), 8)):  # type: ignore[arg-type]
        with pytest.raises(
            gumball.InvalidTypeError, match=r"vocab must be an integer: Sampler\(params, vocab\), but Pool\(vocab\)"
        ):
            swapped()
    with pytest.raises(
        gumball.InvalidTypeError, match=r"what follows vocab in Pool\(vocab\) must be named, not SamplingParams"
    ):
        gumball.Pool(8, SamplingParams())  # type: ignore[call-arg]


def test_a_state_without_a_position_is_behind_its_ids() -> None:
    assert (State().position, State([1, 2], np.array([3])).position, State([1], position=0).position) == (0, 3, 0)
    sampler = Sampler(SamplingParams(seed=1), 100, prompt=[1, 2])
    row = np.zeros(100, np.float32)
    sampler.sample(row)
    state = sampler.state
    assert State(state.prompt, state.output, seed=state.seed) == state
    with pytest.raises(gumball.InvalidTypeError, match="state.output must be a list or an array of integers"):
        Sampler.resume(SamplingParams(), 100, State([1], 5))  # type: ignore[arg-type]


def test_biases_of_json_are_biases() -> None:
    assert SamplingParams(logit_bias={"5": 1.0}) == SamplingParams(logit_bias={5: 1.0})  # type: ignore[dict-item]
    for wrong in ({"five": 1.0}, {"-5": 1.0}, {"5": 1.0, 5: 2.0}):
        with pytest.raises(gumball.InvalidTypeError, match="logit_bias must be an integer, not str"):
            SamplingParams(logit_bias=wrong)  # type: ignore[arg-type]


def test_every_error_has_one_base_class_and_pythons_kind() -> None:
    cases: list[tuple[type, Any]] = [
        (ValueError, lambda: SamplingParams(top_p=2)),
        (TypeError, lambda: SamplingParams(top_p="2")),  # type: ignore[arg-type]
        (TypeError, lambda: SamplingParams(topp=1)),  # type: ignore[call-arg]
        (ValueError, lambda: Sampler(SamplingParams(), 0)),
        (TypeError, lambda: Sampler(SamplingParams(), 8).sample("row")),
        (ValueError, lambda: gumball.sample(np.zeros((1, 8), np.float32), seed=-1)),
        (RuntimeError, lambda: gumball.Pool(8, slots=1, device="cuda:63")),
    ]
    for kind, call in cases:
        with pytest.raises(gumball.Error) as raised:
            call()
        assert isinstance(raised.value, kind)
        assert type(pickle.loads(pickle.dumps(raised.value))) is type(raised.value)
    assert issubclass(gumball.UnavailableError, gumball.Error) and issubclass(gumball.dist.DistError, gumball.Error)


def test_what_depends_on_the_vocabulary_is_told_there() -> None:
    params = SamplingParams(banned_ids=[1000])
    with pytest.raises(ValueError, match="banned_ids is 1000, but must be an id in 0..1000"):
        params.validate(1000)
    with pytest.raises(ValueError, match="banned_ids is 1000"):
        Sampler(params, 1000)
    # Off in so small a vocabulary, although the list does not name it.
    listed = SamplingParams(top_k=500, order=["top_p"])
    listed.validate(400)
    with pytest.raises(ValueError, match="top_k cannot be combined with order"):
        listed.validate(1000)


def test_json_and_dicts_are_ways_out_of_parameters_and_back() -> None:
    for params in (SamplingParams(), FULL, SamplingParams(logit_bias={5: float("-inf"), 7: -1.5}, allowed_ids=[])):
        assert SamplingParams.from_json(params.to_json()) == params
        assert SamplingParams(**dataclasses.asdict(params)) == params
    text = '{"temperature": 0.7, "logit_bias": {"5": -1.5}, "dry": {"multiplier": 0.8}, "logprobs": {"top_n": 2}, "seed": null}'
    wanted = SamplingParams(temperature=0.7, logit_bias={5: -1.5}, dry=Dry(0.8), logprobs=LogprobsParams(top_n=2))
    assert SamplingParams.from_json(text) == wanted
    for wrong, said in (('{"top_q": 1}', "top_q"), ("[]", "object"), ('{"top_p": 2}', "top_p is 2"), ("{", "line 1")):
        with pytest.raises(gumball.InvalidValueError, match=said):
            SamplingParams.from_json(wrong)
