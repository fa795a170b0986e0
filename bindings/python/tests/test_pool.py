"""The pool's verbs on every device: what goes in and comes out, work in order, variants, and what is refused in the engine's words."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from gumball import (
    Batch,
    LogprobsParams,
    Outputs,
    Pool,
    Probabilities,
    Sampler,
    SamplingParams,
    Scored,
    State,
    Status,
    Step,
    UnavailableError,
    Verify,
    _gumball,
)
from gumball.plugins.kept import ids_of, lists_of, packed, picked, repacked

VOCAB = 900
SECTIONS = "tokens statuses logprobs ranks temperatures mirostat_mu second_logprobs top_ids top_logprobs id_logprobs id_ranks".split()


def make(device: str, **config: object) -> Pool:
    return Pool(VOCAB, device=device, **{"slots": 16, "rows": 16, "top_n": 3, "ids": 2, "kept": True, **config})


def same(seen: Outputs, wanted: Outputs) -> None:
    for name in SECTIONS:
        np.testing.assert_array_equal(getattr(seen, name), getattr(wanted, name), name)
    for row in range(len(wanted)):
        assert seen.kept(row).tolist() == wanted.kept(row).tolist()
    for ours, theirs in zip(seen.kept_sets(), wanted.kept_sets(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_steps_and_states_come_to_the_same_everywhere(
    device: str, requests: list[SamplingParams], batch: np.ndarray
) -> None:
    pools = [make("cpu", level="scalar", threads=1), make(device)]
    slots = [[pool.admit(params, [1, 2, 1]) for params in requests] for pool in pools]
    assert slots[0] == slots[1] and len(pools[1]) == len(requests) and bool(Pool(8))
    wanted, seen = [pool.step(batch, Batch(slots[0], forced=[None, 7] + [-1] * 5)) for pool in pools]
    same(seen, wanted)
    states = [[pickle.loads(pickle.dumps(pool.state(slot))) for slot in slots[0]] for pool in pools]
    assert states[0] == states[1] and {state.position for state in states[0]} == {4}
    moved = make("cpu")
    slots = [moved.resume(params, state) for params, state in zip(requests, states[1])]
    same(moved.step(batch, slots), pools[0].step(batch, slots))
    with pytest.raises(ValueError, match="mu is NaN"):
        moved.resume(requests[4], State(mu=float("nan")))
    with pytest.raises(TypeError, match="state must be a gumball.State, not dict"):
        moved.resume(requests[0], {})  # type: ignore[arg-type]


def test_two_modes_tell_two_logprobs_of_each_token(device: str, batch: np.ndarray) -> None:
    def told(mode: Any) -> tuple[float, float]:
        pool = make(device)
        out = pool.step(batch[:1], [pool.admit(SamplingParams(seed=1, top_p=0.5, logprobs=LogprobsParams(mode)))])
        return out.logprobs[0], out.second_logprobs[0]

    (raw, none), (processed, _) = told("raw"), told("processed")
    assert raw < processed and none == -np.inf
    assert told(["processed", "raw"]) == (processed, raw) and told("raw,processed") == (raw, processed)
    sampler = Sampler(SamplingParams(seed=1, top_p=0.5, logprobs=LogprobsParams(["processed", "raw"])), VOCAB)
    sampler.sample(batch[0])
    assert sampler.logprobs is not None and (sampler.logprobs.token.logprob, sampler.logprobs.second) == (
        processed,
        raw,
    )
    with pytest.raises(ValueError, match="logprobs.mode is raw,raw, but must be one mode, or two different ones"):
        told(["raw", "raw"])
    with pytest.raises(ValueError, match="logprobs.mode has length 3, but must have one mode or two"):
        told(["raw", "edited", "processed"])
    with pytest.raises(TypeError, match="logprobs.mode must be a str or a list of two modes, not int"):
        told(3)


def test_a_radius_says_how_far_a_row_may_move(device: str, batch: np.ndarray) -> None:
    asked = LogprobsParams(mode=["raw", "radius"])
    rng = np.random.default_rng(3)
    for params in (dict(temperature=0), dict(), dict(top_k=20), dict(top_p=0.9, min_p=0.02)):
        pool = make(device)

        def drawn(rows: np.ndarray, params: Any = params, pool: Pool = pool) -> Outputs:
            slots = [pool.admit(SamplingParams(seed=seed, logprobs=asked, **params)) for seed in range(8)]
            return pool.step(rows, slots)

        rows = np.repeat(batch[:1], 8, 0)
        first = drawn(rows)
        radii = first.second_logprobs
        assert (radii >= 0).all() and (radii > 0).sum() >= 4
        moved = rows + radii[:, None] * rng.choice([-0.999, 0.999], rows.shape).astype(np.float32)
        assert drawn(moved).tokens.tolist() == first.tokens.tolist()
    with pytest.raises(ValueError, match="logprobs.mode is radius, but must be radius behind a mode of logprobs"):
        make(device).admit(SamplingParams(logprobs=LogprobsParams(mode="radius")))


def test_outputs_are_views_of_their_own_step(device: str, batch: np.ndarray) -> None:
    pool = make(device)
    slots = [pool.admit(SamplingParams(seed=seed, top_k=40)) for seed in range(7)]
    batch[1], batch[2, 5], batch[3, 9] = -np.inf, np.nan, np.inf
    first = pool.step(batch, slots)
    assert [Status(int(status)) for status in first.statuses[:4]] == [0, Status.EMPTY, Status.NAN, Status.INF]
    assert (first.tolist()[1], first.tolist()[3], pool.output(slots[1]), pool.state(slots[0]).position) == (
        -1,
        9,
        [],
        1,
    )
    tokens, kept = first.tokens, first.tokens.copy()
    pool.step(np.roll(batch, 9, 1), slots)
    np.testing.assert_array_equal(tokens, kept)
    assert (tokens.dtype, first.statuses.dtype, first.logprobs.dtype) == (np.int32, np.uint32, np.float32)
    assert (first.top_ids.shape, first.id_ranks.shape, len(first)) == ((7, 3), (7, 2), 7)
    # Kept sets ascend by id.
    assert first.kept(0).tolist() == sorted(np.argsort(-batch[0], kind="stable")[:40].tolist())
    lengths, ids = first.kept_sets()
    assert (lengths.dtype, ids.dtype, first.kept(0).dtype) == (np.int32, np.int32, np.uint32)
    assert ids.tolist() == [id for row in range(7) for id in first.kept(row).tolist()]
    assert lengths.tolist() == [len(first.kept(row)) for row in range(7)]
    tokens[0] = 5
    assert first.tolist()[0] == 5
    for row in (-1, 7, 2**70, -(2**70)):
        for call in (first.kept, first.request):
            with pytest.raises(IndexError, match=r"but must be in 0\.\.7"):
                call(row)
    with pytest.raises(TypeError):
        first.kept("x")  # type: ignore[arg-type]
    told, own = ids.tolist(), first.kept(0)
    del first, pool
    assert tokens[1] == kept[1]
    # Each array alone keeps the memory, which is the same for a row's set.
    ids[0] += 1
    assert own.tolist() == [told[0] + 1, *told[1:40]]


def test_requests_come_go_fork_and_are_taken_back(device: str, batch: np.ndarray) -> None:
    pool = make(device, slots=2)
    first, second = pool.admit(SamplingParams(seed=1)), pool.admit(SamplingParams(seed=2))
    with pytest.raises(ValueError, match="slots is 3, but must be at most 2, all taken"):
        pool.admit(SamplingParams())
    pool.release(first)
    third = pool.fork(second, 1)
    out = pool.step(batch[:1], Batch([second, third], row_indices=[0, 0]))
    assert len(pool) == 2 and out.tolist() == [
        Sampler(SamplingParams(seed=2), VOCAB, draw=draw).sample(batch[0]) for draw in (0, 1)
    ]
    pool.shorten([second], [1])
    pool.push(second, 42)
    pool.push(second, 43)
    pool.shorten(np.array([second, third]), np.array([1, 0]))
    assert pool.output(second) == [42] and pool.state(second).position == 1
    for call, kind, text in (
        (lambda: pool.release(9), ValueError, "slot is 9, but must be an admitted slot"),
        (lambda: pool.step(batch[:1], [9]), ValueError, "admitted slot"),
        (lambda: pool.fork(second, -1), ValueError, "draw is -1"),
        (lambda: pool.shorten([second], [2]), ValueError, r"counts is 2 of slot \d, but must be in 0\.\.=1"),
        (lambda: pool.shorten([second] * 2, [1, 1]), ValueError, r"slots is \d in row 1 again"),
        (lambda: pool.shorten([second], [1, 1]), ValueError, "counts has length 2"),
        (lambda: pool.shorten([second], [-1]), ValueError, "counts is -1"),
        (lambda: pool.shorten([second], [1.5]), TypeError, "counts must be an integer, not float"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_work_is_assigned_enqueued_and_fetched(device: str, requests: list[SamplingParams], batch: np.ndarray) -> None:
    if device.startswith("cuda"):
        pytest.skip("left out: arrays of the host")
    plain, pool, logits = make("cpu"), make(device), batch.copy()
    slots = [[pool.admit(params, [1, 2]) for params in requests] for pool in (plain, pool)]
    with pytest.raises(ValueError, match="assign"):
        plain.enqueue([Step(logits)])
    # A value may be assigned many times, and so may a list.
    forced = [7] + [None] * 6
    value = Batch(slots[1], forced=forced)
    for assigned, told in ((value, forced), (slots[1], [-1] * 7), (value, forced)):
        pool.assign(assigned)
        pool.enqueue([Step(logits)])
        same(pool.fetch(), plain.step(batch, Batch(slots[0], forced=told)))
    pool.assign(slots[1])
    pool.enqueue([Step(logits), Step(batch)])
    plain.step(batch, slots[0])
    same(pool.fetch(), plain.step(batch, slots[0]))
    for work, kind, text in (
        (Step(logits), TypeError, "work must be a list of Step, Verify, Draft, CopyDrafts and Shorten, not Step"),
        ([logits], TypeError, "work must be of Step, Verify, Draft, CopyDrafts and Shorten, not ndarray"),
        ([Step(logits.astype(np.float64))], TypeError, "rows is of float64"),
        ([Verify(logits, [1])], ValueError, "counts"),
    ):
        with pytest.raises(kind, match=text):
            pool.enqueue(work)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hooks cannot be combined with assign"):
        pool.assign(Batch(slots[1], hooks=[print] * 7))
    if device == "cpu":
        for call in (
            pool.on_device,
            lambda: pool.capture([Step(logits)]),
            lambda: pool.on_device().record([Step(logits)]),
        ):
            with pytest.raises(UnavailableError, match="no graphs and memory of a device in a pool of the host"):
                call()
        return
    there, wanted = pool.on_device(), plain.step(batch, slots[0])
    pool.enqueue([Step(logits)])
    np.testing.assert_array_equal(np.from_dlpack(there.outputs("tokens")), wanted.tokens)
    np.testing.assert_array_equal(np.from_dlpack(there.outputs("top_ids")), wanted.top_ids)
    np.testing.assert_array_equal(np.from_dlpack(there.outputs("top_logprobs")), wanted.top_logprobs)
    sets = np.from_dlpack(there.outputs("kept"))
    assert sets.dtype == np.uint32 and len(sets) == 7 and sets.shape[1] * 32 >= VOCAB
    lists, told = [wanted.kept(row) for row in range(7)], wanted.kept_sets()
    for given, bitmasks in ((told, False), (told, True), (sets, False), (sets, True)):
        lengths, ids = packed(given, bitmasks)
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        assert [ids_of(part).tolist() for part in parts] == lists_of(lengths, ids) == [part.tolist() for part in lists]
    assert any(part[:1] == -1 for part in parts) and min(lengths) < 2
    words = _gumball.pack_kept(sets[:, : -(-VOCAB // 32)])
    assert words.shape == (7, 1 + -(-VOCAB // 32)) and words.ravel()[:7].tolist() == [len(part) for part in lists]
    assert min(len(part) for part in lists) < words.shape[1] < max(len(part) for part in lists)
    most, flat = words.shape[1] - 1, words.ravel().view(np.int32)
    sets = flat[7:][: np.minimum(flat[:7], most).sum()]
    for rows in ([], [3], [6, 0, 0, 2], range(7)):
        lengths, ids = picked(told, np.array(rows, np.int64))
        assert lists_of(lengths, ids) == [lists[row].tolist() for row in rows]
        for bitmasks in (True, False):
            found = repacked(flat[:7], sets, most, np.array(rows, np.int64), bitmasks)
            assert lists_of(*found) == lists_of(lengths, ids)
    graph = pool.capture([Step(logits), Step(Probabilities(logits))])
    assert graph.steps == 2
    # The graph reads what lies there at the time; requests have gone meanwhile.
    for each, own in ((plain, slots[0]), (pool, slots[1])):
        for slot in own[1:]:
            each.release(slot)
    logits[:] = np.exp(np.roll(batch, 1, 1))
    pool.assign([slots[1][0]] + [-1] * 6)
    pool.replay(graph)
    plain.step(logits, [slots[0][0]] + [-1] * 6)
    same(pool.fetch(), plain.step(Probabilities(logits), [slots[0][0]] + [-1] * 6))
    with pytest.raises(ValueError, match="another pool's"):
        make(device).replay(graph)
    with pytest.raises(ValueError, match="name is words, but must be an attribute of Outputs"):
        there.outputs("words")
    plain = make(device, kept=False)
    plain.assign([plain.admit(SamplingParams())])
    with pytest.raises(ValueError, match="name is kept, but must be of a pool with kept sets"):
        plain.on_device().outputs("kept")


def test_variants_have_their_names_and_counts(device: str, batch: np.ndarray) -> None:
    if device != "emulated":
        pytest.skip("left out: a device's, with arrays of the host")
    pool, names = make(device, kept=False), ["no_filter", "min_p", "top_k", "top_k_top_p", "top_p", "edits", "full"]
    there, logits = pool.on_device(), batch[:2]
    slots = [pool.admit(params) for params in (SamplingParams(seed=1), SamplingParams(seed=3, top_k=9, top_p=0.9))]
    assert pool.counts() == {"variants": dict.fromkeys(names, 0)} and list(pool.counts()["variants"]) == names
    # A warm-up before a capture steps over padding, which every variant serves.
    pool.assign([-1, -1])
    assert there.needed_variant() == "no_filter"
    few = there.record([Step(logits)], variant="no_filter")
    pool.assign(slots)
    assert there.needed_variant() == "top_k_top_p"
    message = "variant is no_filter, but must be top_k_top_p or top_p or edits or full, for the request of row 1"
    for refused in (lambda: there.before_replay(few), lambda: there.record([Step(logits)], variant="no_filter")):
        with pytest.raises(ValueError, match=message):
            refused()
    with pytest.raises(ValueError, match='variant "greedy" is not known; known are: no_filter, min_p'):
        there.record([Step(logits)], variant="greedy")
    with pytest.raises(TypeError, match="recorded must be a Recorded, or a list of them, not int"):
        there.before_replay(2)  # type: ignore[arg-type]
    other = make(device)
    other.assign([-1, -1])
    with pytest.raises(ValueError, match="recorded is that of another pool, but must be what this pool has recorded"):
        other.on_device().before_replay(few)
    there.record([Step(logits)], variant="edits")
    there.before_replay([there.record([Step(logits)])] * 2)
    assert list(pool.counts()["variants"].values()) == [1, 0, 0, 0, 0, 1, 3]


def test_a_route_is_asked_for_by_name(device: str, batch: np.ndarray) -> None:
    pools = [make(name, route="probabilities") for name in ("cpu", device)]
    requests = [SamplingParams(seed=1, temperature=0.7), SamplingParams(seed=2, temperature=0)]
    slots = [[pool.admit(params) for params in requests] for pool in pools]
    wanted, seen = [pool.step(batch[:2], of) for pool, of in zip(pools, slots, strict=True)]
    same(seen, wanted)
    for mode in ("rejection", "block"):
        with pytest.raises(UnavailableError, match="no probabilities of rows on this route"):
            pools[1].verify(batch[:2], Batch(slots[1][:1], mode=mode), [[1]])
    if device != "cpu":
        with pytest.raises(ValueError, match="repetition_penalty cannot be combined with route: on a device"):
            pools[1].admit(SamplingParams(repetition_penalty=1.2))
        with pytest.raises(UnavailableError, match="a device takes race and probabilities, and not oracle"):
            make(device, route="oracle")


def test_scores_are_outputs_of_known_tokens(device: str, batch: np.ndarray) -> None:
    params = SamplingParams(seed=1, repetition_penalty=1.3, logprobs=LogprobsParams("edited", 3, [5, 9]))
    pool, ids = make(device), [1, 2, 7, 9, 9, 30, 31, 32]
    scores = pool.score(batch[:5], params, Scored(ids, prompt_len=3, start=3))
    step = pool.step(batch[0], Batch([pool.admit(params, ids[:3])], forced=[9]))
    assert len(scores) == 5 and (scores.logprobs[0], scores.ranks[0]) == (step.logprobs[0], step.ranks[0])
    np.testing.assert_array_equal(scores.top_ids[0], step.top_ids[0])
    assert len(pool.score(batch, params, np.array(ids))) == 7
    with pytest.raises(ValueError, match="ids has length 8"):
        pool.score(batch, params, Scored(ids, prompt_len=3, start=3))
    with pytest.raises(ValueError, match="kept is absent, but must be of a step .* scores have none"):
        scores.kept(0)
    with pytest.raises(ValueError, match="slots cannot be combined with score"):
        pool.score(batch, SamplingParams(), ids, Batch([0]))


@pytest.mark.parametrize(
    ("config", "kind", "text"),
    [
        (dict(vocab=0), ValueError, "vocab is 0, but must be in 1..=2^20"),
        (dict(vocab="many"), TypeError, "vocab must be an integer, not str"),
        (dict(slots=0), ValueError, "slots is 0, but must be in 1..2^31"),
        (dict(slots=-1), ValueError, "slots is -1, but must be in 1..2^31"),
        (dict(rows=0), ValueError, "rows is 0, but must be in 1..2^31"),
        (dict(rows=1 << 31), ValueError, "rows is 2147483648, but must be in 1..2^31"),
        (dict(rows="abc"), TypeError, "rows must be an integer"),
        (dict(history_growth=-1), ValueError, "history_growth is -1, but must be in 1..2^31"),
        (dict(threads=0), ValueError, "threads is 0"),
        (dict(threads=2**40), ValueError, "threads is 1099511627776"),
        (dict(level="sse"), ValueError, 'level "sse" is not known'),
        (
            dict(route="rase"),
            ValueError,
            'route "rase" is not known (do you mean "race"?); known are: race, probabilities, oracle',
        ),
        (dict(device="cuda:0", threads=2), ValueError, 'threads is for device="cpu"'),
        (dict(device="quantum"), (ValueError, UnavailableError), "quantum"),
        (dict(device="cuda:99"), UnavailableError, ""),
        (dict(top_n=-1), ValueError, "top_n is -1"),
    ],
)
def test_what_a_pool_cannot_be_is_told(config: dict[str, Any], kind: Any, text: str) -> None:
    with pytest.raises(kind) as raised:
        Pool(**{"vocab": VOCAB, **config})
    assert text in str(raised.value)


def test_what_a_pool_was_not_made_for_is_told() -> None:
    with pytest.raises(TypeError, match="params must be a gumball.SamplingParams, not dict"):
        Pool(VOCAB).admit({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logprobs.top_n is 4"):
        make("cpu").admit(SamplingParams(logprobs=LogprobsParams(top_n=4)))
    for call in (lambda out: out.kept(0), lambda out: out.kept_sets()):
        with pytest.raises(ValueError, match="kept"):
            call(Pool(4).step(np.zeros((0, 4), np.float32), []))
    with make("cpu") as pool:
        assert repr(pool) == 'Pool(900, device="cpu")'
    with pytest.raises(UnavailableError, match="no pool: this one was closed; make another"):
        len(pool)
