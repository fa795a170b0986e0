"""Drafts: every form of ids, trees and probabilities as arguments, results of verifications, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gumball import Mirostat, Pool, SamplingParams, Status, UnavailableError

VOCAB = 900


def make(**config: object) -> Pool:
    return Pool(VOCAB, **{"slots": 16, "top_n": 3, "ids": 2, "kept": True, **config})


def sure(*ids: int) -> np.ndarray:
    """Rows in each of which one id is likely."""
    rows = np.zeros((len(ids), VOCAB), np.float32)
    rows[range(len(ids)), ids] = 20
    return rows


def test_rows_and_tokens_are_those_of_the_path() -> None:
    pool = make()
    slots = [pool.admit(SamplingParams(temperature=0), [1]) for _ in range(2)]
    # A chain 5 6 7 of which 7 is wrong, padding, and a tree.
    logits = sure(5, 6, 8, 0, 9, 9, 21, 1, 23, 2, 3)
    parents = [[-1, 0, 1], [7], [-1, -1, 1, 1]]
    out = pool.verify(logits, [slots[0], -1, slots[1]], [[5, 6, 7], [9], (20, 21, 22, 23)], parents=parents)
    assert out.tolist() == [[5, 6, 8], [], [21, 23, 3]]
    assert [out.rows(request).tolist() for request in range(3)] == [[0, 1, 2], [], [6, 8, 10]]
    assert [out.places(request) for request in range(3)] == [slice(0, 3, 1), slice(4, 4, 1), slice(6, 9, 1)]
    assert out.outputs.tolist() == [5, 6, 8, -1, -1, -1, 21, 23, 3, -1, -1]
    assert (out.accepted.dtype, out.tokens(0).dtype, out.rows(0).dtype) == (np.uint32, np.int32, np.uint32)
    assert out.accepted.tolist() == [2, 0, 2] and pool.output(slots[1]) == [21, 23, 3]
    assert [out.outputs.kept(row).tolist() for row in (2, 6)] == [[8], [21]]
    assert repr(out) == "Verification(tokens=[[5, 6, 8], [], [21, 23, 3]])"
    for request in (3, -1, 1 << 70):
        with pytest.raises(IndexError, match=r"must be in 0\.\.3"):
            out.tokens(request)
    # The tree as links between its rows.
    first_child, next_sibling = [1, -1, 3, -1, -1], [-1, 2, -1, 4, -1]
    links = {"first_child": np.array([first_child]), "next_sibling": [next_sibling]}
    out = pool.verify(logits[6:], slots[1:], [[20, 21, 22, 23]], **links)
    assert out.tolist() == [[21, 23, 3]]
    # Chains need no parents, and a matrix holds as many drafts for each request, which may be arrays as well.
    logits = sure(5, 6, 8, 7, 7, 7).astype(np.float16)
    for drafts in (np.array([[5, 6], [9, 9]]), [np.array([5, 6], np.int32), [9, 9]]):
        for parents in (None, [np.array([-1, 0]), (-1, 0)]):
            assert pool.verify(logits, slots, drafts, parents=parents).tolist() == [[5, 6, 8], [7]]
    assert pool.verify(sure(4, 3), slots, [[], []]).tolist() == [[4], [3]]


def test_rows_have_masks_forced_tokens_and_hooks() -> None:
    pool = make(threads=1)
    slot = pool.admit(SamplingParams(temperature=0))
    masks = np.full((3, 29), -1, np.int32)
    masks[0] = 0
    masks[0, 0] = 1 << 6
    seen = []

    def hook(row: np.ndarray) -> None:
        seen.append(int(row.argmax()))
        row[11] = 100

    out = pool.verify(sure(5, 7, 8), [slot], [[6, 10]], masks=masks, forced=[None, 10, None], hooks=[None, None, hook])
    assert out.tolist() == [[6, 10, 11]] and seen == [8]
    # A row without a token ends the walk, and a stop id does.
    out = pool.verify(sure(5, 7), [slot], [[5]], masks=masks[:2] * 0, mask_present=[True, False])
    assert out.tolist() == [[-1]] and out.outputs.statuses[0] == Status.EMPTY
    stops = pool.admit(SamplingParams(temperature=0, stop_ids=[5]))
    assert pool.verify(sure(5, 7), [stops], [[5]]).tolist() == [[5]]


def test_modes_thresholds_and_a_drafters_probabilities_reach_the_engine() -> None:
    count = 100
    rows = np.tile(np.array([0.5, 0.3, 0.2, 0.0], np.float32), (2 * count, 1))

    def accepted(mode: str, draft: int = 2, **more: object) -> int:
        pool = Pool(4, slots=count)
        slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(count)]
        drafts = np.full((count, 1), draft)
        return int(pool.verify(rows, slots, drafts, mode=mode, kind="probabilities", **more).accepted.sum())

    # By itself, a draft whose probability is 0.2 is accepted now and then.
    assert all(0 < accepted(mode) < count / 2 for mode in ("coupled", "rejection", "block", "threshold"))
    for mode in ("rejection", "block"):
        assert accepted(mode, draft_probs=rows) == count
    for threshold in ("threshold_single", "threshold_acc"):
        assert accepted("threshold", **{threshold: 0.15}) == count
    assert (accepted("greedy"), accepted("greedy", 0)) == (0, count)


def test_drafts_come_as_an_array_and_refusals_name_what_is_wrong() -> None:
    pool = make()
    slot = pool.admit(SamplingParams(top_k=3, seed=1), [1])
    mirostat = pool.admit(SamplingParams(mirostat=Mirostat(tau=3, eta=0.1)), [1])
    rows = np.zeros((2, VOCAB), np.float32)
    rows[:, 5:8] = 3
    drafts, probs = pool.draft(rows, [-1, slot], paths=[[9], [9]], siblings=5, probs=True)
    assert drafts[0].tolist() == [-1] * 5 and sorted(drafts[1].tolist()) == [-1, -1, 5, 6, 7]
    assert (drafts.dtype, probs.dtype, probs.shape) == (np.int32, np.float32, (2, VOCAB))
    np.testing.assert_allclose(probs[1, 5:8], 1 / 3)
    assert drafts[1, 0] >= 0 and pool.draft(rows[:0], []).shape == (0, 1)
    assert pool.draft(rows, [slot] * 2, mode="greedy").tolist() == [[5], [5]]
    # What stands in a path is a token of the request.
    new = pool.admit(SamplingParams(temperature=0, presence_penalty=2), [1])
    for paths, wanted in (([[5], (5, 6)], [[6], [7]]), (np.array([[5, 6], [5, 7]]), [[7], [6]])):
        assert pool.draft(rows, [new] * 2, paths=paths).tolist() == wanted
    assert pool.output(new) == []
    one = rows[:1]
    for args, keywords, text in (
        ((rows, [slot]), {}, "slots has length 1, but must have one per row, 2"),
        ((one, [slot]), {"paths": [[1], [2]]}, "paths has length 2, but must have one per row, 1, or 0"),
        ((one, [slot]), {"paths": [[900]]}, r"paths is 900, but must be an id in 0\.\.900"),
        ((one, [slot]), {"paths": [[1] * 64]}, "the length of a path is 64"),
        ((one, [mirostat]), {}, "mirostat cannot be combined with drafts"),
        ((one, [slot]), {"mode": "chain"}, 'mode is "chain"'),
        ((one, [slot]), {"siblings": -1}, "siblings is -1"),
    ):
        with pytest.raises(ValueError, match=text):
            pool.draft(*args, **keywords)
    with pytest.raises(UnavailableError, match="siblings and drafts of blocks on this route"):
        pool = Pool(VOCAB, slots=1, route="probabilities")
        pool.draft(one, [pool.admit(SamplingParams(), [1])], siblings=2)


def test_rows_may_be_named(device: str, requests: list[SamplingParams], batch: np.ndarray) -> None:
    named, drafts, forced = np.array([2, 0, 0, 1, 5, 6, 2]), [[7, 5], [], [3, 11]], [7, *[None] * 3, 3, 11, None]
    pools = [make(device=device, rows=16) for _ in range(3)]
    slots = [[pool.admit(requests[kind], [3, 7]) for kind in (0, 4, 3)] for pool in pools]
    picked = batch[named]
    for mode, more in (("coupled", {}), ("rejection", {"draft_probs": np.full_like(picked, 1 / VOCAB)})):
        wanted = pools[0].verify(picked, slots[0], drafts, mode=mode, forced=forced, **more)
        outs = [pools[1].verify(batch, slots[1], drafts, mode=mode, forced=forced, row_indices=named, **more)]
        if device != "cpu":
            more = {name: on(device, array) for name, array in more.items()}
            there = on(device, batch)
            outs += [pools[2].verify(there, slots[2], drafts, mode=mode, forced=forced, row_indices=named, **more)]
        for out in outs:
            # The rows are those of the batch as it is read.
            assert out.tolist() == wanted.tolist() and out.accepted.tolist() == wanted.accepted.tolist()
            assert [out.rows(i).tolist() for i in range(3)] == [wanted.rows(i).tolist() for i in range(3)]
            np.testing.assert_array_equal(out.outputs.logprobs, wanted.outputs.logprobs)
    pools, slot = [make(), make()], requests[3]
    one, other = (pool.admit(slot, [3, 7]) for pool in pools)
    paths, named = [[5], [], [8, 1]], [1, 1, 6]
    seen = pools[1].draft(batch, [other] * 3, paths=paths, siblings=2, row_indices=named)
    np.testing.assert_array_equal(seen, pools[0].draft(batch[named], [one] * 3, paths=paths, siblings=2))
    with pytest.raises(ValueError, match=r"row_indices is 7, but must be a row in 0\.\.7"):
        pools[1].draft(batch, [other], row_indices=[7])


def test_sequences_are_shortened_by_lists_or_arrays_of_counts() -> None:
    pool = make()
    slots = [pool.admit(SamplingParams(temperature=0), [3, 7]) for _ in range(2)]
    out = pool.verify(sure(5, 6, 8, 5, 6, 8), slots, [[5, 6], [9, 6]])
    pool.shorten(slots, out.accepted)
    assert [pool.output(slot) for slot in slots] == [[5], [5]]
    pool.shorten(slots[:1], [1])
    assert pool.output(slots[0]) == [] and pool.position(slots[0]) == 2
    before = [pool.state(slot) for slot in slots]
    for args, text in (
        ((slots, [0, 7]), f"counts is 7 of slot {slots[1]}, but must be in 0..=1, its output tokens"),
        ((slots, [1]), "counts has length 1, but must have one per slot, 2"),
        ((slots[:1] * 2, [1, 1]), "slots is 0 in row 1 again"),
        ((slots[:1], [-1]), r"counts is -1, but must be in 0\.\.2\^63"),
        (([-1], [0]), "slot is -1, but must be an admitted slot"),
    ):
        with pytest.raises(ValueError, match=text):
            pool.shorten(*args)
    assert before == [pool.state(slot) for slot in slots]


def refusals(a: int, mirostat: int) -> Iterator[tuple[type[Exception], str, tuple[object, ...], dict[str, object]]]:
    rows, two, none = sure(1, 2, 3), [a], [[5, 6]]
    good = (rows, two, none)
    yield TypeError, r"drafts\[0\] must be a list or an array of integers, not int", (rows, two, [5, 6]), {}
    yield TypeError, "drafts must be a list of lists or an array of integers, not int", (rows, two, 5), {}
    yield TypeError, r"drafts\[1\] must be an integer, not str", (rows, [a, -1], [[1], ["x"]]), {}
    yield TypeError, r"drafts\[0\] is of float32", (rows, two, np.ones((1, 2), np.float32)), {}
    yield ValueError, r"drafts\[0\] is 4294967296, but must be in -2\^31", (rows, two, [[1 << 32, 1]]), {}
    yield ValueError, r"drafts has length 2, but must have one per request, 1", (rows, two, [[1], []]), {}
    yield (
        ValueError,
        r"len\(drafts\) is 65 in request 0, but must be in 0\.\.=64",
        (sure(*range(66)), two, [[1] * 65]),
        {},
    )
    yield ValueError, "logits has length 3, but must have 4 rows, one per request", (rows, two, [[1, 2, 3]]), {}
    yield ValueError, "must be the vocabulary|vocab", (rows[:, :800], two, none), {}
    yield TypeError, "logits is of float64", (rows.astype(np.float64), two, none), {}
    yield ValueError, "slots is 9 in row 0, but must be an admitted slot", (rows, [9], none), {}
    yield ValueError, "slots is 0 in row 1 again", (sure(1, 2), [a, a], [[], []]), {}
    yield (
        ValueError,
        "parents has length 2, but must have one list per list of drafts, 1",
        good,
        {"parents": [[-1], [0]]},
    )
    yield ValueError, r"parents\[0\] has length 1, but must have one per draft, 2", good, {"parents": [[-1]]}
    for parents in ([-1, 1], [0, -1], [-2, -1], [1, 0]):
        yield ValueError, "parent.*of request 0, but must be", good, {"parents": [parents]}
    for first_child, next_sibling, text in (
        ([1, 2, 1], [-1, -1, -1], r"first_child is 1 for row 2 of request 0, but must be in 3\.\.3, or -1"),
        ([1, -1, -1], [-1, -1, -1], "none to row 2 of request 0"),
        ([1, 9, -1], [-1, -1, -1], "first_child is 9 for row 1 of request 0"),
        ([1, -1], [-1, -1], "first_child has length 2, but must have one per request and one per draft, 3"),
    ):
        yield ValueError, text, good, {"first_child": [first_child], "next_sibling": [next_sibling]}
    yield ValueError, "first_child and next_sibling come together", good, {"first_child": [[1, 2, -1]]}
    links = {"first_child": [[1, 2, -1]], "next_sibling": [[-1, -1, -1]]}
    yield ValueError, "parents cannot be combined with first_child", good, {**links, "parents": [[-1, 0]]}
    yield ValueError, "mirostat cannot be combined with drafts", (rows, [mirostat], none), {}
    yield ValueError, 'mode is "chain", but must be "coupled", "greedy", "rejection"', good, {"mode": "chain"}
    yield ValueError, "chain|parent", good, {"mode": "block", "parents": [[-1, -1]]}
    yield ValueError, "forced cannot be combined with block", good, {"mode": "block", "forced": [1, -1, -1]}
    yield ValueError, 'threshold_acc is for mode="threshold", but mode is "coupled"', good, {"threshold_acc": 0.5}
    for value in (-0.1, 1.5, float("nan")):
        thresholds = {"mode": "threshold", "threshold_single": value}
        yield ValueError, r"threshold_single is .*, but must be in 0\.\.=1", good, thresholds
    yield TypeError, "threshold_acc must be a number, not str", good, {"mode": "threshold", "threshold_acc": "1"}
    for mode in ("coupled", "greedy", "threshold"):
        yield ValueError, "draft_probs cannot be combined with mode", good, {"mode": mode, "draft_probs": rows}
    probs = {"mode": "rejection", "draft_probs": rows[:2]}
    yield (
        ValueError,
        r"draft_probs' shape is \[2, 900\], but must be \[3, 900\]: one row per request and one per draft",
        good,
        probs,
    )
    yield TypeError, "draft_probs is of float16", good, {**probs, "draft_probs": rows.astype(np.float16)}
    yield (
        ValueError,
        "draft_probs's stride is 1800, but must be 900",
        good,
        {**probs, "draft_probs": sure(*[1] * 6)[::2]},
    )
    yield ValueError, "forced has length 1", good, {"forced": [1]}
    text = "row_indices has length 2, but must have one per request and one per draft, 3, or 0"
    yield ValueError, text, good, {"row_indices": [0, 1]}
    yield ValueError, r"row_indices is 3, but must be a row in 0\.\.3", good, {"row_indices": [0, 1, 3]}
    yield ValueError, "row_indices is -1, but must be in", good, {"row_indices": [0, 1, -1]}
    yield ValueError, "masks", good, {"masks": np.zeros((2, 29), np.int32)}
    yield ValueError, "mask_present says which of the masks count", good, {"mask_present": [True]}
    yield ValueError, "kind is", good, {"kind": "weights"}


def test_refusals_name_what_is_wrong_and_change_nothing(requests: list[SamplingParams]) -> None:
    pool = make()
    slots = [pool.admit(params, [1, 2]) for params in (requests[0], requests[4])]
    before = [pool.state(slot) for slot in slots]
    for kind, text, args, keywords in refusals(*slots):
        with pytest.raises(kind, match=text):
            pool.verify(*args, **keywords)  # type: ignore[arg-type]
        assert before == [pool.state(slot) for slot in slots]

    def hook(row: np.ndarray) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pool.verify(sure(5, 6), slots[:1], [[5]], hooks=[None, hook], forced=[5, None])
    assert before == [pool.state(slot) for slot in slots]


def test_what_a_route_or_a_device_cannot_do_is_unavailable(device: str) -> None:
    pool = Pool(VOCAB, device=device, slots=1, rows=2, route="probabilities")
    slot = pool.admit(SamplingParams(seed=1), [1])
    for mode in ("rejection", "block", "threshold"):
        with pytest.raises(UnavailableError, match="no probabilities of rows on this route"):
            pool.verify(sure(1, 2), [slot], [[1]], mode=mode)
    if device == "cpu":
        return
    pool = Pool(VOCAB, device=device, slots=1, rows=2)
    slot = pool.admit(SamplingParams(seed=1), [1])
    with pytest.raises(UnavailableError, match="no hooks on a device: row 0 has one"):
        pool.draft(sure(1), [slot], hooks=[print])
    with pytest.raises(UnavailableError, match="no hooks on a device: row 1 has one"):
        pool.verify(sure(1, 2), [slot], [[1]], hooks=[None, print])
    assert pool.output(slot) == []


def on(device: str, array: np.ndarray) -> Any:
    """An array on a device; the emulated one takes the host's memory for its own."""
    if not device.startswith("cuda"):
        return array
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array).to(device)


def test_drafts_on_a_device_are_read_when_they_are_verified(device: str) -> None:
    if device == "cpu":
        with pytest.raises(UnavailableError, match="no drafts in the memory of a device: the pool is on cpu"):
            make().assign_drafts([], [])
        return
    pool = make(device=device, keep_histories=True)
    slots = [pool.admit(SamplingParams(temperature=0), [1]) for _ in range(2)]
    logits = on(device, sure(5, 6, 8, 9))
    drafts, parents = on(device, np.array([5, 6])), on(device, np.array([-1, 0], np.int32))
    with pytest.raises(ValueError, match="needs an assignment with their counts"):
        pool.enqueue_verify(logits, drafts)
    pool.assign_drafts(slots, [2, 0])
    graph = pool.capture_verify(logits, drafts, parents=parents)
    pool.enqueue_verify(logits, drafts, variant="full")
    out = pool.fetch_verification()
    assert out.tolist() == [[5, 6, 8], [9]] and out.accepted.tolist() == [2, 0]
    assert [out.rows(request).tolist() for request in range(2)] == [[0, 1, 2], [3]]
    drafts[0], drafts[1], parents[1] = 7, 5, -1
    pool.replay(graph)
    # A step goes on from there, without a look at what was accepted.
    pool.assign(slots)
    pool.enqueue(logits[2:])
    assert pool.fetch().tolist() == [8, 9]
    pool.assign_drafts(slots, [2, 0])
    parents[0] = 1
    pool.replay(graph)
    for name, wanted in (("tokens", [5, -1, -1, 9]), ("rows", [0, 2**32 - 1, 2**32 - 1, 3]), ("accepted", [0, 0])):
        lent = pool.outputs_on_device(name)
        seen = np.from_dlpack(lent) if device == "emulated" else pytest.importorskip("torch").from_dlpack(lent).cpu()
        assert np.asarray(seen).astype(np.int64).tolist() == wanted, name
    out = pool.fetch_verification()
    assert out.tolist() == [[5], [9]] and Status(int(out.outputs.statuses[0])) == Status.NO_TREE
    assert pool.output(slots[0]) == [5, 6, 8, 5, 8, 8, 5]
    # What came is taken away where it is.
    for counts in (on(device, np.array([1, 0])), [1, 2]):
        before = [pool.output(slot) for slot in slots]
        pool.enqueue_shorten(counts)
        gone = [int(count) for count in counts]
        assert [pool.output(slot) for slot in slots] == [ids[: len(ids) - count] for ids, count in zip(before, gone)]
    with pytest.raises(ValueError, match="counts has length 1, but must have one per slot, 2"):
        pool.enqueue_shorten(on(device, np.array([1])))
    for wrong, kind, text in (
        ((logits, drafts[:1]), ValueError, "drafts has length 1, but must have 2, the sum of the counts"),
        ((logits[:3], drafts), ValueError, "logits has length 3"),
        ((logits, sure(1)[0]), TypeError, "drafts is of float32, but must be of int32 or int64"),
    ):
        with pytest.raises(kind, match=text):
            pool.enqueue_verify(*wrong)
    drafts[0], drafts[1], parents[0], parents[1] = 5, 6, -1, 0
    probs = on(device, np.full_like(sure(5, 6, 8, 9), 0.5))
    for mode, more in (("block", {"draft_probs": probs}), ("threshold", {})):
        pool.assign_drafts(slots, [2, 0], mode=mode)
        pool.enqueue_verify(logits, drafts, parents=parents, **more)
        assert pool.fetch_verification().tolist() == [[5, 6, 8], [9]], mode
        pool.replay(pool.capture_verify(logits, drafts, parents=parents, **more))
        assert pool.fetch_verification().tolist() == [[5, 6, 8], [9]], mode
        assert pool.verify(logits, slots, [[5, 6], []], mode=mode, **more).tolist() == [[5, 6, 8], [9]], mode
    with pytest.raises(ValueError, match="draft_probs cannot be combined with mode: only rejection and block read"):
        pool.enqueue_verify(logits, drafts, parents=parents, draft_probs=probs)
    pool.assign_drafts(slots, [2, 0], mode="rejection")
    with pytest.raises(ValueError, match=r"draft_probs is \[3, 900\], but must be \[4, 900\]"):
        pool.enqueue_verify(logits, drafts, parents=parents, draft_probs=probs[:3])
    with pytest.raises(ValueError, match=r"threshold_single is 2, but must be in 0\.\.=1"):
        pool.assign_drafts(slots, [2, 0], mode="threshold", threshold_single=2)
    with pytest.raises(ValueError, match="forced cannot be combined with block"):
        pool.assign_drafts(slots, [2, 0], mode="block", forced=[1, -1, -1, -1])


def test_trees_on_a_device_may_be_held_as_links(device: str) -> None:
    if device == "cpu":
        return
    pool = make(device=device)
    slots = [pool.admit(SamplingParams(temperature=0), [1]) for _ in range(2)]
    logits, drafts = on(device, sure(5, 7, 8, 9)), on(device, np.array([4, 5], np.int32))
    # Two siblings behind the root, then a request without drafts; one array of 64 bits, one of 32.
    first_child = on(device, np.array([1, -1, -1, -1]))
    next_sibling = on(device, np.array([-1, 2, -1, -1], np.int32))
    pool.assign_drafts(slots, [2, 0])
    graph = pool.capture_verify(logits, drafts, first_child=first_child, next_sibling=next_sibling)
    pool.enqueue_verify(logits, drafts, first_child=first_child, next_sibling=next_sibling)
    assert pool.fetch_verification().tolist() == [[5, 8], [9]]
    next_sibling[1] = -1
    pool.replay(graph)
    out = pool.fetch_verification()
    assert out.tolist() == [[5], [9]] and Status(int(out.outputs.statuses[0])) == Status.NO_TREE
    with pytest.raises(ValueError, match="come together"):
        pool.enqueue_verify(logits, drafts, first_child=first_child)
    with pytest.raises(ValueError, match="parents cannot be combined with first_child"):
        pool.enqueue_verify(logits, drafts, parents=drafts, first_child=first_child, next_sibling=next_sibling)
    with pytest.raises(ValueError, match="next_sibling has length 3, but must have 4"):
        pool.enqueue_verify(logits, drafts, first_child=first_child, next_sibling=next_sibling[:3])


def test_a_device_drafts_what_the_host_does(device: str, requests: list[SamplingParams], batch: np.ndarray) -> None:
    if device == "cpu":
        with pytest.raises(
            UnavailableError, match="no batches of drafts in the memory of a device: the pool is on cpu"
        ):
            make().draft_batch(4)
        return
    pools = [make(), make(device=device)]
    kept = [params for params in requests if not params.mirostat]
    slots = [[pool.admit(params, [3, 7]) for params in kept] for pool in pools]
    assert slots[0] == slots[1]
    rows = [*slots[0], -1, slots[0][0]]
    logits = np.stack([batch[row % len(batch)] for row in range(len(rows))])
    paths = [[row + 1] * (row % 4) for row in range(len(rows))]
    seen = [pool.draft(logits, rows, paths=paths, siblings=3, mode="block", probs=True) for pool in pools]
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    np.testing.assert_array_equal(seen[0][1].view(np.uint32), seen[1][1].view(np.uint32))
    there = pools[1].draft(on(device, logits), rows, paths=paths, siblings=3, mode="block")
    np.testing.assert_array_equal(there, seen[0][0])
    # A batch draws these drafts as well. Its paths are the first ids of each line.
    lines = np.full((len(rows), 5), -1)
    for line, path in zip(lines, paths):
        line[: len(path)] = path
    drafts, probs = pools[0].draft(logits, rows, paths=paths, siblings=2, probs=True)
    made = pools[1].draft_batch(len(rows), siblings=2, probs=True)
    made.assign(rows, [len(path) for path in paths])
    for variant in (None, "full"):
        made.enqueue(on(device, logits), on(device, lines)[:, :3], variant=variant)
        fetched = made.fetch()
        np.testing.assert_array_equal(fetched[0], drafts)
        np.testing.assert_array_equal(fetched[1].view(np.uint32), probs.view(np.uint32))
    lent = [
        np.from_dlpack(one) if device == "emulated" else pytest.importorskip("torch").from_dlpack(one).cpu()
        for one in (made.drafts, made.probs)
    ]
    np.testing.assert_array_equal(np.asarray(lent[0]), drafts)
    admitted = [row for row, slot in enumerate(rows) if slot >= 0]
    np.testing.assert_array_equal(np.asarray(lent[1])[admitted, :VOCAB], probs[admitted])
    assert [pools[1].output(slot) for slot in slots[1]] == [[] for _ in slots[1]]
    made.assign(rows)
    for wrong, kind, text in (
        ((logits[:3],), ValueError, "logits has length 3"),
        ((logits, lines.astype(np.float32)), TypeError, "paths is of float32, but must be of int32 or int64"),
        ((logits, lines[0]), ValueError, "paths must have two dimensions"),
    ):
        with pytest.raises(kind, match=text):
            made.enqueue(*[on(device, array) for array in wrong])
    made.assign(rows, [1] * len(rows))
    with pytest.raises(ValueError, match="paths has length 0"):
        made.enqueue(on(device, logits))
    made.free()
    with pytest.raises(ValueError, match="a batch of drafts that this pool made and still has"):
        made.fetch()
    with pytest.raises(ValueError, match="rows is 0"):
        pools[1].draft_batch(0)


@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_a_graph_of_ours_drafts_verifies_and_advances(device: str, ids: type) -> None:
    if device == "cpu":
        with pytest.raises(UnavailableError, match="no drafts in the memory of a device"):
            make().graph_builder()
        return
    host, pool = make(), make(device=device, keep_histories=True)
    params = [SamplingParams(seed=3, repetition_penalty=1.2), SamplingParams(seed=4, top_p=0.9)]
    slots = [[each.admit(one, [1, 2]) for one in params] for each in (host, pool)]
    random = np.random.default_rng(8)
    rows = [random.normal(0, 1, (2, VOCAB)).astype(np.float32) for _ in range(2)]
    target = np.stack([rows[0][0], rows[1][0], rows[0][1], rows[0][1], rows[1][1], rows[0][0]])
    batches = [pool.draft_batch(2) for _ in range(2)]
    for depth, batch in enumerate(batches):
        batch.assign(slots[1], [depth, depth])
    pool.assign_drafts(slots[1], [2, 2])
    chains, taken = on(device, np.full((2, 2), -1, ids)), on(device, np.array([1, 0]))
    first, second, all_rows = (on(device, array) for array in (*rows, target))
    builder = pool.graph_builder().draft(batches[0], first).copy_drafts(batches[0], chains)
    builder.draft(batches[1], second, chains).copy_drafts(batches[1], chains, 1)
    graph = builder.verify(all_rows, chains).shorten(taken).capture()
    assert graph.steps == 1
    for _ in range(4):
        pool.replay(graph)
        drafts = host.draft(rows[0], slots[0])
        drafts = np.concatenate([drafts, host.draft(rows[1], slots[0], paths=drafts)], 1)
        wanted = host.verify(target, slots[0], drafts)
        seen = pool.fetch_verification()
        assert seen.tolist() == wanted.tolist() and np.asarray(chains).tolist() == drafts.tolist()
        host.shorten(slots[0], [1, 0])
        assert [pool.output(slot) for slot in slots[1]] == [host.output(slot) for slot in slots[0]]
    # A draft and a copy without a graph, and what is refused.
    batches[0].enqueue(first)
    batches[0].copy(chains)
    assert np.asarray(chains)[:, :1].tolist() == host.draft(rows[0], slots[0]).tolist()
    with pytest.raises(ValueError, match=r"to is \[2, 2\], but must be at least \[2, 2 \+ 1\]"):
        batches[0].copy(chains, 2)
    with pytest.raises(TypeError, match="to is of float32"):
        builder.copy_drafts(batches[0], first)
    other = make(device=device)
    with pytest.raises(ValueError, match="batch is another pool's"):
        other.graph_builder().draft(batches[0], first)
    batches[1].free()
    with pytest.raises(ValueError, match="batch is 1, but must be a batch of drafts"):
        pool.replay(graph)
    with pytest.raises(ValueError, match="batch is 1, but must be a batch of drafts"):
        builder.capture()
