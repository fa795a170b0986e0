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
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gumball.compat.flashinfer import sampling
from gumball.compat.flashinfer.logits_processor import (
    LogitsPipe,
    MinP,
    Sample,
    Softmax,
    Temperature,
    TensorType,
    TopK,
    TopP,
)

import gumball
from gumball.compat import sglang, tokenspeed

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
VOCAB, ROWS, DRAWS = 32_000, 9, 5_000_000 if GPU else 200_000
CHECKS: list[Callable[[], str]] = []
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


def check(work: Callable[[], str]) -> Callable[[], str]:
    CHECKS.append(work)
    return work


def rows(count: int = ROWS, vocab: int = VOCAB, spread: float = 3.0) -> dict[str, torch.Tensor]:
    """The same rows as logits and as probabilities."""
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
    """Makes an error of whatever waits for the GPU."""
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
    """Within 1e-3 of float64; the same bits as on the host."""
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
    exact, order = given["probs"].double().sort(dim=1, descending=True, stable=True)
    for limit, seen in (
        (torch.arange(VOCAB, device=DEVICE) < top_k[:, None], sampling.top_k_renorm_probs(given["probs"], top_k)),
        (exact.cumsum(1) - exact < top_p[:, None].double(), sampling.top_p_renorm_probs(given["probs"], top_p)),
    ):
        kept = torch.zeros_like(exact).scatter_(1, order, exact * limit)
        assert (seen.double() - kept / kept.sum(1, keepdim=True)).abs().max() < 1e-3
    return f"{ROWS} rows"


@check
def frequencies() -> str:
    """Millions of draws from one row have its direction, and nothing is drawn that a filter does not keep."""
    least = 1.0
    for vocab in (111, 32_000, 128_256):
        for name, kind, filters in SAMPLERS:
            given = rows(1, vocab, 5.0)
            lines = torch.zeros(DRAWS, dtype=torch.int32, device=DEVICE)
            drawn = getattr(sampling, name)(given[kind], **filters, indices=lines, seed=1, offset=vocab)
            counts = torch.bincount(drawn.long(), minlength=vocab).double()
            named = {"joint": "joint"}.get(str(filters.get("filter_apply_order")))
            kept = {field: value for field, value in filters.items() if field != "filter_apply_order"}
            law = (
                gumball.probabilities(given["probs"].cpu(), kind="probabilities", order=named, **kept)[0]
                .double()
                .to(DEVICE)
            )
            assert (counts[law == 0] == 0).all(), (name, vocab)
            least = min(least, torch.cosine_similarity(counts, law, dim=0).item())
    assert least > 0.99, least
    return f"cosine at least {least:.5f} after {DRAWS} draws"


@check
def pipes() -> str:
    """A pipe is the functions it is made of, compiled and not."""
    given, both = rows(), {"top_k": 40, "top_p": 0.8}
    made: list[tuple[list[Any], str, dict[str, Any], Callable[..., torch.Tensor], dict[str, Any]]] = [
        ([Sample()], "probs", {}, sampling.sampling_from_probs, {}),
        ([Sample()], "logits", {}, sampling.sampling_from_logits, {}),
        ([TopK(), Sample()], "probs", {"top_k": 40}, sampling.top_k_sampling_from_probs, {}),
        ([TopP(), Sample()], "probs", {"top_p": 0.8}, sampling.top_p_sampling_from_probs, {}),
        ([MinP(), Sample()], "probs", {"min_p": 0.1}, sampling.min_p_sampling_from_probs, {}),
        ([TopK(), TopP(), Sample()], "probs", both, sampling.top_k_top_p_sampling_from_probs, {}),
        (
            [TopK(joint_topk_topp=True), TopP(), Sample()],
            "probs",
            both,
            sampling.top_k_top_p_sampling_from_probs,
            {"filter_apply_order": "joint"},
        ),
    ]
    for processors, kind, params, function, more in made:
        pipe = LogitsPipe(processors, input_type=TensorType[kind.upper()])
        first, second = (torch.Generator(DEVICE).manual_seed(7) for _ in range(2))
        got = pipe(given[kind], **params, generator=first)
        assert torch.equal(got, function(given[kind], **params, **more, generator=second)), pipe
    temperature = torch.rand(ROWS, device=DEVICE) + 0.5
    whole = LogitsPipe([Temperature(), Softmax()])(given["logits"], temperature=temperature)
    parts = LogitsPipe([Temperature(), Softmax()], compile=False)(given["logits"], temperature=temperature)
    assert torch.equal(whole, sampling.softmax(given["logits"], temperature))
    assert torch.allclose(whole, parts, atol=1e-5)
    return f"{len(made) + 1} pipes"


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
def a_backend_in_a_graph() -> str:
    """TokenSpeed's calls: warm up, capture, replay with other requests, with drafts and without; the tokens are the
    host's.
    """
    if not GPU:
        return "skipped: no GPU"
    plain = {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.0,
    }
    plain |= {"repetition_penalty": 1.1, "min_new_tokens": 0}
    params = [SimpleNamespace(**plain, seed=seed, logit_bias=None, stop_token_ids=None) for seed in range(3)]
    info, width = SimpleNamespace(vocab_mask=None), 3
    for each in (1, width):
        made = []
        for device in (DEVICE, "cpu"):
            config = tokenspeed.SamplingBackendConfig(4, width, 8, VOCAB, device)
            made.append(tokenspeed.GumballSamplingBackend(config))
        held = torch.zeros(4 * each, VOCAB, device=DEVICE)
        candidates = torch.zeros(4, each, dtype=torch.int64, device=DEVICE)

        def take(backend: Any, logits: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            asked = SimpleNamespace(next_token_logits=logits)
            return backend.sample(asked, info) if drafts.shape[1] == 1 else backend.verify(asked, info, drafts)

        gpu, host = made
        for _ in range(2):
            gpu.prepare_capture_variant(4, each, "default")
            take(gpu, held, candidates)
        gpu.reset_capture_state()
        gpu.prepare_capture_variant(4, each, "default")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens, lengths = take(gpu, held, candidates)
        for step in range(12):
            count = 3 if step % 4 else 2
            asked = list("abc")[:count], [1, 2, 3][:count], params[:count], each
            held[: count * each] = torch.randn(count * each, VOCAB, generator=torch.Generator().manual_seed(step)) * 3
            for backend in made:
                backend.prepare_step(*asked)
            if each > 1:
                # What would be drawn without drafts is a good draft.
                state = host.pool.state(host._slots["a"])
                alone = gumball.Sampler.resume(tokenspeed.params_of(params[0]), VOCAB, state)
                candidates[0, 1] = alone.sample(held[0].cpu())
            assert gpu.cuda_graph_replay_variant(each) == "default"
            graph.replay()
            wanted, accepted = take(host, held[: count * each].cpu(), candidates[:count].cpu())
            assert lengths[:count].tolist() == accepted.tolist(), step
            ours, theirs = tokens.view(4, each)[:count].tolist(), wanted.view(count, each).tolist()
            for line, other, length in zip(ours, theirs, accepted.tolist(), strict=True):
                assert line[:length] == other[:length], step
        for name in "abc":
            for backend in made:
                backend.prepare_step(list("abc"), [1, 2, 3], params)
            assert gpu.pool.output(gpu._slots[name]) == host.pool.output(host._slots[name]), name
    return "24 steps"


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
def sglangs_softmax() -> str:
    """Temperature and softmax in one: float64's values, also in place in bfloat16."""
    logits, temps = torch.randn(64, 128_256, device=DEVICE), torch.rand(64, 1, device=DEVICE) + 0.3
    wanted = (logits.cpu().double() / temps.cpu().double()).softmax(-1)
    torch.testing.assert_close(
        sglang.fused_temperature_softmax(logits, temps).cpu().double(), wanted, rtol=1e-5, atol=1e-5
    )
    narrow = logits.bfloat16()
    wanted = (narrow.cpu().double() / temps.cpu().double()).softmax(-1)
    assert sglang.fused_temperature_softmax_inplace(narrow, temps) is None
    torch.testing.assert_close(narrow.cpu().double(), wanted, rtol=1e-1, atol=2e-2)
    return "64 rows"


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


def leave_out_what_has_no_kernels() -> None:
    """Says which functions the GPU lacks kernels for, and leaves them to later."""
    for entry in list(SAMPLERS):
        name, kind, filters = entry
        try:
            getattr(sampling, name)(rows()[kind], **filters, seed=1, offset=0)
        except gumball.UnavailableError as error:
            SAMPLERS.remove(entry)
            print(f"(left out: {name}, {filters}: {error})")


def main() -> None:
    named, failed = sys.argv[1:], 0
    leave_out_what_has_no_kernels()
    for work in CHECKS:
        if named and work.__name__ not in named:
            continue
        try:
            print(f"{work.__name__}: {work()}", flush=True)
        except gumball.UnavailableError as error:
            print(f"{work.__name__}: left out: {error}", flush=True)
        except Exception:
            failed += 1
            print(f"{work.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
    print(
        f"VERDICT: {failed} of the checks of FlashInfer's names FAILED"
        if failed
        else "VERDICT: FlashInfer's names hold"
    )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
