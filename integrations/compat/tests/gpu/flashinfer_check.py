"""FlashInfer's names, SGLang's and TokenSpeed's on a GPU: `python flashinfer_check.py [NAME..]`. A line for each check, then
the verdict.

What is drawn is compared with the host's. Where the real FlashInfer can be imported, installed or carried in
.gpu/rivals, signatures, generators and distributions are compared with its. Needs torch; without a GPU what needs none
is checked on the host.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# In the repository the package's own checks lie there.
sys.path[:0] = [str(Path(__file__).parents[4] / "bindings/python/tests/gpu")]

from check import check, run

import gumball
from gumball_compat import sglang, tokenspeed
from gumball_compat.flashinfer import sampling

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
VOCAB, ROWS, DRAWS = 32_000, 9, 5_000_000
# Functions that draw, by what they read, and their filters: numbers, and one for each row.
SAMPLERS: list[tuple[str, str, dict[str, Any]]] = [
    ("sampling_from_logits", "logits", {}),
    ("sampling_from_probs", "probs", {}),
    ("top_k_sampling_from_probs", "probs", {"top_k": 40}),
    ("top_p_sampling_from_probs", "probs", {"top_p": 0.8}),
    ("min_p_sampling_from_probs", "probs", {"min_p": 0.05}),
    ("top_k_top_p_sampling_from_logits", "logits", {"top_k": 40, "top_p": 0.8}),
    ("top_k_top_p_sampling_from_logits", "logits", {"top_k": 40, "top_p": 0.8, "filter_apply_order": "joint"}),
    ("top_k_top_p_sampling_from_probs", "probs", {"top_k": 40, "top_p": 0.8}),
    ("top_k_top_p_sampling_from_probs", "probs", {"top_k": 40, "top_p": 0.8, "filter_apply_order": "joint"}),
]


def rows(count: int = ROWS, vocab: int = VOCAB, spread: float = 3.0) -> dict[str, torch.Tensor]:
    """Rows as logits, and as probabilities."""
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(1)) * spread
    return {"logits": logits.to(DEVICE), "probs": gumball.softmax(logits).to(DEVICE)}


def columns(filters: dict[str, Any], count: int = ROWS) -> dict[str, Any]:
    """Filters as tensors, one number a row."""
    given = {
        name: torch.full((count,), value, device=DEVICE)
        for name, value in filters.items()
        if name != "filter_apply_order"
    }
    return filters | given


def on_host(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


def words(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Makes an error of each wait for the GPU."""
    if not GPU:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def real() -> Any:
    """FlashInfer's own sampling, if it can be imported."""
    # Beside the scripts that were carried to a GPU, or in the repository that this one lies in.
    folders = [parent / ".gpu" / "rivals" for parent in Path(__file__).resolve().parents]
    sys.path += [str(folder) for folder in folders if folder.is_dir() and str(folder) not in sys.path]
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", tempfile.gettempdir())
    if GPU:
        major, minor = torch.cuda.get_device_capability()
        os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{major}.{minor}a")
    try:
        return importlib.import_module("flashinfer.sampling")
    except Exception as error:
        print(f"(no FlashInfer: {type(error).__name__}: {error})")
        return None


@check
def draws_are_the_hosts() -> str:
    """By numbers and by columns, from rows and from lists of rows, in every type, with the validity; nothing waits."""
    lines = torch.tensor([3, 3, 0, 8, 1], device=DEVICE)
    for name, kind, filters in SAMPLERS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            given = rows()[kind].to(dtype)
            for more in (filters, columns(filters)):
                for indices, count in ((None, ROWS), (lines, 5), (lines.int(), 5)):
                    places = (
                        (5, 1 << 40),
                        (words(-7), words(1 << 35)),
                        (words(*range(count)), words(*range(9, 9 + count))),
                    )
                    for seed, offset in places:
                        call = {**more, "indices": indices, "seed": seed, "offset": offset}
                        getattr(sampling, name)(given, **call)  # What is taken at first is there then.
                        with without_waiting():
                            drawn = getattr(sampling, name)(given, **call)
                        wanted = getattr(sampling, name)(given.cpu(), **on_host(call))
                        assert drawn.device == DEVICE and drawn.dtype == wanted.dtype, (name, drawn.device, drawn.dtype)
                        assert drawn.tolist() == wanted.tolist(), (name, dtype, call)
    return f"{len(SAMPLERS)} functions"


@check
def rows_without_a_token() -> str:
    """Zero, NaN and infinite rows stay within the vocabulary and leave their neighbours alone; nothing waits."""
    given = rows()["probs"]
    wanted = given.clone()
    given[1], given[4], given[6, 7], given[7] = 0, torch.nan, torch.nan, torch.inf
    for name, kind, filters in SAMPLERS:
        if kind == "logits":
            continue
        plain = getattr(sampling, name)(wanted, **filters, seed=1, offset=2)
        with without_waiting():
            drawn, valid = getattr(sampling, name)(given, **filters, seed=1, offset=2, return_valid=True)
        assert valid.tolist() == [row not in (1, 4) for row in range(ROWS)], (name, valid)
        assert drawn[1] == drawn[4] == 0 and ((drawn >= 0) & (drawn < VOCAB)).all(), name
        others = words(0, 2, 3, 5, 8)
        assert (drawn[others] == plain[others]).all(), name
        try:
            getattr(sampling, name)(given, **filters, check_nan=True)
        except ValueError as error:
            assert "contains NaN" in str(error)
        else:
            raise AssertionError(f"{name}: NaN went unseen")
    return "5 kinds of rows"


@check
def generators() -> str:
    """The state moves on as FlashInfer's kernels move it; logits and probabilities draw the same; calls are
    independent.
    """
    theirs, given, moved = real() if GPU else None, rows(), 0
    for name, kind, filters in SAMPLERS:
        ours = [torch.Generator(DEVICE).manual_seed(3) for _ in range(2)]
        first = getattr(sampling, name)(given[kind], **filters, generator=ours[0])
        assert (getattr(sampling, name)(given[kind], **filters, generator=ours[1]) == first).all(), name
        assert (getattr(sampling, name)(given[kind], **filters, generator=ours[1]) != first).any(), name
        if kind == "logits":
            again = torch.Generator(DEVICE).manual_seed(3)
            twin = getattr(sampling, name.replace("logits", "probs"))
            assert (twin(given["probs"], **filters, generator=again) == first).float().mean() > 0.99, name
        if theirs is not None:
            other = torch.Generator(DEVICE).manual_seed(3)
            getattr(theirs, name)(given[kind], **filters, generator=other)
            assert torch.equal(other.get_state(), ours[0].get_state()), name
            moved += 1
    torch.manual_seed(5)
    default = sampling.sampling_from_probs(given["probs"])
    torch.manual_seed(5)
    assert (sampling.sampling_from_probs(given["probs"]) == default).all()
    return f"{len(SAMPLERS)} functions, {moved} beside FlashInfer"


@check
def in_a_graph() -> str:
    """Captured with seeds and offsets in tensors, replayed with others."""
    if not GPU:
        return "skipped: no GPU"
    for name, kind, filters in SAMPLERS:
        given, seed, offset = rows()[kind], words(5), words(*range(ROWS))
        call = {**columns(filters), "seed": seed, "offset": offset}
        getattr(sampling, name)(given, **call)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drawn = getattr(sampling, name)(given, **call)
        for step in range(3):
            graph.replay()
            wanted = getattr(sampling, name)(given.cpu(), **on_host(call))
            assert drawn.tolist() == wanted.tolist(), (name, step)
            seed += 1
            offset += 1 << 31
    return f"{len(SAMPLERS)} functions"


@check
def renormalised_and_masked() -> str:
    """Bit for bit as on the host."""
    given = rows()
    top_k, top_p = torch.randint(1, 500, (ROWS,), device=DEVICE), torch.rand(ROWS, device=DEVICE) * 0.9 + 0.05
    for number, made in enumerate(
        (
            lambda x: sampling.top_k_renorm_probs(x["probs"], top_k.to(x["probs"].device)),
            lambda x: sampling.top_p_renorm_probs(x["probs"], top_p.to(x["probs"].device)),
            lambda x: sampling.top_k_mask_logits(x["logits"], top_k.to(x["probs"].device)),
            lambda x: sampling.softmax(x["logits"], 0.7),
            lambda x: tokenspeed.fused_topk_topp_renorm(
                x["probs"], top_k.int().to(x["probs"].device), top_p.to(x["probs"].device)
            ),
            lambda x: sglang.fused_temperature_softmax(
                x["logits"], torch.full((ROWS, 1), 0.7, device=x["logits"].device)
            ),
        )
    ):
        with without_waiting():
            seen = made(given)
        assert torch.equal(seen.cpu(), made({name: value.cpu() for name, value in given.items()})), number
    return f"{ROWS} rows"


@check
def chains() -> str:
    """Tokens and counts are the host's; counts are added to the caller's; drafts that the target agrees with are
    accepted.
    """
    count, drafts, vocab = 17, 3, 1000
    draft, target = torch.rand(count, drafts, vocab, device=DEVICE), torch.rand(count, drafts + 1, vocab, device=DEVICE)
    draft, target = draft / draft.sum(2, keepdim=True), target / target.sum(2, keepdim=True)
    target[3, 1] = 0
    ids = torch.randint(vocab, (count, drafts), device=DEVICE)
    held = [torch.full((count,), start, dtype=torch.int32, device=DEVICE) for start in (10, 20)]
    seen = sampling.chain_speculative_sampling(draft, ids, target, *held, seed=words(5), offset=words(*range(count)))
    wanted = sampling.chain_speculative_sampling(
        draft.cpu(), ids.cpu(), target.cpu(), seed=words(5).cpu(), offset=torch.arange(count)
    )
    assert seen[1] is held[0] and seen[2] is held[1]
    assert torch.equal(seen[0].cpu(), wanted[0]) and torch.equal(seen[1].cpu() - 10, wanted[1])
    assert torch.equal(seen[2].cpu() - 20, wanted[2])
    assert ((seen[0] != -1).sum(1) == seen[2] - 20 + 1).all()
    same = sampling.chain_speculative_sampling(target[:, :drafts].contiguous(), ids, target)
    assert (same[2] == drafts).sum() >= count - 1
    return f"{count} chains"


@check
def drafts_under_other_names() -> str:
    """What SGLang's and TokenSpeed's operators of drafts give on a GPU, eager and captured, is what they give on the host."""
    if not GPU:
        return "skipped: no GPU"
    requests, nodes, vocab = 24, 7, VOCAB
    generator = torch.Generator().manual_seed(11)
    first, sibling = (torch.full((requests, nodes), -1) for _ in range(2))
    parents = torch.full((requests, nodes), -1, dtype=torch.int32)
    for request in range(requests):
        last: dict[int, int] = {}
        for node in range(1, nodes):
            parent = int(torch.randint(max(0, node - 3), node, (), generator=generator))
            (sibling if parent in last else first)[request, last.get(parent, parent)] = node
            parents[request, node], last[parent] = parent, node
    probs = (torch.randn(requests, nodes, vocab, generator=generator) * 4).softmax(2)
    proposed = (torch.randn(requests, nodes, vocab, generator=generator) * 4).softmax(2)
    candidates = torch.cat([torch.zeros(requests, 1, dtype=torch.int64), proposed[:, :-1].argmax(2)], 1)
    picks = probs.argmax(2).int()
    picks[::2, :-1] = candidates[::2, 1:].int()
    coins = torch.rand(requests, nodes, generator=generator), torch.rand(requests, generator=generator)
    places = torch.arange(requests * nodes).view(requests, nodes)
    links, tree = (places, first, sibling), sglang.tree_speculative_sampling_target_only
    by_draft = {"use_draft_prob": True, "reject_draft_prob_threshold": 2.0}
    chain, of_tree = sglang.chain_speculative_sampling_triton, {"threshold_single": 0.4, "threshold_acc": 0.7}
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (tree, (candidates, *links, *coins, probs, torch.zeros_like(proposed)), of_tree),
        (chain, (candidates, *links, *coins, probs, proposed, 1.0, 1.0, True), {}),
        (chain, (candidates, *links, *coins, probs, proposed, 1.0, 1.0, True), {"block_verification": True}),
        (tokenspeed.chain_speculative_sampling_target_only, (candidates, *coins, probs, proposed), by_draft),
        (sglang.verify_tree_greedy, (candidates, *links, picks), {}),
        (tokenspeed.verify_chain_target_sampled, (candidates.int(), picks), {}),
    ]

    def outputs(device: str) -> list[torch.Tensor]:
        shapes = (requests * nodes,), (requests, nodes), (requests,)
        return [torch.full(shape, -1, dtype=torch.int32, device=device) for shape in shapes]

    for call, given, keywords in calls:
        wanted, seen = outputs("cpu"), outputs(DEVICE)
        call(*wanted, *given, **keywords)
        there = [part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in given]
        call(*seen, *there, **keywords)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(wanted, seen, strict=True)), call
        again = outputs(DEVICE)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(*again, *there, **keywords)
        graph.replay()
        assert all(map(torch.equal, seen, again)), call
    return f"{len(calls)} operators, {requests} trees"


@check
def softmaxes_beside_others() -> str:
    """The largest errors of ours, of torch's division and softmax and of FlashInfer's, over all vocabularies and temperatures; ours in place, too."""
    theirs, worst = real() if GPU else None, dict[tuple[str, str], float]()
    for vocab in (32_000, 128_256, 151_936):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for temperature in (0.01, 0.1, 0.7, 1.0, 2.0, 10.0, 100.0):
                given = rows(8, vocab)["logits"].to(dtype)
                temps, over = torch.full((8, 1), temperature, device=DEVICE), given.clone()
                sglang.fused_temperature_softmax_inplace(over, temps)
                found = {"ours": sglang.fused_temperature_softmax(given, temps), "ours in place": over}
                found["torch"] = (given.float() / temps).softmax(-1)
                if theirs is not None:
                    found["FlashInfer"] = theirs.softmax(given, temperature)
                wanted = (given.double() / temperature).softmax(-1)
                for name, probs in found.items():
                    key = name, str(dtype).removeprefix("torch.")
                    worst[key] = max(worst.get(key, 0.0), (probs.double() - wanted).abs().max().item())
    assert all(worst["ours", name] < 1e-6 for name in ("float32", "bfloat16", "float16")), worst
    return "; ".join(f"{name} {dtype} {error:.1e}" for (name, dtype), error in sorted(worst.items()))


@check
def beside_flashinfer() -> str:
    """The signatures are FlashInfer's; its own draws have the same distribution as ours."""
    theirs = real()
    if theirs is None:
        return "skipped: no FlashInfer"
    for name in sampling.__all__:
        ours, other = (inspect.signature(getattr(module, name)).parameters.values() for module in (sampling, theirs))
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in other], name
    if not GPU:
        return f"{len(sampling.__all__)} signatures"
    least = 1.0
    for name, kind, filters in SAMPLERS:
        given, lines = rows(1, VOCAB, 5.0)[kind], torch.zeros(DRAWS, dtype=torch.int32, device=DEVICE)
        seen = [
            getattr(module, name)(given, **filters, indices=lines, seed=1, offset=0) for module in (sampling, theirs)
        ]
        counts = [torch.bincount(drawn.long(), minlength=VOCAB).double() for drawn in seen]
        least = min(least, torch.cosine_similarity(*counts, dim=0).item())
    given = rows()
    for ours, other in (
        (sampling.top_k_renorm_probs(given["probs"], 40), theirs.top_k_renorm_probs(given["probs"], 40)),
        (sampling.top_p_renorm_probs(given["probs"], 0.8), theirs.top_p_renorm_probs(given["probs"], 0.8)),
        (sampling.softmax(given["logits"], 0.7), theirs.softmax(given["logits"], 0.7)),
    ):
        assert torch.allclose(ours, other, rtol=1e-3, atol=1e-3)
    assert torch.equal(sampling.top_k_mask_logits(given["logits"], 40), theirs.top_k_mask_logits(given["logits"], 40))
    assert least > 0.99, least
    return f"{len(sampling.__all__)} signatures; cosine at least {least:.5f}"


if __name__ == "__main__":
    run("FlashInfer's, SGLang's and TokenSpeed's names")
