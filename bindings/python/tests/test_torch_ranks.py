"""Ranks that exchange by a process group of torch: what one process draws, and what is said when a rank dies, hangs or leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumball import Pool, SamplingParams

torch = pytest.importorskip("torch")

VOCAB, WORLD = 900, 3

# A program of processes that torch starts, `main` in each.
COMMON = f"""
import json, os, signal, sys, time, traceback
import numpy as np, torch, torch.distributed as distributed, torch.multiprocessing as multiprocessing
import gumball
from gumball import SamplingParams, dist
from gumball.torch_ranks import TorchRanks

VOCAB, WORLD, FOLDER = {VOCAB}, {WORLD}, sys.argv[1]
PARAMS = [SamplingParams(seed=1), SamplingParams(seed=2, top_k=20, top_p=0.9), SamplingParams(seed=3, top_p=0.8)]

def rows(step):
    return np.random.default_rng(step).normal(0, 2.5, (len(PARAMS), VOCAB)).astype(np.float32)

def said(call):
    try:
        return call()
    except Exception as error:
        return [type(error).__name__, getattr(error, "rank", None), str(error)]

def start(rank):
    distributed.init_process_group("gloo", init_method=f"file://{{FOLDER}}/store", rank=rank, world_size=WORLD)
    found = main(rank)
    with open(f"{{FOLDER}}/{{rank}}.json", "w") as file:
        json.dump(found, file)

def step(pool, slots, number, layout):
    plan = pool.plan(slots)
    assert plan.layout == layout
    whole, (first, end) = rows(number), pool.ranks.ids
    return pool.step(whole[plan.requests] if layout == "replicated" else whole[:, first:end], gumball.Batch(slots, plan=plan)).tolist()

def made(group, layout, timeout=20.0):
    return gumball.Pool(VOCAB, slots=8, ranks=gumball.Ranks(
        group=group, layouts=[layout], layout=layout, timeout=timeout
    ))
"""

MAIN = """
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=start, args=(rank,)) for rank in range(WORLD)]
    for process in started:
        process.start()
    for process in started:
        process.join()
"""


def run(tmp_path: Path, body: str, ranks: range | tuple[int, ...] = range(WORLD)) -> list[Any]:
    """Runs `main` on each rank, and returns what it returned on some."""
    program = tmp_path / "program.py"
    program.write_text(COMMON + textwrap.dedent(body) + MAIN)
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=200)
    missing = [rank for rank in ranks if not (tmp_path / f"{rank}.json").exists()]
    assert not missing, f"{missing}: {done.stderr}"
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in ranks]


def alone(steps: int) -> list[list[int]]:
    """What one process draws from whole rows."""
    pool = Pool(VOCAB, slots=8)
    params = [SamplingParams(seed=1), SamplingParams(seed=2, top_k=20, top_p=0.9), SamplingParams(seed=3, top_p=0.8)]
    slots = [pool.admit(each, [3, 7]) for each in params]
    rows = (np.random.default_rng(step).normal(0, 2.5, (3, VOCAB)).astype(np.float32) for step in range(steps))
    return [pool.step(each, slots).tolist() for each in rows]


def test_ranks_draw_what_one_process_draws_and_pools_follow_each_other(tmp_path: Path) -> None:
    body = """
    def main(rank):
        found = []
        for layout in ("gather", "swap", "survey", "replicated"):
            # Sockets on one host unless told otherwise; the pool before has not been waited for.
            pool = dist.join(VOCAB, transport="torch", layouts=[layout], layout=layout, slots=8)
            slots = [pool.admit(params, [3, 7]) for params in PARAMS]
            found.append([pool.ranks.transport, [step(pool, slots, number, layout) for number in range(4)]])
        found.append(dist.join(VOCAB).ranks.transport)
        pair = distributed.new_group([0, 2])
        if rank == 1:
            found.append(said(lambda: gumball.Pool(VOCAB, ranks=gumball.Ranks(group=pair))))
        else:
            pool = gumball.Pool(VOCAB, ranks=gumball.Ranks(group=pair))
            found.append([pool.ranks.rank, pool.ranks.world, pool.ranks.ids])
        # The program's own messages go on beside ours.
        distributed.barrier()
        distributed.destroy_process_group()
        return found
    """
    found = run(tmp_path, body)
    for each in found:
        assert each[:4] == [["torch", alone(4)]] * 4 and each[4] == "unix"
    assert [found[0][5], found[2][5]] == [[0, 2, [0, 450]], [1, 2, [450, 900]]]
    assert found[1][5][:1] == ["InvalidValueError"] and "this process is not in" in found[1][5][2]


@pytest.mark.slow
def test_a_rank_that_fails_at_any_exchange_is_told_and_a_new_group_goes_on(tmp_path: Path) -> None:
    body = """
    class EndsError(Exception):
        pass

    def main(rank):
        whole, move, at, is_stalled = TorchRanks.exchange, TorchRanks._move, None, False
        def moved(self, send, receive, start, end):
            nonlocal is_stalled
            if is_stalled and start:
                # After its frames, in the middle of a message.
                is_stalled = False
                time.sleep(1.5)
            return move(self, send, receive, start, end)
        def exchange(self, *given):
            nonlocal at, is_stalled
            if at is not None:
                at -= 1
                if at < 0 and kind == "dies":
                    self.leave()
                    raise EndsError
                if at < 0:
                    at, is_stalled = None, kind == "stalls"
                    if kind == "hangs":
                        time.sleep(1.5)
            return whole(self, *given)
        TorchRanks.exchange, TorchRanks._move = exchange, moved
        tokens, number, states = [], 0, None

        def resumed(layout, timeout):
            pool = made(distributed.new_group(list(range(WORLD))), layout, timeout)
            if states is None:
                return pool, [pool.admit(params, [3, 7]) for params in PARAMS]
            return pool, [pool.resume(params, state) for params, state in zip(PARAMS, states)]

        found = []
        for layout in ("gather", "swap", "survey"):
            for kind in ("dies", "hangs", "stalls") if layout == "gather" else ("dies", "hangs"):
                exchange_number, most = 0, 1
                while exchange_number < most:
                    pool, slots = resumed(layout, 20.0)
                    before = sum(each[0] for each in pool.counts()["traffic"].values())
                    tokens.append(step(pool, slots, number, layout))
                    most = sum(each[0] for each in pool.counts()["traffic"].values()) - before
                    number, states = number + 1, [pool.state(slot) for slot in slots]
                    pool, slots = resumed(layout, 20.0 if kind == "dies" else 0.5)
                    at, since = exchange_number if rank == 1 else None, time.monotonic()
                    fault = said(lambda: step(pool, slots, number, layout))
                    took, at = time.monotonic() - since, None
                    has_moved = [pool.state(slot) for slot in slots] != states
                    again = said(lambda: step(pool, slots, number, layout))[0]
                    found.append([layout, kind, exchange_number, fault[:2], again, has_moved, took])
                    exchange_number += 1
        return [tokens, found]
    """
    all_found = run(tmp_path, body)
    for rank, (tokens, found) in enumerate(all_found):
        assert tokens == alone(len(tokens))
        assert {each[0] for each in found} == {"gather", "swap", "survey"} and len(found) >= 12
        for layout, kind, exchange, (name, of), again, moved, took in found:
            if rank == 1:
                continue
            context = f"{layout}, {kind} at {exchange} on {rank}"
            # A rank that times out leaves, so the other may see that first.
            assert name == "LostError" and of == 1 if kind == "dies" else name in ("LateError", "LostError"), context
            assert again == "BrokenError" and not moved and took < 10, context


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["torch", "unix"])
def test_a_killed_rank_is_lost_at_once_and_the_others_go_on_without_it(tmp_path: Path, transport: str) -> None:
    body = f"""
    TRANSPORT = {transport!r}
    """
    body += """
    def main(rank):
        pool = dist.join(VOCAB, transport=TRANSPORT, timeout=60, layouts=["gather"], layout="gather", slots=8)
        slots = [pool.admit(params, [3, 7]) for params in PARAMS]
        tokens = [step(pool, slots, number, "gather") for number in range(2)]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        since = time.monotonic()
        lost = said(lambda: step(pool, slots, 2, "gather"))
        took, states = time.monotonic() - since, [pool.state(slot) for slot in slots]
        pool.close()
        group = distributed.new_group([0, 2], use_local_synchronization=True)
        pool = dist.join(VOCAB, group=group, transport=TRANSPORT, layouts=["swap"], layout="swap", slots=8)
        slots = [pool.resume(params, state) for params, state in zip(PARAMS, states)]
        tokens += [step(pool, slots, number, "swap") for number in (2, 3)]
        closed = None
        if rank == 0:
            pool.close()
        else:
            closed = said(lambda: step(pool, slots, 4, "swap"))
        return [tokens, lost, took, closed]
    """
    for tokens, lost, took, closed in run(tmp_path, body, (0, 2)):
        assert tokens == alone(4) and lost[:2] == ["LostError", 1] and took < 30
        assert "onnection" in lost[2] and "github" not in lost[2]
        reason = "it has closed its pool" if transport == "torch" else "its connection ended"
        assert closed is None or closed == ["LostError", 0, f"rank 0 is gone: {reason}"]


@pytest.mark.slow
def test_mistakes_signals_and_forks(tmp_path: Path) -> None:
    body = """
    class RangError(Exception):
        pass

    def ring(number, frame):
        raise RangError("rang")

    def main(rank):
        world = distributed.group.WORLD
        found = []
        for given in (dict(transport="unix"), dict(transport="threads"), dict(transport="onesided"), dict(rank=0)):
            found.append(said(lambda: gumball.Pool(VOCAB, ranks=gumball.Ranks(group=world, **given))))
        pool = made(world, "gather", 60.0)
        slots = [pool.admit(params, [3, 7]) for params in PARAMS]
        step(pool, slots, 0, "gather")
        child = os.fork()
        if child == 0:
            text = said(lambda: step(pool, slots, 1, "gather"))
            os._exit(0 if text[0] == "UnavailableError" and "os.fork" in text[2] else 1)
        found.append(os.waitpid(child, 0)[1])
        # Ranks that differ.
        if rank == 1:
            pool.push(slots[0], 9)
        found.append(said(lambda: step(pool, slots, 1, "gather")))
        pool = made(distributed.new_group(list(range(WORLD))), "gather", 60.0)
        slots = [pool.admit(params, [3, 7]) for params in PARAMS]
        if rank == 0:
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        # Rank 2 comes once rank 0 has given up, and rank 1 to no step.
        time.sleep([0, 4, 1.5][rank])
        since = time.monotonic()
        found.append(said(lambda: step(pool, slots, 1, "gather")) if rank != 1 else None)
        found.append(time.monotonic() - since)
        # A farewell while this rank waits for what is after a frame.
        ranks = TorchRanks(distributed.new_group(list(range(WORLD))))
        ranks.agree("", 20.0)
        message = bytearray(5 if rank == 2 else 5000)
        if rank == 0:
            ranks.exchange([message] * WORLD, [10] * WORLD, 1.0)
            ranks.close()
            time.sleep(2)
        else:
            found.append(ranks.exchange([message] * WORLD, [5000] * WORLD, 1.0)[1])
        # A rank that does not come to join.
        group = distributed.new_group(list(range(WORLD)))
        if rank != 1:
            found.append(said(lambda: dist.join(VOCAB, group=group, transport="torch", timeout=0.5)))
        time.sleep(1)
        return found
    """
    found = run(tmp_path, body)
    for rank, each in enumerate(found):
        assert each[0][2] == "no transport unix: the ranks were given by a process group of torch"
        assert each[1][2] == "no transport threads: the ranks were given by a process group of torch"
        assert each[2][2].startswith("no transport onesided: rows in host memory take")
        assert "group alone, must be given" in each[3][2]
        assert each[4] == 0
        assert each[5][0] == "DisagreeError" and "the output or position of a request" in each[5][2]
        assert each[7] < 10, rank
    assert found[0][6] == ["RangError", None, "rang"]
    assert found[2][6][:2] == ["LostError", 0]
    assert found[2][8][:2] == ["late", 0]
    # The one that times out first leaves, which the other may see before it has timed out.
    joined = [found[0][8], found[2][9]]
    assert ["LateError", 1, "rank 1 sent nothing for 0.5s"] in joined
    assert {each[0] for each in joined} <= {"LateError", "LostError"}


@pytest.mark.parametrize("transport", [pytest.param("torch", marks=pytest.mark.slow), "auto"])
def test_torchrun_starts_the_ranks(tmp_path: Path, transport: str) -> None:
    example = Path(__file__).parents[1] / "examples" / "08_processes.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    given = os.environ | {"GUMBALL_DIST_TRANSPORT": transport}
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Pool(32000, device=") == 2 and "the same tokens as one process draws" in done.stdout
    assert done.stdout.count(f'transport="{"torch" if transport == "torch" else "unix"}"') == 2


def test_a_rank_that_is_killed_or_stops_at_any_point_is_an_error_of_each_call_in_time() -> None:
    # A tenth of the matrix; all of it in long runs.
    part = ["1/1" if os.environ.get("GUMBALL_TEST_SLOW") else "3/10"]
    script = Path(__file__).parent / "gpu" / "deaths_check.py"
    done = subprocess.run([sys.executable, script, os.devnull, *part], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
