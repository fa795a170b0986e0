"""Masks fail closed: what has no word is forbidden, and what is no bitmask is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gumball import Batch, Pool, Sampler, SamplingParams, Status, Step

VOCAB = 900
NOTHING = np.zeros((2, 0), np.int32)
WIDE = np.ones((2, VOCAB), np.int32)
ROWS = np.zeros((2, VOCAB), np.float32)


def pool(device: str) -> tuple[Pool, list[int]]:
    made = Pool(VOCAB, device=device, slots=2, rows=2)
    return made, [made.admit(SamplingParams(seed=seed)) for seed in range(2)]


def stepped(device: str, masks: Any) -> Any:
    made, slots = pool(device)
    return made.step(ROWS, Batch(slots, masks=masks))


def assigned(device: str, masks: Any) -> Any:
    made, slots = pool(device)
    made.assign(Batch(slots, masks=masks))
    made.enqueue([Step(ROWS)])
    return made.fetch()


def scored(device: str, masks: Any) -> Any:
    made, _ = pool(device)
    return made.score(ROWS, SamplingParams(), [1, 2, 3], Batch(masks=masks))


CALLS = [stepped, assigned, scored]


@pytest.mark.parametrize("call", CALLS)
def test_masks_of_no_words_forbid_every_token(call: Callable[[str, Any], Any], device: str) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    out = call(device, NOTHING)
    assert (out.statuses & Status.EMPTY).all()
    assert call is scored or out.tolist() == [-1, -1]


@pytest.mark.parametrize("call", CALLS)
def test_masks_with_a_number_for_each_id_are_refused(call: Callable[[str, Any], Any], device: str) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    with pytest.raises(
        ValueError, match=r"masks.width is 900, but must be less than 900: a bit for each of 900 ids, not a word"
    ):
        call(device, WIDE)


def test_a_sampler_has_the_same_masks() -> None:
    sampler = Sampler(SamplingParams(seed=1), VOCAB)
    for nothing in (NOTHING[0], NOTHING[:1]):
        assert sampler.sample(ROWS[0], mask=nothing) is None and sampler.status & Status.EMPTY
    for wide in (WIDE[0], WIDE[:1]):
        with pytest.raises(ValueError, match="mask's words is .*, but must be less than 900"):
            sampler.sample(ROWS[0], mask=wide)
    with pytest.raises(ValueError, match="mask's rows is 2, but must be 1"):
        sampler.sample(ROWS[0], mask=np.ones((2, 29), np.int32))
    assert sampler.position == 0


def test_kept_sets_are_ascending_everywhere(device: str) -> None:
    made = Pool(VOCAB, device=device, slots=1, rows=1, kept=True)
    row = np.random.default_rng(1).normal(0, 2, VOCAB).astype(np.float32)
    out = made.step(row, [made.admit(SamplingParams(seed=1, top_k=40))])
    assert out.kept(0).tolist() == sorted(np.argsort(-row, kind="stable")[:40].tolist())
