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
from gumball import Batch, Drafts, Outputs, Pool, Ranks, SamplingParams, Shorten, Step, UnavailableError, Verify, dist
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
def join(address, rank, world=2, **options):
    of_ranks = {name: options.pop(name) for name in gumball.Ranks.__dataclass_fields__ if name in options}
    return gumball.Pool(VOCAB, ranks=gumball.Ranks(rank, [f"{address}.{it}" for it in range(world)], **of_ranks), **options)
"""
COMMON = (
    REQUESTS
    + """
rank, world, address, given = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
"""
)
HERE: dict[str, Any] = {}
exec(REQUESTS, HERE)
PARAMS, rows, join = HERE["PARAMS"], HERE["rows"], HERE["join"]


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


def test_ranks_say_what_is_wrong_with_others() -> None:
    body = """
        def said(call):
            try:
                call()
            except Exception as error:
                return [type(error).__name__, getattr(error, "rank", None), getattr(error, "what", None), str(error)]
        found = []
        def make(folder, **options):
            return join(f"{address}.{folder}", rank, world, **options)
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
    with pytest.raises(ValueError, match="rows has length 899"):
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


def test_joining_asks_torch() -> None:
    with pytest.raises(RuntimeError, match="no process group of torch"):
        dist.join(VOCAB)


LAYOUTS = ["gather", "swap", "replicated", "survey"]
PLACES = [("cpu", layout) for layout in LAYOUTS] + [("emulated", layout) for layout in LAYOUTS[:3] if EMULATOR]


@pytest.mark.parametrize(("device", "layout"), PLACES)
def test_ranks_step_and_verify_as_one_process(device: str, layout: str, tmp_path: Path) -> None:
    drafts, parents, mode = [[4, 5], [6], [], [7, 8], [9]], [[-1, 0], [-1], [], [-1, -1], [-1]], "rejection"
    counts, first_rows, whole = [2, 1, 0, 2, 1], [0, 3, 5, 6, 9, 11], [rows(step, 11) for step in range(3)]
    for batch in whole:
        batch[:, 4:9] += 6

    def told(out: Outputs) -> list[Any]:
        return [out.tokens.tolist(), out.logprobs.tolist(), out.top_ids.tolist()]

    def work(rank: int) -> list[Any]:
        given: dict[str, Any] = {"layouts": [layout], "layout": layout, "rows": 16, "slots": 8, "top_n": 2}
        if layout == "swap":
            given |= {"split": [100, 800], "ownership": "modulo" if device == "cpu" else "blocks"}
        pool = join(f"unix:{tmp_path}/ranks", rank, device=device, **given)
        slots, (start, end) = [pool.admit(params, [3, 7]) for params in PARAMS], pool.ranks.ids

        def own(batch: np.ndarray, plan: Any, starts: list[int]) -> np.ndarray:
            if plan.layout != "replicated":
                return np.ascontiguousarray(batch[:, start:end])
            return batch[[row for it in plan.requests for row in range(starts[it], starts[it + 1])]]

        plan = pool.plan(slots)
        transport = "unix" if device == "cpu" else "onesided"
        assert (pool.device, pool.ranks.transport, plan.layout) == (device, transport, layout)
        found = told(pool.step(own(whole[0][:5], plan, [*range(6)]), Batch(slots, plan=plan)))
        plan = pool.plan(slots, drafts=2)
        assert plan.layout == layout
        found.append(pool.verify(own(whole[1], plan, first_rows), Batch(slots, plan=plan), drafts).emitted())
        # What lies in the memory of the pool, enqueued and in a graph.
        plan = pool.plan(slots, drafts=2, step="judge")
        logits, ids = own(whole[1], plan, first_rows), np.array(sum(drafts, []), np.int64)
        work = [Verify(logits, Drafts(ids, parents=np.array(sum(parents, []), np.int32)))]
        pool.assign(Batch(slots, counts=counts, mode=mode, plan=plan))
        if device == "cpu":
            pool.enqueue(work)
        else:
            graph = pool.capture(work)
            pool.on_device().record(work, variant=pool.on_device().needed_variant())
        found.append(pool.fetch().emitted())
        logits[:] = own(whole[2], plan, first_rows)
        pool.enqueue(work) if device == "cpu" else pool.replay(graph)
        verified = pool.fetch()
        if device != "cpu":
            seen = {name: np.from_dlpack(pool.on_device().outputs(name)) for name in ("tokens", "accepted", "rows")}
            assert seen["tokens"].tolist() == verified.tokens.tolist()
            assert seen["accepted"].tolist() == verified.accepted.tolist()
            assert seen["rows"][verified.request(0).places].tolist() == verified.request(0).rows.tolist()
        found += [verified.emitted(), verified.accepted.tolist()]
        pool.assign(Batch(slots, plan=pool.plan(slots)))
        pool.enqueue([Shorten(np.array([0, 1, 0, 1, 0], np.int64))])
        return [*found, [pool.output(slot) for slot in slots]]

    alone = Pool(VOCAB, slots=8, top_n=2)
    slots = [alone.admit(params, [3, 7]) for params in PARAMS]
    wanted = told(alone.step(whole[0][:5], slots))
    wanted.append(alone.verify(whole[1], slots, drafts).emitted())
    outs = [alone.verify(batch, Batch(slots, mode=mode), Drafts(drafts, parents=parents)) for batch in whole[1:]]
    alone.shorten(slots, [0, 1, 0, 1, 0])
    wanted += [*(out.emitted() for out in outs), outs[1].accepted.tolist(), [alone.output(slot) for slot in slots]]
    # NaN is no logprob, and NaN is not NaN.
    assert json.dumps(on_threads(2, work)) == json.dumps([wanted] * 2)


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
