"""The laws themselves: a plain sampler keeps all of them, and each is broken by a fault."""

from __future__ import annotations

import pytest

from plain import FAULTS, Plain
from sampling_laws import LAWS, Broken, Law, Request, Session
from sampling_laws.run import try_law

NAMES = {law.name: law for law in LAWS}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_plain_sampler_keeps_it(law: Law) -> None:
    assert law.sentence.endswith("."), "a law is a sentence"
    law.body(Session(Plain()))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str) -> None:
    for name in FAULTS[fault]:
        found = try_law(NAMES[name], Plain(fault), "plain:Plain")
        assert found["outcome"] == "broken", f"{name} does not notice: {fault}"
        assert found["program"].count("\n") < 10, "a program of at most ten lines"


def test_another_seed_draws_other_tokens_and_stands_in_the_program() -> None:
    made = [Session(Plain(), seed) for seed in (1, 1, 2)]
    first, again, other = [session.tokens(["zeros(1000)"] * 8, Request()) for session in made]
    assert first == again and first != other
    assert "Session('mine')" in made[0].program("mine") and "Session('mine', seed=2)" in made[2].program("mine")


def test_each_law_notices_a_fault() -> None:
    assert set(NAMES) == {name for names in FAULTS.values() for name in names}


def test_a_chi_square_near_its_bound_is_taken_for_what_it_is() -> None:
    import numpy as np

    from sampling_laws.reference import chi_square

    random = np.random.default_rng(3)
    law = np.array([0.5, 0.3, 0.15, 0.05])
    ratios = []
    for _ in range(2000):
        found, most = chi_square(random.multinomial(5000, law), law * 5000)
        ratios.append(found / most)
    assert max(ratios) < 1
    found, most = chi_square(random.multinomial(5000, law + [0.05, -0.05, 0, 0]), law * 5000)
    assert found > most


def test_a_token_without_probability_breaks_the_law() -> None:
    import numpy as np

    with pytest.raises(Broken, match="1 \\(3 times\\)"):
        Session(Plain()).fits(np.array([10, 3, 0]), [1.0, 0.0])
