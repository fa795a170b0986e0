"""Pools on several processes: what one process draws from whole rows, under every layout, and what ranks say that go wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Drafts, Pool, Ranks, SamplingParams, Shorten, Step, UnavailableError, Verify, dist
from gumball._gumball import EMULATOR

VOCAB = 900

PARAMS = [
    {"seed": 1},
    {"seed": 2, "temperature": 0.0},
    {"seed": 3, "top_k": 20, "top_p": 0.9},
    {"seed": 4, "top_p": 0.8, "repetition_penalty": 1.3},
    {"seed": 5, "min_p": 0.05, "logprobs": gumball.LogprobsParams(mode="raw", top_n=2)},
]

COMMON = f"""
import json, sys, numpy as np, gumball
from gumball import Batch, SamplingParams, dist
rank, world, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
given = json.loads(sys.argv[4])
VOCAB = {VOCAB}
def rows(step, count):
    return np.random.default_rng(step).normal(0, 2.5, (count, VOCAB)).astype(np.float32)
PARAMS = [
    SamplingParams(seed=1), SamplingParams(seed=2, temperature=0), SamplingParams(seed=3, top_k=20, top_p=0.9),
    SamplingParams(seed=4, top_p=0.8, repetition_penalty=1.3),
    SamplingParams(seed=5, min_p=0.05, logprobs=gumball.LogprobsParams(mode="raw", top_n=2)),
]
"""


def run(body: str, world: int, given: Any = None, *, timeout: float = 60) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program in `world` processes, and returns how they ended."""
    code = COMMON + textwrap.dedent(body)
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/rank"
        commands = [
            [sys.executable, "-c", code, str(rank), str(world), address, json.dumps(given or {})]
            for rank in range(world)
        ]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
        ]
        ended = []
        for process in running:
            try:
                out, errors = process.communicate(timeout=timeout)
            finally:
                process.kill()
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, errors))
    return ended


def answers(ended: list[subprocess.CompletedProcess[str]]) -> list[Any]:
    for process in ended:
        assert process.returncode == 0, process.stderr
    return [json.loads(process.stdout.splitlines()[-1]) for process in ended]


STEPS = """
    pool = dist.join(VOCAB, rank=rank, world=world, address=address, top_n=2, slots=8, **given)
    slots = [pool.admit(params, [3, 7]) for params in PARAMS]
    start, end = pool.ranks.ids
    found = []
    for step in range(4):
        whole, plan = rows(step, 5), pool.plan(slots)
        logits = whole[plan.requests] if plan.layout == "replicated" else whole[:, start:end]
        out = pool.step(logits, Batch(slots, plan=plan))
        found.append([out.tokens.tolist(), out.logprobs.tolist(), out.top_ids.tolist()])
    drafts = [[4, 5], [], [6], [7], [8]]
    whole, plan = rows(9, 10), pool.plan(slots, drafts=2)
    starts = np.cumsum([0] + [len(each) + 1 for each in drafts])
    own = [row for request in plan.requests for row in range(starts[request], starts[request + 1])]
    verified = pool.verify(whole[own] if plan.layout == "replicated" else whole[:, start:end], Batch(slots, plan=plan), drafts)
    pool.shorten(slots[:1], [1])
    found.append(verified.emitted())
    found.append([pool.output(slot) for slot in slots])
    found.append([sorted({layout for layout, _ in pool.counts()["layouts"]}), pool.ranks.transport])
    print(json.dumps(found))
"""


def alone() -> list[Any]:
    """What one process draws from whole rows."""
    pool = Pool(VOCAB, top_n=2, slots=8)
    slots = [pool.admit(SamplingParams(**params), [3, 7]) for params in PARAMS]

    def rows(step: int, count: int) -> np.ndarray:
        return np.random.default_rng(step).normal(0, 2.5, (count, VOCAB)).astype(np.float32)

    found: list[Any] = []
    for step in range(4):
        out = pool.step(rows(step, 5), slots)
        found.append([out.tokens.tolist(), out.logprobs.tolist(), out.top_ids.tolist()])
    verified = pool.verify(rows(9, 10), slots, [[4, 5], [], [6], [7], [8]])
    pool.shorten(slots[:1], [1])
    return [*found, verified.emitted(), [pool.output(slot) for slot in slots]]


def same(seen: list[Any], wanted: list[Any]) -> None:
    # NaN is no logprob, and NaN is not NaN.
    assert json.dumps(seen) == json.dumps(wanted)


@pytest.mark.parametrize(
    ("world", "given", "layouts"),
    [
        (3, {"layout": "swap", "split": [100, 37, 763], "ownership": "modulo"}, ["swap"]),
        # Verifications are not surveyed.
        (3, {"layout": "survey", "split": [100, 37, 763]}, ["gather", "survey"]),
        (3, {"layouts": ["replicated"], "layout": "replicated"}, ["replicated"]),
    ],
)
def test_ranks_draw_what_one_process_draws(world: int, given: dict[str, Any], layouts: list[str]) -> None:
    for found in answers(run(STEPS, world, given)):
        same(found[:-1], alone())
        assert found[-1] == [layouts, "unix"]


def test_ranks_find_each_other_through_a_store() -> None:
    body = """
        import os, time
        class Files:
            def set(self, key, value):
                path = os.path.join(given["folder"], key.replace("/", "_"))
                with open(path + ".part", "w") as file:
                    file.write(value)
                os.rename(path + ".part", path)
            def get(self, key):
                path = os.path.join(given["folder"], key.replace("/", "_"))
                while not os.path.exists(path):
                    time.sleep(0.01)
                return open(path, "rb").read()
        pool = dist.join(VOCAB, store=Files(), rank=rank, world=world)
        slot = pool.admit(PARAMS[0])
        start, end = pool.ranks.ids
        found = [pool.ranks.transport, pool.step(rows(1, 1)[:, start:end], [slot]).tolist()]
        # As if each rank were on a host of its own.
        dist._boot = lambda: str(rank)
        given["folder"] += "/other"
        os.makedirs(given["folder"], exist_ok=True)
        try:
            dist.join(VOCAB, store=Files(), rank=rank, world=world)
        except gumball.UnavailableError as error:
            found.append(str(error))
        print(json.dumps(found))
    """
    pool = Pool(VOCAB)
    row = np.random.default_rng(1).normal(0, 2.5, (1, VOCAB)).astype(np.float32)
    token = pool.step(row, [pool.admit(SamplingParams(seed=1))]).tolist()
    with tempfile.TemporaryDirectory() as folder:
        none = "no transport: ranks of several hosts take torch's process group, and no store"
        for found in answers(run(body, 2, {"folder": folder})):
            assert found == ["unix", token, none]


def test_ranks_say_what_is_wrong_with_others() -> None:
    body = """
        def said(call):
            try:
                call()
            except Exception as error:
                return [type(error).__name__, getattr(error, "rank", None), getattr(error, "what", None), str(error)]
        found = []
        def make(folder, **options):
            return dist.join(VOCAB, rank=rank, world=world, address=f"{address}.{folder}", **options)
        # Made differently.
        found.append(said(lambda: make("a", top_n=rank)))
        # Another step, and what follows.
        pool = make("b", layouts=["gather"])
        start, end = pool.ranks.ids
        slots = [pool.admit(SamplingParams(seed=7 + rank))]
        step = lambda: pool.step(rows(1, 1)[:, start:end], slots)
        found += [said(step), said(step)]
        found.append([pool.output(slots[0])])
        # A rank that is late, and one that has ended.
        import time
        pool = make("c", layouts=["gather"], timeout=0.4)
        slots = [pool.admit(SamplingParams(seed=7))]
        if rank == 0:
            found.append(said(step))
        else:
            time.sleep(1.2)
        pool = make("d", layouts=["gather"], timeout=20)
        slots = [pool.admit(SamplingParams(seed=7))]
        if rank == 0:
            found.append(said(step))
        del pool
        print(json.dumps(found))
    """
    zero, one = answers(run(body, 2))
    for found, other in ((zero, 1), (one, 0)):
        text = f"rank {other} disagrees on widths"
        assert found[0][:3] == ["DisagreeError", other, "widths"] and found[0][3].startswith(text)
        assert found[1][:2] == ["DisagreeError", other]
        assert found[2][:2] == ["BrokenError", None] and "broke at an earlier exchange" in found[2][3]
        assert found[3] == [[]], "no sequence has moved"
    assert zero[4][:2] == ["LateError", 1] and "sent nothing for 400ms" in zero[4][3]
    assert zero[5][:2] == ["LostError", 1]


def test_mistakes_are_named_before_anything_is_sent(tmp_path: Path) -> None:
    def make(slots: int = 256, **given: Any) -> Pool:
        return Pool(VOCAB, slots=slots, ranks=Ranks(**{"rank": 0, "addresses": [f"unix:{tmp_path}/0"]} | given))

    for kind, text, given in (
        (TypeError, "rank must be an integer, not str", {"rank": "0"}),
        (ValueError, "address is udp:1, but must be", {"addresses": ["udp:1"]}),
        (ValueError, r"rank is 1, but must be in 0\.\.1", {"rank": 1}),
        (ValueError, 'layout "half" is not known; known are: gather, swap', {"layouts": ["half"]}),
        (ValueError, 'transport "ucx" is not known', {"transport": "ucx"}),
        (ValueError, 'ownership is "odd", but must be "blocks" or "modulo"', {"ownership": "odd"}),
        (ValueError, "split is of 2 numbers, but must be one number for each rank, 1", {"split": [1, 899]}),
        (ValueError, "timeout is 0, but must be in 0.001", {"timeout": 0}),
        (ValueError, "logit_bytes is 3, but must be 4 or 2", {"logit_bytes": 3}),
        (UnavailableError, "no transport nccl: rows in host memory take", {"transport": "nccl"}),
        (UnavailableError, "no transport torch: it takes a process group of torch", {"transport": "torch"}),
        (UnavailableError, "no transport threads: it takes ranks of", {"transport": "threads"}),
        (UnavailableError, "no transport onesided: rows in host memory take", {"transport": "onesided"}),
        (ValueError, "rank and addresses, or group alone, must be given", {"rank": None}),
        (UnavailableError, "no place to listen at unix:/none/there", {"addresses": ["unix:/none/there"]}),
    ):
        with pytest.raises(kind, match=text):
            make(**given)
    pool = make(layouts=["replicated"], slots=2)
    ranks = pool.ranks
    assert (ranks.rank, ranks.world, ranks.ids, ranks.width, ranks.timeout) == (0, 1, (0, VOCAB), VOCAB, 30)
    assert repr(ranks) == 'RanksInfo(rank=0 of 1, transport="unix")'
    with pytest.raises(UnavailableError, match="no ranks: the pool was made without"):
        Pool(VOCAB).plan([])
    with pytest.raises(UnavailableError, match="no ranks: the pool was made without"):
        print(Pool(VOCAB).ranks)
    with pytest.raises(TypeError, match="ranks must be a gumball.Ranks, not int"):
        Pool(VOCAB, ranks=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed is absent, but must be given"):
        pool.admit(SamplingParams())
    slot = pool.admit(SamplingParams(seed=1))
    with pytest.raises(ValueError, match='step is "first", but must be "prefill"'):
        pool.plan([slot], step="first")
    with pytest.raises(ValueError, match=r"requests is 3, but must be in 0\.\.=2"):
        pool.plan([slot, -1, -1], captured=2)
    with pytest.raises(ValueError, match="logits has length 899"):
        pool.step(np.zeros((1, 899), np.float32), [slot])
    with pytest.raises(ValueError, match="slots has length 1, but must have 2, as many as were planned for"):
        pool.step(np.zeros((1, VOCAB), np.float32), Batch([slot], plan=pool.plan([slot, -1])))
    with pytest.raises(ValueError, match="drafts"):
        pool.verify(np.zeros((66, VOCAB), np.float32), [slot], [[1] * 65])
    assert pool.output(slot) == [] and pool.counts()["traffic"] == {"Parameters": (1, 0, 0)}
    assert pool.step(np.eye(1, VOCAB, 5, dtype=np.float32) * 99, [slot]).tolist() == [5]
    assert (
        pool.counts()["layouts"] == {("gather", 1): 1}
        and repr(pool) == 'Pool(900, device="cpu", rank=0 of 1, transport="unix")'
    )
    rows = np.eye(VOCAB, dtype=np.float32)[[6, 0, 7]] * 99
    assert pool.verify(rows, [slot], Drafts([[5, 6]], parents=[[-1, -1]])).emitted() == [[6, 7]]
    with pool:
        pass
    pool.close()
    with pytest.raises(UnavailableError, match="no pool: this one was closed"):
        pool.output(slot)


def test_addresses_of_ranks_on_one_host() -> None:
    assert dist.addresses_at("unix:/a/b", 2) == ["unix:/a/b.0", "unix:/a/b.1"]
    for address in ("tcp:a:80", "unix:", "a"):
        with pytest.raises(ValueError, match="address is"):
            dist.addresses_at(address, 2)


def test_who_one_is_has_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="rank is None, but must be given, or RANK set"):
        dist.join(VOCAB, address="unix:none")
    with pytest.raises(RuntimeError, match="no process group of torch"):
        dist.join(VOCAB)


def on_ranks(world: int, work: Any) -> list[Any]:
    """Runs work(rank) on a thread for each rank: emulated devices reach each other's memory within a process."""
    found: list[Any] = [None] * world

    def one(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


@pytest.mark.skipif(not EMULATOR, reason="GPUs are held to one GPU by conformance")
def test_devices_draw_what_one_process_draws(tmp_path: Path) -> None:
    batches = [np.random.default_rng(step).normal(0, 2.5, (4, VOCAB)).astype(np.float32) for step in range(4)]

    def work(rank: int) -> list[Any]:
        given = {"layouts": ["replicated"], "layout": "replicated", "rows": 8, "slots": 8}
        pool = dist.join(VOCAB, address=f"unix:{tmp_path}/rank", rank=rank, world=2, device="emulated", **given)
        slots = [pool.admit(SamplingParams(**params), [3, 7]) for params in PARAMS[:4]]
        plan = pool.plan(slots)
        assert plan.layout == "replicated" and pool.device == "emulated"
        found = [pool.step(batches[0][plan.requests], Batch(slots, plan=plan)).tolist()]
        # What lies in the device's memory, enqueued and in a graph.
        logits = batches[1][plan.requests]
        pool.assign(Batch(slots, plan=plan))
        graph = pool.capture([Step(logits)])
        assert graph.steps == 1
        pool.enqueue([Step(logits)])
        found.append(pool.fetch().tolist())
        for batch in batches[2:]:
            logits[:] = batch[plan.requests]
            pool.replay(graph)
            found.append(pool.fetch().tolist())
        assert pool.counts()["layouts"] == {("replicated", 4): 4}
        return [found, [pool.output(slot) for slot in slots]]

    alone = Pool(VOCAB, slots=8)
    slots = [alone.admit(SamplingParams(**params), [3, 7]) for params in PARAMS[:4]]
    wanted = [alone.step(batch, slots).tolist() for batch in batches]
    assert on_ranks(2, work) == [[wanted, [alone.output(slot) for slot in slots]]] * 2


@pytest.mark.skipif(not EMULATOR, reason="GPUs are held to one GPU by conformance")
@pytest.mark.parametrize(("layout", "mode"), [("gather", "coupled"), ("swap", "rejection")])
def test_devices_verify_what_one_process_verifies(layout: str, mode: str, tmp_path: Path) -> None:
    drafts, parents = [[4, 5], [6], [], [7, 8]], [[-1, 0], [-1], [], [-1, -1]]
    batches = [np.random.default_rng(step).normal(0, 2.5, (9, VOCAB)).astype(np.float32) for step in range(4)]
    for batch in batches:
        batch[:, 4:9] += 6

    def work(rank: int) -> list[Any]:
        address = f"unix:{tmp_path}/{layout}"
        given = {"layouts": [layout], "layout": layout, "rows": 16, "slots": 8, "ownership": "modulo"}
        pool = dist.join(VOCAB, address=address, rank=rank, world=2, device="emulated", **given)
        slots = [pool.admit(SamplingParams(**params), [3, 7]) for params in PARAMS[:4]]
        start, end = pool.ranks.ids
        plan = pool.plan(slots, drafts=2)
        assert plan.layout == layout

        def own(batch: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(batch[:, start:end])

        verified = pool.verify(own(batches[0]), Batch(slots, mode=mode, plan=plan), Drafts(drafts, parents=parents))
        found = [
            [verified.emitted(), verified.accepted.tolist(), [verified.request(i).rows.tolist() for i in range(4)]]
        ]
        # What lies in the device's memory, enqueued and in a graph.
        logits, ids = own(batches[1]), np.array(sum(drafts, []), np.int64)
        columns = {"parents": np.array(sum(parents, []), np.int32)}
        pool.assign(Batch(slots, counts=[len(each) for each in drafts], mode=mode, plan=plan))
        graph = pool.capture([Verify(logits, Drafts(ids, **columns))])
        assert graph.steps == 1
        pool.enqueue([Verify(logits, Drafts(ids, **columns))], variant=pool.on_device().needed_variant())
        found.append(pool.fetch().emitted())
        for batch in batches[2:]:
            logits[:] = own(batch)
            pool.replay(graph)
            verified = pool.fetch()
            found.append(verified.emitted())
            # What lies on the device, of the whole batch.
            seen = {name: np.asarray(pool.on_device().outputs(name)) for name in ("tokens", "accepted", "rows")}
            assert seen["tokens"].tolist() == verified.tokens.tolist()
            assert seen["accepted"].tolist() == verified.accepted.tolist()
            assert seen["rows"][verified.request(0).places].tolist() == verified.request(0).rows.tolist()
        assert pool.counts()["layouts"] == {(layout, 4): 4}
        # A verification is not surveyed, and a graph has as many rows of each rank as when it was captured.
        with pytest.raises(ValueError, match="counts has length 3, but must have one per slot, 4"):
            pool.assign(Batch(slots, counts=[0] * 3, plan=plan))
        pool.assign(Batch(slots, counts=[1, 2, 0, 2], mode=mode, plan=plan))
        if layout != "gather":
            with pytest.raises(ValueError, match="captured with another layout, or other numbers of rows"):
                pool.replay(graph)
        pool.on_device().before_replay(0)
        found.append([pool.output(slot) for slot in slots])
        pool.shorten(slots[:2], [1, 0])
        if layout == "gather":
            pool.assign(Batch(slots, plan=pool.plan(slots)))
            pool.enqueue([Shorten(np.array([0, 1, 0, 1], np.int64))])
        else:
            # Ranks own every second request.
            with pytest.raises(ValueError, match="ownership cannot be combined with counts"):
                pool.assign(Batch(slots, plan=pool.plan(slots)))
                pool.enqueue([Shorten(np.array([0, 1, 0, 1], np.int64))])
            pool.shorten(slots, [0, 1, 0, 1])
        found.append([pool.output(slot) for slot in slots])
        return found

    alone = Pool(VOCAB, slots=8)
    slots = [alone.admit(SamplingParams(**params), [3, 7]) for params in PARAMS[:4]]
    all_verified = [alone.verify(batch, Batch(slots, mode=mode), Drafts(drafts, parents=parents)) for batch in batches]
    first = all_verified[0]
    wanted = [[first.emitted(), first.accepted.tolist(), [first.request(i).rows.tolist() for i in range(4)]]]
    wanted += [verified.emitted() for verified in all_verified[1:]]
    assert sum(sum(verified.accepted.tolist()) for verified in all_verified) > 0
    outputs = [alone.output(slot) for slot in slots]
    alone.shorten(slots, [1, 1, 0, 1])
    wanted += [outputs, [alone.output(slot) for slot in slots]]
    assert on_ranks(2, work) == [wanted] * 2


def test_a_pool_of_the_host_over_ranks_does_all_at_once(tmp_path: Path) -> None:
    pool = Pool(VOCAB, ranks=Ranks(0, [f"unix:{tmp_path}/0"]))
    slot, rows = pool.admit(SamplingParams(seed=1)), np.zeros((1, VOCAB), np.float32)
    for call in (
        lambda: pool.assign([slot]),
        lambda: pool.enqueue([Step(rows)]),
        pool.fetch,
        lambda: pool.draft(rows, [slot]),
        lambda: pool.capture([Step(rows)]),
        pool.on_device,
    ):
        with pytest.raises(UnavailableError):
            call()
    ranks = Ranks(0, [f"unix:{tmp_path}/1"])
    with pytest.raises(ValueError, match="device is" if not EMULATOR else "there is no|device"):
        Pool(VOCAB, ranks=ranks, device="tpu")
    with pytest.raises(ValueError, match='kept is for device="cpu", but device is "cuda:0"'):
        Pool(VOCAB, ranks=ranks, device="cuda:0", kept=True)


def test_what_lies_at_an_address_stays_unless_a_process_that_ended_left_it(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_text("weights")
    with pytest.raises(UnavailableError, match="there is a file that is no socket"):
        Pool(64, ranks=Ranks(0, [f"unix:{weights}", f"unix:{tmp_path}/1"], timeout=0.3))
    assert weights.read_text() == "weights"


class RangError(Exception):
    """What the handler of the alarm raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Rings in a moment: a signal whose handler raises `RangError`."""

    def ring(_number: int, _frame: object) -> None:
        raise RangError

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_is_heard_while_ranks_are_waited_for(tmp_path: Path, alarm: Callable[[], None]) -> None:
    addresses = [f"unix:{tmp_path}/{rank}" for rank in range(2)]
    for rank in range(2):
        alarm()
        with pytest.raises(RangError):
            Pool(VOCAB, ranks=Ranks(rank, addresses, timeout=600))
    other: list[Pool] = []
    thread = threading.Thread(target=lambda: other.append(Pool(VOCAB, ranks=Ranks(1, addresses))))
    thread.start()
    pool = Pool(VOCAB, ranks=Ranks(0, addresses, timeout=600))
    thread.join()
    slot = pool.admit(SamplingParams(seed=1))
    start, end = pool.ranks.ids
    alarm()
    with pytest.raises(RangError):
        pool.step(np.zeros((1, end - start), np.float32), [slot])
    assert pool.output(slot) == []
    with pytest.raises(dist.BrokenError, match="was interrupted"):
        pool.step(np.zeros((1, end - start), np.float32), [slot])


def test_ranks_that_are_forced_to_other_tokens_are_told_so() -> None:
    body = """
        pool = dist.join(VOCAB, rank=rank, world=world, address=address, layouts=[given["layout"]])
        slot = pool.admit(SamplingParams(seed=7))
        start, end = pool.ranks.ids
        try:
            pool.step(rows(1, 1)[:, start:end], Batch([slot], forced=[5 + rank]))
        except dist.DisagreeError as error:
            print(json.dumps([error.what, pool.output(slot)]))
    """
    for layout in ("gather", "survey"):
        assert answers(run(body, 2, {"layout": layout})) == [["the forced tokens of the step", []]] * 2
