"""What gumball-tokenspeed does in TokenSpeed's own sampling package on a GPU: `check.py CASE..`, each by itself; without one, all but `ranks`.

`texts` and `texts_bf16`: 48 requests draw the same tokens alone, among all, and joining others with prompts in parts and after a retraction, by
graphs that TokenSpeed's way captures and by steps that nobody waits between; a `gumball.Sampler` draws them again on the CPU from the very
logits. `drafts`: chains and trees change no token. `greedy`: the same tokens and logprobs as TokenSpeed's own backends. `waits`: the host waits
for the device in no step. `kept`: kept sets, by graphs, are those of samplers on the CPU. `ranks`: the same with `--dp-sampling`, on as many GPUs as there are, at most 2.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gumball_tokenspeed.kept import SWITCH, extras_of
from gumball_tokenspeed.params import params_of
from gumball_tokenspeed.requests import told
from served import PROMPT, VOCAB, Server, request

import gumball

COUNT, LENGTH, TABLE = 48, 24, 256
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {"77": 9.0, "5": -100.0}, "repetition_penalty": 1.1},
    {"temperature": 1.2, "top_k": 100, "custom_params": {"xtc_probability": 0.5, "xtc_threshold": 0.05}},
    {"temperature": 1.0, "custom_params": {"dry_multiplier": 0.8, "no_repeat_ngram": 3}},
    {"temperature": 0.9, "logit_bias": {"90": 20.0}, "min_new_tokens": 10, "stop_token_ids": {90}},
    {"temperature": 1.0, "custom_params": {"mirostat_tau": 4.0}},
]
# Without mirostat, which goes without drafts, and stops, behind which no draft is accepted.
DRAFTED = len(KINDS) - 2
# Those that are taken out and come back; none has mirostat, which begins again.
RETRACTED = (2, 4, 6, 9)


def row_of(number: int, position: int) -> int:
    """The row of the table that a request's logits are at a position, whatever its batch."""
    return (number * 37 + position * 11) % TABLE


def kind_of(number: int, kinds: int = len(KINDS)) -> dict[str, Any]:
    return KINDS[number % kinds]


def table(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(1)
    return (torch.randn(TABLE, VOCAB, generator=generator, device="cuda") * 4).to(dtype)


class Texts:
    """Runs requests whose logits are a table's, and notes what came out without waiting for it."""

    def __init__(self, server: Server, rows: torch.Tensor, numbers: list[int], tag: str) -> None:
        self.server, self.rows = server, rows
        self.requests = {i: request(f"{tag} {i}", kind_of(i), i + 1) for i in numbers}
        self.drawn = dict.fromkeys(numbers, 0)
        self.logprobs: dict[int, list[float]] = {i: [] for i in numbers}
        self.pending: list[Any] = []

    def step(self, extends: list[tuple[int, tuple[int, int, int]]], decodes: list[int], place: Any) -> None:
        """One step: prompts with their parts, then the requests that decode. place: the pool index of a request's number."""
        numbers = [i for i, _ in extends] + decodes
        wanted = torch.tensor([row_of(i, self.drawn[i]) for i in numbers], pin_memory=True).to(
            "cuda", non_blocking=True
        )
        torch.index_select(self.rows, 0, wanted, out=self.server.logits[: len(numbers)])
        parts = [part for _, part in extends]
        out = self.server.step([self.requests[i] for i in numbers], [place(i) for i in numbers], parts)
        ends = [sum(part[:2]) >= part[2] for part in parts] + [True] * len(decodes)
        kept = [(row, i) for row, (i, end) in enumerate(zip(numbers, ends, strict=True)) if end]
        for _, i in kept:
            self.drawn[i] += 1
        self.pending.append((kept, out))

    def commit(self) -> None:
        torch.cuda.synchronize()
        for kept, (tokens, lengths, logprobs) in self.pending:
            assert lengths.tolist() == [1] * len(lengths), f"lengths {lengths.tolist()}"
            for row, i in kept:
                self.requests[i].output_ids.append(int(tokens[row]))
                self.logprobs[i].append(float(logprobs[row]))
        self.pending = []

    def texts(self) -> dict[int, list[int]]:
        self.commit()
        return {i: one.output_ids[:LENGTH] for i, one in self.requests.items()}


WHOLE = (0, len(PROMPT), len(PROMPT))
PARTS = ("extend_prefix_lens", "input_lengths", "prefill_lengths")


def alone(server: Server, rows: torch.Tensor) -> tuple[dict[int, list[int]], dict[int, list[float]]]:
    texts, logprobs = {}, {}
    for i in range(COUNT):
        run = Texts(server, rows, [i], "alone")
        run.step([(i, WHOLE)], [], lambda _: 1)
        for _ in range(LENGTH - 1):
            run.step([], [i], lambda _: 1)
        texts |= run.texts()
        logprobs |= run.logprobs
    return texts, logprobs


def among(server: Server, rows: torch.Tensor) -> dict[int, list[int]]:
    run = Texts(server, rows, list(range(COUNT)), "among")
    everyone = list(range(COUNT))
    run.step([(i, WHOLE) for i in everyone], [], lambda i: i + 1)
    for step in range(LENGTH - 1):
        run.step([], everyone[step:] + everyone[:step], lambda i: i + 1)
    return run.texts()


def joined(server: Server, rows: torch.Tensor) -> dict[int, list[int]]:
    """Requests join three in two steps, every third with its prompt in two parts; some are taken out for a while and come back elsewhere."""
    run, places = Texts(server, rows, list(range(COUNT)), "joined"), {i: i + 1 for i in range(COUNT)}
    waiting, second, out = sorted(range(COUNT), key=lambda i: i * 29 % COUNT), [], {}
    running: list[int] = []
    intruder = Texts(server, rows, [100], "intruder")
    step = 0
    while waiting or second or running or out:
        extends = [(i, (1, 2, 3)) for i in second]
        second = []
        for i in [waiting.pop() for _ in range(3) if waiting] if step % 2 == 0 else []:
            if i % 3 == 0:
                second.append(i)
            extends.append((i, (0, 1, 3) if i % 3 == 0 else WHOLE))
        back = [i for i, when in out.items() if when <= step]
        for i in back:
            del out[i]
            had = len(PROMPT) + run.drawn[i]
            extends.append((i, (0, had, had)))
        if extends or running:
            run.step(extends, running, places.__getitem__)
        running = [
            i for i in [*running, *(i for i, part in extends if sum(part[:2]) >= part[2])] if run.drawn[i] < LENGTH
        ]
        for i in [i for i in running if i in RETRACTED and run.drawn[i] == 7 and places[i] == i + 1]:
            run.commit()
            running.remove(i)
            out[i], places[i] = step + 4, COUNT + 1 + i
            # Another request has its index meanwhile.
            intruder.requests[100].name = f"intruder {i}"
            intruder.step([(100, WHOLE)], [], lambda _, i=i: i + 1)
        step += 1
    return run.texts()


def drawn_again(
    rows: torch.Tensor, length: int = LENGTH, kinds: int = len(KINDS)
) -> tuple[dict[int, list[int]], dict[int, list[float]]]:
    """The texts and logprobs of samplers on the CPU."""
    host = rows.float().cpu().numpy()
    sums = torch.logsumexp(rows.double(), -1).tolist()
    texts, logprobs = {}, {}
    for i in range(COUNT):
        asked = request("r", kind_of(i, kinds), i + 1).sampling_params
        one = gumball.Sampler(params_of(asked), VOCAB, prompt=PROMPT if asked.custom_params else ())
        texts[i] = [one.sample(host[row_of(i, position)]) for position in range(length)]
        places = [row_of(i, position) for position in range(length)]
        logprobs[i] = [float(host[row][token]) - sums[row] for row, token in zip(places, texts[i], strict=True)]
    return texts, logprobs


def differing(name: str, found: dict[int, list[Any]], wanted: dict[int, list[Any]]) -> int:
    count = 0
    for i, text in wanted.items():
        if found[i] != text:
            count += 1
            at = next((p for p, (a, b) in enumerate(zip(found[i], text, strict=False)) if a != b), "its end")
            print(
                f"  DIFFERS {name}, request {i} at {at}: {kind_of(i)}\n    {found[i][:12]}\n    {text[:12]}", flush=True
            )
    return count


def texts(dtype: torch.dtype = torch.float32) -> str:
    server, rows = Server("gumball", 64, dtype=dtype), table(dtype)
    server.capture([1, 2, 4, 8, 16, 32, 48, 64])
    wanted, logprobs = drawn_again(rows)
    found, scores = {}, {}
    torch.cuda.set_stream(server.stream)
    found["alone"], scores = alone(server, rows)
    found["among"] = among(server, rows)
    found["joined"] = joined(server, rows)
    differ = sum(differing(name, part, wanted) for name, part in found.items())
    off = max(abs(a - b) for i in wanted for a, b in zip(scores[i], logprobs[i], strict=True))
    assert differ == 0 and off < 1e-3, f"{differ} of {3 * COUNT} texts differ, logprobs by {off}"
    variants = sorted({variant for variant, _ in server.graphs})
    return f"{3 * COUNT} texts of {LENGTH} tokens, {len(server.graphs)} graphs of {variants}, logprobs to {off:.1e}"


def texts_bf16() -> str:
    return texts(torch.bfloat16)


def kept() -> str:
    os.environ[SWITCH] = "1"
    server, rows = Server("gumball", 64), table(torch.float32)
    del os.environ[SWITCH]
    server.capture([1, 2, 4, 8, 16, 32, 48, 64])
    torch.cuda.set_stream(server.stream)
    everyone, copied = list(range(COUNT)), []
    run = Texts(server, rows, everyone, "kept")
    for step in range(LENGTH):
        run.step([] if step else [(i, WHOLE) for i in everyone], everyone if step else [], lambda i: i + 1)
        tokens, lengths, _ = run.pending[-1][1]
        # The first packing loads its kernels.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        copied.append(server.sampling_backend.get_packed_output_d2h(tokens, lengths)[1])
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    host, differ = rows.cpu().numpy(), 0
    for i in everyone:
        asked = request("r", kind_of(i), i + 1).sampling_params
        one = gumball.Sampler(params_of(asked), VOCAB, prompt=PROMPT if asked.custom_params else ())
        one.collect_kept(True)
        for step, lengths in enumerate(copied):
            one.sample(host[row_of(i, step)])
            _, ids = extras_of(lengths).sets.packed(np.array([i]), bitmasks=False)
            differ += ids.tolist() != sorted(one.kept)
    assert differ == 0, f"{differ} of {COUNT * LENGTH} sets differ"
    return f"{COUNT * LENGTH} sets"


CHAIN, TREE = None, [-1, 0, 0, 1, 2]


def drafts() -> str:
    rows = table(torch.float32)
    wanted, _ = drawn_again(rows, 3 * LENGTH, DRAFTED)
    said = []
    for name, parents in (("chains", CHAIN), ("trees", TREE)):
        width = 4 if parents is None else len(parents)
        above = parents or list(range(-1, width - 1))
        depth = [0] * width
        for node in range(1, width):
            depth[node] = depth[above[node]] + 1
        server = Server("gumball", COUNT, width=width, parents=parents)
        server.capture([8, 32, COUNT])
        torch.cuda.set_stream(server.stream)
        requests = [request(f"{name}{i}", kind_of(i, DRAFTED), i + 1) for i in range(COUNT)]
        # The prompts' step draws a token each.
        server.logits[:COUNT] = rows[[row_of(i, 0) for i in range(COUNT)]]
        tokens, _, _ = server.step(requests, list(range(1, COUNT + 1)), [WHOLE] * COUNT)
        torch.cuda.synchronize()
        history = [[int(token)] for token in tokens]
        accepted = 0
        for step in range(14):
            count = COUNT if step % 3 else 23
            nodes = torch.tensor([[row_of(i, len(history[i]) + d) for d in depth] for i in range(count)], device="cuda")
            server.logits[: count * width] = rows[nodes.view(-1)]
            lines, right = [], []
            for i in range(count):
                at = len(history[i])
                good = (i + step) % width
                # The nodes of a way through the tree are right, as many as `good`; of other nodes none is.
                way = [node for node in range(1, width) if parents is None or node % 2 == (i + step) % 2][:good]
                line = [history[i][-1]] + [(wanted[i][at + depth[node] - 1] + 1) % VOCAB for node in range(1, width)]
                for node in way:
                    line[node] = wanted[i][at + depth[node] - 1]
                lines.append(line)
                right.append(1 + len(way))
            server.candidates[:count] = torch.tensor(lines, dtype=torch.int32, device="cuda")
            tokens, lengths, _ = server.step(requests[:count], list(range(1, count + 1)))
            torch.cuda.synchronize()
            # Of some requests that were not in the step before, TokenSpeed keeps one token.
            grown = [1 if step % 3 == 1 and i >= 23 and i % 4 == 0 else n for i, n in enumerate(lengths.tolist())]
            assert lengths.tolist() == right, (
                f"{name}, step {step}: accepted {lengths.tolist()}, of which right {right}"
            )
            server.lengths[1 : count + 1] += torch.tensor(grown, dtype=torch.int32, device="cuda")
            for i, line in enumerate(tokens.view(count, width).tolist()):
                history[i] += line[: grown[i]]
                accepted += grown[i] - 1
        found = dict(enumerate(history))
        differ = differing(name, found, {i: wanted[i][: len(text)] for i, text in found.items()})
        assert differ == 0, f"{differ} texts with {name} differ"
        said.append(f"{name}: {accepted} drafts accepted, {sum(map(len, history))} tokens")
    return "; ".join(said)


OWN = ("greedy", "triton", "triton_full", "flashinfer", "flashinfer_full")


def greedy() -> str:
    said, failed = [], 0
    for dtype in (torch.float32, torch.bfloat16):
        rows, found = table(dtype), {}
        # With ties in bfloat16, of which the smallest id counts here and elsewhere the one that a kernel meets.
        alike = (rows == rows.amax(-1, keepdim=True)).sum(-1) == 1
        for name in ("gumball", *OWN):
            try:
                server = Server(name, 64, dtype=dtype)
                server.capture([COUNT])
                torch.cuda.set_stream(server.stream)
                requests = [request(f"g{i}", {"temperature": 0.0}, i + 1) for i in range(COUNT)]
                server.logits[:COUNT] = rows[:COUNT]
                first = server.step(requests, list(range(1, COUNT + 1)), [WHOLE] * COUNT)
                server.logits[:COUNT] = rows[COUNT : 2 * COUNT]
                second = server.step(requests, list(range(1, COUNT + 1)))
                torch.cuda.synchronize()
                found[name] = [
                    torch.cat([a[:COUNT].float(), b[:COUNT].float()])
                    for a, b in ((first[0], second[0]), (first[2], second[2]))
                ]
                print(f"  {name} {dtype} ran", flush=True)
            except Exception:
                failed += name == "gumball"
                print(f"  {name} {dtype}: {''.join(traceback.format_exc().splitlines(True)[-6:])}", flush=True)
        clear = alike[: 2 * COUNT].cpu()
        for name, (tokens, logprobs) in found.items():
            same = (tokens == found["gumball"][0]) | ~clear
            off = float((logprobs - found["gumball"][1])[same & clear].abs().max())
            failed += int((~same).sum()) + (off > 1e-3)
            said.append(
                f"{name} {str(dtype)[6:]}: {int((~same).sum())} tokens differ of {int(clear.sum())}, logprobs to {off:.1e}"
            )
    assert failed == 0 and len(said) > 2, "; ".join(said)
    return "; ".join(said)


def waits() -> str:
    """Each step is enqueued while the device is busy with something else, and must not take as long as that."""
    rows, numbers = table(torch.float32), list(range(COUNT))
    said: list[str] = []
    waited: list[str] = []

    def timed(what: str, call: Any) -> None:
        torch.cuda.synchronize()
        busy, done = 0.25, torch.cuda.Event()
        torch.cuda._sleep(int(busy * 1.9e9))
        done.record()
        torch.cuda.set_sync_debug_mode("error")
        began = time.perf_counter()
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        host, over = time.perf_counter() - began, done.query()
        said.append(f"{what} {1e3 * host:.2f} ms")
        if over or host > 0.6 * busy:
            waited.append(f"{what}: {1e3 * host:.1f} ms, the device {'was done' if over else 'still busy'}")
        torch.cuda.synchronize()

    server, wide = Server("gumball", 64), Server("gumball", COUNT, width=4)
    server.capture([16, COUNT])
    wide.capture([COUNT])
    everywhere = list(range(1, COUNT + 1))

    def steps(tag: str, do: Any) -> None:
        torch.cuda.set_stream(server.stream)
        run, again = Texts(server, rows, numbers, tag), Texts(server, rows, numbers, f"{tag} again")
        run.step([(i, WHOLE) for i in numbers], [], everywhere.__getitem__)
        run.step([], numbers, everywhere.__getitem__)
        do("a decode step by a graph", lambda: run.step([], numbers, everywhere.__getitem__))
        do("20 of them", lambda: [run.step([], numbers, everywhere.__getitem__) for _ in range(20)])
        do("a smaller one", lambda: run.step([], numbers[:9], everywhere.__getitem__))
        do("48 new ones in their places", lambda: again.step([(i, WHOLE) for i in numbers], [], everywhere.__getitem__))
        mixed = [(0, (0, 1, 3)), (1, (1, 2, 3))]
        do("a mixed step with a part of a prompt", lambda: again.step(mixed, numbers[2:], everywhere.__getitem__))
        run.commit()
        back = [(i, (0, len(PROMPT) + run.drawn[i], len(PROMPT) + run.drawn[i])) for i in numbers[:8]]
        do("8 that were retracted come back", lambda: run.step(back, [], lambda i: i + 60))
        torch.cuda.set_stream(wide.stream)
        requests = [request(f"{tag} {i}", kind_of(i, DRAFTED), i + 1) for i in numbers]
        wide.step(requests[:9], everywhere[:9], [WHOLE] * 9)
        do("a step with drafts of requests that come back", lambda: wide.step(requests, everywhere))
        do("the next, which takes tokens back", lambda: wide.step(requests, everywhere))

    # What torch and the pool allocate for a first time is there then.
    steps("first", lambda what, call: call())
    steps("then", timed)
    print(f"  host times: {', '.join(said)}", flush=True)
    assert not waited, "; ".join(waited)
    return f"{len(said)} kinds of steps, none waited"


def samplers_telling(count: int) -> list[gumball.Sampler]:
    """Samplers of requests that have drafts, on the CPU, with kept sets."""
    made = []
    for i in range(count):
        asked = request("r", kind_of(i, DRAFTED), i + 1).sampling_params
        made.append(gumball.Sampler(params_of(asked), VOCAB, prompt=PROMPT if asked.custom_params else ()))
        made[-1].collect_kept(True)
    return made


def rank_of(rank: int, world: int, address: str, answers: Any) -> None:
    """A rank of `--dp-sampling`: it verifies its part of the requests and has the tokens of all."""
    try:
        torch.cuda.set_device(rank)
        answers.put((rank, _ranked(rank, world, address)))
    except BaseException:
        answers.put((rank, "".join(traceback.format_exc().splitlines(True)[-8:])))


def _ranked(rank: int, world: int, address: str) -> Any:
    from served import arguments
    from tokenspeed.runtime.distributed.process_group_manager import process_group_manager
    from tokenspeed.runtime.layers.logits_processor import LogitsProcessorOutput
    from tokenspeed.runtime.sampling import dp_sampling_config, registry
    from tokenspeed.runtime.sampling.logits_layout import LogitsLayoutPlan
    from tokenspeed.runtime.sampling.sampling_batch_info import SamplingBatchInfo

    os.environ[SWITCH] = "1"
    width, count, group = 4, 46, tuple(range(world))
    made = arguments("--sampling-backend", "gumball", "--enable-output-logprobs")
    mapping = SimpleNamespace(world_size=world, rank=rank)
    process_group_manager.init_distributed(mapping, f"file://{address}", timeout=60)
    process_group_manager.init_process_group(group)
    backend = registry.create_sampling_backend(
        made,
        max_bs=COUNT,
        max_draft_tokens_per_req=width,
        device="cuda",
        max_req_pool_size=64,
        vocab_size=VOCAB,
        tp_group=group,
    )
    limits = {"runtime_vocab_size": VOCAB, "max_num_seqs": COUNT, "data_parallel_size": 1, "num_tokens_per_req": width}
    topology = dp_sampling_config.DpSamplingTopology(rank, world, group, skip_all_gather=False)
    if world > 1:
        processor = SimpleNamespace(
            tp_rank=rank,
            tp_size=world,
            tp_group=group,
            skip_all_gather=False,
            config=None,
            configure_dp_logits_layout=lambda _: None,
        )
        head = SimpleNamespace(weight=torch.zeros(-(-VOCAB // world), 1))
        runtime = dp_sampling_config.setup_dp_sampling(
            model=SimpleNamespace(logits_processor=processor, lm_head=head),
            sampling_backend=backend,
            requested=True,
            drafter_available=True,
            limits=dp_sampling_config.DpSamplingRuntimeLimits(**limits, configured_min_bs=2, device="cuda"),
        )
        assert runtime.enabled
    else:
        # TokenSpeed spreads nothing over one rank; the backend does all the same.
        backend.configure_dp_sampling(
            dp_sampling_config.DpSamplingRuntimeConfig(True, VOCAB, COUNT, 2, width, topology, "cuda")
        )
    rows = table(torch.float32)
    wanted, _ = drawn_again(rows, 3 * LENGTH, DRAFTED)
    host, alone = rows.cpu().numpy(), samplers_telling(count)
    bucket = count + -count % world
    own = bucket // world
    logits = torch.zeros(own * width, VOCAB, device="cuda")
    candidates = torch.zeros(count, width, dtype=torch.int32, device="cuda")
    lengths_of = torch.zeros(65, dtype=torch.int32, device="cuda")
    indices = torch.arange(1, count + 1, device="cuda")
    plan = LogitsLayoutPlan(count, bucket, world, width)

    def verify() -> Any:
        output = LogitsProcessorOutput(next_token_logits=logits, logits_layout_plan=plan)
        info = SamplingBatchInfo(
            vocab_size=VOCAB, req_pool_indices=indices, valid_cache_lengths=lengths_of, device="cuda"
        )
        return backend.verify(output, info, candidates, tree=None)

    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    for _ in range(3):
        torch.cuda.synchronize()
        torch.distributed.barrier()
        backend.prepare_capture_variant(count, width, "default")
        verify()
    torch.cuda.synchronize()
    torch.distributed.barrier()
    backend.prepare_capture_variant(count, width, "default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = verify()
    names = [f"r{i}" for i in range(count)]
    states = {name: request(name, kind_of(i, DRAFTED), i + 1) for i, name in enumerate(names)}
    params = told(states, SimpleNamespace(request_ids=names, num_extends=lambda: 0, **dict.fromkeys(PARTS, ())))
    history: list[list[int]] = [[] for _ in range(count)]
    for step in range(10):
        backend.prepare_step(names, list(range(1, count + 1)), params, width)
        first = rank * own
        mine = [
            row_of(i, len(history[i]) + d) if i < count else 0 for i in range(first, first + own) for d in range(width)
        ]
        logits.copy_(rows[mine])
        lines = []
        for i in range(count):
            ahead = wanted[i][len(history[i]) :][: width - 1]
            good = (i + step) % width
            lines.append([0, *(token if j < good else (token + 1) % VOCAB for j, token in enumerate(ahead))])
        candidates.copy_(torch.tensor(lines, dtype=torch.int32))
        if step % 2:
            backend.cuda_graph_replay_variant(width)
            graph.replay()
            tokens, lengths = out
        else:
            tokens, lengths = verify()
        grown = lengths.clone()
        lengths_of[1 : count + 1] += grown
        assert grown.tolist() == [1 + (i + step) % width for i in range(count)], f"step {step}: {grown.tolist()}"
        copied = backend.get_packed_output_d2h(tokens, lengths)[1]
        torch.cuda.synchronize()
        for i, (line, length) in enumerate(zip(tokens.view(count, width).tolist(), grown.tolist(), strict=True)):
            for place in range(length):
                alone[i].sample(host[row_of(i, len(history[i]) + place)])
                _, ids = extras_of(copied).sets.packed(np.array([i * width + place]), bitmasks=False)
                assert ids.tolist() == sorted(alone[i].kept), f"step {step}: the set of token {place} of request {i}"
            history[i] += line[:length]
    torch.distributed.barrier()
    differ = differing(
        f"rank {rank}", dict(enumerate(history)), {i: wanted[i][: len(text)] for i, text in enumerate(history)}
    )
    return differ, history


def ranks() -> str:
    import torch.multiprocessing as processes

    world = min(torch.cuda.device_count(), 2)
    context = processes.get_context("spawn")
    answers = context.Queue()
    address = os.path.join(tempfile.mkdtemp(), "meet")
    started = [context.Process(target=rank_of, args=(rank, world, address, answers)) for rank in range(world)]
    for one in started:
        one.start()
    found = dict(answers.get(timeout=150) for _ in started)
    for one in started:
        one.join(20)
    failed = [text for text in found.values() if isinstance(text, str)]
    assert not failed, "\n".join(failed)
    assert all(differ == 0 for differ, _ in found.values()), "texts differ"
    assert all(history == found[0][1] for _, history in found.values()), "the ranks' texts differ"
    return f"{world} ranks, {sum(map(len, found[0][1]))} tokens each, eager and by a graph"


CASES = {
    "texts": texts,
    "texts_bf16": texts_bf16,
    "kept": kept,
    "drafts": drafts,
    "greedy": greedy,
    "waits": waits,
    "ranks": ranks,
}


def main() -> int:
    failed = 0
    for name in sys.argv[1:] or [name for name in CASES if name != "ranks"]:
        began = time.perf_counter()
        try:
            said, verdict = CASES[name](), "ok"
        except BaseException as error:
            failed += 1
            said, verdict = f"{type(error).__name__}: {error}"[:1500], "FAILED"
            if not isinstance(error, AssertionError):
                said += "\n" + "".join(traceback.format_exc().splitlines(True)[-14:])
        torch.cuda.set_stream(torch.cuda.default_stream())
        print(f"CASE {name} {verdict} ({time.perf_counter() - began:.0f} s): {said}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
