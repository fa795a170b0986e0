"""Heads in a device's memory: whose weights they borrow and how long, graphs and pools that share one, and what is refused."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conftest import DEVICES, on
from gumball import Batch, DeviceHead, Head, Hidden, Pool, SamplingParams, Step, UnavailableError, Verify
from test_heads import HIDDEN, MAKERS, PLAIN, REQUESTS, VOCAB, WEIGHTS, WIDTH
from threads import on_threads

GREEDY = SamplingParams(temperature=0)
FIELDS = "tokens statuses logprobs ranks temperatures mirostat_mu top_ids top_logprobs".split()
TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.fixture(params=DEVICES[1:])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def greedy(place: str, rows: int) -> tuple[Pool, list[int]]:
    pool = Pool(VOCAB, device=place, rows=16, slots=8)
    return pool, [pool.admit(GREEDY) for _ in range(rows)]


def first(hidden: np.ndarray) -> list[int]:
    return PLAIN(WEIGHTS).logits(hidden).argmax(1).tolist()


@pytest.mark.parametrize(("kind", "borrowed"), [("plain", True), ("auto", False), ("clustered", True)])
def test_a_head_is_copied_there_or_borrows_weights_there_and_gives_the_hosts_tokens(
    place: str, kind: str, borrowed: bool
) -> None:
    head, weights = MAKERS[kind](WEIGHTS, bias=[0.5] * VOCAB, softcap=9.0), on(place, WEIGHTS)
    there = head.to(place, rows=8, weights=weights if borrowed else None)
    assert (there.kind, there.vocab, there.width, there.rows) == (head.kind, VOCAB, WIDTH, 8)
    assert (there.device, there.dtype, there.is_borrowed) == (place, "float32", borrowed)
    assert there.is_approximate == head.is_approximate == (kind == "clustered")
    assert repr(there).startswith(f"DeviceHead([600, 40] float32 {'borrowed' if borrowed else 'copied'}, kind=")
    pools = Pool(VOCAB, top_n=3), Pool(VOCAB, device=place, rows=16, top_n=3)
    slots = [[pool.admit(params, [1, 2, 1]) for params in REQUESTS] for pool in pools][0]
    for step in range(4):
        hidden = HIDDEN[step : step + 6]
        wanted = pools[0].step(Hidden(head, hidden), slots)
        if step == 0:  # rows of the host are copied up
            seen = pools[1].step(Hidden(there, hidden), slots)
        elif step == 1:
            seen = pools[1].step(Hidden(there, on(place, hidden)), slots)
        else:
            # Rows further apart than they are long, enqueued, and in a graph.
            wide = on(place, np.repeat(hidden, 2, axis=0).reshape(6, 2 * WIDTH))
            pools[1].assign(slots)
            work = [Step(Hidden(there, wide[:, WIDTH:]))]
            pools[1].enqueue(work) if step == 2 else pools[1].replay(pools[1].capture(work))
            seen = pools[1].fetch()
        for name in FIELDS:
            assert getattr(seen, name).tobytes() == getattr(wanted, name).tobytes(), name
        assert seen.is_approximate == (kind == "clustered")
    counts = there.counts()
    assert sum(counts[name] for name in ("whole_rows", "certified_rows", "clustered_rows")) == 24
    # On a GPU no screen of so small a head would pay.
    screened = "certified_rows" if place == "emulated" else "whole_rows"
    assert counts[dict(plain="whole_rows", auto=screened, clustered="clustered_rows")[kind]] > 0
    hidden, drafts = HIDDEN[:8], [[5], [6, 7]]
    pools[1].assign(Batch(slots[:2], counts=[1, 2]))
    pools[1].enqueue([Verify(Hidden(there, on(place, hidden[:5].copy())), [5, 6, 7])])
    assert pools[1].fetch().emitted() == pools[0].verify(Hidden(head, hidden[:5]), slots[:2], drafts).emitted()


@pytest.mark.parametrize("borrowed", [True, False])
def test_a_clustered_head_may_be_fast(place: str, borrowed: bool) -> None:
    narrow = WEIGHTS.astype(TYPES["bfloat16"])
    head, weights, hidden = MAKERS["clustered"](narrow), on(place, narrow), on(place, HIDDEN[:8].astype(narrow.dtype))
    there = head.to(place, rows=8, weights=weights if borrowed else None, fast=True)
    assert (there.kind, there.fast, there.is_approximate) == ("clustered", True, True) and "fast=True" in repr(there)
    # All clusters: the tokens of the fast head.
    head.probes = len(head.centroids)
    heads = there, head.to(place, rows=8, fast=True), DeviceHead(weights, rows=8, fast=True, device=place)
    assert heads[2].fast and heads[2].kind == PLAIN(narrow).to(place, fast=True).kind == "fast"
    pool, slots = greedy(place, 8)
    some, *others = (pool.step(Hidden(one, hidden), slots).tolist() for one in heads)
    assert others[0] == others[1] and len(some) == 8
    assert there.counts()["clustered_rows"] == 8
    for wrong in (MAKERS["clustered"](WEIGHTS), Head.auto(narrow)):
        with pytest.raises(ValueError, match="fast"):
            wrong.to(place, fast=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fast", [False, True])
def test_a_head_over_weights_of_any_type_reads_them_at_each_step(place: str, dtype: str, fast: bool) -> None:
    weights, hidden = on(place, WEIGHTS.astype(TYPES[dtype])), on(place, HIDDEN[:9].astype(TYPES[dtype]))
    if fast and dtype == "float32":
        with pytest.raises(ValueError, match="weights is of float32, but must be of bfloat16 or float16 for a fast"):
            DeviceHead(weights, fast=True, device=place)
        return
    head, (pool, slots) = DeviceHead(weights, fast=fast, device=place), greedy(place, 9 - 1)
    assert (head.kind, head.dtype, head.is_borrowed, head.rows) == ("fast" if fast else "auto", dtype, True, 256)
    host = PLAIN(WEIGHTS.astype(TYPES[dtype]))
    for sign in (1, -1):
        rows = sign * host.logits(HIDDEN[:8].astype(TYPES[dtype]))
        assert pool.step(Hidden(head, hidden[:8]), slots).tolist() == rows.argmax(1).tolist()
        weights *= -1


def test_pools_share_a_head_from_several_threads_and_replays_take_turns(place: str) -> None:
    there = DeviceHead(on(place, WEIGHTS), rows=4, device=place)
    hidden = [on(place, HIDDEN[start : start + 4].copy()) for start in (0, 30)]
    wanted, wrong = [first(HIDDEN[start : start + 4]) for start in (0, 30)], [0, 0]

    def work(index: int) -> None:
        pool, slots = greedy(place, 4)
        for _ in range(10):
            wrong[index] += pool.step(Hidden(there, hidden[index]), slots).tolist() != wanted[index]
        pool.assign(slots)
        graph = pool.capture([Step(Hidden(there, hidden[index]))] * 2)
        for _ in range(40):
            pool.replay(graph)
            wrong[index] += pool.fetch().tolist() != wanted[index]

    on_threads(2, work)
    assert wrong == [0, 0]


class Counted(np.ndarray):  # type: ignore[type-arg]
    """An array that counts its writes, as a tensor of torch does."""

    _version = 0


def test_calls_and_graphs_of_a_screen_whose_weights_were_written_are_refused(place: str) -> None:
    weights = on(place, WEIGHTS.copy()) if place.startswith("cuda") else WEIGHTS.copy().view(Counted)
    there, (pool, slots) = Head.auto(WEIGHTS).to(place, weights=weights), greedy(place, 1)
    pool.assign(slots)
    hidden = on(place, HIDDEN[:1].copy())
    work = [Step(Hidden(there, hidden))]
    graph = pool.capture(work)
    weights *= -1
    if isinstance(weights, Counted):
        weights._version += 1
    calls = [lambda: pool.replay(graph), lambda: pool.capture(work), lambda: pool.enqueue(work)]
    for call in [*calls, lambda: pool.step(Hidden(there, hidden), slots)]:
        with pytest.raises(RuntimeError, match="the weights of the head were written since it was made"):
            call()
    assert pool.output(0) == []


def test_graphs_keep_heads_and_heads_keep_weights(place: str) -> None:
    weights = on(place, WEIGHTS.copy())
    head, (pool, slots) = DeviceHead(weights, device=place), greedy(place, 1)
    alive = [weakref.ref(weights), weakref.ref(head)]
    pool.assign(slots)
    graph = pool.capture([Step(Hidden(head, on(place, HIDDEN[:1].copy())))])
    del weights, head
    gc.collect()
    assert all(one() is not None for one in alive)
    pool.replay(graph)
    assert pool.fetch().tolist() == first(HIDDEN[:1])
    del graph
    gc.collect()
    assert all(one() is None for one in alive)


def test_mistakes_are_named_and_change_nothing(place: str) -> None:
    head, weights, (pool, slots) = PLAIN(WEIGHTS), on(place, WEIGHTS), greedy(place, 5)
    there, rows = head.to(place, rows=4), on(place, HIDDEN[:5])
    states = [pool.state(slot) for slot in slots]
    other = Pool(VOCAB + 1, device=place, rows=4, slots=1)
    other.admit(GREEDY)

    def enqueued(pool: Pool, states: Any, slots: list[int], given: Any = there) -> None:
        pool.assign(slots)
        pool.enqueue([Step(Hidden(given, states))])

    host = "no head of the host on a device: copy it there"
    cases: list[tuple[Any, Any, str]] = [
        (
            lambda: Pool(VOCAB).step(Hidden(there, HIDDEN[:1]), [0]),
            ValueError,
            f"head is on {place}, but must be on cpu",
        ),
        (lambda: enqueued(pool, rows[:1], slots[:1], head), UnavailableError, host),
        (lambda: pool.step(Hidden(head, rows[:1]), slots[:1]), UnavailableError, host),
        (lambda: pool.step(Hidden("x", rows), slots), TypeError, "head must be a Head or a DeviceHead, not str"),  # type: ignore[arg-type]
        (lambda: enqueued(pool, rows, slots), ValueError, "4"),
        (lambda: enqueued(pool, on(place, HIDDEN[:2, :30].copy()), slots[:2]), ValueError, "states has length 30"),
        (lambda: pool.step(Hidden(there, HIDDEN[:2, :30].copy()), slots[:2]), ValueError, "states has length 30"),
        (lambda: enqueued(other, rows[:1], [0]), ValueError, "vocab"),
        (lambda: head.to("cpu"), ValueError, r"device is '?\"?cpu"),
        (
            lambda: head.to(place, weights=weights[1:]),
            ValueError,
            r"weights is \[599, 40\] of float32, but must be \[600, 40\]",
        ),
        (lambda: head.to(place, weights=on(place, WEIGHTS.astype(np.float16))), ValueError, "of float16, but must be"),
        (lambda: head.to(place, rows=0), ValueError, "rows"),
        (lambda: DeviceHead(weights, rows=-1, device=place), ValueError, "rows is -1"),
        (lambda: DeviceHead(WEIGHTS), ValueError, "weights is on cpu, but must be on a GPU"),
        (lambda: DeviceHead(WEIGHTS, device="cuda:0"), ValueError, "weights is on cpu, but must be on cuda:0"),
        (lambda: DeviceHead(on(place, WEIGHTS.astype(np.float64)), device=place), TypeError, "weights is of float64"),
        (lambda: DeviceHead(weights, bias=[1.0], device=place), ValueError, "bias"),
        (lambda: DeviceHead(weights, softcap=-1.0, device=place), ValueError, "softcap"),
        (
            lambda: DeviceHead(on(place, np.zeros((1, 65537), np.float32)), device=place),
            ValueError,
            r"shape\[1\] is 65537",
        ),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    assert [pool.state(slot) for slot in slots] == states
    # A call that failed leaves no shape of another assignment.
    enqueued(pool, rows[:3], slots[:3])
    assert len(pool.on_device().outputs("tokens")) == 3 and pool.fetch().tolist() == first(HIDDEN[:3])


@pytest.mark.skipif("cuda:0" in DEVICES, reason="there is a GPU")
def test_a_head_on_a_device_is_refused_where_there_is_none() -> None:
    with pytest.raises(UnavailableError):
        PLAIN(WEIGHTS).to("cuda")
