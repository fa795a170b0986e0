"""Hooks: a callable of the caller's own that edits a row before it is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gumball import Batch, LogprobsParams, Pool, Probabilities, Sampler, SamplingParams, UnavailableError

VOCAB = 900
Hook = Callable[[np.ndarray], None]


def lift(id: int) -> Hook:
    def hook(logits: np.ndarray) -> None:
        logits[id] = 50

    return hook


def test_a_hook_changes_the_row_that_is_drawn_from(batch: np.ndarray) -> None:
    seen: list[np.ndarray] = []

    def hook(logits: np.ndarray) -> None:
        seen.append(logits)
        logits *= 2
        logits[5] = -np.inf

    wanted = 2 * batch[0]
    wanted[5] = -np.inf
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        sampler, twin = Sampler(params, VOCAB), Sampler(params, VOCAB)
        rows = batch[0].astype(dtype)
        before = rows.copy()
        assert sampler.sample(rows, hook=hook) == twin.sample(wanted)
        assert (rows == before).all(), "it changes a copy"
    # An array that is kept lives on by itself.
    del sampler
    assert seen[0].dtype == np.float32 and seen[0].shape == (VOCAB,) and (seen[0] == wanted).all()


def test_a_hook_comes_after_penalties_and_biases_and_before_bans() -> None:
    seen: list[list[float]] = []
    params = SamplingParams(temperature=0, frequency_penalty=2, logit_bias={2: 1.5}, banned_ids=[3])
    sampler = Sampler(params, 5, prompt=[1])
    sampler.push(4)
    row = np.array([0, 1, 2, 9, 4], np.float32)

    def hook(logits: np.ndarray) -> None:
        seen.append(logits.tolist())
        logits[3] = 100

    assert sampler.sample(row, hook=hook) == 2
    assert seen == [[0, 1, 3.5, 9, 2]]
    assert sampler.sample(row, hook=lift(0), mask=np.array([0b110], np.uint32)) == 2


def test_hooks_of_a_pool_are_one_a_row(batch: np.ndarray) -> None:
    for threads in (1, 3):
        pool, twin = Pool(VOCAB, slots=7, threads=threads), Pool(VOCAB, slots=7)
        slots = [made.admit(SamplingParams(seed=seed)) for seed in range(7) for made in (pool, twin)][::2]
        hooks = [None, lift(8), None, lift(9), lift(10), None, None]
        tokens, plain = pool.step(batch, Batch(slots, hooks=hooks)).tolist(), twin.step(batch, slots).tolist()
        assert tokens == [plain[0], 8, plain[2], 9, 10, plain[5], plain[6]]
        # They come with each step; nothing of them stays.
        for slot, token in enumerate(tokens):
            twin.shorten([slot], [len(twin.output(slot))])
            twin.push(slot, token)
        assert pool.step(batch, slots).tolist() == twin.step(batch, slots).tolist()
        assert pool.step(batch, Batch(slots, hooks=hooks)).tolist()[3:5] == [9, 10]


def test_a_hook_that_reshapes_or_keeps_its_array_does_no_harm(batch: np.ndarray) -> None:
    kept: list[np.ndarray] = []

    def hook(logits: np.ndarray) -> None:
        with pytest.raises(ValueError):
            logits.resize(1 << 20, refcheck=False)
        logits[7] = 60
        logits.shape = (30, 30)
        kept.append(logits)

    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    assert [sampler.sample(row, hook=hook) for row in batch] == [7] * 7
    kept[0][:] = np.inf
    assert all(array.shape == (30, 30) and array[0, 7] == 60 for array in kept[1:])
    assert sampler.output == [7] * 7


class Mine(Exception):
    pass


def fails(logits: np.ndarray) -> None:
    logits[:] = -np.inf
    raise Mine("on purpose")


def test_what_a_hook_raises_comes_out_and_changes_nothing(batch: np.ndarray) -> None:
    sampler, twin = (Sampler(SamplingParams(seed=1, repetition_penalty=1.2), VOCAB, prompt=[3]) for _ in range(2))
    wanted = [twin.sample(row) for row in batch]
    for row, token in zip(batch, wanted, strict=True):
        before = sampler.state
        with pytest.raises(Mine, match="on purpose"):
            sampler.sample(row, hook=fails)
        assert sampler.state == before
        assert sampler.sample(row) == token
    for threads in (1, 3):
        pool = Pool(VOCAB, slots=7, threads=threads)
        slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(7)]
        for hooks in ([None] * 6 + [fails], [fails] * 7):
            with pytest.raises(Mine, match="on purpose"):
                pool.step(batch, Batch(slots, hooks=hooks))
        assert [pool.state(slot).position for slot in slots] == [0] * 7
        twins = [Sampler(SamplingParams(seed=seed), VOCAB) for seed in range(7)]
        assert pool.step(batch, slots).tolist() == [one.sample(row) for one, row in zip(twins, batch, strict=True)]


def test_scores_are_of_rows_that_hooks_changed(batch: np.ndarray) -> None:
    pool, params, ids = (
        Pool(VOCAB, slots=1, top_n=1),
        SamplingParams(logprobs=LogprobsParams("edited", 1)),
        [1, 8, 9, 9],
    )
    changed = batch[:3].copy()
    changed[1, 9] = 50
    plain, hooked = (pool.score(rows, params, ids) for rows in (batch[:3], changed))
    seen = pool.score(batch[:3], params, ids, Batch(hooks=[None, lift(9), None]))
    assert (seen.logprobs == hooked.logprobs).all() and seen.logprobs[1] != plain.logprobs[1]
    with pytest.raises(Mine):
        pool.score(batch[:3], params, ids, Batch(hooks=[None, fails, None]))


def test_mistakes_with_hooks_are_told(batch: np.ndarray, device: str) -> None:
    pool = Pool(VOCAB, device=device, slots=7, rows=7)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(7)]
    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    doubled: Any = lambda logits: logits * 2  # noqa: E731
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: pool.step(batch, Batch(slots, hooks=[3] * 7)), TypeError, "hooks' element must be callable, not int"),
        (
            lambda: pool.step(batch, Batch(slots, hooks=lift(3))),
            TypeError,
            "hooks must be a list of callables and None, not",
        ),
        (lambda: sampler.sample(batch[0], hook="x"), TypeError, "hook must be callable, not str"),
        (lambda: sampler.sample(batch[0], hook=doubled), TypeError, "return None, not ndarray"),
        (lambda: sampler.sample(batch[0], hook=lambda: None), TypeError, "argument"),
    ]
    if device == "cpu":
        cases += [
            (lambda: pool.step(batch, Batch(slots, hooks=[None] * 6)), ValueError, "hooks has length 6"),
            (
                lambda: pool.step(Probabilities(batch), Batch(slots, hooks=[lift(1)] * 7)),
                ValueError,
                "a hook edits logits",
            ),
        ]
    else:
        cases += [(lambda: pool.step(batch, Batch(slots, hooks=[lift(1)] * 7)), UnavailableError, "hooks on a device")]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    assert [pool.state(slot).position for slot in slots] == [0] * 7 and sampler.position == 0


def test_a_hook_that_uses_what_it_is_run_for_is_told_and_does_not_wait(batch: np.ndarray) -> None:
    pool, sampler = Pool(VOCAB, slots=1), Sampler(SamplingParams(seed=1), VOCAB)
    slot = pool.admit(SamplingParams(seed=1))
    for use in (lambda: pool.output(slot), lambda: pool.step(batch[0], [slot]), lambda: len(pool)):
        with pytest.raises(RuntimeError, match="must not use the sampler or the pool"):
            pool.step(batch[0], Batch([slot], hooks=[lambda logits, use=use: use() and None]))
    for use in (lambda: sampler.output, lambda: sampler.sample(batch[0])):
        with pytest.raises(RuntimeError, match="must not use the sampler or the pool"):
            sampler.sample(batch[0], hook=lambda logits, use=use: use() and None)

    # Another one it may use, whose hook may not come back.
    def other(logits: np.ndarray) -> None:
        logits[sampler.sample(logits) or 0] = 40

    token = Sampler(SamplingParams(seed=1), VOCAB).sample(batch[0])
    assert pool.step(batch[0], Batch([slot], hooks=[other])).tolist() == [token] and sampler.output == [token]
    with pytest.raises(RuntimeError, match="must not use"):
        round = lambda logits: pool.state(slot).position and None  # noqa: E731
        pool.step(batch[0], Batch([slot], hooks=[lambda logits: sampler.sample(logits, hook=round) and None]))
