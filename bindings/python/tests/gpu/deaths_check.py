"""Kills and stops one of two ranks at each point of a pool's life, over every transport and layout, and says what the other rank's calls did.

`deaths_check.py [OUT.jsonl [PART [LANES]]]`: the whole matrix with two GPUs, else that of rows in host memory; PART of it, "1/10" or
"nccl,replay,SIGKILL", by transports, layouts, points and signals. OUT gets a line a cell as it is done. Each cell is two processes, forked from this one before it touches CUDA. Every call of the rank that lives must return
within the timeout and a second more, one of them with an error of `gumball.dist`, and `close` within a second. A cell that hangs is ended and told,
and keeps no other from its turn.

Needs torch; with GPUs NCCL, too, and kernels that are carried or were compiled before.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from gumball import Batch, Pool, Ranks, SamplingParams, Step, dist

VOCAB, WORLD, ROWS = 4096, 2, 4
PARAMS = [SamplingParams(seed=1), SamplingParams(seed=2, temperature=0.0), SamplingParams(seed=3, top_k=50, top_p=0.9)]
DRAFTS = [[4, 5], [6], []]
# What the other rank does once one has died. Where it dies while they join, after so many parts of a hundred of the time that it takes.
JOINING = [f"join {part}" for part in (1, 10, 25, 40, 55, 70, 85, 95)]
CALLS = ["first step", "later step", "masked step", "verify", "score", "close"]
ON_DEVICE = ["enqueue", "enqueue ahead", "capture", "replay"]
LAYOUTS = ["gather", "swap", "survey", "replicated"]
# By transport: its layouts, and the timeout of its pools; to join by NCCL alone takes more than a second.
ON_HOST = {"unix": (LAYOUTS, 1.0), "gloo": (LAYOUTS, 1.0)}
ON_GPUS = {
    "onesided": (LAYOUTS, 1.0),
    "nccl": (["gather", "swap", "replicated"], 4.0),
    "communicator": (["gather", "swap"], 4.0),
    "onesided by torch": (["swap"], 4.0),
    "nccl by torch": (["swap"], 4.0),
    "host by torch": (["gather", "swap"], 4.0),
}
# Seconds that a call may take beyond the timeout, those of `close`, and those after which a cell is ended.
BEYOND, CLOSE, HUNG = 1.0, 1.0, 45.0


class Rank:
    """One of the two processes of a cell."""

    def __init__(self, rank: int, folder: str, cell: dict[str, Any], say: Any) -> None:
        self.rank, self.folder, self.cell, self.say = rank, folder, cell, say
        self.transport, self.layout, self.timeout = cell["transport"], cell["layout"], cell["timeout"]
        self.on_device = self.transport in ON_GPUS and self.transport != "host by torch"
        self.device = f"cuda:{rank}" if self.on_device else "cpu"

    def ready(self) -> None:
        """What comes before the pool: a process group of torch, if it takes one, whose ranks have met."""
        if self.transport in ON_GPUS:
            os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "0"
            torch.cuda.set_device(self.rank)
            torch.zeros(1, device=f"cuda:{self.rank}")
        if self.transport in ("unix", "onesided", "nccl"):
            return
        backend = "gloo" if self.transport == "gloo" else "nccl"
        store = f"file://{self.folder}/store"
        torch.distributed.init_process_group(
            backend, init_method=store, rank=self.rank, world_size=WORLD, timeout=timedelta(seconds=60)
        )
        if self.transport == "communicator":
            torch.distributed.all_reduce(torch.ones(1, device=self.device))
            torch.cuda.synchronize()

    def join(self) -> Pool:
        given: dict[str, Any] = {"layouts": [self.layout], "layout": self.layout, "timeout": self.timeout}
        options: dict[str, Any] = {"slots": 8}
        if self.on_device:
            options |= {"rows": 16, "device": self.device}
            given["transport"] = "onesided" if self.transport.startswith("onesided") else "nccl"
        if self.transport in ("unix", "onesided", "nccl"):
            return Pool(
                VOCAB, ranks=Ranks(self.rank, [f"unix:{self.folder}/{it}" for it in range(WORLD)], **given), **options
            )
        everyone = torch.distributed.group.WORLD
        if self.transport == "communicator":
            given["communicator"] = everyone._get_backend(torch.device("cuda"))._comm_ptr()
        if self.transport == "gloo":
            return dist.join(VOCAB, **{**given, "transport": "torch"}, **options)
        return Pool(VOCAB, ranks=Ranks(group=everyone, **given), **options)

    def part(self, pool: Pool, plan: Any, starts: list[int]) -> torch.Tensor:
        whole = torch.randn(starts[-1], VOCAB, generator=torch.Generator().manual_seed(7)) * 2.5
        if plan.layout == "replicated":
            rows = [row for request in plan.requests for row in range(starts[request], starts[request + 1])]
            return whole[rows].to(self.device)
        first, end = pool.ranks.ids
        return whole[:, first:end].contiguous().to(self.device)

    def step(self, pool: Pool, slots: list[int], **options: Any) -> None:
        plan = pool.plan(slots)
        pool.step(self.part(pool, plan, [0, 1, 2, 3]), Batch(slots, plan=plan, **options))

    def live(self) -> None:
        point, is_last = self.cell["point"], self.rank == WORLD - 1
        self.ready()
        self.say("ready", None)
        began = time.perf_counter()
        self.free = torch.cuda.mem_get_info()[0] if self.on_device else 0
        try:
            pool = self.join()
        except Exception as error:
            return self.tell([["join", time.perf_counter() - began, kind(error), str(error)[:300]]], None)
        self.say("joined", time.perf_counter() - began)
        slots = [pool.admit(params, [3, 7]) for params in PARAMS]
        if point.startswith("join"):
            # It was killed when the pool was made.
            point = "later step"
        elif point not in ("first step", "close"):
            self.step(pool, slots)
            if point in ("later step", "enqueue ahead"):
                self.step(pool, slots)
        graph = None
        if point == "replay":
            graph, place = self.captured(pool, slots)
        # All that is before has been done on both.
        self.say("there", None)
        if is_last:
            if self.cell["point"].startswith("join"):
                time.sleep(HUNG)
            os.kill(os.getpid(), signal.Signals[self.cell["signal"]])
            time.sleep(HUNG)
        self.cell["wait"]()
        calls: list[list[Any]] = []

        def call(name: str, work: Any) -> bool:
            began = time.perf_counter()
            error = None
            try:
                work()
            except Exception as raised:
                error = raised
            took = time.perf_counter() - began
            if error is not None or not calls or calls[-1][0] != name or calls[-1][2]:
                calls.append([name, took, error and kind(error), error and str(error)[:300]])
            else:
                calls[-1][1] = max(calls[-1][1], took)
            return error is None

        if point != "close":
            self.go_on(pool, slots, point, call, graph)
        call("close", pool.close)
        if graph is not None:
            del graph
        self.tell(calls, pool)

    def captured(self, pool: Pool, slots: list[int]) -> tuple[Any, torch.Tensor]:
        plan = pool.plan(slots)
        place = self.part(pool, plan, [0, 1, 2, 3])
        pool.assign(Batch(slots, plan=plan))
        return pool.capture([Step(place)]), place

    def go_on(self, pool: Pool, slots: list[int], point: str, call: Any, graph: Any) -> None:
        plan = pool.plan(slots)
        part = self.part(pool, plan, [0, 1, 2, 3])
        if point in ("first step", "later step"):
            call("step", lambda: pool.step(part, Batch(slots, plan=plan)))
        elif point == "masked step":
            masks = torch.full((3, VOCAB // 32), -1, dtype=torch.int32)
            call("masked step", lambda: pool.step(part, Batch(slots, plan=plan, masks=masks)))
        elif point == "verify":
            verified = pool.plan(slots, drafts=2)
            drafted = self.part(pool, verified, [0, 3, 5, 6])
            call("verify", lambda: pool.verify(drafted, Batch(slots, plan=verified), DRAFTS))
        elif point == "score":
            first, end = pool.ranks.ids
            rows = torch.randn(3, end - first).to(self.device)
            call("score", lambda: pool.score(rows, PARAMS[0], [4, 5, 6, 7]))
        elif point == "replay":
            if all(call("replay", lambda: pool.replay(graph)) for _ in range(2000)):
                call("fetch", pool.fetch)
        else:
            call("assign", lambda: pool.assign(Batch(slots, plan=plan)))
            count = 1500 if point == "enqueue ahead" else 1
            going = all(call("enqueue", lambda: pool.enqueue([Step(part)])) for _ in range(count))
            if point == "capture" and going:
                going = call("capture", lambda: self.captured(pool, slots))
            if going:
                call("fetch", pool.fetch)

    def tell(self, calls: list[list[Any]], pool: Pool | None) -> None:
        freed = []
        if self.on_device:
            # Once with the other rank stopped, and once after that has ended.
            for moment in ("stopped", "ended"):
                if moment == "ended":
                    self.say("told", calls)
                    self.cell["wait"]()
                until = time.monotonic() + 1.0
                while time.monotonic() < until and self.free - torch.cuda.mem_get_info()[0] > 1 << 20:
                    time.sleep(0.05)
                freed.append(self.free - torch.cuda.mem_get_info()[0])
        self.say("calls", [calls, freed])


def kind(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, dist.DistError) else f"untyped {type(error).__name__}"


def run(rank: int, folder: str, cell: dict[str, Any], pipe: Any) -> None:
    # A rank that is left behind ends with the process that started it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    with open(f"{folder}/stack.{rank}", "w") as stack:
        faulthandler.enable(stack)
        faulthandler.dump_traceback_later(HUNG - 5, file=stack)
        begin(rank, folder, cell, pipe)


def begin(rank: int, folder: str, cell: dict[str, Any], pipe: Any) -> None:
    cell["wait"] = pipe.recv

    def say(name: str, found: Any) -> None:
        pipe.send((name, found))

    try:
        Rank(rank, folder, cell, say).live()
    except BaseException:
        say("failed", traceback.format_exc()[-1500:])
    # Nothing of CUDA's or torch's own end may hold a rank.
    os._exit(0)


forking = threading.Lock()
join_seconds: dict[str, float] = {}


def pair(cell: dict[str, Any]) -> dict[str, Any]:
    """Runs a cell, and returns what became of it."""
    context, until = multiprocessing.get_context("fork"), time.monotonic() + HUNG
    found: dict[str, Any] = {**cell, "verdict": "HUNG", "calls": []}
    with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
        pipes = [context.Pipe() for _ in range(WORLD)]
        ranks = [context.Process(target=run, args=(rank, folder, cell, pipes[rank][1])) for rank in range(WORLD)]
        with forking:
            for process in ranks:
                process.start()
        for _, theirs in pipes:
            theirs.close()
        here = [ours for ours, _ in pipes]

        def heard(rank: int, *names: str) -> tuple[str, Any]:
            while time.monotonic() < until:
                if here[rank].poll(0.05):
                    said = here[rank].recv()
                    if said[0] in ("failed", *names):
                        return said
            raise TimeoutError(f"rank {rank} said nothing of {names}")

        try:
            last = WORLD - 1
            for rank in range(WORLD):
                name, said = heard(rank, "ready")
                if name == "failed":
                    raise RuntimeError(said)
            if cell["point"].startswith("join"):
                part = int(cell["point"].split()[1]) / 100
                time.sleep(part * join_seconds.get(cell["transport"], 0.3))
                # A rank that has given up the join itself is not there any more.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ranks[last].pid, signal.Signals[cell["signal"]])
            name, said = heard(0, "there", "told", "calls")
            if name == "there":
                if not cell["point"].startswith("join"):
                    heard(last, "there")
                    # So the signal has come.
                    time.sleep(0.1)
                here[0].send("go on")
                name, said = heard(0, "told", "calls")
            if name == "told":
                ranks[last].kill()
                here[0].send("it has ended")
                name, said = heard(0, "calls")
            if name == "failed":
                raise RuntimeError(said)
            found["calls"], found["freed"] = said
            found["verdict"] = judged(cell, found["calls"])
        except (EOFError, ConnectionError) as error:
            ranks[0].join(5)
            with open(f"{folder}/stack.0") as stack:
                found["verdict"] = f"FAILED: rank 0 ended by {ranks[0].exitcode} {error}: {stack.read()[:1500]}"
        except RuntimeError as error:
            found["verdict"] = f"FAILED: {error}"
        except TimeoutError as error:
            with open(f"{folder}/stack.0") as stack:
                found["verdict"] = f"HUNG: {error}: {stack.read()[:1500]}"
        finally:
            for process in ranks:
                process.kill()
                process.join(5)
    return found


def judged(cell: dict[str, Any], calls: list[list[Any]]) -> str:
    """What is wrong with the calls of a cell, or "good"."""
    wrong = [
        f"{name} took {took:.2f}" for name, took, *_ in calls if name != "close" and took > cell["timeout"] + BEYOND
    ]
    wrong += [f"close took {took:.2f}" for name, took, *_ in calls if name == "close" and took > CLOSE]
    errors = [error for _, _, error, _ in calls if error]
    wrong += [error for error in errors if error.startswith("untyped")]
    if not errors and cell["point"] != "close":
        wrong.append("no error")
    return "; ".join(wrong) or "good"


def seconds_to_join(transport: str, layout: str) -> float:
    """How long two ranks take that both live."""
    cell = {"transport": transport, "layout": layout, "timeout": 20.0, "point": "close", "signal": "SIGKILL"}
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
        pipes = [context.Pipe() for _ in range(WORLD)]
        ranks = [context.Process(target=run, args=(rank, folder, dict(cell), pipes[rank][1])) for rank in range(WORLD)]
        with forking:
            for process in ranks:
                process.start()
        took, until = 0.3, time.monotonic() + HUNG
        while time.monotonic() < until:
            if pipes[0][0].poll(0.05):
                name, said = pipes[0][0].recv()
                if name in ("joined", "failed", "calls"):
                    print(f"{transport}: join {said}", flush=True)
                    took = said if name == "joined" else took
                    break
        for process in ranks:
            process.kill()
            process.join(5)
    return took


def told(cell: dict[str, Any]) -> str:
    """A line on a cell that is done, which gets the first error and the seconds of `close` besides."""
    cell["error"] = next(([name, round(took, 2), error] for name, took, error, _ in cell["calls"] if error), None)
    cell["close"] = next((round(took, 2) for name, took, *_ in cell["calls"] if name == "close"), None)
    named = f"{cell['transport']:18} {cell['layout']:10} {cell['signal']} {cell['point']:13}"
    return f"{named} {cell['error']} close {cell['close']} freed {cell.get('freed')} {cell['verdict']}"


def cells(kinds: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for transport, (layouts, timeout) in kinds.items():
        on_device = transport in ON_GPUS and transport != "host by torch"
        for layout in layouts:
            joining = JOINING if layout == layouts[0] else []
            # Scores take parts of rows.
            calls = [call for call in CALLS if call != "score" or layout != "replicated"]
            for point in joining + calls + (ON_DEVICE if on_device else []):
                for sent in ("SIGKILL", "SIGSTOP"):
                    made.append(
                        {"transport": transport, "layout": layout, "point": point, "signal": sent, "timeout": timeout}
                    )
    return made


def main() -> int:
    out, part, lanes = [*sys.argv[1:], None, None, None][:3]
    # Asked without CUDA, which a fork would not survive.
    gpus = len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])
    kinds = {**ON_HOST, **(ON_GPUS if gpus >= WORLD else {})}
    made = cells(kinds)
    if part and part[0].isalpha():
        words = set(part.split(","))
        for name in ("transport", "layout", "point", "signal"):
            known = {cell[name] for cell in made} & words
            made = [cell for cell in made if not known or cell[name] in known]
    elif part:
        number, parts = (int(each) for each in part.split("/"))
        random.Random(7).shuffle(made)
        made = made[number % parts :: parts]
    lanes = int(lanes or min(12, max(2, (os.cpu_count() or 2) // 3)))
    began = time.monotonic()
    for transport in dict.fromkeys(cell["transport"] for cell in made):
        join_seconds[transport] = seconds_to_join(transport, kinds[transport][0][0])
    # Those that take long first.
    made.sort(key=lambda cell: (-cell["timeout"], cell["signal"] == "SIGKILL"))
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(lanes) as workers, open(out or os.devnull, "w") as file:
        for done in as_completed([workers.submit(pair, cell) for cell in made]):
            print(told(done.result()), flush=True)
            found.append(done.result())
            print(json.dumps(done.result()), file=file, flush=True)
    wrong = [each for each in found if each["verdict"] != "good"]
    text = next((each["calls"] for each in wrong if each["calls"]), None)
    if text:
        print(f"the first wrong one said: {text}")
    for transport in kinds:
        of = [each for each in found if each["transport"] == transport]
        slowest = max((each["error"][1] for each in of if each["error"]), default=0)
        verdicts = dict(Counter(each["verdict"].split(":")[0] if each["verdict"] != "good" else "good" for each in of))
        print(
            f"{transport}: {len(of)} cells, slowest error {slowest} s of a timeout of {kinds[transport][1]} s, {verdicts}"
        )
    seconds = time.monotonic() - began
    print(
        f"VERDICT: deaths {'FAILED' if wrong else 'passed'}: {len(found)} cells in {seconds:.0f} s, {len(wrong)} wrong, {gpus} GPUs"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
