"""Hooks: a callable of the caller's own that edits a row, what it may not use, and hooks that wait for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from gumball import Batch, LogprobsParams, Pool, Probabilities, Sampler, SamplingParams, UnavailableError
from gumball._gumball import set_patience
from threads import on_threads

VOCAB = 900
ROWS = np.zeros((4, VOCAB), np.float32)
Hook = Callable[[np.ndarray], None]


def lift(id: int) -> Hook:
    def hook(logits: np.ndarray) -> None:
        logits[id] = 50

    return hook


def sampler() -> Sampler:
    return Sampler(SamplingParams(seed=1), VOCAB)


def pool(count: int = 4, **options: Any) -> tuple[Pool, list[int]]:
    made = Pool(VOCAB, **{"slots": count, "rows": count, **options})
    return made, [made.admit(SamplingParams(seed=seed)) for seed in range(count)]


class MineError(Exception):
    pass


def fails(logits: np.ndarray) -> None:
    logits[:] = -np.inf
    raise MineError("on purpose")


def test_a_hook_changes_a_copy_of_the_row_that_lives_on_by_itself(batch: np.ndarray) -> None:
    seen: list[np.ndarray] = []

    def hook(logits: np.ndarray) -> None:
        with pytest.raises(ValueError):
            logits.resize(1 << 20, refcheck=False)
        logits *= 2
        logits[5] = -np.inf
        logits.shape = (30, 30)
        seen.append(logits)

    wanted = 2 * batch[0]
    wanted[5] = -np.inf
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        one, twin, rows = Sampler(params, VOCAB), Sampler(params, VOCAB), batch[0].astype(dtype)
        before = rows.copy()
        assert one.sample(rows, hook=hook) == twin.sample(wanted)
        assert (rows == before).all(), "it changes a copy"
    del one
    seen[1][:] = np.inf
    assert seen[0].dtype == np.float32 and (seen[0] == wanted.reshape(30, 30)).all()


def test_hooks_of_a_pool_are_one_a_row_and_stay_for_no_other_step(batch: np.ndarray) -> None:
    for threads in (1, 3):
        (made, slots), (twin, _) = pool(7, threads=threads), pool(7)
        hooks = [None, lift(8), None, lift(9), lift(10), None, None]
        tokens, plain = made.step(batch, Batch(slots, hooks=hooks)).tolist(), twin.step(batch, slots).tolist()
        assert tokens == [plain[0], 8, plain[2], 9, 10, plain[5], plain[6]]
        made.shorten(slots, [1] * 7)
        assert made.step(batch, slots).tolist() == plain
    params, ids = SamplingParams(logprobs=LogprobsParams("edited")), [1, 8, 9, 9]
    changed = batch[:3].copy()
    changed[1, 9] = 50
    seen = twin.score(batch[:3], params, ids, Batch(hooks=[None, lift(9), None]))
    assert (seen.logprobs == twin.score(changed, params, ids).logprobs).all()


def test_what_a_hook_raises_comes_out_and_changes_nothing(batch: np.ndarray) -> None:
    one, twin = sampler(), sampler()
    with pytest.raises(MineError, match="on purpose"):
        one.sample(batch[0], hook=fails)
    assert [one.sample(row) for row in batch] == [twin.sample(row) for row in batch]
    for threads in (1, 3):
        made, slots = pool(7, threads=threads)
        for hooks in ([None] * 6 + [fails], [fails] * 7):
            with pytest.raises(MineError, match="on purpose"):
                made.step(batch, Batch(slots, hooks=hooks))
        with pytest.raises(MineError):
            made.score(batch[:3], SamplingParams(), [1, 2, 3, 4], Batch(hooks=[None, fails, None]))
        assert [made.state(slot).position for slot in slots] == [0] * 7
        assert made.step(batch, slots).tolist() == pool(7)[0].step(batch, slots).tolist()


def test_mistakes_with_hooks_are_told(batch: np.ndarray, device: str) -> None:
    (made, slots), one = pool(7, device=device), sampler()
    doubled: Any = lambda logits: logits * 2  # noqa: E731

    def stepped(hooks: Any, rows: Any = batch) -> Callable[[], object]:
        return lambda: made.step(rows, Batch(slots, hooks=hooks))

    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (stepped([3] * 7), TypeError, "hooks' element must be callable, not int"),
        (stepped(lift(3)), TypeError, "hooks must be a list of callables and None, not"),
        (lambda: one.sample(batch[0], hook="x"), TypeError, "hook must be callable, not str"),
        (lambda: one.sample(batch[0], hook=doubled), TypeError, "return None, not ndarray"),
        (lambda: one.sample(batch[0], hook=lambda: None), TypeError, "argument"),
    ]
    if device == "cpu":
        cases += [(stepped([None] * 6), ValueError, "hooks has length 6")]
        cases += [(stepped([lift(1)] * 7, Probabilities(batch)), ValueError, "a hook edits logits")]
    else:
        cases += [(stepped([lift(1)] * 7), UnavailableError, "hooks on a device")]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    assert [made.state(slot).position for slot in slots] == [0] * 7 and one.position == 0


def test_a_hook_that_uses_what_it_is_run_for_is_told_and_does_not_wait(batch: np.ndarray) -> None:
    (made, slots), one = pool(1), sampler()
    for use in (lambda: made.output(0), lambda: made.step(batch[0], [0]), lambda: len(made)):
        with pytest.raises(RuntimeError, match="must not use the sampler or the pool"):
            made.step(batch[0], Batch(slots, hooks=[lambda logits, use=use: use() and None]))
    for use in (lambda: one.output, lambda: one.sample(batch[0])):
        with pytest.raises(RuntimeError, match="must not use the sampler or the pool"):
            one.sample(batch[0], hook=lambda logits, use=use: use() and None)

    # Another one it may use, whose hook may not come back.
    def other(logits: np.ndarray) -> None:
        logits[one.sample(logits) or 0] = 40

    token = sampler().sample(batch[0])
    assert made.step(batch[0], Batch(slots, hooks=[other])).tolist() == [token] and one.output == [token]
    with pytest.raises(RuntimeError, match="must not use"):
        round = lambda logits: made.state(0).position and None  # noqa: E731
        made.step(batch[0], Batch(slots, hooks=[lambda logits: one.sample(logits, hook=round) and None]))
    depth = 0

    def deep(logits: np.ndarray) -> None:
        nonlocal depth
        depth += 1
        sampler().sample(ROWS[0], hook=deep)

    with pytest.raises(RuntimeError, match="inside each other 32 deep"):
        sampler().sample(ROWS[0], hook=deep)
    assert depth == 32


@pytest.fixture
def impatient() -> Iterator[None]:
    set_patience(0.3)
    yield
    set_patience(30)


def ends(*works: Callable[[], object]) -> list[BaseException | None]:
    """What each of some threads ends in; that they end is waited for."""

    def run(place: int) -> BaseException | None:
        try:
            works[place]()
        except BaseException as error:  # noqa: BLE001
            return error
        return None

    return on_threads(len(works), run)


def test_a_pool_asked_by_a_thread_that_its_hook_joins_gives_up(impatient: None) -> None:
    one, said = sampler(), []

    def hook(logits: np.ndarray) -> None:
        said.extend(ends(lambda: one.history))

    assert ends(lambda: one.sample(ROWS[0], hook=hook)) == [None]
    assert isinstance(said[0], RuntimeError) and "whose hook has not come back for 0.3 s" in str(said[0])
    assert len(one.output) == 1


def test_threads_take_turns_while_hooks_are_at_work_over_threads_of_their_own() -> None:
    one, (made, slots), (other, other_slots) = sampler(), pool(threads=3), pool()

    def hook(logits: np.ndarray) -> None:
        gumball.softmax(ROWS)
        other.step(ROWS, Batch(other_slots, hooks=[None] * 4))

    works = [lambda: [one.sample(ROWS[0], hook=lambda logits: time.sleep(0.01)) for _ in range(5)]] * 4
    assert ends(*works, lambda: [made.step(ROWS, Batch(slots, hooks=[hook] * 4)) for _ in range(20)]) == [None] * 5
    assert one.position == 20 and other.state(0).position == 80


def test_hooks_that_ask_for_pools_that_wait_for_them_are_refused(impatient: None) -> None:
    for threads in (1, 2):
        (outer, outer_slots), (inner, inner_slots) = pool(threads=1), pool(threads=threads)

        def asks(logits: np.ndarray, outer: Pool = outer) -> None:
            outer.state(0)

        def steps(logits: np.ndarray, inner: Pool = inner, slots: list[int] = inner_slots) -> None:
            inner.step(ROWS, Batch(slots, hooks=[asks] * 4))  # noqa: B023

        found = ends(lambda: outer.step(ROWS, Batch(outer_slots, hooks=[steps, None, None, None])))  # noqa: B023
        assert isinstance(found[0], RuntimeError) and "must not use" in str(found[0])
        assert [made.state(slot).position for made in (outer, inner) for slot in range(4)] == [0] * 8
    (a, a_slots), (b, b_slots), inside = pool(threads=1), pool(threads=1), threading.Barrier(2)

    def each(other: Pool) -> Hook:
        def hook(logits: np.ndarray) -> None:
            inside.wait(20)
            other.state(0)

        return hook

    found = ends(
        lambda: a.step(ROWS[:1], Batch(a_slots[:1], hooks=[each(b)])),
        lambda: b.step(ROWS[:1], Batch(b_slots[:1], hooks=[each(a)])),
    )
    refused = [error for error in found if error is not None]
    assert refused and all("whose hook has not come back for 0.3 s" in str(error) for error in refused)
