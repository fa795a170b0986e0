"""Loans of DLPack: the memory of an export is the capsule's own, and is read before the capsule goes, in every entry point."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Drafts, Pool, Probabilities, Sampler, SamplingParams, State, Step
from operator_calls import calls, more_calls, of_numpy, same
from producers import LENT, Fresh

VOCAB, ROWS = 900, 3


def rows() -> np.ndarray:
    made = np.zeros((ROWS, VOCAB), np.float32)
    made[np.arange(ROWS), [777, 5, 300]] = 9
    return made


def probs() -> np.ndarray:
    return np.asarray(gumball.softmax(rows()))


def masks() -> np.ndarray:
    made = np.zeros((ROWS, 29), np.int32)
    made[:, 0] = 0b100
    return made


def greedy(device: str = "cpu", **options: Any) -> tuple[Pool, list[int]]:
    pool = Pool(VOCAB, device=device, slots=ROWS, rows=ROWS, **options)
    return pool, [pool.admit(SamplingParams(temperature=0)) for _ in range(ROWS)]


def sampler(**options: Any) -> Sampler:
    return Sampler(SamplingParams(temperature=0), VOCAB, **options)


def stepped(lend: Any, device: str) -> Any:
    pool, _ = greedy(device)
    batch = Batch(lend(np.arange(ROWS, dtype=np.int32)), masks=lend(masks()), row_indices=lend(np.array([2, 1, 0])))
    forced = Batch(range(ROWS), forced=lend(np.array([-1, 7, -1])))
    return [pool.step(lend(rows()), each).tolist() for each in (batch, forced)]


def enqueued(lend: Any, device: str) -> Any:
    pool, _ = greedy(device)
    pool.assign(Batch(lend(np.arange(ROWS)), masks=lend(masks()), row_indices=lend(np.array([0, 0, 2]))))
    pool.enqueue([Step(lend(rows()))])
    return pool.fetch().tolist()


def replayed(lend: Any, device: str) -> Any:
    if device == "cpu":
        return None
    pool, slots = greedy(device, keep_histories=True)
    pool.assign(slots)
    graph = pool.capture([Step(lend(rows())), Step(lend(rows()[::-1].copy()))])
    gc.collect()
    pool.replay(graph)
    pool.replay(graph)
    return [pool.fetch().tolist(), [pool.output(slot) for slot in slots]]


def verified(lend: Any, device: str) -> Any:
    pool, slots = greedy(device)
    drafts = Drafts(lend(np.array([777, 5])), parents=lend(np.array([-1, 0])), probs=lend(probs()))
    out = pool.verify(lend(rows()), Batch(slots[:1], counts=[2], mode="rejection"), drafts)
    paths = lend(np.array([1, 2, 3]))
    return [out.emitted(), pool.draft(lend(rows()), Batch(slots, counts=[1, 1, 1]), paths).tolist()]


def scored(lend: Any, device: str) -> Any:
    pool, _ = greedy(device)
    ids = lend(np.array([1, 777, 5, 300]))
    return pool.score(lend(rows()), SamplingParams(), ids, Batch(masks=lend(masks() | -1))).logprobs.tolist()


def prompted(lend: Any, device: str) -> Any:
    pool, _ = greedy(device)
    pool.release(0)
    slot = pool.admit(SamplingParams(banned_ids=lend(np.array([4, 5]))), lend(np.arange(50)))
    pool.release(1)
    other = pool.resume(SamplingParams(), State(lend(np.arange(40)), lend(np.array([3])), seed=1))
    return [(pool.state(each).prompt, pool.output(each)) for each in (slot, other)]


POOLS = [stepped, enqueued, replayed, verified, scored, prompted]


@pytest.mark.parametrize("call", POOLS)
def test_a_pool_reads_what_is_lent_before_the_loan_ends(call: Callable[[Any, str], Any], device: str) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    assert call(Fresh, device) == call(np.asarray, device)
    gc.collect()
    assert not LENT


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "sample": lambda lend: sampler().sample(lend(rows()[0])),
    "sample, masked": lambda lend: sampler().sample(lend(rows()[0]), mask=lend(masks()[0])),
    "sample, hooked": lambda lend: sampler().sample(lend(rows()[0]), hook=lambda logits: None),
    "probabilities": lambda lend: sampler().sample(Probabilities(lend(probs()[1])), mask=lend(masks()[0] | -1)),
    "prompt": lambda lend: sampler(prompt=lend(np.arange(30))).history,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_reads_what_is_lent_before_the_loan_ends(name: str) -> None:
    assert SAMPLERS[name](Fresh) == SAMPLERS[name](np.asarray)
    gc.collect()
    assert not LENT


def lent(array: np.ndarray, dtype: str | None = None) -> Fresh:
    return Fresh(of_numpy(array, dtype))


# All but those that write arrays of the caller, read bfloat16, or take rows of an array.
CALLS = [
    *calls(gumball, np.zeros((7, VOCAB), np.float32), of_numpy),
    *more_calls(np.zeros((7, VOCAB), np.float32), of_numpy),
]
CALLS = [name for name in CALLS if name not in ("softmax of bfloat16", "mask_logits of bfloat16", "blocks")]


@pytest.mark.parametrize("name", [name for name in CALLS if "place" not in name and "to out" not in name])
def test_an_operator_reads_what_is_lent_before_the_loan_ends(name: str, batch: np.ndarray) -> None:
    assert same(*[(calls(gumball, batch, put) | more_calls(batch, put))[name]() for put in (lent, of_numpy)])
    gc.collect()
    assert not LENT


def test_what_is_written_goes_to_the_loan_while_it_lasts() -> None:
    out = Fresh(np.zeros((ROWS, VOCAB), np.float32))
    gumball.softmax(rows(), out=out)
    gc.collect()
    assert not LENT and all((copy.view(np.uint8) == 0xFF).all() for copy in out.copies)


def test_a_type_that_is_gone_leaves_its_table_to_nobody() -> None:
    torch = pytest.importorskip("torch")
    row = torch.zeros(64)
    row[7] = 3.0
    greedy = Sampler(SamplingParams(temperature=0), 64)
    for _ in range(20):
        made = type("Made", (torch.Tensor,), {})
        tensor = row.as_subclass(made)
        assert greedy.sample(tensor) == 7
        del tensor, made
        gc.collect()
        kinds = [type("Other", (Fresh,), {}) for _ in range(8)]
        assert [greedy.sample(kind(row.numpy())) for kind in kinds] == [7] * 8
