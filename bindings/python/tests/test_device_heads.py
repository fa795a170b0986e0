"""Heads in a device's memory: the tokens of the same heads on the host, whatever enqueues, captures or replays the step."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import gumball
from conftest import DEVICES
from gumball import (
    Batch,
    DeviceHead,
    Head,
    Hidden,
    LogprobsParams,
    Mirostat,
    Pool,
    SamplingParams,
    Step,
    UnavailableError,
    Verify,
)

VOCAB, WIDTH, CAPACITY = 600, 48, 8

random = np.random.default_rng(17)
WEIGHTS = (random.standard_normal((VOCAB, WIDTH)) / 4).astype(np.float16).astype(np.float32)
HIDDEN = (random.standard_normal((64, WIDTH)) * 2).astype(np.float16).astype(np.float32)
BIAS = (random.standard_normal(VOCAB) / 8).astype(np.float16).astype(np.float32)
IDS = random.permutation(VOCAB).reshape(-1, CAPACITY)
CLUSTERS: dict[str, Any] = dict(clusters=IDS, centroids=WEIGHTS[IDS].mean(axis=1), probes=6, special_ids=[599, 7])

REQUESTS = [
    SamplingParams(seed=1),
    SamplingParams(temperature=0, repetition_penalty=1.2, seed=9),
    SamplingParams(top_k=20, top_p=0.9, frequency_penalty=0.3, seed=2),
    SamplingParams(min_p=0.1, logit_bias={5: 2.0}, seed=3),
    SamplingParams(top_p=0.8, seed=4, logprobs=LogprobsParams(mode="raw", top_n=3)),
    SamplingParams(top_k=9, logprobs=LogprobsParams(mode="processed", top_n=2), seed=5),
    SamplingParams(mirostat=Mirostat(3.0, 0.2), seed=6),
]
FIELDS = "tokens statuses logprobs ranks temperatures mirostat_mu top_ids top_logprobs".split()

pytestmark = pytest.mark.skipif(len(DEVICES) == 1, reason="there is neither a GPU nor the emulated device")


@pytest.fixture(params=DEVICES[1:])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(place: str, array: np.ndarray[Any, Any]) -> Any:
    """An array on a device; the emulated one takes the host's memory for its own."""
    if not place.startswith("cuda"):
        return array
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array).to(place)


def host_head(kind: str, **arguments: Any) -> Head:
    return Head(WEIGHTS, kind=kind, **(CLUSTERS if kind == "clustered" else {}), **arguments)


def pools(place: str, **config: Any) -> tuple[Pool, Pool, list[int]]:
    """A pool on the host and its twin on a device, with the same requests in the same slots."""
    config = {"top_n": 3} | config
    host, there = Pool(VOCAB, **config), Pool(VOCAB, device=place, rows=16, **config)
    slots = [host.admit(params, [1, 2, 1]) for params in REQUESTS]
    assert [there.admit(params, [1, 2, 1]) for params in REQUESTS] == slots
    return host, there, slots


def enqueue(pool: Pool, head: Any, states: Any, slots: list[int], masks: Any = None) -> None:
    pool.assign(slots)
    pool.enqueue([Step(Hidden(head, states), masks=masks)])


def check_same(seen: Any, wanted: Any) -> None:
    for name in FIELDS:
        assert getattr(seen, name).tobytes() == getattr(wanted, name).tobytes(), name


@pytest.mark.parametrize(("kind", "borrowed"), [("exact", True), ("certified", False), ("clustered", False)])
def test_steps_are_the_hosts(place: str, kind: str, borrowed: bool) -> None:
    head = host_head(kind, bias=BIAS, logit_scale=0.5, softcap=9.0)
    weights = on(place, WEIGHTS)
    there = head.to(place, rows=8, weights=weights if borrowed else None)
    assert (there.kind, there.vocab, there.width, there.rows) == (kind, VOCAB, WIDTH, 8)
    assert (there.device, there.dtype, there.is_borrowed) == (place, "float32", borrowed)
    assert there.is_approximate == head.is_approximate == (kind == "clustered")
    assert repr(there).startswith(f"DeviceHead([600, 48] float32 {'borrowed' if borrowed else 'copied'}, kind=")
    host, pool, slots = pools(place, kept=True)
    for step in range(3):
        hidden = HIDDEN[step : step + len(slots)]
        wanted = host.step(Hidden(head, hidden), slots)
        if step == 0:  # rows of the host are copied up
            seen = pool.step(Hidden(there, hidden), slots)
        elif step == 1:
            seen = pool.step(Hidden(there, on(place, hidden)), slots)
        else:
            wide = on(place, np.repeat(hidden, 2, axis=0).reshape(len(slots), 2 * WIDTH))
            enqueue(pool, there, wide[:, WIDTH:], slots)
            seen = pool.fetch()
        check_same(seen, wanted)
        assert seen.is_approximate == (kind == "clustered")
        assert all(np.array_equal(seen.kept(row), wanted.kept(row)) for row in range(len(slots)))
    counts = there.counts()
    expected = dict(exact="whole_rows", certified="certified_rows", clustered="clustered_rows")[kind]
    assert counts[expected] > 0
    assert sum(counts[name] for name in ("whole_rows", "certified_rows", "clustered_rows")) == 3 * len(slots)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_head_over_weights_of_any_type(place: str, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    weights, hidden = WEIGHTS.astype(kind), HIDDEN.astype(kind)
    if place.startswith("cuda"):
        torch = pytest.importorskip("torch")
        lying = [
            torch.from_numpy(array.astype(np.float32)).to(place, getattr(torch, dtype)) for array in (weights, hidden)
        ]
    else:
        lying = [weights, hidden]
    head, there = Head(weights, bias=BIAS), DeviceHead(lying[0], bias=BIAS, device=place)
    assert (there.kind, there.dtype, there.is_borrowed, there.rows) == ("exact", dtype, True, 256)
    host, pool, slots = pools(place)
    rows = slice(3, 3 + len(slots))
    check_same(pool.step(Hidden(there, lying[1][rows]), slots), host.step(Hidden(head, hidden[rows]), slots))


def test_a_fast_head_is_asked_for_by_name(place: str) -> None:
    half, hidden = on(place, WEIGHTS.astype(np.float16)), on(place, HIDDEN.astype(np.float16))
    head = DeviceHead(half, fast=True, rows=16, device=place)
    assert head.kind == "fast" and not head.is_approximate
    pool = Pool(VOCAB, device=place, rows=16)
    seen = pool.step(Hidden(head, hidden[:9]), [pool.admit(SamplingParams(temperature=0)) for _ in range(9)])
    assert seen.tolist() == (HIDDEN[:9] @ WEIGHTS.T).argmax(1).tolist()
    with pytest.raises(ValueError, match="weights is of float32, but must be of bfloat16 or float16 for a fast head"):
        DeviceHead(on(place, WEIGHTS), fast=True, device=place)


def test_masks_and_forced_tokens_reach_the_rows(place: str) -> None:
    head = host_head("certified")
    there = head.to(place)
    host, pool, slots = pools(place)
    words = random.integers(-(2**31), 2**31, (len(slots), -(-VOCAB // 32)), np.int64).astype(np.int32)
    present, forced = [True, False] * 3 + [True], [None, 3, None, None, None, None, 9]
    options: dict[str, Any] = dict(masks=words, mask_present=present, forced=forced)
    wanted = host.step(Hidden(head, HIDDEN[:7]), Batch(slots, **options))
    check_same(pool.step(Hidden(there, HIDDEN[:7]), Batch(slots, **options)), wanted)
    assert wanted.token(1) == 3 and wanted.token(6) == 9
    wanted = host.step(Hidden(head, HIDDEN[7:14]), Batch(slots, masks=words))
    enqueue(pool, there, on(place, HIDDEN[7:14]), slots, masks=on(place, words))
    check_same(pool.fetch(), wanted)


def test_graphs_replay_steps_from_hidden_states(place: str) -> None:
    head = host_head("clustered")
    there = head.to(place)
    host, pool, slots = pools(place)
    hidden = [on(place, HIDDEN[start : start + len(slots)].copy()) for start in (0, 20)]
    pool.assign(slots)
    pool.enqueue([Step(Hidden(there, hidden[0]))])
    check_same(pool.fetch(), host.step(Hidden(head, HIDDEN[: len(slots)]), slots))
    one = pool.capture([Step(Hidden(there, hidden[0]))])
    two = pool.capture([Step(Hidden(there, each)) for each in hidden])
    for graph, starts in ((one, (0,)), (two, (0, 20))):
        pool.replay(graph)
        for start in starts:
            wanted = host.step(Hidden(head, HIDDEN[start : start + len(slots)]), slots)
        check_same(pool.fetch(), wanted)
    # What a replay reads is what lies there then.
    hidden[0][:] = on(place, HIDDEN[40 : 40 + len(slots)])
    pool.replay(one)
    check_same(pool.fetch(), host.step(Hidden(head, HIDDEN[40 : 40 + len(slots)]), slots))


def test_drafts_are_verified_from_hidden_states(place: str) -> None:
    head = host_head("certified")
    there = head.to(place)
    host, pool, slots = pools(place)
    slots, chains = slots[:4], [[5, 6], [], [7, 8, 9], [3]]
    hidden, ids = on(place, HIDDEN[:10].copy()), on(place, np.array([5, 6, 7, 8, 9, 3]))
    pool.assign(Batch(slots, counts=[2, 0, 3, 1]))
    work = [Verify(Hidden(there, hidden), ids)]
    captured = pool.capture(work)
    for call in (lambda: pool.enqueue(work), lambda: pool.replay(captured)):
        wanted = host.verify(Hidden(head, HIDDEN[:10]), slots, chains)
        call()
        seen = pool.fetch()
        assert seen.emitted() == wanted.emitted() and seen.accepted.tolist() == wanted.accepted.tolist()
        check_same(seen, wanted)


def test_pools_share_a_head_from_several_threads(place: str) -> None:
    head = host_head("certified")
    there = head.to(place)
    found: list[list[list[int]]] = [[] for _ in range(3)]

    def work(index: int) -> None:
        pool = Pool(VOCAB, device=place, rows=8, slots=8)
        slots = [pool.admit(SamplingParams(seed=10 * index + row)) for row in range(4)]
        found[index] = [
            pool.step(Hidden(there, on(place, HIDDEN[step : step + 4])), slots).tolist() for step in range(12)
        ]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(3):
        pool = Pool(VOCAB, slots=8)
        slots = [pool.admit(SamplingParams(seed=10 * index + row)) for row in range(4)]
        assert found[index] == [pool.step(Hidden(head, HIDDEN[step : step + 4]), slots).tolist() for step in range(12)]


def test_replays_of_pools_that_share_a_head_take_turns(place: str) -> None:
    there = DeviceHead(on(place, WEIGHTS), rows=4, device=place)
    hidden = [on(place, HIDDEN[start : start + 4].copy()) for start in (0, 30)]
    wanted = [Head(WEIGHTS).logits(HIDDEN[start : start + 4]).argmax(1).tolist() for start in (0, 30)]
    wrong = [0, 0]

    def work(index: int) -> None:
        pool = Pool(VOCAB, device=place, rows=4, slots=4)
        pool.assign([pool.admit(SamplingParams(temperature=0)) for _ in range(4)])
        graph = pool.capture([Step(Hidden(there, hidden[index]))] * 2)
        for _ in range(40):
            pool.replay(graph)
            wrong[index] += pool.fetch().tolist() != wanted[index]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]


def test_a_call_that_failed_leaves_no_shape_of_another_assignment(place: str) -> None:
    there = DeviceHead(on(place, WEIGHTS), rows=8, device=place)
    pool = Pool(VOCAB, device=place, rows=8, slots=8)
    slots = [pool.admit(SamplingParams(temperature=0)) for _ in range(3)]
    narrow, states = on(place, HIDDEN[:3, :40].copy()), on(place, HIDDEN[:3].copy())
    wanted = Head(WEIGHTS).logits(HIDDEN[:3]).argmax(1).tolist()
    for assigned, failing in ((slots, slots[:1]), (slots[:1], slots)):
        pool.assign(assigned)
        with pytest.raises(ValueError, match="hidden has length 40"):
            enqueue(pool, there, narrow[: len(failing)], failing)
        pool.enqueue([Step(Hidden(there, states[: len(failing)]))])
        assert (
            len(pool.on_device().outputs("tokens")) == len(failing) and pool.fetch().tolist() == wanted[: len(failing)]
        )


class Counted(np.ndarray):  # type: ignore[type-arg]
    """An array that counts its writes, as a tensor of torch does."""

    _version = 0


def test_graphs_of_a_screen_whose_weights_were_written_are_refused(place: str) -> None:
    if place.startswith("cuda"):
        pytest.skip("left out: torch's own count is used there")
    weights = WEIGHTS.copy().view(Counted)
    there = host_head("certified").to(place, weights=weights)
    pool = Pool(VOCAB, device=place, rows=4, slots=1)
    pool.assign([pool.admit(SamplingParams(temperature=0))])
    hidden = HIDDEN[:1].copy()
    graph = pool.capture([Step(Hidden(there, hidden))])
    work = [Step(Hidden(there, hidden))]
    weights *= -1
    weights._version += 1
    for call in (lambda: pool.replay(graph), lambda: pool.capture(work), lambda: pool.enqueue(work)):
        with pytest.raises(RuntimeError, match="the weights of the head were written since it was made"):
            call()
    assert pool.output(0) == []


def test_graphs_keep_heads_and_heads_keep_weights(place: str) -> None:
    weights = on(place, WEIGHTS.copy())
    weights_alive = weakref.ref(weights)
    head = DeviceHead(weights, device=place)
    alive = weakref.ref(head)
    pool = Pool(VOCAB, device=place, rows=4, slots=4)
    slot = pool.admit(SamplingParams(temperature=0))
    pool.assign([slot])
    graph = pool.capture([Step(Hidden(head, on(place, HIDDEN[:1].copy())))])
    del weights, head
    gc.collect()
    assert alive() is not None and weights_alive() is not None
    pool.replay(graph)
    assert pool.fetch().tolist() == [int(Head(WEIGHTS).logits(HIDDEN[0])[0].argmax())]
    del graph
    gc.collect()
    assert alive() is None and weights_alive() is None


def test_weights_may_be_written_between_steps_of_an_exact_head_alone(place: str) -> None:
    weights = on(place, WEIGHTS.copy())
    head = DeviceHead(weights, device=place)
    pool = Pool(VOCAB, device=place, rows=4, slots=4)
    slot = pool.admit(SamplingParams(temperature=0))
    for scale in (1.0, -1.0, 2.0):
        weights[:] = on(place, WEIGHTS * np.float32(scale))
        wanted = int(Head(WEIGHTS * np.float32(scale)).logits(HIDDEN[0])[0].argmax())
        assert pool.step(Hidden(head, on(place, HIDDEN[:1])), [slot]).tolist() == [wanted]


def test_mistakes_are_named_and_change_nothing(place: str) -> None:
    head, weights = host_head("exact"), on(place, WEIGHTS)
    there = head.to(place, rows=4)
    pool = Pool(VOCAB, device=place, rows=16, slots=8)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(5)]
    states = [pool.state(slot) for slot in slots]
    rows = on(place, HIDDEN[:5])
    with pytest.raises(ValueError, match=f"head is on {place}, but must be on cpu, as the pool"):
        Pool(VOCAB).step(Hidden(there, HIDDEN[:1]), [0])
    for call in (enqueue, lambda pool, head, states, slots: pool.step(Hidden(head, states), slots)):
        with pytest.raises(UnavailableError, match="no head of the host on a device: copy it there"):
            call(pool, head, rows[:1], slots[:1])
    with pytest.raises(TypeError, match="head must be a Head or a DeviceHead, not str"):
        pool.step(Hidden("head", HIDDEN[:1]), slots[:1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4"):
        enqueue(pool, there, rows, slots)
    with pytest.raises(ValueError, match="hidden"):
        enqueue(pool, there, on(place, HIDDEN[:2, :40].copy()), slots[:2])
    with pytest.raises(ValueError, match="hidden"):
        pool.step(Hidden(there, HIDDEN[:2, :40].copy()), slots[:2])
    with pytest.raises(ValueError):
        enqueue(pool, there, rows[:2], slots[:3])
    other = Pool(VOCAB + 1, device=place, rows=4, slots=1)
    with pytest.raises(ValueError, match="vocab"):
        enqueue(other, there, rows[:1], [other.admit(SamplingParams())])
    with pytest.raises(UnavailableError, match="no hooks on a device: row 0 has one"):
        pool.step(Hidden(there, rows[:1]), Batch(slots[:1], hooks=[print]))
    assert [pool.state(slot) for slot in slots] == states

    with pytest.raises(ValueError, match=r"device is '?\"?cpu"):
        head.to("cpu")
    with pytest.raises(ValueError, match=r"weights is \[599, 48\] of float32, but must be \[600, 48\] of float32"):
        head.to(place, weights=weights[1:])
    with pytest.raises(ValueError, match="of float16, but must be"):
        head.to(place, weights=on(place, WEIGHTS.astype(np.float16)))
    with pytest.raises(ValueError, match="rows"):
        head.to(place, rows=0)
    with pytest.raises((ValueError, OverflowError), match="rows"):
        DeviceHead(weights, rows=-1, device=place)
    with pytest.raises(ValueError, match="weights is on cpu, but must be on a GPU"):
        DeviceHead(WEIGHTS)
    with pytest.raises(ValueError, match="weights is on cpu, but must be on cuda:0"):
        DeviceHead(WEIGHTS, device="cuda:0")
    with pytest.raises((TypeError, ValueError), match="weights"):
        DeviceHead(on(place, WEIGHTS.astype(np.float64)), device=place)
    with pytest.raises(ValueError, match="bias"):
        DeviceHead(weights, bias=BIAS[1:], device=place)
    with pytest.raises(ValueError, match="softcap"):
        DeviceHead(weights, softcap=-1.0, device=place)
    with pytest.raises(ValueError, match=r"weights.shape\[1\] is 65537, but must be in 1..=2\^16"):
        DeviceHead(on(place, np.zeros((1, 65537), np.float32)), device=place)


def test_a_screen_of_weights_that_were_written_is_refused(place: str) -> None:
    if not place.startswith("cuda"):
        pytest.skip("left out: only torch counts the writes of a tensor")
    weights = on(place, WEIGHTS.copy())
    there = host_head("certified").to(place, weights=weights)
    pool = Pool(VOCAB, device=place, rows=4, slots=1)
    slot = pool.admit(SamplingParams())
    weights.mul_(2)
    with pytest.raises(RuntimeError, match="the weights of the head were written since it was made"):
        pool.step(Hidden(there, on(place, HIDDEN[:1])), [slot])


def test_a_head_on_a_device_is_refused_where_there_is_none() -> None:
    if "cuda:0" in DEVICES:
        pytest.skip("left out: there is a GPU")
    with pytest.raises(UnavailableError):
        host_head("exact").to("cuda")
    assert gumball.DeviceHead is DeviceHead
