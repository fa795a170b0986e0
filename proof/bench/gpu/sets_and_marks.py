"""What kept sets and marks cost beside vLLM's and SGLang's own: `sets_and_marks.py sets|marks FILE.json [SECONDS [VOCAB [ROWS,..]]]`.

Rows like a model's, f32, at temperature 1. graph: microseconds of the device for a step, in a graph of steps over many batches, by the median of its replays. host:
microseconds from a call until its tokens, and sets if any, lie in the host's memory, sets as lengths and ids. `sets` has vLLM's step with its Triton filters, with and without
`--return-sampling-mask`, and what SGLang's masks of drafts add, over probabilities that something else filtered. `marks` has vLLM's step with and without its mark, and what
SGLang's mark adds to a step: it forces the token before the sampler runs. Contexts of 4 ids of a history of 2048. What is missing is left out with a message. Needs torch with
CUDA and Triton, our wheel, and what `COMPILED=0 proof/bench/gpu/carry` leaves in .gpu/rivals, both in PYTHONPATH.
"""

import functools
import json
import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

import gumball
import plan
from gumball import Pool, SamplingParams, Step, Watermark
from gumball.plugins.kept import Guess, PackedKept
from inputs import model
from measure import replays

SETTINGS = {
    "no filter": plan.Params(),
    "top-k 50, top-p 0.9": plan.Params(top_k=50, top_p=0.9),
    "top-p 0.95": plan.Params(top_p=0.95),
}
# Batches of a graph: more bytes than the second-level cache has, and steps enough for all replays within the histories' room.
MOST_BATCHES, COLD_BYTES, REPLAYS, CALLS, ROOM = 128, 160 << 20, 8, 20, 8192
KEY, WIDTH = 0x3C6EF372FE94F82B, 4


def ours(setting, history, vocab, sets=False, mark=False, plugin=False):
    """plugin: sets as the plug-in of vLLM fetches them, which lets a step be enqueued and copies without a wait."""
    rows = len(history)
    pool = Pool(vocab, device="cuda:0", slots=rows, rows=rows, kept=sets, history_growth=ROOM)
    asked = dict(top_k=setting.top_k, top_p=setting.top_p)
    if mark:
        asked["watermark"] = Watermark(key=1, context=WIDTH, scope="both")
    slots = [pool.admit(SamplingParams(seed=row, **asked), ids) for row, ids in enumerate(history.tolist())]

    def capture(batches):
        pool.assign(slots)
        graph = pool.capture([Step(batch) for batch in batches])
        return SimpleNamespace(replay=lambda: pool.replay(graph))

    def whole(logits):
        out = pool.step(logits, slots)
        return out.tokens, out.kept_sets() if sets else None

    guess = Guess()

    def as_a_plugin(logits):
        pool.assign(slots)
        pool.enqueue([Step(logits)])
        there = pool.on_device()
        tokens = torch.from_dlpack(there.outputs("tokens")).to("cpu", non_blocking=True)
        kept = PackedKept.of(torch.from_dlpack(there.outputs("kept")), guess).to_host()
        torch.cuda.synchronize()
        return tokens.numpy(), kept.packed(np.arange(rows), bitmasks=False)

    return SimpleNamespace(capture=None if plugin else capture, whole=as_a_plugin if plugin else whole)


def captured(call):
    """A way's graph of a call for each batch."""

    def capture(batches):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # All are kept, so that the memory that is written is as cold as the memory that is read.
            answers = [call(batch) for batch in batches]
        return SimpleNamespace(replay=graph.replay, answers=answers)

    return capture


def vllm(setting, history, vocab, sets=False, mark=False):
    from engines import vllm as theirs

    rows = len(history)
    make = theirs.marked if mark else functools.partial(theirs.sampler, sets=sets)
    call = make(rows, vocab, (setting,), *((history, KEY) if mark else ()))

    def whole(logits):
        found = call(logits)
        # As its runner copies: all at once, and then a wait.
        tokens, masks = found if sets else (found, None)
        tokens = tokens.to("cpu", non_blocking=True)
        masks = masks and masks.to_cpu_nonblocking()
        torch.cuda.synchronize()
        if masks is None:
            return tokens.numpy(), None
        lists = masks.tolists()
        return tokens.numpy(), (np.diff(lists.offsets), lists.token_ids)

    return SimpleNamespace(capture=captured(call), whole=whole)


def sglang_sets(setting, history, vocab):
    """The mask of one token a request, over probabilities: the ids above 0 among the most likely, as many as the request's top-k, or 2048 where it has none."""
    from sglang.srt.speculative.spec_sampling_mask import SpeculativeSamplingMaskCapture

    rows = len(history)
    indices = torch.arange(rows, device="cuda")
    ones, kept = torch.ones(rows, dtype=torch.int32, device="cuda"), {}

    def probabilities(logits):
        """Filtered as asked, with their first tokens; once for each batch."""
        if logits.data_ptr() not in kept:
            probs, order = torch.softmax(logits, -1).sort(-1, descending=True)
            probs[:, setting.top_k or vocab :] = 0
            probs /= probs.sum(-1, keepdim=True)
            probs = torch.zeros_like(probs).scatter_(
                -1, order, probs.masked_fill(probs.cumsum(-1) - probs >= setting.top_p, 0)
            )
            kept[logits.data_ptr()] = probs / probs.sum(-1, keepdim=True), order[:, :1].contiguous()
        return kept[logits.data_ptr()]

    def call(logits):
        probs, tokens = probabilities(logits)
        capture = SpeculativeSamplingMaskCapture(
            target_probs=probs[:, None], batch_indices=indices, max_top_k=setting.top_k or min(2048, vocab)
        )
        return capture.build_output(out_tokens=tokens, commit_lens=ones)

    def capture(batches):
        for batch in batches:
            probabilities(batch)
        torch.cuda.synchronize()
        return captured(call)(batches)

    def whole(logits):
        out = call(logits)
        ids, lengths = (part.to("cpu", non_blocking=True) for part in (out.token_ids, out.lengths))
        torch.cuda.synchronize()
        return None, (lengths[:, 0].numpy(), ids[:, 0][torch.arange(ids.shape[2]) < lengths[:, :1]].numpy())

    return SimpleNamespace(capture=capture, whole=whole)


def sglang_marks(setting, history, vocab, mark=True):
    """A copy of the logits, which are written over, then the forced tokens and their history; without `mark` the copy alone."""
    from sglang.srt.sampling.watermarking.core import WatermarkState

    rows, length = history.shape
    state = WatermarkState(
        max_num_reqs=rows,
        context_window=WIDTH,
        # The most that one request may have.
        max_contexts_per_req=4096,
        key=f"{KEY:x}",
        device="cuda",
        vocab_size=vocab,
        default_enabled=True,
    )
    indices = torch.arange(rows, device="cuda")
    state.init_from_prompt(indices, history[:, -WIDTH:].tolist(), [list(range(length))] * rows)
    column = functools.partial(torch.full, (rows,), device="cuda")
    most = setting.top_k or vocab
    info = SimpleNamespace(
        has_watermark_candidates=True,
        max_top_k=most,
        temperatures=column(1.0)[:, None],
        top_ks=column(most, dtype=torch.int32),
        top_ps=column(setting.top_p),
        min_ps=column(0.0),
        watermark_keys=None,
        watermark_context_windows=None,
        watermark_enabled=None,
    )

    def call(logits):
        x = torch.empty_like(logits).copy_(logits)
        if not mark:
            return x
        state.force(x, indices, info)
        tokens = state.output_token_ids_buffer[:rows]
        state.append(indices, tokens)
        return tokens

    def whole(logits):
        found = call(logits)
        torch.cuda.synchronize()
        return found.cpu().numpy() if mark else None, None

    # With all ids to choose from, it asks the host which contexts it is to remember.
    capture = captured(call) if setting.top_k or not mark else None
    return SimpleNamespace(capture=capture, whole=whole)


WAYS = {
    "sets": {
        "gumball": ours,
        "gumball, sets": functools.partial(ours, sets=True),
        "gumball's sets in vLLM": functools.partial(ours, sets=True, plugin=True),
        "vLLM": vllm,
        "vLLM, sets": functools.partial(vllm, sets=True),
        "SGLang's sets alone": sglang_sets,
    },
    "marks": {
        "gumball": ours,
        "gumball, mark": functools.partial(ours, mark=True),
        "vLLM": vllm,
        "vLLM, mark": functools.partial(vllm, mark=True),
        "SGLang's copy alone": functools.partial(sglang_marks, mark=False),
        "SGLang's copy and mark": sglang_marks,
    },
}


def host(way, batches):
    """The median time of a call, and the last batch's answer, of a few batches."""
    times, batches = [], batches[:3]
    for call in range(CALLS + 3):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        way.whole(batches[call % len(batches)])
        times += [(time.perf_counter_ns() - began) / 1000] if call >= 3 else []
    return statistics.median(times), way.whole(batches[-1])


def differences(ours, theirs):
    """How many rows have other sets, and how many ids these have that the other has not, at most. Sets are lengths and ids, row after row."""
    lists = [np.split(ids, np.cumsum(lengths)[:-1]) for lengths, ids in (ours, theirs)]
    apart = [len(set(a.tolist()) ^ set(b.tolist())) for a, b in zip(*lists, strict=True)]
    return sum(map(bool, apart)), max(apart)


def reason(error):
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"


def main(part, file, seconds=240.0, vocab=plan.MAIN_VOCAB, all_rows=plan.FAMILY_ROWS):
    gumball.add_watermark_keys(f"1 {KEY:016x}{KEY:016x}")
    began, record = time.monotonic(), []
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "vocab": vocab, "part": part}
    print("| asked | rows | way | graph, us | host, us | ids of a set | rows with other sets than ours |")
    for rows in all_rows:
        count = min(MOST_BATCHES, max(4, -(-COLD_BYTES // (4 * vocab * rows))))
        batches = model((count, rows, vocab))
        history = torch.randint(vocab, (rows, plan.HISTORY), device="cuda", dtype=torch.int32)
        for asked, setting in SETTINGS.items():
            if part == "sets" and asked == "no filter":
                continue
            of_ours = None
            for name, make in WAYS[part].items():
                cell = {"asked": asked, "rows": rows, "way": name, "batches": count, "notes": []}
                if time.monotonic() - began > seconds:
                    cell["notes"].append("no time was left")
                    record.append(cell)
                    continue
                way = sets = None
                try:
                    way = make(setting, history, vocab)
                    cell["host_us"], (_, sets) = host(way, batches)
                except Exception as error:
                    cell["notes"].append(reason(error))
                if "host_us" in cell and not way.capture:
                    cell["notes"].append("no graph: it waits for the host")
                elif "host_us" in cell:
                    try:
                        graph = way.capture(batches)
                        cell["graph_us"] = statistics.median(replays(graph, count, REPLAYS))
                        del graph
                    except Exception as error:
                        cell["notes"].append(f"no graph: {reason(error)}")
                if sets is not None:
                    of_ours = sets if of_ours is None else of_ours
                    cell["ids"] = statistics.median(sets[0].tolist())
                    cell["other_sets"], cell["other_ids"] = differences(of_ours, sets)
                record.append(cell)
                print(
                    f"| {asked} | {rows} | {name} | {cell.get('graph_us', '-'):.5} | {cell.get('host_us', '-'):.6} |",
                    f"{cell.get('ids', '')} | {cell.get('other_sets', '')} |",
                    *cell["notes"],
                    flush=True,
                )
                del way
        del batches
        torch.cuda.empty_cache()
        with open(file, "w") as out:
            json.dump({**device, "cells": record}, out, indent=1)
    print(*device.values(), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    part, file, *rest = sys.argv[1:]
    takes = (float, int, lambda text: [int(number) for number in text.split(",")])
    main(part, file, *(take(text) for take, text in zip(takes, rest)))
