"""Pools on several processes: what Ranks says and what is refused, plans, errors with their ranks, devices, signals."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Heard
from gumball import Batch, Drafts, Pool, Ranks, SamplingParams, Shorten, Step, UnavailableError, Verify, dist
from gumball._gumball import EMULATOR
from threads import on_threads

VOCAB = 900
REQUESTS = """
import json, sys, numpy as np, gumball
from gumball import Batch, SamplingParams, dist
PARAMS = [
    SamplingParams(seed=1), SamplingParams(seed=2, temperature=0), SamplingParams(seed=3, top_k=20, top_p=0.9),
    SamplingParams(seed=4, top_p=0.8, repetition_penalty=1.3),
    SamplingParams(seed=5, min_p=0.05, logprobs=gumball.LogprobsParams(mode="raw", top_n=2)),
]
VOCAB = 900
def rows(step, count):
    return np.random.default_rng(step).normal(0, 2.5, (count, VOCAB)).astype(np.float32)
"""
COMMON = (
    REQUESTS
    + """
rank, world, address, given = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
"""
)
HERE: dict[str, Any] = {}
exec(REQUESTS, HERE)
PARAMS, rows = HERE["PARAMS"], HERE["rows"]


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
    # Work in order does the same.
    plan = pool.plan(slots, drafts=2)
    pool.assign(Batch(slots, counts=[2, 0, 1, 1, 1], plan=plan))
    pool.enqueue([gumball.Verify(whole[own] if plan.layout == "replicated" else whole[:, start:end], [4, 5, 6, 7, 8])])
    found.append(pool.fetch().emitted())
    print(json.dumps(found))
"""


def alone() -> list[Any]:
    """What one process draws from whole rows."""
    pool = Pool(VOCAB, top_n=2, slots=8)
    slots, found = [pool.admit(params, [3, 7]) for params in PARAMS], []
    for step in range(4):
        out = pool.step(rows(step, 5), slots)
        found.append([out.tokens.tolist(), out.logprobs.tolist(), out.top_ids.tolist()])
    drafts = [[4, 5], [], [6], [7], [8]]
    verified = pool.verify(rows(9, 10), slots, drafts)
    pool.shorten(slots[:1], [1])
    found += [verified.emitted(), [pool.output(slot) for slot in slots]]
    return [*found, pool.verify(rows(9, 10), slots, drafts).emitted()]


@pytest.mark.parametrize(
    ("given", "layouts"),
    [
        ({"layout": "swap", "split": [100, 37, 763], "ownership": "modulo"}, ["swap"]),
        ({"layout": "survey", "split": [100, 37, 763]}, ["survey"]),
        ({"layouts": ["replicated"], "layout": "replicated"}, ["replicated"]),
    ],
)
def test_ranks_draw_what_one_process_draws(given: dict[str, Any], layouts: list[str]) -> None:
    for found in answers(run(STEPS, 3, given)):
        assert found.pop(-2) == [layouts, "unix"]
        # NaN is no logprob, and NaN is not NaN.
        assert json.dumps(found) == json.dumps(alone())


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
    token = pool.step(rows(1, 1), [pool.admit(SamplingParams(seed=1))]).tolist()
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
    pool = make(layouts=["gather"], slots=2)
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
    # A single rank does what one process does, in order too.
    pool.assign([slot])
    pool.enqueue([Step(np.eye(1, VOCAB, 5, dtype=np.float32) * 99)])
    assert pool.fetch().tolist() == [5]
    for call in (lambda: pool.capture([Step(np.zeros((1, VOCAB), np.float32))]), pool.on_device):
        with pytest.raises(UnavailableError):
            call()
    assert (
        pool.counts()["layouts"] == {("gather", 1): 1}
        and repr(pool) == 'Pool(900, device="cpu", rank=0 of 1, transport="unix")'
    )
    rows = np.eye(VOCAB, dtype=np.float32)[[6, 0, 7]] * 99
    assert pool.draft(rows[:1], [slot]).tolist() == [[6]]
    assert pool.score(rows[:1], SamplingParams(), [1, 6]).tolist() == [6]
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


@pytest.mark.skipif(not EMULATOR, reason="GPUs are held to one GPU by conformance")
@pytest.mark.parametrize("layout", ["gather", "swap", "replicated"])
def test_devices_step_and_verify_as_one_process(layout: str, tmp_path: Path) -> None:
    drafts, parents, mode = [[4, 5], [6], [], [7, 8]], [[-1, 0], [-1], [], [-1, -1]], "rejection"
    whole = [rows(step, 9) for step in range(3)]
    for batch in whole:
        batch[:, 4:9] += 6

    def work(rank: int) -> list[Any]:
        given: dict[str, Any] = {"layouts": [layout], "layout": layout, "rows": 16, "slots": 8, "world": 2}
        pool = dist.join(VOCAB, address=f"unix:{tmp_path}/ranks", rank=rank, device="emulated", **given)
        slots, (start, end) = [pool.admit(params, [3, 7]) for params in PARAMS[:4]], pool.ranks.ids
        plan, first_rows = pool.plan(slots), [0, 3, 5, 6, 9]

        def own(batch: np.ndarray, plan: Any) -> np.ndarray:
            if layout != "replicated":
                return np.ascontiguousarray(batch[:, start:end])
            return batch[[row for it in plan.requests for row in range(first_rows[it], first_rows[it + 1])]]

        assert pool.device == "emulated" and plan.layout == layout
        one = whole[0][plan.requests] if layout == "replicated" else own(whole[0][:4], plan)
        found: list[Any] = [pool.step(one, Batch(slots, plan=plan)).tolist()]
        # What lies in the device's memory, enqueued and in a graph.
        plan = pool.plan(slots, drafts=2, step="judge")
        logits, ids = own(whole[1], plan), np.array(sum(drafts, []), np.int64)
        tree = Drafts(ids, parents=np.array(sum(parents, []), np.int32))
        pool.assign(Batch(slots, counts=[2, 1, 0, 2], mode=mode, plan=plan))
        graph = pool.capture([Verify(logits, tree)])
        pool.on_device().record([Verify(logits, tree)], variant=pool.on_device().needed_variant())
        found.append(pool.fetch().emitted())
        logits[:] = own(whole[2], plan)
        pool.replay(graph)
        verified = pool.fetch()
        seen = {name: np.asarray(pool.on_device().outputs(name)) for name in ("tokens", "accepted", "rows")}
        assert seen["tokens"].tolist() == verified.tokens.tolist()
        assert seen["rows"][verified.request(0).places].tolist() == verified.request(0).rows.tolist()
        found += [verified.emitted(), seen["accepted"].tolist()]
        pool.assign(Batch(slots, plan=pool.plan(slots)))
        pool.enqueue([Shorten(np.array([0, 1, 0, 1], np.int64))])
        return [*found, [pool.output(slot) for slot in slots]]

    alone = Pool(VOCAB, slots=8)
    slots = [alone.admit(params, [3, 7]) for params in PARAMS[:4]]
    wanted: list[Any] = [alone.step(whole[0][:4], slots).tolist()]
    outs = [alone.verify(batch, Batch(slots, mode=mode), Drafts(drafts, parents=parents)) for batch in whole[1:]]
    alone.shorten(slots, [0, 1, 0, 1])
    wanted += [*(out.emitted() for out in outs), outs[1].accepted.tolist(), [alone.output(slot) for slot in slots]]
    assert on_threads(2, work) == [wanted] * 2


def test_what_a_device_does_not_spread_is_told(tmp_path: Path) -> None:
    ranks = Ranks(0, [f"unix:{tmp_path}/0"])
    with pytest.raises((ValueError, UnavailableError), match="tpu"):
        Pool(VOCAB, ranks=ranks, device="tpu")
    if EMULATOR:
        ranks = Ranks(0, [f"unix:{tmp_path}/0"], layouts=["survey"], layout="survey")
        with pytest.raises(ValueError, match="layout cannot be combined with kept"):
            Pool(VOCAB, ranks=ranks, device="emulated", kept=True)


def test_a_signal_is_heard_while_ranks_are_waited_for(tmp_path: Path, alarm: Callable[[], None]) -> None:
    addresses = [f"unix:{tmp_path}/{rank}" for rank in range(2)]
    for rank in range(2):
        alarm()
        with pytest.raises(Heard):
            Pool(VOCAB, ranks=Ranks(rank, addresses, timeout=600))
    other: list[Pool] = []
    thread = threading.Thread(target=lambda: other.append(Pool(VOCAB, ranks=Ranks(1, addresses))))
    thread.start()
    pool = Pool(VOCAB, ranks=Ranks(0, addresses, timeout=600))
    thread.join()
    slot, logits = pool.admit(SamplingParams(seed=1)), np.zeros((1, pool.ranks.ids[1]), np.float32)
    alarm()
    with pytest.raises(Heard):
        pool.step(logits, [slot])
    assert pool.output(slot) == []
    with pytest.raises(dist.BrokenError, match="was interrupted"):
        pool.step(logits, [slot])
