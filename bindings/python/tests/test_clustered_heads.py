"""Clustered heads: the logits of the clusters that look likeliest, -inf elsewhere, and what a pool makes of such rows."""

from __future__ import annotations

import gc
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Head, Hidden, LogprobsParams, Pool, SamplingParams, Scored

VOCAB, WIDTH, CAPACITY = 600, 40, 8
CLUSTERS = VOCAB // CAPACITY

random = np.random.default_rng(11)
# Numbers of few bits, so that sums in float64 are exact but for the last rounding, and scores of centroids are told apart.
WEIGHTS = (random.standard_normal((VOCAB, WIDTH)) / 4).astype(np.float16).astype(np.float32)
HIDDEN = (random.standard_normal((64, WIDTH)) * 2).astype(np.float16).astype(np.float32)
IDS = random.permutation(VOCAB).reshape(CLUSTERS, CAPACITY)
CENTROIDS = WEIGHTS[IDS].mean(axis=1).astype(np.float16).astype(np.float32)
SPECIAL = [599, 7, 7, 300]
BIAS = (random.standard_normal(VOCAB) / 8).astype(np.float16).astype(np.float32)

REQUESTS = [
    SamplingParams(seed=1),
    SamplingParams(temperature=0, repetition_penalty=1.2),
    SamplingParams(top_k=20, top_p=0.9, frequency_penalty=0.3, seed=2),
    SamplingParams(min_p=0.1, logit_bias={5: 2.0}, seed=3),
    SamplingParams(top_p=0.8, seed=4, logprobs=LogprobsParams(mode="raw", top_n=3)),
    SamplingParams(top_k=9, logprobs=LogprobsParams(mode="processed", top_n=2), seed=5),
]


def given(**arguments: Any) -> Head:
    defaults = dict(clusters=IDS, centroids=CENTROIDS, probes=6, special_ids=SPECIAL)
    return Head(WEIGHTS, kind="clustered", **(defaults | arguments))


def probed_ids(head: Head, hidden: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the probed set of a hidden state by the definition (H7): the clusters with the largest scores, ties to the smaller number."""
    scores = Head(head.centroids).logits(hidden)[0]
    first = np.lexsort((np.arange(len(scores)), -scores))[: head.probes]
    order = head.cluster_ids
    ids = [order[cluster * head.capacity :][: head.capacity] for cluster in first]
    return np.unique(np.concatenate([*ids, head.special_ids]))


def rows_of(head: Head, hidden: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns rows by the definition (H8): the exact head's logits of the probed set, -inf elsewhere."""
    rows = np.full((len(hidden), head.vocab), -np.inf, np.float32)
    for row, state, whole in zip(rows, hidden, head.logits(hidden)):
        ids = probed_ids(head, state)
        row[ids] = whole[ids]
    return rows


def pools(requests: list[SamplingParams], **config: Any) -> tuple[Pool, Pool, list[int]]:
    of_logits, of_states = Pool(VOCAB, top_n=3, **config), Pool(VOCAB, top_n=3, **config)
    slots = [of_logits.admit(params, [1, 2, 1]) for params in requests]
    assert [of_states.admit(params, [1, 2, 1]) for params in requests] == slots
    return of_logits, of_states, slots


def check_same(seen: Any, wanted: Any) -> None:
    for name in ("tokens", "statuses", "logprobs", "ranks", "temperatures", "top_ids", "top_logprobs"):
        assert getattr(seen, name).tobytes() == getattr(wanted, name).tobytes(), name


def test_logits_are_those_of_the_exact_head_in_the_order_of_ids() -> None:
    extra = dict(bias=BIAS, logit_scale=0.5, softcap=9.0)
    exact = Head(WEIGHTS, **extra).logits(HIDDEN)
    for head in (given(**extra), Head(WEIGHTS, kind="clustered", capacity=7, iterations=2, **extra)):
        assert head.logits(HIDDEN).tobytes() == exact.tobytes()


def test_calls_take_the_logits_of_the_probed_sets_and_say_that_they_are_approximate() -> None:
    head, (of_logits, of_states, slots) = given(bias=BIAS), pools(REQUESTS)
    hidden, rows = HIDDEN[:7], [*slots[:2], -1, *slots[2:]]
    masks = np.insert(np.full((6, 19), -9, np.int32), 2, 0, axis=0)
    wanted = of_logits.step(rows_of(head, hidden), Batch(rows, masks=masks))
    seen = of_states.step(Hidden(head, hidden), Batch(rows, masks=masks))
    check_same(seen, wanted)
    assert seen.is_approximate and not wanted.is_approximate
    counts = of_states.counts()["heads"]
    assert (counts["clustered_rows"], counts["centroid_reads"], counts["whole_rows"]) == (6, 1, 0)
    assert counts["clustered_logits"] > 0 and counts["weight_reads"] == 0
    drafts = of_states.draft(Hidden(head, HIDDEN[:6]), slots)
    assert np.array_equal(drafts, of_logits.draft(rows_of(head, HIDDEN[:6]), slots))
    hidden = np.repeat(HIDDEN[:6], 2, axis=0)
    seen = of_states.verify(Hidden(head, hidden), slots, drafts)
    assert seen.tolist() == of_logits.verify(rows_of(head, hidden), slots, drafts).tolist()
    assert seen.is_approximate
    ids = random.integers(0, VOCAB, 40)
    wanted = of_logits.score(rows_of(head, HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4))
    seen = of_states.score(Hidden(head, HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4))
    assert seen.logprobs.tobytes() == wanted.logprobs.tobytes() and seen.is_approximate


def test_probes_change_between_calls() -> None:
    head = given()
    assert head.probes == 6
    for probes in (1, CLUSTERS, 20):
        head.probes = probes
        assert head.probes == probes
        of_logits, of_states, slots = pools(REQUESTS[:1])
        wanted = of_logits.step(rows_of(head, HIDDEN[:1]), slots)
        check_same(of_states.step(Hidden(head, HIDDEN[:1]), slots), wanted)
    for probes, text in ((0, "probes is 0, but must be in 1..=75"), (76, "probes is 76"), (-1, "probes is -1")):
        with pytest.raises(ValueError, match=text):
            head.probes = probes
    with pytest.raises(TypeError, match="probes must be an integer"):
        head.probes = 2.5  # type: ignore[assignment]
    assert head.probes == 20
    with pytest.raises(ValueError, match='probes is for kind="clustered", but kind is "exact"'):
        Head(WEIGHTS).probes = 3


def test_probes_do_not_change_during_a_call() -> None:
    head, (_, pool, slots) = given(), pools(REQUESTS[:1])
    seen = []

    def hook(row: np.ndarray[Any, Any]) -> None:
        # A hook runs during a step of the head: meanwhile others may read the head and step with it, and nobody may change it.
        seen.append((np.isfinite(row).sum(), head.probes, len(head.logits(HIDDEN[:1]))))
        with pytest.raises(RuntimeError, match="a call is using the head"):
            head.probes = 1

    pool.step(Hidden(head, HIDDEN[:1]), Batch(slots, hooks=[hook]))
    assert seen == [(len(probed_ids(head, HIDDEN[0])), 6, 1)]
    head.probes = 1


def test_what_is_known_of_a_head() -> None:
    head = given()
    assert (head.kind, head.is_approximate, head.capacity, head.probes) == ("clustered", True, CAPACITY, 6)
    assert head.special_ids.tolist() == [7, 300, 599] and head.special_ids.dtype == np.int64
    assert head.cluster_ids.tolist() == IDS.reshape(-1).tolist()
    assert np.array_equal(head.centroids, CENTROIDS) and head.centroid_bytes == CENTROIDS.nbytes
    # Those that bf16 holds are read as such.
    short = (CENTROIDS.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert given(centroids=short).centroid_bytes == CENTROIDS.nbytes // 2
    assert np.array_equal(head.cluster_ids[head.places], np.arange(VOCAB))
    assert (head.most_rows, head.screen_bytes, head.unscreened.tolist()) == (None, 0, [])
    assert given(probes=13).most_rows == 16 and given(most_rows=3).most_rows == 3
    assert repr(head) == 'Head([600, 40] float32 copied, kind="clustered")'
    assert Head(WEIGHTS, kind="certified").is_approximate is False
    # An eighth of the clusters, of 16 ids, unless somebody says otherwise.
    built = Head(WEIGHTS, kind="clustered")
    assert (built.capacity, len(built.centroids), built.probes) == (16, 38, 5)
    assert sorted(built.cluster_ids.tolist()) == list(range(VOCAB))


def test_clusters_come_as_lists_or_arrays_of_any_type() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wanted = given()
    for clusters, centroids in [
        (IDS.tolist(), CENTROIDS),
        (IDS.astype(np.int32), CENTROIDS.astype(np.float16)),
        (IDS.astype(np.uint32)[::1], np.hstack([CENTROIDS, CENTROIDS])[:, :WIDTH]),
    ]:
        head = given(clusters=clusters, centroids=centroids)
        assert np.array_equal(head.cluster_ids, wanted.cluster_ids)
        assert np.array_equal(head.centroids, wanted.centroids)
    narrow = CENTROIDS.astype(ml_dtypes.bfloat16)
    assert np.array_equal(given(centroids=narrow).centroids, narrow.astype(np.float32))
    weights = WEIGHTS.astype(ml_dtypes.bfloat16)
    head = Head(weights, kind="clustered", clusters=IDS, centroids=CENTROIDS)
    assert head.dtype == "bfloat16" and np.array_equal(head.logits(HIDDEN), Head(weights).logits(HIDDEN))
    strided = np.hstack([WEIGHTS, WEIGHTS])[:, :WIDTH]
    head = Head(strided, kind="clustered", clusters=IDS, centroids=CENTROIDS)
    assert np.array_equal(head.logits(HIDDEN), wanted.logits(HIDDEN)) and not head.is_borrowed


def test_what_is_wrong_with_clusters_is_named() -> None:
    def refuses(text: str, error: type[Exception] = ValueError, **arguments: Any) -> None:
        with pytest.raises(error, match=text):
            given(**arguments)

    twice = IDS.copy()
    twice[3, 2] = twice[0, 0]
    refuses(f"clusters is {IDS[0, 0]} in cluster 0 and in cluster 3, and lacks {IDS[3, 2]}", clusters=twice)
    refuses(r"clusters\[1\] is -1", clusters=[[0, 1], [-1, 2]])
    refuses("clusters is 9 in cluster 1", clusters=[[0, 1], [9, 2]], centroids=CENTROIDS[:2])
    refuses("clusters has length 1, but must have 2 ids in cluster 1", clusters=[[0, 1], [2]], centroids=CENTROIDS[:2])
    refuses(r"clusters.shape\[1\] is 0", clusters=[[]], centroids=CENTROIDS[:1])
    refuses(r"centroids.shape\[0\] is 74, but must be 75, one for each cluster", centroids=CENTROIDS[1:])
    refuses(
        "clusters has length 592, but must have 600 ids",
        clusters=np.argsort(IDS.flat[8:]).reshape(-1, 8),
        centroids=CENTROIDS[1:],
    )
    refuses("centroids has length 39, but must have 40 elements", centroids=CENTROIDS[:, 1:].copy())
    odd = CENTROIDS.copy()
    odd[4, 1] = np.nan
    refuses("centroids is NaN", centroids=odd)
    refuses("centroids is of float64", TypeError, centroids=CENTROIDS.astype(np.float64))
    refuses("clusters must be", TypeError, clusters=5)
    refuses("clusters are given without centroids", centroids=None)
    refuses("centroids are given without clusters", clusters=None)
    for name, value in (("capacity", 4), ("iterations", 4), ("progress", print)):
        refuses(f"{name} is for clusters that are built, but clusters is given", **{name: value})
        refuses(
            f"{name} is for clusters that are built, but file is given",
            **{name: value},
            file="x",
            clusters=None,
            centroids=None,
        )
    refuses("clusters and file are given, but must be one of the two", file="x")
    refuses("probes is 76, but must be in 1..=75", probes=76)
    refuses("special_ids is 600, 9999, but must be ids in 0..600", special_ids=[600, 5, 9999])
    refuses("special_ids is -1", special_ids=[-1])


def test_what_does_not_fit_a_build_is_refused_before_it_begins() -> None:
    def refuses(text: str, error: type[Exception] = ValueError, **arguments: Any) -> None:
        with pytest.raises(error, match=text):
            Head(WEIGHTS, kind="clustered", **arguments)

    begun: list[Any] = []
    progress = lambda *so_far: begun.append(so_far)  # noqa: E731
    refuses("capacity is 0, but must be in 1..=600", capacity=0)
    refuses("capacity is 601", capacity=601)
    refuses("iterations is 0, but must be 1 or more", iterations=0)
    refuses("probes is 39, but must be in 1..=38", probes=39, progress=progress)
    refuses("special_ids is 600", special_ids=[600], progress=progress)
    refuses("progress must be callable, not int", TypeError, progress=3)
    assert begun == []
    for name, value in (("clusters", IDS), ("capacity", 4), ("probes", 3), ("special_ids", [1]), ("in_place", True)):
        with pytest.raises(ValueError, match=f'{name} is for kind="clustered", but kind is "certified"'):
            Head(WEIGHTS, kind="certified", **{name: value})


def test_a_build_is_the_same_every_time_and_says_how_far_it_is() -> None:
    seen: list[tuple[int, int, int, int]] = []
    threads = set()

    def progress(*so_far: int) -> None:
        threads.add(threading.get_ident())
        seen.append(so_far)  # type: ignore[arg-type]

    a = Head(WEIGHTS, kind="clustered", capacity=11, iterations=4, progress=progress)
    b = Head(WEIGHTS, kind="clustered", capacity=11, iterations=4)
    assert np.array_equal(a.cluster_ids, b.cluster_ids) and np.array_equal(a.centroids, b.centroids)
    assert threads == {threading.get_ident()}
    assert seen == sorted(seen) and seen[-1][1:] == (4, VOCAB, VOCAB) and seen[0][0] == 0


def test_an_exception_of_progress_stops_a_build() -> None:
    calls = []

    def progress(*so_far: int) -> None:
        calls.append(so_far)
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        Head(WEIGHTS, kind="clustered", iterations=50, progress=progress)
    assert len(calls) == 1


def test_a_signal_stops_a_build() -> None:
    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    # A build of some seconds, of random rows that settle late.
    weights = random.standard_normal((20000, 128)).astype(np.float32)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.monotonic()
        with pytest.raises(Stop):
            Head(weights, kind="clustered", capacity=4, iterations=1000)
        assert time.monotonic() - start < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_rows_are_permuted_in_place_where_that_is_asked_for() -> None:
    weights = WEIGHTS.copy()
    head = Head(
        weights, kind="clustered", clusters=IDS, centroids=CENTROIDS, probes=6, special_ids=SPECIAL, in_place=True
    )
    assert head.is_borrowed and np.array_equal(weights, WEIGHTS[IDS.reshape(-1)])
    # An embedding that shares the rows reads them through places.
    assert np.array_equal(weights[head.places], WEIGHTS)
    copied = given()
    assert head.logits(HIDDEN).tobytes() == copied.logits(HIDDEN).tobytes()
    of_copy, of_rows, slots = pools(REQUESTS)
    del weights
    gc.collect()
    for step in range(4):
        hidden = HIDDEN[step : step + len(slots)]
        check_same(of_rows.step(Hidden(head, hidden), slots), of_copy.step(Hidden(copied, hidden), slots))
    weights = WEIGHTS.copy()
    for wrong, text in (({"probes": 0}, "probes is 0"), ({"level": "mmx"}, "mmx"), ({"clusters": IDS[1:]}, "shape")):
        with pytest.raises(ValueError, match=text):
            Head(weights, **(dict(kind="clustered", clusters=IDS, centroids=CENTROIDS, in_place=True) | wrong))
    weights.flags.writeable = False
    with pytest.raises(ValueError, match="weights must not be written, but in_place is True"):
        Head(weights, kind="clustered", in_place=True)
    with pytest.raises(ValueError, match="weights' stride is 80, but must be 40"):
        Head(np.hstack([WEIGHTS, WEIGHTS])[:, :WIDTH], kind="clustered", in_place=True)
    assert np.array_equal(weights, WEIGHTS)


def test_a_saved_head_is_the_head(tmp_path: Path) -> None:
    path = tmp_path / "head"
    built = Head(WEIGHTS, kind="clustered", capacity=7, iterations=3, bias=BIAS)
    moved = WEIGHTS.copy()
    in_place = Head(moved, kind="clustered", capacity=7, iterations=3, bias=BIAS, in_place=True)
    for head in (built, in_place):
        head.save(path, name="w")
        read = Head(WEIGHTS, kind="clustered", bias=BIAS, file=path, probes=4, special_ids=[3])
        assert np.array_equal(read.cluster_ids, built.cluster_ids)
        assert np.array_equal(read.centroids, built.centroids)
        assert (read.probes, read.special_ids.tolist()) == (4, [3])
    with pytest.raises(ValueError, match="file cannot be used: it is of another head: the weights it was built from"):
        Head(WEIGHTS * 2, kind="clustered", bias=BIAS, file=path)
    with pytest.raises(ValueError, match="holds a head of kind `clustered`"):
        Head(WEIGHTS, kind="certified", bias=BIAS, file=path)
    with pytest.raises(FileNotFoundError, match="none"):
        Head(WEIGHTS, kind="clustered", file=tmp_path / "none")
    bytes = bytearray(path.read_bytes())
    bytes[-1] ^= 1
    path.write_bytes(bytes)
    with pytest.raises(ValueError, match="damaged or changed"):
        Head(WEIGHTS, kind="clustered", bias=BIAS, file=path)


def test_clusters_of_other_programs_are_read_from_safetensors_files(tmp_path: Path) -> None:
    path = tmp_path / "clusters.safetensors"

    def write(ids: np.ndarray[Any, Any]) -> None:
        tensors = {"clusters.ids": ("I64", ids.astype(np.int64)), "clusters.centroids": ("F32", CENTROIDS)}
        header, start = [], 0
        for name, (dtype, array) in tensors.items():
            shape, end = list(array.shape), start + array.nbytes
            header.append(f'"{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{start}, {end}]}}')
            start = end
        text = ("{" + ", ".join(header) + "}").encode()
        text += b" " * (-len(text) % 8)
        data = b"".join(array.tobytes() for _, array in tensors.values())
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    write(IDS)
    head, wanted = given(file=path, clusters=None, centroids=None), given()
    assert np.array_equal(head.cluster_ids, wanted.cluster_ids) and np.array_equal(head.centroids, CENTROIDS)
    with pytest.raises(ValueError, match="cluster_ids has length 600, but must have 599 ids"):
        Head(WEIGHTS[1:], kind="clustered", file=path)
    write(np.where(IDS == 5, 6, IDS))
    with pytest.raises(ValueError, match="and lacks 5"):
        given(file=path, clusters=None, centroids=None)


class TestTorch:
    """Over tensors of torch, and in the place of a model's output layer."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    def test_tensors_are_taken(self, torch: Any) -> None:
        linear = torch.nn.Linear(WIDTH, VOCAB, dtype=torch.bfloat16)
        clusters, centroids = torch.from_numpy(IDS), torch.from_numpy(CENTROIDS).to(torch.bfloat16)
        head = Head(linear.weight, kind="clustered", bias=linear.bias, clusters=clusters, centroids=centroids)
        assert not head.is_borrowed and head.dtype == "bfloat16"
        hidden = torch.from_numpy(HIDDEN[:4]).to(torch.bfloat16)
        assert np.array_equal(head.logits(hidden), Head(linear.weight, bias=linear.bias).logits(hidden))

    def test_a_tensor_that_is_permuted_in_place_counts_as_written(self, torch: Any) -> None:
        linear = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        own, before = linear.weight.detach().clone(), Head(linear.weight)
        head = Head(linear.weight, kind="clustered", capacity=7, in_place=True)
        assert torch.equal(linear.weight[torch.from_numpy(head.places)], own)
        assert np.array_equal(head.logits(HIDDEN), Head(own).logits(HIDDEN))
        if hasattr(torch.autograd.graph, "increment_version"):
            with pytest.raises(RuntimeError, match="were written since"):
                before.logits(HIDDEN[:1])
        with torch.no_grad():
            linear.weight[0] += 1
        with pytest.raises(RuntimeError, match="were written since"):
            head.logits(HIDDEN[:1])
        with torch.inference_mode():
            assert Head(torch.zeros(VOCAB, WIDTH), kind="clustered", in_place=True).is_borrowed

    def test_a_transformers_model_generates_by_it(self, torch: Any) -> None:
        transformers = pytest.importorskip("transformers")
        from gumball.transformers import generate

        torch.manual_seed(0)
        sizes = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
        config = transformers.LlamaConfig(**sizes, eos_token_id=None, pad_token_id=0, bos_token_id=1)
        model = transformers.LlamaForCausalLM(config).eval()
        ids = torch.tensor([[4, 5, 6]])
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
        params = SamplingParams(seed=7, temperature=0.8)
        layer = model.lm_head
        with Head.replace(model):
            exact = generate(model, params, **inputs)
        with Head.replace(model, kind="clustered", capacity=8, probes=64, special_ids=[0]) as replaced:
            head = replaced.head
            assert head.kind == "clustered" and head.is_approximate
            with torch.no_grad():
                hidden = model.model(ids).last_hidden_state[0]
                assert np.array_equal(model(ids).logits[0], head.logits(hidden))
            assert torch.equal(generate(model, params, **inputs), exact)
            head.probes = 4
            seen = generate(model, params, **inputs)
            # By hand.
            pool = Pool(512)
            slot = pool.resume(params, gumball.State([4, 5, 6], seed=7, position=3))
            for _ in range(12):
                tokens = torch.tensor([pool.state(slot).prompt + pool.state(slot).output])
                with torch.no_grad():
                    hidden = model.model(tokens).last_hidden_state[0, -1]
                out = pool.step(Hidden(head, hidden), [slot])
                assert out.tokens[0] in probed_ids(head, hidden.numpy())
            assert pool.state(slot).output == seen[0, 3:].tolist()
        assert model.lm_head is layer
        with pytest.raises(ValueError, match="in_place is True, but must be False"):
            Head.replace(model, kind="clustered", in_place=True)
        # A head that was made before and has permuted its rows in place is refused as well; one that copied them is taken.
        moved = Head(torch.clone(layer.weight.detach()), kind="clustered", capacity=8, in_place=True)
        with pytest.raises(ValueError, match="head has permuted the rows of its weights in place"):
            Head.replace(model, head=moved)
        assert model.lm_head is layer
        with torch.no_grad():
            before = model(ids).logits
        with Head.replace(model, head=Head(layer.weight, kind="clustered", capacity=8)):
            assert model.lm_head is not layer
        with torch.no_grad():
            assert torch.equal(model(ids).logits, before)
        assert model.lm_head is layer


def test_an_array_that_exists_for_a_loan_only_is_held_while_rows_are_copied() -> None:
    class Lender:
        def __dlpack__(self, **_arguments: object) -> object:
            return WEIGHTS.copy().__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    lent = Head(Lender(), kind="clustered", clusters=IDS, centroids=CENTROIDS, probes=6)
    held = Head(WEIGHTS, kind="clustered", clusters=IDS, centroids=CENTROIDS, probes=6)
    assert np.array_equal(lent.logits(HIDDEN), held.logits(HIDDEN))


def test_clusters_of_another_shape_move_no_row_in_place() -> None:
    weights = WEIGHTS.copy()
    for clusters, centroids, text in [
        # As many numbers as the weights have.
        (np.arange(VOCAB // 2).reshape(30, 10), np.zeros((30, 2 * WIDTH), np.float32), "clusters has length"),
        (IDS, np.zeros((CLUSTERS, 2 * WIDTH), np.float32), "centroids has length"),
    ]:
        with pytest.raises(ValueError, match=text):
            Head(weights, kind="clustered", clusters=clusters, centroids=centroids, in_place=True)
        assert np.array_equal(weights, WEIGHTS)
