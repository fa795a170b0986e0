"""Drafts: every form of ids, paths, trees and probabilities, what comes out by request, drafts on a device, and refusals at the border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import on
from gumball import (
    Batch,
    CopyDrafts,
    Draft,
    Drafts,
    Mirostat,
    Pool,
    Probabilities,
    SamplingParams,
    Shorten,
    Status,
    Threshold,
    UnavailableError,
    Verify,
)
from gumball.plugins.kept import packed

VOCAB = 900


def make(**config: object) -> Pool:
    return Pool(VOCAB, **{"slots": 16, "top_n": 3, "ids": 2, "kept": True, **config})


def sure(*ids: int) -> np.ndarray:
    """Rows in each of which one id is likely."""
    rows = np.zeros((len(ids), VOCAB), np.float32)
    rows[range(len(ids)), ids] = 20
    return rows


def back(lent: Any, device: str) -> np.ndarray:
    if device == "emulated":
        return np.from_dlpack(lent)
    return pytest.importorskip("torch").from_dlpack(lent).cpu().numpy()


def test_rows_and_tokens_are_those_of_the_path() -> None:
    pool = make()
    slots = [pool.admit(SamplingParams(temperature=0), [1]) for _ in range(2)]
    # A chain 5 6 7 of which 7 is wrong, padding, and a tree.
    logits = sure(5, 6, 8, 0, 9, 9, 21, 1, 23, 2, 3)
    drafts = Drafts([[5, 6, 7], [9], (20, 21, 22, 23)], parents=[[-1, 0, 1], [7], [-1, -1, 1, 1]])
    out = pool.verify(logits, [slots[0], -1, slots[1]], drafts)
    assert out.emitted() == [[5, 6, 8], [], [21, 23, 3]]
    emitted = [out.request(request) for request in range(3)]
    assert [one.rows.tolist() for one in emitted] == [[0, 1, 2], [], [6, 8, 10]]
    assert [one.places for one in emitted] == [slice(0, 3, 1), slice(4, 4, 1), slice(6, 9, 1)]
    assert [one.tokens.tolist() for one in emitted] == out.emitted() and [one.accepted for one in emitted] == [2, 0, 2]
    assert out.tolist() == [5, 6, 8, -1, -1, -1, 21, 23, 3, -1, -1] and len(out) == 11
    assert (out.accepted.dtype, emitted[0].tokens.dtype, emitted[0].rows.dtype) == (np.uint32, np.int32, np.uint32)
    assert out.accepted.tolist() == [2, 0, 2] and pool.output(slots[1]) == [21, 23, 3]
    assert [out.kept(row).tolist() for row in (2, 6)] == [[8], [21]]
    assert repr(emitted[0]) == "Emitted(tokens=[5 6 8], accepted=2)"
    # A step is a verification without drafts.
    step = pool.step(logits[6:8], [slots[0], -1])
    assert step.emitted() == [[21], []] and step.request(0).rows.tolist() == [0] and step.accepted.tolist() == [0, 0]
    # The tree as links between its rows; the ids of all requests one after the other; numpy's numbers in lists.
    links = {"first_child": np.array([[1, -1, 3, -1, -1]]), "next_sibling": [[-1, 2, -1, 4, -1]]}
    for ids in ([[20, 21, 22, 23]], [20, 21, 22, 23], np.array([20, 21, 22, 23]), [np.int64(20), 21, 22, 23]):
        out = pool.verify(logits[6:], Batch(slots[1:], counts=[4]), Drafts(ids, **links))
        assert out.emitted() == [[21, 23, 3]]
    # Chains need no parents, and a matrix holds as many drafts for each request, which may be arrays as well.
    logits = sure(5, 6, 8, 7, 7, 7).astype(np.float16)
    for chains in (np.array([[5, 6], [9, 9]]), [np.array([5, 6], np.int32), [9, 9]]):
        for parents in (None, [np.array([-1, 0]), (-1, 0)]):
            assert pool.verify(logits, slots, Drafts(chains, parents=parents)).emitted() == [[5, 6, 8], [7]]
    assert pool.verify(sure(4, 3), slots, [[], []]).emitted() == [[4], [3]]


def test_masks_forced_tokens_and_hooks_reach_their_rows() -> None:
    pool, seen = make(threads=1), []
    slot = pool.admit(SamplingParams(temperature=0))
    masks = np.full((3, 29), -1, np.int32)
    masks[0] = 0
    masks[0, 0] = 1 << 6

    def hook(row: np.ndarray) -> None:
        seen.append(int(row.argmax()))
        row[11] = 100

    batch = Batch([slot], masks=masks, forced=[None, 10, None], hooks=[None, None, hook])
    assert pool.verify(sure(5, 7, 8), batch, [[6, 10]]).emitted() == [[6, 10, 11]] and seen == [8]


def test_modes_thresholds_and_a_drafters_probabilities_reach_the_engine() -> None:
    count = 100
    rows = np.tile(np.array([0.5, 0.3, 0.2, 0.0], np.float32), (2 * count, 1))

    def accepted(mode: str | Threshold, draft: int = 2, probs: Any = None) -> int:
        pool = Pool(4, slots=count)
        slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(count)]
        drafts = Drafts(np.full((count, 1), draft), probs=probs)
        return int(pool.verify(Probabilities(rows), Batch(slots, mode=mode), drafts).accepted.sum())

    # By itself, a draft whose probability is 0.2 is accepted now and then.
    assert all(0 < accepted(mode) < count / 2 for mode in ("coupled", "rejection", "block", Threshold()))
    for mode in ("rejection", "block"):
        assert accepted(mode, probs=rows) == count
    assert accepted(Threshold(single=0.15)) == accepted(Threshold(acc=0.15)) == count
    assert (accepted("greedy"), accepted("greedy", 0)) == (0, count)


def test_drafts_come_as_an_array_behind_paths_of_every_form() -> None:
    pool = make()
    slot = pool.admit(SamplingParams(top_k=3, seed=1), [1])
    rows = np.zeros((2, VOCAB), np.float32)
    rows[:, 5:8] = 3
    drafts, probs = pool.draft(rows, [-1, slot], [[9], [9]], siblings=5, probs=True)
    assert drafts[0].tolist() == [-1] * 5 and sorted(drafts[1].tolist()) == [-1, -1, 5, 6, 7]
    assert (drafts.dtype, probs.dtype, probs.shape) == (np.int32, np.float32, (2, VOCAB))
    np.testing.assert_allclose(probs[1, 5:8], 1 / 3)
    assert drafts[1, 0] >= 0 and pool.draft(rows[:0], []).shape == (0, 1)
    # What stands in a path is a token of the request.
    new = pool.admit(SamplingParams(temperature=0, presence_penalty=2), [1])
    for paths, wanted in (([[5], (5, 6)], [[6], [7]]), (np.array([[5, 6], [5, 7]]), [[7], [6]])):
        assert pool.draft(rows, [new] * 2, paths).tolist() == wanted
    assert pool.draft(rows, Batch([new] * 2, counts=[1, 2]), [5, 5, 6]).tolist() == [[6], [7]]
    for paths, siblings, text in (
        ([[1], [2]], 1, "paths has length 2, but must have one per row, 1, or 0"),
        ([[900]], 1, r"paths is 900, but must be an id in 0\.\.900"),
        ([[1]], -1, "siblings is -1"),
    ):
        with pytest.raises(ValueError, match=text):
            pool.draft(rows[:1], [slot], paths, siblings=siblings)


TWO = [[5, 6]]
REJECTION = {"mode": "rejection"}
REFUSALS: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    (TypeError, "drafts must be a list of lists or an array of integers, not int", 5, {}),
    (TypeError, r"drafts\[0\] must be an integer, not str", [["x", 1]], {}),
    (TypeError, r"drafts\[0\] is of float32", [np.ones(2, np.float32)], {}),
    (ValueError, r"drafts\[0\] is 4294967296, but must be in -2\^31", [[1 << 32, 1]], {}),
    (ValueError, "drafts has length 2, but must have one per request, 1", [[1], []], {}),
    (ValueError, r"drafts has lists of \[2\], but must have the lengths that counts says", TWO, {"counts": [1]}),
    (ValueError, r"len\(drafts\) is 65 in request 0, but must be in 0\.\.=64", [[1] * 65], {}),
    (ValueError, "rows has length 3, but must have 4 rows, one per request", [[1, 2, 3]], {}),
    (ValueError, "parents has length 2, but must have one list per list", Drafts(TWO, parents=[[-1], [0]]), {}),
    (ValueError, r"parents\[0\] has length 1, but must have one per draft, 2", Drafts(TWO, parents=[[-1]]), {}),
    (ValueError, "parent.*of request 0, but must be", Drafts(TWO, parents=[[-1, 1]]), {}),
    (ValueError, "first_child and next_sibling come together", Drafts(TWO, first_child=[[1, 2, -1]]), {}),
    (
        ValueError,
        "parents cannot be combined with first_child",
        Drafts(TWO, parents=TWO, first_child=TWO, next_sibling=TWO),
        {},
    ),
    (ValueError, r"threshold_single is .*, but must be in 0\.\.=1", TWO, {"mode": Threshold(single=1.5)}),
    (ValueError, "probs cannot be combined with mode", Drafts(TWO, probs=sure(1, 2, 3)), {"mode": "greedy"}),
    (ValueError, "probs", Drafts(TWO, probs=sure(1, 2)), REJECTION),
    (TypeError, "probs is of float16", Drafts(TWO, probs=sure(1, 2, 3).astype(np.float16)), REJECTION),
    (ValueError, "probs's stride is 1800", Drafts(TWO, probs=sure(*[1] * 6)[::2]), REJECTION),
    (ValueError, r"row_indices is 3, but must be a row in 0\.\.3", TWO, {"row_indices": [0, 1, 3]}),
]


@pytest.mark.parametrize(("kind", "text", "drafts", "options"), REFUSALS)
def test_refusals_name_what_is_wrong_and_change_nothing(
    kind: type[Exception], text: str, drafts: Any, options: dict[str, Any]
) -> None:
    pool = make()
    slot = pool.admit(SamplingParams(seed=1), [1, 2])
    before = pool.state(slot)
    with pytest.raises(kind, match=text):
        pool.verify(sure(*range(66 if "65" in text else 3)), Batch([slot], **options), drafts)
    assert before == pool.state(slot)


def test_batches_name_what_is_wrong_when_they_are_made() -> None:
    for kind, text, options in (
        (ValueError, 'mode is "chain", but must be "coupled", "greedy", "rejection", "block" or a', {"mode": "chain"}),
        (TypeError, "mode must be a name or a gumball.Threshold, not int", {"mode": 5}),
        (TypeError, "mode.acc must be a number, not str", {"mode": Threshold(acc="1")}),  # type: ignore[arg-type]
        (ValueError, "mask_present says which of the masks count", {"mask_present": [True]}),
        (ValueError, "row_indices is -1, but must be in", {"row_indices": [-1]}),
        (ValueError, "counts is -1, but must be in", {"counts": [-1]}),
        (TypeError, "hooks", {"hooks": 5}),
        (TypeError, "plan", {"plan": 5}),
    ):
        with pytest.raises(kind, match=text):
            Batch([0], **options)  # type: ignore[arg-type]
    pool, rows = make(), sure(1)
    slot = pool.admit(SamplingParams(mirostat=Mirostat(tau=3, eta=0.1)), [1])
    # A call refuses what it does not read.
    for text, options in (("counts", {"counts": [0]}), ("mode", {"mode": "greedy"})):
        with pytest.raises(ValueError, match=f"{text} cannot be combined with step"):
            pool.step(rows, Batch([slot], **options))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mirostat cannot be combined with drafts"):
        pool.verify(sure(1, 2), [slot], [[1]])
    assert pool.output(slot) == [] and len(Batch([slot, -1])) == 2


@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_a_device_reads_drafts_trees_and_counts_where_they_lie(device: str, ids: type) -> None:
    if device == "cpu":
        return
    pool = make(device=device, keep_histories=True)
    slots = [pool.admit(SamplingParams(temperature=0), [1]) for _ in range(2)]
    logits, drafts, parents = (
        on(device, sure(5, 6, 8, 9)),
        on(device, np.array([5, 6], ids)),
        on(device, np.array([-1, 0], ids)),
    )
    pool.assign(Batch(slots, counts=[2, 0]))
    graph = pool.capture([Verify(logits, Drafts(drafts, parents=parents))])
    links = {
        "first_child": on(device, np.array([1, 2, -1, -1], ids)),
        "next_sibling": on(device, np.array([-1] * 4, ids)),
    }
    # Lists of the host are copied up, but no graph has them.
    for tree in (drafts, Drafts(drafts, **links), Drafts([5, 6], parents=[-1, 0]), [5, 6]):
        pool.enqueue([Verify(logits, tree)])
        assert pool.fetch().emitted() == [[5, 6, 8], [9]]
    drafts[0], drafts[1], parents[1], parents[0] = 7, 5, -1, 1
    pool.replay(graph)
    for name, wanted in (("tokens", [5, -1, -1, 9]), ("rows", [0, 2**32 - 1, 2**32 - 1, 3]), ("accepted", [0, 0])):
        assert back(pool.on_device().outputs(name), device).astype(np.int64).tolist() == wanted, name
    # A greedy row keeps its token; a row that nothing was emitted from keeps none.
    lengths, kept = packed(back(pool.on_device().outputs("kept"), device))
    assert (lengths.tolist(), kept.tolist()) == ([1, 0, 0, 1], [5, 9])
    assert Status(int(pool.fetch().statuses[0])) == Status.NO_TREE
    for counts in (on(device, np.array([1, 0], ids)), [1, 2]):
        before = [pool.output(slot) for slot in slots]
        pool.enqueue([Shorten(counts)])
        assert [pool.output(slot) for slot in slots] == [
            known[: len(known) - int(gone)] for known, gone in zip(before, counts)
        ]
    for work, kind, text in (
        (Shorten(on(device, np.array([1]))), ValueError, "counts has length 1, but must have one per slot, 2"),
        (Verify(logits, drafts[:1]), ValueError, "drafts has length 1, but must have 2, the sum of the counts"),
        (Verify(logits[:3], drafts), ValueError, "rows has length 3"),
        (Verify(logits, on(device, sure(1)[0])), TypeError, "drafts is of float32, but must be of int32 or int64"),
        (Verify(logits, [[5, 6], []]), ValueError, "drafts in work must be one list, or as many for each request"),
        (
            Verify(logits, Drafts(drafts, probs=logits)),
            ValueError,
            "probs cannot be combined with mode: only rejection",
        ),
    ):
        with pytest.raises(kind, match=text):
            pool.enqueue([work])
    with pytest.raises(ValueError, match="work reads memory of cpu, but a graph must read that of"):
        pool.capture([Verify(logits, [5, 6])])
    with pytest.raises(UnavailableError, match="no hooks on a device: row 1 has one"):
        pool.verify(sure(1, 2), Batch(slots[:1], hooks=[None, print]), [[1]])


@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_a_batch_of_drafts_lies_on_a_device_from_its_paths_to_what_is_taken_away(device: str, ids: type) -> None:
    if device == "cpu":
        return
    host, pool = make(), make(device=device, keep_histories=True)
    params = [SamplingParams(seed=3, repetition_penalty=1.2), SamplingParams(seed=4, top_p=0.9)]
    slots = [[each.admit(one, [1, 2]) for one in params] for each in (host, pool)][0]
    random = np.random.default_rng(8)
    rows = [random.normal(0, 1, (2, VOCAB)).astype(np.float32) for _ in range(2)]
    target = np.stack([rows[0][0], rows[1][0], rows[0][1], rows[0][1], rows[1][1], rows[0][0]])
    there = pool.on_device()
    batches = [there.add_draft_batch(2), there.add_draft_batch(2, probs=True)]
    for depth, batch in enumerate(batches):
        batch.assign(Batch(slots, counts=[depth, depth]))
    pool.assign(Batch(slots, counts=[2, 2]))
    chains, taken = on(device, np.full((2, 5), -1, ids))[:, :2], on(device, np.array([1, 0]))
    first, second, all_rows = (on(device, array) for array in (*rows, target))
    work = [Draft(batches[0], first), CopyDrafts(batches[0], chains)]
    work += [Draft(batches[1], second, chains), CopyDrafts(batches[1], chains, 1)]
    pool.enqueue(work)
    drafts = host.draft(rows[0], slots)
    later, probs = host.draft(rows[1], slots, drafts, probs=True)
    drafts = np.concatenate([drafts, later], 1)
    np.testing.assert_array_equal(np.asarray(chains), drafts) if device == "emulated" else None
    fetched = batches[1].fetch()
    np.testing.assert_array_equal(fetched[0], later)
    np.testing.assert_array_equal(fetched[1].view(np.uint32), probs.view(np.uint32))
    np.testing.assert_array_equal(back(batches[1].drafts, device), later)
    np.testing.assert_array_equal(back(batches[1].probs, device)[:, :VOCAB], probs)
    whole = on(device, np.full((2, 2), -1, ids))
    work = [
        *work,
        CopyDrafts(batches[0], whole),
        CopyDrafts(batches[1], whole, 1),
        Verify(all_rows, whole),
        Shorten(taken),
    ]
    graph = pool.capture(work)
    pool.replay(graph)
    assert graph.steps == 1 and pool.fetch().emitted() == host.verify(target, slots, drafts).emitted()
    host.shorten(slots, [1, 0])
    assert [pool.output(slot) for slot in slots] == [host.output(slot) for slot in slots]
    paths = on(device, np.zeros((2, 3), np.float32))
    for wrong, kind, text in (
        (CopyDrafts(batches[0], whole, 2), ValueError, r"to is \[2, 2\], but must be at least \[2, 2 \+ 1\]"),
        (CopyDrafts(batches[0], first), TypeError, "to is of float32"),
        (Draft(batches[1], second, paths), TypeError, "paths is of float32, but must be of int32 or int64"),
        (Draft(batches[1], second, taken), ValueError, "paths must have two dimensions"),
        (Draft(batches[1], second), ValueError, "paths has length 0"),
        (Draft(batches[0], first[:1]), ValueError, "rows has length 1"),
    ):
        with pytest.raises(kind, match=text):
            pool.enqueue([wrong])
    with pytest.raises(ValueError, match="batch is another pool's"):
        make(device=device).enqueue([Draft(batches[0], first)])
    with pytest.raises(ValueError, match="rows is 0"):
        there.add_draft_batch(0)
    batches[1].remove()
    for call in (lambda: pool.replay(graph), lambda: pool.capture(work), batches[1].fetch):
        with pytest.raises(ValueError, match="batch is 1, but must be a batch of drafts"):
            call()
