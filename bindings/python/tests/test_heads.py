"""Heads on the host: weights of others and their lives, each kind in the place of logits, files, clusters, and what is refused."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conftest import Heard
from gumball import Batch, Drafts, Head, Hidden, LogprobsParams, Pool, SamplingParams, Scored
from producers import Fresh

VOCAB, WIDTH, CAPACITY = 600, 40, 8
random = np.random.default_rng(11)
# Numbers of few bits, so that scores of centroids are told apart.
WEIGHTS = (random.standard_normal((VOCAB, WIDTH)) / 4).astype(np.float16).astype(np.float32)
HIDDEN = (random.standard_normal((64, WIDTH)) * 2).astype(np.float16).astype(np.float32)
IDS = random.permutation(VOCAB).reshape(-1, CAPACITY)
CENTROIDS = WEIGHTS[IDS].mean(axis=1).astype(np.float16).astype(np.float32)
CLUSTERS: dict[str, Any] = dict(vocab_maps=IDS, centroids=CENTROIDS, probes=6, special_ids=[599, 7, 7, 300])
REQUESTS = [
    SamplingParams(seed=1),
    SamplingParams(temperature=0, repetition_penalty=1.2),
    SamplingParams(top_k=20, top_p=0.9, frequency_penalty=0.3, seed=2),
    SamplingParams(min_p=0.1, logit_bias={5: 2.0}, seed=3),
    SamplingParams(top_p=0.8, seed=4),
    SamplingParams(top_k=9, logprobs=LogprobsParams(mode="processed", top_n=2), seed=5),
]
PLAIN = partial(Head.auto, screen=False)
MAKERS: dict[str, Callable[..., Head]] = {
    "plain": PLAIN,
    "auto": Head.auto,
    "clustered": lambda weights, **more: Head.clustered(weights, **(CLUSTERS | more)),
}


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def pool_of(requests: list[SamplingParams], **config: Any) -> tuple[Pool, list[int]]:
    pool = Pool(VOCAB, top_n=3, **config)
    return pool, [pool.admit(params, [1, 2, 1]) for params in requests]


@pytest.mark.parametrize("kind", ["plain", "auto"])
def test_each_call_takes_hidden_states_in_the_place_of_logits(kind: str) -> None:
    head = MAKERS[kind](WEIGHTS)
    (a, slots), (b, _) = pool_of(REQUESTS, kept=True), pool_of(REQUESTS, kept=True)
    hidden, batch = HIDDEN[:7], Batch([*slots[:2], -1, *slots[2:]], masks=np.full((7, 19), -9, np.int32))
    expected, seen = a.step(head.logits(hidden), batch), b.step(Hidden(head, hidden), batch)
    for name in ("tokens", "statuses", "logprobs", "ranks", "temperatures", "top_ids", "top_logprobs"):
        assert getattr(seen, name).tobytes() == getattr(expected, name).tobytes(), name
    assert all(np.array_equal(seen.kept(row), expected.kept(row)) for row in range(7))
    assert not (seen.is_approximate or head.is_approximate or expected.is_approximate)
    counts = b.counts()["heads"]
    assert counts["whole_rows"] + counts["certified_rows"] == 6
    assert (counts["screen_reads"], counts["centroid_reads"]) == (kind == "auto", 0)
    block, paths = Batch(slots, mode="block"), [[3, 1]] * 6
    drafts, probs = b.draft(Hidden(head, HIDDEN[:6]), block, paths, probs=True)
    for one, other in zip((drafts, probs), a.draft(head.logits(HIDDEN[:6]), block, paths, probs=True)):
        assert np.array_equal(one, other)
    hidden, given = np.repeat(HIDDEN[:6], 2, axis=0), Drafts(drafts, probs=np.repeat(probs, 2, axis=0))
    assert (
        b.verify(Hidden(head, hidden), block, given).emitted() == a.verify(head.logits(hidden), block, given).emitted()
    )
    ids = random.integers(0, VOCAB, 40)
    scores = a.score(head.logits(HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4))
    for chunk_rows in (1, None):
        found = b.score(Hidden(head, HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4, chunk_rows=chunk_rows))
        assert found.logprobs.tobytes() == scores.logprobs.tobytes() and found.ranks.tobytes() == scores.ranks.tobytes()


def test_forced_tokens_and_hooks_act_on_rows_from_hidden_states() -> None:
    head, (pool, slots), seen = MAKERS["clustered"](WEIGHTS), pool_of(REQUESTS[:3]), []

    def only_seven(row: np.ndarray) -> None:
        # Meanwhile others may read the head and compute with it, and no call may change it.
        seen.append((np.flatnonzero(np.isfinite(row)), head.probes, len(head.logits(HIDDEN[:1]))))
        with pytest.raises(RuntimeError, match="a call is using the head"):
            head.probes = 1
        row[:] = -np.inf
        row[7] = 0

    batch = Batch(slots, forced=[5, None, -1], hooks=[None, only_seven, None])
    out = pool.step(Hidden(head, HIDDEN[:3]), batch)
    assert out.tolist()[:2] == [5, 7] and out.is_approximate and head.is_approximate
    counts = pool.counts()["heads"]
    # A forced row needs no product.
    assert counts["clustered_rows"] == 2 and counts["centroid_reads"] == 1
    # What six clusters have, and ids that are always computed.
    [(probed, *rest)] = seen
    clusters = {int(np.flatnonzero((IDS == id).any(1))[0]) for id in probed if id not in CLUSTERS["special_ids"]}
    assert rest == [6, 1] and len(clusters) == 6 and set(CLUSTERS["special_ids"]) <= set(probed.tolist())
    head.probes = 1


def test_what_needs_the_whole_row_is_said_before() -> None:
    hot = SamplingParams(temperature=0.5, logprobs=LogprobsParams(mode="raw"))
    pool, slots = pool_of([*REQUESTS[:5], hot])
    assert [Head.needs_whole_row(pool, slot) for slot in slots] == [*[None] * 4, "top_p", "logprobs"]
    assert Head.needs_whole_row(pool, slots[0], hooked=True) == "hook"
    with pytest.raises(ValueError, match="slot is 9"):
        Head.needs_whole_row(pool, 9)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_of_every_type_and_stride_are_borrowed_where_they_follow_each_other(kind: str, dtype: Any) -> None:
    weights, hidden = WEIGHTS.astype(dtype), HIDDEN[:2].astype(dtype)
    wide = np.zeros((VOCAB, WIDTH + 3), dtype)
    wide[:, :WIDTH] = weights
    wanted = PLAIN(weights.astype(np.float32)).logits(hidden)
    np.testing.assert_allclose(wanted, hidden.astype(np.float32) @ weights.astype(np.float32).T, atol=1e-4)
    heads = MAKERS[kind](weights), MAKERS[kind](wide[:, :WIDTH])
    name = "clustered" if kind == "clustered" else "auto"
    for head, is_borrowed in zip(heads, (kind != "clustered", False)):
        assert (head.vocab, head.width, head.kind, head.dtype) == (VOCAB, WIDTH, name, np.dtype(dtype).name)
        assert head.is_borrowed == is_borrowed and np.array_equal(head.logits(hidden), wanted)
        words = "borrowed" if is_borrowed else "copied"
        assert repr(head) == f'Head([600, 40] {np.dtype(dtype).name} {words}, kind="{name}")'
    # Borrowed memory outlives its name; of numpy's, what is written there shows.
    weights[0] = 0
    del weights, wide
    gc.collect()
    assert (heads[0].logits(hidden)[0, 0] == 0) == heads[0].is_borrowed
    assert np.array_equal(heads[1].logits(hidden), wanted)


def test_a_bias_a_scale_and_a_cap_come_as_numbers_lists_and_arrays() -> None:
    plain = PLAIN(WEIGHTS).logits(HIDDEN[:3])
    assert plain.dtype == np.float32 and plain.shape == (3, VOCAB)
    for bias in ([0.5] * VOCAB, (0.5,) * VOCAB, np.full(VOCAB, 0.5), np.full(VOCAB, 0.5, np.float16)):
        for made in MAKERS.values():
            assert np.array_equal(made(WEIGHTS, bias=bias).logits(HIDDEN[:3]), plain + np.float32(0.5))
    for made in MAKERS.values():
        capped = made(WEIGHTS, logit_scale=0.5, softcap=2.0).logits(HIDDEN[:3])
        assert np.allclose(capped, 2.0 * np.tanh(plain * np.float32(0.5) / 2.0), atol=1e-4)


def test_what_is_known_of_a_head() -> None:
    weights = WEIGHTS.copy()
    weights[[3, 9]] = [[np.nan], [np.inf]]
    plain, auto, clustered = PLAIN(weights), Head.auto(weights), MAKERS["clustered"](WEIGHTS)
    assert [head.most_rows for head in (plain, auto, clustered)] == [0, 0, None]
    assert MAKERS["clustered"](WEIGHTS, probes=13).most_rows == 16
    assert [head.unscreened.tolist() for head in (plain, auto, clustered)] == [[], [3, 9], []]
    assert VOCAB * WIDTH < auto.screen_bytes < 2 * VOCAB * WIDTH and plain.screen_bytes == 0
    assert (plain.probes, plain.capacity, plain.centroid_bytes) == (0, 0, 0) and auto.unscreened.dtype == np.int64
    assert [len(array) for array in (plain.special_ids, plain.vocab_maps, plain.places, plain.centroids)] == [0] * 4
    assert (clustered.capacity, clustered.probes, clustered.special_ids.tolist()) == (CAPACITY, 6, [7, 300, 599])
    assert clustered.vocab_maps.tolist() == IDS.tolist() and np.array_equal(clustered.centroids, CENTROIDS)
    assert np.array_equal(IDS.reshape(-1)[clustered.places], np.arange(VOCAB))
    # Centroids that bf16 holds are read as such.
    short = (CENTROIDS.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    sizes = [MAKERS["clustered"](WEIGHTS, centroids=one).centroid_bytes for one in (CENTROIDS, short)]
    assert sizes == [CENTROIDS.nbytes, CENTROIDS.nbytes // 2]
    clustered.probes = 75
    assert clustered.probes == 75
    for head, probes, kind, text in (
        (clustered, 0, ValueError, "probes is 0, but must be in 1..=75"),
        (clustered, -1, ValueError, "probes is -1"),
        (clustered, 2.5, TypeError, "probes must be an integer"),
        (auto, 3, ValueError, "probes is of a clustered head, but this one is auto"),
    ):
        with pytest.raises(kind, match=text):
            head.probes = probes  # type: ignore[assignment]


MISTAKES: list[tuple[str, type[Exception], str, dict[str, Any]]] = [
    ("auto", TypeError, "unexpected keyword argument 'most_rows'", {"most_rows": 3}),
    ("auto", TypeError, "unexpected keyword argument 'probes'", {"probes": 3}),
    ("plain", ValueError, "file is for a head with a screen, but screen is False", {"file": "x"}),
    ("auto", TypeError, "weights is of float64, but must be of float32", {"weights": WEIGHTS.astype(np.float64)}),
    ("clustered", TypeError, "weights must be an array", {"weights": [[1.0]]}),
    ("auto", ValueError, r"weights.shape\[1\] is 65537", {"weights": np.zeros((1, 65537), np.float32)}),
    ("auto", ValueError, "bias has length 3, but must have one for each of 600 ids", {"bias": [1.0, 2.0, 3.0]}),
    ("auto", ValueError, 'level "mmx" is not known', {"level": "mmx"}),
    ("auto", FileNotFoundError, "none", {"file": "none"}),
    ("clustered", TypeError, "vocab_maps must be", {"vocab_maps": 5}),
    (
        "clustered",
        ValueError,
        "vocab_maps is -2 in cluster 1",
        {"vocab_maps": [[0, 1], [-2, 2]], "centroids": CENTROIDS[:2]},
    ),
    ("clustered", ValueError, r"vocab_maps.shape\[1\] is 0", {"vocab_maps": [[]], "centroids": CENTROIDS[:1]}),
    (
        "clustered",
        ValueError,
        r"centroids.shape is \(74, 40\), but must be \(75, 40\), a row for each map",
        {"centroids": CENTROIDS[1:]},
    ),
    ("clustered", ValueError, r"centroids.shape is \(75, 39\)", {"centroids": CENTROIDS[:, 1:].copy()}),
    ("clustered", TypeError, "centroids is of float64", {"centroids": CENTROIDS.astype(np.float64)}),
    (
        "clustered",
        ValueError,
        r"vocab_maps is given without centroids, which must be given too: \[clusters, width\]",
        {"centroids": None},
    ),
    ("clustered", ValueError, "centroids is given without vocab_maps, which must", {"vocab_maps": None}),
    ("clustered", ValueError, "vocab_maps and file are given, but must be one of the two", {"file": "x"}),
    ("clustered", ValueError, "capacity is for clusters that are built, but vocab_maps is given", {"capacity": 4}),
    (
        "clustered",
        ValueError,
        "special_ids is 600, 9999, but must be ids in 0..600, which stand",
        {"special_ids": [600, 5, 9999]},
    ),
    ("built", ValueError, "progress is for clusters that are built, but file is given", {"progress": 1, "file": "x"}),
    ("built", ValueError, "capacity is 0, but must be in 1..=600", {"capacity": 0}),
    ("built", TypeError, "progress must be callable, not int", {"progress": 3}),
]


@pytest.mark.parametrize(("kind", "error", "text", "given"), MISTAKES)
def test_what_does_not_fit_is_named(kind: str, error: type[Exception], text: str, given: dict[str, Any]) -> None:
    with pytest.raises(error, match=text):
        (MAKERS | {"built": Head.clustered})[kind](**({"weights": WEIGHTS} | given))


def test_hidden_states_that_do_not_fit_change_nothing() -> None:
    with pytest.raises(TypeError, match="cannot create|No constructor"):
        Head(WEIGHTS)  # type: ignore[call-arg]
    head, (pool, slots) = Head.auto(WEIGHTS), pool_of(REQUESTS[:2])
    for hidden, text in [
        (HIDDEN[:1], "slots has length 2, but must have one per hidden state, 1"),
        (HIDDEN[:2, :-1], "states has length 39, but must have 40 elements each"),
        (HIDDEN[:2].astype(np.float64), "states is of float64"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            pool.step(Hidden(head, hidden), slots)
    with pytest.raises(ValueError, match="chunk_rows is 0"):
        pool.score(Hidden(head, HIDDEN[:1]), SamplingParams(), Scored([1, 2], chunk_rows=0))
    with pytest.raises(ValueError, match="rows has length 600, but must have 7 elements"):
        Pool(7).step(Hidden(head, HIDDEN[:0]), [])
    assert [pool.state(slot).position for slot in slots] == [3, 3]


def test_a_saved_head_is_the_head(tmp_path: Path) -> None:
    path, bias = tmp_path / "head", np.ones(VOCAB, np.float32)
    made = Head.auto(WEIGHTS, bias=bias)
    made.save(path, name="w")
    read = Head.auto(WEIGHTS, bias=bias, file=path)
    assert read.screen_bytes == made.screen_bytes > 0
    (a, slots), (b, _) = pool_of(REQUESTS), pool_of(REQUESTS)
    assert a.step(Hidden(made, HIDDEN[:6]), slots).tolist() == b.step(Hidden(read, HIDDEN[:6]), slots).tolist()
    for call, kind, text in (
        (
            lambda: Head.auto(WEIGHTS, file=str(path)),
            ValueError,
            "file cannot be used: it is of another head: the bias",
        ),
        (lambda: PLAIN(WEIGHTS).save(path), ValueError, "nothing to save"),
        (lambda: made.save(tmp_path / "no" / "folder"), OSError, "folder"),
        (lambda: made.save(tmp_path), OSError, "it is a folder, not a file"),
    ):
        with pytest.raises(kind, match=text):
            call()
    built = Head.clustered(WEIGHTS, capacity=7, iterations=3)
    built.save(path)
    read = Head.clustered(WEIGHTS, file=path, probes=4, special_ids=[3])
    assert np.array_equal(read.vocab_maps, built.vocab_maps) and np.array_equal(read.centroids, built.centroids)
    assert (read.probes, read.special_ids.tolist(), read.vocab_maps[-1].tolist()) == (
        4,
        [3],
        [*read.vocab_maps[-1][:5], -1, -1],
    )
    with pytest.raises(ValueError, match="holds a head of kind `clustered`"):
        Head.auto(WEIGHTS, file=path)


def test_clusters_come_as_lists_or_arrays_of_any_type_and_by_a_loan() -> None:
    wanted = MAKERS["clustered"](WEIGHTS)
    for maps, centroids in [
        (IDS.tolist(), CENTROIDS),
        (np.pad(IDS, ((0, 0), (0, 3)), constant_values=-1), CENTROIDS),
        (IDS.astype(np.int32), CENTROIDS.astype(np.float16)),
        (IDS.astype(np.uint32), np.hstack([CENTROIDS, CENTROIDS])[:, :WIDTH]),
    ]:
        head = MAKERS["clustered"](Fresh(WEIGHTS), vocab_maps=maps, centroids=centroids)
        assert np.array_equal(head.vocab_maps[:, :CAPACITY], wanted.vocab_maps) and np.array_equal(
            head.centroids, wanted.centroids
        )
        assert np.array_equal(head.logits(HIDDEN), wanted.logits(HIDDEN))
    narrow = CENTROIDS.astype(ml_dtypes.bfloat16)
    assert np.array_equal(MAKERS["clustered"](WEIGHTS, centroids=narrow).centroids, narrow.astype(np.float32))


def test_a_build_says_how_far_it_is_and_stops_for_an_exception_or_a_signal(alarm: Callable[[], None]) -> None:
    seen: list[tuple[int, ...]] = []
    threads = set()

    def progress(*so_far: int) -> None:
        threads.add(threading.get_ident())
        seen.append(so_far)

    a = Head.clustered(WEIGHTS, capacity=11, iterations=4, progress=progress)
    b = Head.clustered(WEIGHTS, capacity=11, iterations=4)
    assert np.array_equal(a.vocab_maps, b.vocab_maps) and np.array_equal(a.centroids, b.centroids)
    assert threads == {threading.get_ident()}
    assert seen == sorted(seen) and seen[-1][1:] == (4, VOCAB, VOCAB) and seen[0][0] == 0

    def stop(*_: Any) -> None:
        seen.append(())
        raise KeyError("enough")

    seen.clear()
    with pytest.raises(KeyError, match="enough"):
        Head.clustered(WEIGHTS, iterations=50, progress=stop)
    assert seen == [()]
    # A build of some seconds, of random rows that settle late.
    weights, start = random.standard_normal((20000, 128)).astype(np.float32), time.monotonic()
    alarm()
    with pytest.raises(Heard):
        Head.clustered(weights, capacity=4, iterations=1000)
    assert time.monotonic() - start < 60


def test_rows_are_permuted_in_place_where_that_is_asked_for() -> None:
    weights, copied = WEIGHTS.copy(), MAKERS["clustered"](WEIGHTS)
    for wrong, text in (
        ({"probes": 0}, "probes is 0"),
        ({"level": "mmx"}, "mmx"),
        ({"vocab_maps": IDS[1:]}, "shape"),
        ({"vocab_maps": IDS[1:], "centroids": CENTROIDS[1:]}, "vocab_maps is without"),
    ):
        with pytest.raises(ValueError, match=text):
            MAKERS["clustered"](weights, in_place=True, **wrong)
    assert np.array_equal(weights, WEIGHTS)
    head = MAKERS["clustered"](weights, in_place=True)
    assert head.is_borrowed and np.array_equal(weights, WEIGHTS[IDS.reshape(-1)])
    # An embedding that shares the rows reads them through places.
    assert np.array_equal(weights[head.places], WEIGHTS)
    (a, slots), (b, _) = pool_of(REQUESTS), pool_of(REQUESTS)
    weights.flags.writeable = False
    with pytest.raises(ValueError, match="weights must not be written, but in_place is True"):
        Head.clustered(weights, in_place=True)
    with pytest.raises(ValueError, match="weights' stride is 80, but must be 40"):
        Head.clustered(np.hstack([WEIGHTS, WEIGHTS])[:, :WIDTH], in_place=True)
    del weights
    gc.collect()
    assert np.array_equal(head.logits(HIDDEN), copied.logits(HIDDEN))
    for step in range(4):
        hidden = HIDDEN[step : step + 6]
        assert a.step(Hidden(head, hidden), slots).tolist() == b.step(Hidden(copied, hidden), slots).tolist()


def test_tensors_are_taken_in_every_type_and_outlive_their_parameter(torch: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        linear = torch.nn.Linear(WIDTH, VOCAB, dtype=dtype)
        hidden = torch.from_numpy(HIDDEN[:6]).to(dtype)
        maps, centroids = torch.from_numpy(IDS), torch.from_numpy(CENTROIDS).to(torch.bfloat16)
        given = [{}, {}, dict(vocab_maps=maps, centroids=centroids)]
        heads = [made(linear.weight, bias=linear.bias, **more) for made, more in zip(MAKERS.values(), given)]
        with torch.no_grad():
            near = linear.float()(hidden.float()).numpy()
        for head in heads:
            assert head.dtype == str(dtype).removeprefix("torch.") and head.is_borrowed != head.is_approximate
            assert np.allclose(head.logits(hidden), near, atol=1e-4)
    pool, slots = pool_of(REQUESTS)
    assert len(pool.step(Hidden(heads[0], hidden), slots).tokens) == 6
    linear.weight.data = torch.zeros(VOCAB, WIDTH)
    del linear
    gc.collect()
    assert np.allclose(heads[0].logits(hidden), near, atol=1e-4)
    with torch.inference_mode():
        # Such tensors have no count of writes.
        assert not Head.auto(torch.zeros(VOCAB, WIDTH)).logits(torch.ones(1, WIDTH)).any()
        assert Head.clustered(torch.zeros(VOCAB, WIDTH), in_place=True).is_borrowed


def test_weights_that_were_written_are_refused(torch: Any) -> None:
    linear = torch.nn.Linear(WIDTH, VOCAB, bias=False)
    own, before = linear.weight.detach().clone(), Head.auto(linear.weight)
    # To permute rows in place is to write them.
    head = Head.clustered(linear.weight, capacity=7, in_place=True)
    assert torch.equal(linear.weight[torch.from_numpy(head.places)], own)
    assert np.array_equal(head.logits(HIDDEN), Head.auto(own).logits(HIDDEN))
    if hasattr(torch.autograd.graph, "increment_version"):
        with pytest.raises(RuntimeError, match="were written since"):
            before.logits(HIDDEN[:1])
    with torch.no_grad():
        linear.weight[0] += 1
    pool, slots = pool_of(REQUESTS[:1])
    for call in (lambda: head.logits(HIDDEN[:1]), lambda: pool.step(Hidden(head, HIDDEN[:1]), slots)):
        with pytest.raises(RuntimeError, match="were written since"):
            call()
