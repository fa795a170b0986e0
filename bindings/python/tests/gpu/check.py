"""The package on a GPU beside torch: `python check.py [NAME..]`. A line for each check; the verdict is the last.

Tokens are compared with those of a pool on the host, from the same logits. Needs torch with CUDA, and no pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gumball
from gumball import Batch, LogprobsParams, Mirostat, Outputs, Pool, SamplingParams, Step
from gumball.torch import PoolStep, tokens_of

VOCAB, ROWS, STEPS = 32_000, 6, 16
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PARAMS = [
    SamplingParams(temperature=0, seed=1),
    SamplingParams(seed=2),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=3, logprobs=LogprobsParams(top_n=2)),
    SamplingParams(top_p=0.9, repetition_penalty=1.2, seed=4),
    SamplingParams(temperature=1.2, min_p=0.05, seed=5),
    SamplingParams(mirostat=Mirostat(4, 0.1), seed=6),
]
Check = Callable[[], str]


def check(work: Check) -> Check:
    """Makes a function a check of the program that has it."""
    work.is_check = True  # type: ignore[attr-defined]
    return work


def refused(cases: list[tuple[Callable[[], object], Any, str]]) -> str:
    """Asserts that each call raises an error of its kind with its text."""
    for call, kind, text in cases:
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"not refused: {text}")
    return f"{len(cases)} mistakes"


def twins(vocab: int, params: list[SamplingParams], rows: int, **config: Any) -> tuple[Pool, Pool, list[int]]:
    """A pool on the GPU and its twin on the host, with the same requests in the same slots."""
    config = {"slots": 8, "top_n": 2} | config
    made = Pool(vocab, device="cuda:0", rows=rows, **config), Pool(vocab, **config)
    slots = [[pool.admit(one, [3, 1]) for one in params] for pool in made]
    assert slots[0] == slots[1]
    return *made, slots[0]


def pools(**config: Any) -> tuple[Pool, Pool, list[int]]:
    return twins(VOCAB, PARAMS, 8, **config)


def head(dtype: torch.dtype = torch.float32, extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(ROWS, 64, device="cuda", dtype=dtype, generator=generator)
    return hidden, torch.randn(64, VOCAB + extra, device="cuda", dtype=dtype, generator=generator) / 3


def model(hidden: torch.Tensor, weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Stands in for a model: logits that depend on the last tokens, which only the device knows yet."""
    return (hidden + torch.sin(tokens.float())[:, None].to(hidden.dtype) / 3) @ weights


def same(seen: Outputs, wanted: Outputs) -> None:
    for name in ("tokens", "statuses", "logprobs", "ranks", "temperatures", "mirostat_mu", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(seen, name), getattr(wanted, name), name)


def follow(host: Pool, slots: list[int], logits: torch.Tensor, tokens: torch.Tensor) -> Outputs:
    """Takes a step on the host, holds the GPU's tokens to its, and returns what came out."""
    wanted = host.step(logits.cpu(), slots)
    assert tokens.tolist() == wanted.tolist(), (tokens.tolist(), wanted)
    return wanted


@check
def eager() -> str:
    """On the default stream and on others, every type, rows further apart than they are long."""
    for dtype in DTYPES:
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                device, host, slots = pools()
                device.assign(slots)
                tokens, (hidden, weights), seen = tokens_of(device), head(dtype, 8), []
                for _ in range(STEPS):
                    logits = model(hidden, weights, tokens)[:, 5 : VOCAB + 5]
                    device.enqueue([Step(logits)])
                    seen.append((logits, tokens.clone()))
                for logits, drawn in seen:
                    follow(host, slots, logits, drawn)
                assert tokens.data_ptr() == torch.from_dlpack(device.on_device().outputs("tokens")).data_ptr()
                for slot in slots:
                    assert host.output(slot)[-1] == tokens[slots.index(slot)].item()
    return f"{len(DTYPES) * 2 * STEPS * ROWS} tokens"


@check
def across_streams() -> str:
    """A pool follows torch through its streams; what one enqueues the next one sees."""
    device, host, slots = pools()
    device.assign(slots)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    tokens, (hidden, weights) = tokens_of(device), head()
    last = torch.cuda.current_stream()
    for step in range(3 * STEPS):
        stream = streams[step % 3]
        stream.wait_stream(last)
        with torch.cuda.stream(stream):
            logits = model(hidden, weights, tokens)
            device.enqueue([Step(logits)])
            follow(host, slots, logits, tokens_of(device))
        last = stream
    fixed = Pool(VOCAB, device="cuda:0", slots=1, rows=1, stream=streams[1])
    with torch.cuda.stream(streams[1]):
        one = fixed.step(logits[:1].contiguous(), [fixed.admit(PARAMS[0])])
    assert one.tolist() == [int(logits[0].argmax())]
    return f"{3 * STEPS * ROWS} tokens"


@check
def in_a_graph_of_torch() -> str:
    """Captured on torch's own capture stream, replayed on the default one; requests come and go in between."""
    device, host, slots = pools(history_growth=4)
    device.assign(slots)
    tokens, (hidden, weights) = tokens_of(device), head()
    model(hidden, weights, tokens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(hidden, weights, tokens)
        recorded = device.on_device().record([Step(logits)])
    for step in range(STEPS):
        if step == STEPS // 2:
            for pool in (device, host):
                pool.release(slots[1])
                assert pool.admit(SamplingParams(seed=77, top_k=9)) == slots[1]
            device.assign(slots)
        device.on_device().before_replay(recorded)
        graph.replay()
        wanted = follow(host, slots, logits, tokens)
    same(device.fetch(), wanted)
    return f"{STEPS * ROWS} tokens"


@check
def what_a_graph_cannot_hold() -> str:
    """In a capture, what would wait or copy is refused, and the capture goes on."""
    device, host, slots = pools()
    device.assign(slots)
    hidden, weights = head()
    on_host = (hidden @ weights).cpu()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = hidden @ weights
        calls: list[Callable[[], object]] = [
            lambda: device.step(logits, slots),
            device.fetch,
            lambda: device.admit(PARAMS[0]),
            lambda: device.assign(slots[::-1]),
            lambda: device.enqueue([Step(on_host)]),
            lambda: device.enqueue([Step(logits)]),
        ]
        told = refused([(call, ValueError, "the capture of a graph") for call in calls])
        recorded = device.on_device().record([Step(logits)])
    for _ in range(STEPS):
        device.on_device().before_replay(recorded)
        graph.replay()
        follow(host, slots, logits, tokens_of(device))
    return f"{told}, {STEPS * ROWS} tokens"


@check
def arrays_of_two_memories() -> str:
    """Masks of either, rows of the host that are copied up, and what is told of the rest; nothing was changed then."""
    device, host, slots = pools()
    hidden, weights = head()
    logits = hidden @ weights
    words = torch.randint(-(2**31), 2**31 - 1, (ROWS, VOCAB // 32 + 3), dtype=torch.int32, device="cuda")
    for masks in (words, words[:, : VOCAB // 32], words.cpu()):
        device.assign(Batch(slots, masks=None if masks.is_cuda else masks))
        device.enqueue([Step(logits, masks=masks if masks.is_cuda else None)])
        same(device.fetch(), host.step(logits.cpu(), Batch(slots, masks=masks.cpu())))
    for rows in (logits.cpu(), logits.cpu().numpy()):
        same(device.step(rows, slots), host.step(logits.cpu(), slots))
    before = [device.state(slot) for slot in slots]
    some = Batch(slots, masks=words, mask_present=[True] * ROWS)
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: host.step(logits, slots), ValueError, "rows is on cuda:0, but must be on cpu"),
        (lambda: device.step(logits.double(), slots), TypeError, "rows is of float64"),
        (lambda: device.step(torch.zeros(VOCAB, ROWS, device="cuda").t(), slots), ValueError, "apart in a row"),
        (lambda: device.step(logits, Batch(slots, masks=words.float())), TypeError, "masks is of float32"),
        (lambda: device.step(logits, some), ValueError, "mask_present"),
        (lambda: gumball.Sampler(PARAMS[0], VOCAB).sample(logits[0]), ValueError, "use Pool"),
        (lambda: Pool(VOCAB, device="cuda:99"), gumball.UnavailableError, "99"),
    ]
    told = refused(cases)
    assert [device.state(slot) for slot in slots] == before
    return f"5 steps, {told}"


@check
def on_another_device() -> str:
    """A pool on the last device leaves torch's current device as it is."""
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(0):
        pool = Pool(VOCAB, device=f"cuda:{last}", slots=1, rows=1)
        logits = torch.zeros(1, VOCAB, device=f"cuda:{last}")
        logits[0, 7] = 1
        out = pool.step(logits, [pool.admit(PARAMS[0])])
        assert out.tolist() == [7] and torch.cuda.current_device() == 0
        assert tokens_of(pool).device == logits.device
    return f"cuda:{last} of {last + 1}"


@check
def receipts() -> str:
    """What a GPU drew in steps and verifications of drafts, under masks too, replays on the host to the bit; a bf16 row within what it was rounded by."""
    asked = LogprobsParams(mode=["edited", "radius"], top_n=4)
    settings: list[dict[str, Any]] = [
        dict(),
        dict(temperature=0),
        dict(temperature=0.8, top_k=50, top_p=0.9),
        dict(top_p=0.9),
    ]
    settings += [
        dict(min_p=0.05, repetition_penalty=1.3),
        dict(typical_p=0.9),
        dict(temperature=1.4, top_k=9, presence_penalty=0.4),
    ]
    tokens = within = 0
    for vocab in (900, 32_000, 151_936):
        mask = np.full((vocab + 31) // 32, -2, np.int32)
        params = [SamplingParams(seed=seed, logprobs=asked, **settings[seed % 7]) for seed in range(14)]
        pool = Pool(vocab, device="cuda:0", slots=14, rows=42, top_n=4)
        slots = [pool.admit(one, [3, 1]) for one in params]
        made = [gumball.Receipt(one, vocab, prompt=[3, 1]) for one in params]
        rows: list[list[torch.Tensor]] = [[] for _ in params]
        torch.manual_seed(vocab)
        for step in range(4):
            logits = (torch.randn(42, vocab, device="cuda") * 3).bfloat16().float()
            if step < 3:
                masks = np.stack([mask] * 14) if step == 1 else None
                out = pool.step(logits[:14], Batch(slots, masks=masks))
            else:
                out = pool.verify(logits, slots, [[1, 2]] * 14)
            for i in range(14):
                for place in range(len(out))[out.request(i).places] if step == 3 else [i]:
                    made[i].push(out, place, mask=mask if step == 1 else None)
                    rows[i].append(logits[3 * i + place - out.request(i).places.start if step == 3 else i].cpu())
        for i, receipt in enumerate(made):
            masks = [mask if step == 1 else None for step in range(len(rows[i]))]
            answers = gumball.verify_receipt(receipt.to_json(), rows[i], masks=masks)
            assert answers == ["equal"] * len(rows[i]), (vocab, i, answers)
            tokens += len(answers)
            if "typical_p" not in settings[i % 7]:
                near = [row + torch.rand(vocab) * 0.02 - 0.01 for row in rows[i]]
                found = gumball.verify_receipt(receipt.to_json(), near, masks=masks, tolerance=0.01001)
                assert set(found) <= {"equal", "within"}, (vocab, i, found)
                within += len(found)
    return f"{tokens} tokens equal, {within} within a hundredth"


@check
def compiled() -> str:
    """A step stands in what torch compiles."""
    device, host, slots = pools()
    device.assign(slots)
    draw, (hidden, weights) = PoolStep(device), head()

    @torch.compile(fullgraph=True)
    def decode(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = hidden @ weights
        return logits, draw(logits)

    for _ in range(STEPS):
        logits, drawn = decode(hidden)
        follow(host, slots, logits, drawn)
    return f"{STEPS * ROWS} tokens"


LOSES_ITS_CONTEXT = """
import gumball
from producers import Said

pool = gumball.Pool(900, slots=2, device="cuda:0", rows=2)
slots = [pool.admit(gumball.SamplingParams(top_k=50, stop_ids=[789], seed=54321)), pool.admit(gumball.SamplingParams(top_k=50))]
said = []
for _ in range(3):
    try:
        pool.step(Said((2, 900), (1 << 46) + (1 << 40), on_gpu=True), slots)
    except gumball.DeviceLostError as error:
        said.append(str(error))
try:
    gumball.Pool(900, slots=1, device="cuda:0", rows=1)
except gumball.UnavailableError as error:
    print(type(error).__name__, error)
assert len(said) == 3 and len(set(said)) == 1, said
print(said[0])
"""


@check
def a_lost_context() -> str:
    """After a wild read each call says the same: what was launched and what was asked for, without ids and seeds."""
    folder = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", LOSES_ITS_CONTEXT],
        env=os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for part in [
        "ILLEGAL_ADDRESS",
        "launched since the last wait that succeeded: ",
        "survey",
        "1 with parameters: top_k 50, stop_ids of 1",
        "1 with parameters: top_k 50",
    ]:
        assert part in ran.stdout, (part, ran.stdout)
    assert "789" not in ran.stdout and "54321" not in ran.stdout, ran.stdout
    return ran.stdout.strip().splitlines()[-1]


def run(subject: str) -> None:
    """Runs the checks of this program that the command line names, or all; ends the program."""
    named, failed = sys.argv[1:], 0
    of_program = [work for work in vars(sys.modules["__main__"]).values() if hasattr(work, "is_check")]
    for work in of_program:
        if named and work.__name__ not in named:
            continue
        try:
            print(f"{work.__name__}: {work()}", flush=True)
        except Exception:
            failed += 1
            print(f"{work.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
    print(
        f"VERDICT: {failed} of the checks of {subject} FAILED"
        if failed
        else f"VERDICT: {subject} on this GPU: what the host makes"
    )
    sys.exit(failed > 0)


if __name__ == "__main__":
    run("the package's pools")
