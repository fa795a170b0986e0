"""Hooks that wait for each other: refused where it can be seen, and given up where it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import gumball
from gumball import Batch, Pool, Sampler, SamplingParams
from gumball._gumball import set_patience

VOCAB = 900
ROWS = np.zeros((4, VOCAB), np.float32)


@pytest.fixture
def impatient() -> Iterator[None]:
    set_patience(0.3)
    yield
    set_patience(30)


def pool(**options: int) -> tuple[Pool, list[int]]:
    made = Pool(VOCAB, slots=4, **options)
    return made, [made.admit(SamplingParams(seed=seed)) for seed in range(4)]


def sampler() -> Sampler:
    return Sampler(SamplingParams(seed=1), VOCAB)


def ends(*works: Callable[[], object]) -> list[BaseException | None]:
    """What each of some threads ends in; that they end is waited for."""
    found: list[BaseException | None] = [None] * len(works)

    def run(place: int) -> None:
        try:
            works[place]()
        except BaseException as error:  # noqa: BLE001
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "waits for ever"
    return found


def test_a_pool_asked_by_a_thread_that_its_hook_joins_gives_up(impatient: None) -> None:
    one, said = sampler(), []

    def hook(logits: np.ndarray) -> None:
        said.extend(ends(lambda: one.history))

    assert ends(lambda: one.sample(ROWS[0], hook=hook)) == [None]
    assert isinstance(said[0], RuntimeError) and "whose hook has not come back for 0.3 s" in str(said[0])
    assert len(one.output) == 1


def test_threads_take_turns_while_hooks_are_at_work() -> None:
    one = sampler()
    works = [lambda: [one.sample(ROWS[0], hook=lambda logits: time.sleep(0.01)) for _ in range(5)]] * 4
    assert ends(*works) == [None] * 4
    assert one.position == 20


def test_a_hook_of_another_pools_step_is_refused_what_the_outer_one_holds() -> None:
    for threads in (1, 2):
        outer, outer_slots = pool(threads=1)
        inner, inner_slots = pool(threads=threads)

        def asks(logits: np.ndarray) -> None:
            outer.state(outer_slots[0])

        def steps(logits: np.ndarray) -> None:
            inner.step(ROWS, Batch(inner_slots, hooks=[asks] * 4))

        found = ends(lambda: outer.step(ROWS, Batch(outer_slots, hooks=[steps, None, None, None])))
        assert isinstance(found[0], RuntimeError) and "must not use" in str(found[0])
        assert [made.state(slot).position for made in (outer, inner) for slot in range(4)] == [0] * 8


def test_hooks_of_two_threads_that_ask_each_others_pools_are_refused() -> None:
    (a, a_slots), (b, b_slots) = pool(threads=1), pool(threads=1)
    inside = threading.Barrier(2)

    def asks(other: Pool) -> Callable[[np.ndarray], None]:
        def hook(logits: np.ndarray) -> None:
            inside.wait(20)
            other.state(0)

        return hook

    found = ends(
        lambda: a.step(ROWS[:1], Batch(a_slots[:1], hooks=[asks(b)])),
        lambda: b.step(ROWS[:1], Batch(b_slots[:1], hooks=[asks(a)])),
    )
    refused = [error for error in found if error is not None]
    assert len(refused) == 1 and "hooks wait for each other" in str(refused[0])


def test_hooks_are_run_inside_each_other_so_deep_and_no_deeper() -> None:
    depth = 0

    def hook(logits: np.ndarray) -> None:
        nonlocal depth
        depth += 1
        sampler().sample(ROWS[0], hook=hook)

    with pytest.raises(RuntimeError, match="inside each other 32 deep"):
        sampler().sample(ROWS[0], hook=hook)
    assert depth == 32


def test_a_hook_over_threads_may_use_operators_and_other_pools() -> None:
    made, slots = pool(threads=3)
    other, other_slots = pool()

    def hook(logits: np.ndarray) -> None:
        gumball.softmax(ROWS)
        other.step(ROWS, Batch(other_slots, hooks=[None] * 4))

    assert ends(lambda: [made.step(ROWS, Batch(slots, hooks=[hook] * 4)) for _ in range(20)]) == [None]
    assert other.state(0).position == 80
