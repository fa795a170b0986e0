"""Parameters: defaults, equality, printing, pickling, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

import gumball
from gumball import Dry, DynamicTemperature, LogprobsParams, Mirostat, Sampler, SamplingParams, State

FULL = SamplingParams(
    temperature=0.8,
    dynamic_temperature=DynamicTemperature(0.5, 1.5, exponent=2),
    top_k=50,
    top_p=0.9,
    typical_p=0.95,
    min_p=0.05,
    top_n_sigma=2.5,
    top_a=0.25,
    p_less=True,
    epsilon_cutoff=1e-4,
    eta_cutoff=2e-4,
    xtc_probability=0.5,
    xtc_threshold=0.2,
    repetition_penalty=1.1,
    repetition_scope="output",
    frequency_penalty=0.1,
    presence_penalty=-0.2,
    penalty_scope="both",
    dry=Dry(multiplier=0.8, breakers=[1, 2]),
    no_repeat_ngram=3,
    logit_bias={7: 1.5},
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


def test_they_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        FULL.temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(temperature=-1), "temperature is -1, but must be 0 (greedy) or in (0, 2^100]"),
        (dict(temperature=float("nan")), "temperature is NaN, but must be"),
        (dict(temperature=1e300), "temperature is inf, but must be"),
        (dict(top_p=-0.5), "top_p is -0.5, but must be at least 0"),
        (dict(min_p=1.5), "min_p is 1.5, but must be in 0..=1"),
        (dict(xtc_threshold=0), "xtc_threshold is 0, but must be in (0, 1]"),
        (dict(repetition_penalty=0), "repetition_penalty is 0"),
        (dict(seed=-1), "seed is -1, but must be in 0..2^64"),
        (dict(seed=2**64), "seed is 18446744073709551616, but must be in 0..2^64"),
        (dict(top_k=2**63), "top_k is 9223372036854775808, but must be"),
        (dict(banned_ids=[-1]), "banned_ids is -1, but must be in 0..2^32"),
        (dict(bad_words=[[]]), "bad_words has length 0"),
        (dict(order=["top_q"]), 'filter "top_q" is not known; known are: top_n_sigma'),
        (dict(order=["top_k", "top_k"]), "order is top_k, but must be a list of distinct filters"),
        (dict(repetition_scope="all"), 'scope "all" is not known'),
        (dict(mirostat=Mirostat(0, 0.1)), "mirostat.tau is 0, but must be in (0, 2^16]"),
        (dict(dynamic_temperature=DynamicTemperature(2, 1)), "dynamic_temperature.max is 1"),
        (dict(dry=Dry(allowed_length=0)), "dry.allowed_length is 0, but must be at least 1"),
        (dict(logprobs=LogprobsParams(mode="row")), 'logprob mode "row" is not known'),
        (dict(logit_bias={1: float("inf")}), "logit_bias is inf, but must be finite"),
        (dict(logit_bias=[(1, 1.0), (1, 2.0)]), "logit_bias is 1, but must be an id that stands in the list once"),
    ],
)
def test_a_value_outside_its_range_is_named(values: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        SamplingParams(**values)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(temperature="hot"), "temperature must be a number, not str"),
        (dict(temperature=None), "temperature must be a number, not NoneType"),
        (dict(top_k=1.5), "top_k must be an integer, not float"),
        (dict(seed="7"), "seed must be an integer, not str"),
        (dict(banned_ids="12"), "banned_ids must be a list of integers, not str"),
        (dict(bad_words=5), "bad_words must be lists of ids, not int"),
        (dict(order=3), "order must be a str or a list of filters, not int"),
        (dict(logit_bias=5), "logit_bias must be a dict or pairs of id and bias, not int"),
        (dict(logit_bias=[5]), "logit_bias must be pairs of id and bias, not int"),
    ],
)
def test_a_value_of_another_type_is_named(values: dict, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        SamplingParams(**values)
    assert message in str(raised.value)


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


def test_states_compare_print_and_pickle() -> None:
    state = State([1, 2], [3], seed=7, position=3, draw=1, mu=0.5)
    assert pickle.loads(pickle.dumps(state)) == state and eval(repr(state)) == state
