"""The pool: on every device the tokens, outputs and states of the pool of the host, under the same verbs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gumball import (
    Batch,
    LogprobsParams,
    Mirostat,
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
)

VOCAB = 900
SECTIONS = "tokens statuses logprobs ranks temperatures mirostat_mu top_ids top_logprobs id_logprobs id_ranks".split()


def make(device: str, **config: object) -> Pool:
    return Pool(VOCAB, device=device, **{"slots": 16, "rows": 16, "top_n": 3, "ids": 2, "kept": True, **config})


def same(seen: Outputs, wanted: Outputs) -> None:
    for name in SECTIONS:
        np.testing.assert_array_equal(getattr(seen, name), getattr(wanted, name), name)
    for row in range(len(wanted)):
        assert sorted(seen.kept(row)) == sorted(wanted.kept(row))


def test_steps_come_to_the_same_everywhere(device: str, requests: list[SamplingParams], batch: np.ndarray) -> None:
    pools = [make("cpu", level="scalar", threads=1), make(device)]
    slots = [[pool.admit(params, [1, 2, 1]) for params in requests] for pool in pools]
    assert slots[0] == slots[1] and len(pools[1]) == len(requests)
    wanted, seen = [pool.step(batch, Batch(slots[0], forced=[None, 7] + [-1] * 5)) for pool in pools]
    same(seen, wanted)
    assert seen.tokens[1] == 7
    for slot in slots[0]:
        states = [pool.state(slot) for pool in pools]
        assert states[0] == states[1] and states[0].position == 4
        assert [*states[1].prompt, *states[1].output] == [1, 2, 1, *pools[1].output(slot)]


def test_outputs_are_views_of_their_own_step(device: str, batch: np.ndarray) -> None:
    pool = make(device)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(7)]
    first = pool.step(batch, slots)
    tokens, kept = first.tokens, first.tokens.copy()
    pool.step(np.roll(batch, 9, 1), slots)
    np.testing.assert_array_equal(tokens, kept)
    assert (tokens.dtype, first.statuses.dtype, first.logprobs.dtype) == (np.int32, np.uint32, np.float32)
    assert (first.top_ids.shape, first.id_ranks.shape, len(first)) == ((7, 3), (7, 2), 7)
    tokens[0] = 5
    assert first.token(0) == 5 and first.tolist()[0] == 5
    with pytest.raises(IndexError):
        first.token(7)
    del first, pool
    assert tokens[1] == kept[1]


def test_masks_of_both_layouts(device: str, batch: np.ndarray) -> None:
    allowed = np.zeros((7, VOCAB), bool)
    allowed[:, [3, 77, 500]] = True
    bits = np.packbits(np.pad(allowed, ((0, 0), (0, 28))), axis=1, bitorder="little")
    words = bits.view(np.uint32)
    wide = np.zeros((7, 40), np.int32)
    wide[:, :29] = words.view(np.int32)
    seen = []
    for masks in (words, words.view(np.int32), wide[:, :29]):
        pool = make(device)
        slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(7)]
        seen.append(pool.step(batch, Batch(slots, masks=masks)).tolist())
        assert set(seen[-1]) <= {3, 77, 500}
        # Missing words forbid.
        assert set(pool.step(batch, Batch(slots, masks=masks[:, :3])).tolist()) <= {3, 77}
        present = pool.step(batch, Batch(slots, masks=masks * 0, mask_present=[False] + [True] * 6))
        assert present.token(0) is not None and present.tolist()[1:] == [-1] * 6
        assert Status(int(present.statuses[1])) == Status.EMPTY and present.statuses[0] == 0
    assert seen[0] == seen[1] == seen[2]


def test_a_row_that_is_hostile_says_so(device: str, batch: np.ndarray) -> None:
    pool = make(device)
    slots = [pool.admit(SamplingParams(seed=seed)) for seed in range(4)]
    batch[1], batch[2, 5], batch[3, 9] = -np.inf, np.nan, np.inf
    out = pool.step(batch[:4], slots)
    assert [Status(int(status)) for status in out.statuses] == [0, Status.EMPTY, Status.NAN, Status.INF]
    assert out.token(1) is None and out.token(3) == 9
    # The row without a token left its sequence as it was.
    assert (pool.output(slots[1]), pool.state(slots[0]).position) == ([], 1)


def test_requests_come_and_go(device: str, batch: np.ndarray) -> None:
    pool = make(device, slots=2)
    first, second = pool.admit(SamplingParams(seed=1)), pool.admit(SamplingParams(seed=2))
    with pytest.raises(ValueError, match="slots is 3, but must be at most 2, all taken"):
        pool.admit(SamplingParams())
    pool.release(first)
    assert len(pool) == 1 and bool(pool)
    with pytest.raises(ValueError, match=f"slot is {first}, but must be an admitted slot"):
        pool.release(first)
    with pytest.raises(ValueError, match="admitted slot"):
        pool.step(batch[:1], [first])
    third = pool.fork(second, 1)
    out = pool.step(batch[:1], Batch([second, third], row_indices=[0, 0]))
    draws = Sampler(SamplingParams(seed=2), VOCAB).sample_n(batch[0], 2)
    assert out.tolist() == draws
    with pytest.raises(ValueError, match="draw is -1"):
        pool.fork(second, -1)


def test_steps_can_be_taken_back_and_tokens_pushed(device: str, batch: np.ndarray) -> None:
    pool = make(device)
    slot = pool.admit(SamplingParams(seed=3, mirostat=Mirostat(3, 0.2)), [5])
    tokens = [pool.step(row, [slot]).token(0) for row in batch[:3]]
    pool.shorten([slot], [2])
    pool.push(slot, 42)
    assert pool.output(slot) == [tokens[0], 42] and pool.state(slot).position == 3
    with pytest.raises(ValueError, match=r"counts is 3 of slot 0, but must be in 0\.\.=2"):
        pool.shorten([slot], [3])


def test_a_sequence_moves_between_devices(device: str, requests: list[SamplingParams], batch: np.ndarray) -> None:
    stays, here, there = make("cpu"), make(device), make("cpu")
    slots = [[pool.admit(params, [1, 2]) for params in requests] for pool in (stays, here)]
    for pool, own in zip((stays, here), slots):
        pool.step(batch, own)
    states = [pickle.loads(pickle.dumps(here.state(slot))) for slot in slots[1]]
    moved = [there.resume(params, state) for params, state in zip(requests, states)]
    same(there.step(batch[::1], moved), stays.step(batch, slots[0]))
    with pytest.raises(ValueError, match="mu is NaN"):
        there.resume(requests[4], State(mu=float("nan")))
    with pytest.raises(TypeError, match="state must be a gumball.State, not dict"):
        there.resume(requests[0], {})  # type: ignore[arg-type]


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
        ([Step(logits.astype(np.float64))], TypeError, "logits is of float64"),
        ([Verify(logits, [1])], ValueError, "counts"),
    ):
        with pytest.raises(kind, match=text):
            pool.enqueue(work)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hooks cannot be combined with assign"):
        pool.assign(Batch(slots[1], hooks=[print] * 7))
    if device == "cpu":
        for call in (pool.on_device, lambda: pool.capture([Step(logits)])):
            with pytest.raises(UnavailableError, match="no graphs and memory of a device in a pool of the host"):
                call()
        with pytest.raises(UnavailableError, match="in a pool of the host"):
            pool.enqueue([Step(logits)], variant="full")
        return
    there = pool.on_device()
    wanted = plain.step(batch, slots[0])
    pool.enqueue([Step(logits)])
    np.testing.assert_array_equal(np.asarray(there.outputs("tokens")), wanted.tokens)
    np.testing.assert_array_equal(np.from_dlpack(there.outputs("top_ids")), wanted.top_ids)
    np.testing.assert_array_equal(np.asarray(there.outputs("top_logprobs")), wanted.top_logprobs)
    graph = pool.capture([Step(logits), Step(Probabilities(logits))])
    assert graph.steps == 2
    # The graph reads what lies there at the time.
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


def test_a_variant_that_is_named_serves_the_rows_or_is_refused(device: str, batch: np.ndarray) -> None:
    if device != "emulated":
        pytest.skip("left out: a device's, with arrays of the host")
    plain, pool, logits = make("cpu", kept=False), make(device, kept=False), batch[:3]
    there = pool.on_device()
    requests = [SamplingParams(seed=1), SamplingParams(seed=2, min_p=0.1), SamplingParams(seed=3, top_k=9, top_p=0.9)]
    slots = [[each.admit(params) for params in requests] for each in (plain, pool)]
    names = ["no_filter", "min_p", "top_k", "top_k_top_p", "top_p", "edits", "full"]
    assert pool.counts() == {"variants": dict.fromkeys(names, 0)} and list(pool.counts()["variants"]) == names
    # A warm-up before a capture steps over padding, which every variant serves.
    pool.assign([-1, -1, -1])
    assert there.needed_variant() == "no_filter"
    pool.enqueue([Step(logits)], variant="no_filter")
    pool.assign(slots[1])
    assert there.needed_variant() == "top_k_top_p"
    message = "variant is min_p, but must be top_k_top_p or top_p or edits or full, for the request of row 2 in slot 2"
    for refused in (there.before_replay, lambda variant: pool.enqueue([Step(logits)], variant=variant)):
        with pytest.raises(ValueError, match=message):
            refused(variant="min_p")
        with pytest.raises(ValueError, match='variant "greedy" is not known; known are: no_filter, min_p'):
            refused(variant="greedy")
    assert [pool.output(slot) for slot in slots[1]] == [[], [], []]
    for name in names[4:6]:
        pool.enqueue([Step(logits)], variant=name)
        assert pool.fetch().tolist() == plain.step(logits, slots[0]).tolist()
    pool.release(slots[1][2])
    assert there.needed_variant() == "min_p"
    pool.enqueue([Step(logits)])
    assert list(pool.counts()["variants"].values()) == [1, 1, 0, 0, 1, 1, 0]


def test_the_route_probabilities_is_asked_for_by_name(device: str, batch: np.ndarray) -> None:
    pools = [make(name, route="probabilities") for name in ("cpu", device)]
    requests = [SamplingParams(seed=1, temperature=0.7), SamplingParams(seed=2, temperature=0), SamplingParams(seed=3)]
    slots = [[pool.admit(params) for params in requests] for pool in pools]
    wanted, seen = [pool.step(batch[:3], of) for pool, of in zip(pools, slots, strict=True)]
    same(seen, wanted)
    np.testing.assert_array_equal(seen.temperatures, np.float32([0.7, 0, 1]))
    if device != "cpu":
        edited = SamplingParams(repetition_penalty=1.2)
        with pytest.raises(ValueError, match="repetition_penalty cannot be combined with route: on a device"):
            pools[1].admit(edited)
        with pytest.raises(ValueError, match="kind cannot be combined with route: rows of probabilities"):
            pools[1].step(Probabilities(np.exp(batch[:3])), slots[1])
        with pytest.raises(UnavailableError, match="a device takes race and probabilities, and not oracle"):
            make(device, route="oracle")


def test_scores_are_outputs_of_known_tokens(device: str, batch: np.ndarray) -> None:
    params = SamplingParams(seed=1, repetition_penalty=1.3, logprobs=LogprobsParams("edited", 3, [5, 9]))
    pool, ids = make(device), [1, 2, 7, 9, 9, 30, 31, 32]
    scores = pool.score(batch[:5], params, Scored(ids, prompt_len=3, start=3))
    step = pool.step(batch[0], Batch([pool.admit(params, ids[:3])], forced=[9]))
    assert len(scores) == 5 and (scores.logprobs[0], scores.ranks[0]) == (step.logprobs[0], step.ranks[0])
    np.testing.assert_array_equal(scores.top_ids[0], step.top_ids[0])
    with pytest.raises(ValueError, match="ids has length 8"):
        pool.score(batch, params, Scored(ids, prompt_len=3, start=3))


def test_what_a_pool_cannot_be_is_told() -> None:
    for config, text in [
        (dict(vocab=0), "vocab is 0, but must be in 1..=2^20"),
        (dict(slots=0), "slots is 0, but must be in 1..2^31"),
        (dict(slots=-1), "slots is -1, but must be in 0..2^63"),
        (dict(threads=0), "threads"),
        (dict(level="sse"), 'level "sse" is not known'),
        (dict(route="rase"), 'route "rase" is not known; known are: race, probabilities, oracle'),
        (dict(device="cuda:0", threads=2), 'threads is for device="cpu"'),
        (dict(device="quantum"), "quantum"),
        (dict(top_n=-1), "top_n is -1"),
    ]:
        with pytest.raises(ValueError) as raised:
            Pool(**{"vocab": VOCAB, **config})
        assert text in str(raised.value)
    with pytest.raises(TypeError):
        Pool("many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="params must be a gumball.SamplingParams, not dict"):
        Pool(VOCAB).admit({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logprobs.top_n is 4"):
        make("cpu").admit(SamplingParams(logprobs=LogprobsParams(top_n=4)))
    with pytest.raises(ValueError, match="kept"):
        Pool(4).step(np.zeros((0, 4), np.float32), []).kept(0)
    with pytest.raises(UnavailableError):
        Pool(VOCAB, device="cuda:99")
