"""SGLang's judgement of drafts under its names: published cases, laws, any numbering of trees, and `eagle_sample`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gumball

torch = pytest.importorskip("torch")

from gumball_compat import sglang, tokenspeed

# The trees of SGLang's own tests of both operators: siblings of the second stand in no order of numbers.
CANDIDATES = [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]]
NEXT_TOKEN = [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]]
NEXT_SIBLING = [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]]
SURE = {(0, 0): 3, (0, 3): 4, (0, 4): 5, (1, 0): 11, (1, 4): 12}
WANTED = [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18], [[0, 3, 4, 5], [6, 10, 11, -1]], [3, 2]


def outputs(requests: int, nodes: int, path: int) -> tuple[Any, Any, Any]:
    shapes = (requests * nodes,), (requests, path), (requests,)
    predicts, index, count = (torch.full(shape, -1, dtype=torch.int32) for shape in shapes)
    return predicts, index, count


def published() -> dict[str, Any]:
    names = "candidates", "retrive_index", "retrive_next_token", "retrive_next_sibling"
    values = CANDIDATES, [list(range(6)), list(range(6, 12))], NEXT_TOKEN, NEXT_SIBLING
    return {name: torch.tensor(value) for name, value in zip(names, values, strict=True)}


def sure_probs() -> Any:
    tokens = torch.tensor([[SURE.get((i, j), 18) for j in range(6)] for i in range(2)])
    return torch.nn.functional.one_hot(tokens, 20).float()


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_the_published_cases(threshold: float) -> None:
    # At thresholds of 0 release 0.5.23 accepts no token of probability 0, so they change nothing here.
    probs, made = sure_probs(), outputs(2, 6, 4)
    sglang.tree_speculative_sampling_target_only(
        *made,
        **published(),
        uniform_samples=torch.rand(2, 6),
        uniform_samples_for_final_sampling=torch.rand(2),
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        threshold_single=threshold,
        threshold_acc=threshold,
        deterministic=True,
    )
    assert tuple(part.tolist() for part in made) == WANTED
    made = outputs(2, 6, 4)
    sglang.verify_tree_greedy(*made, **published(), target_predict=probs.argmax(2))
    assert tuple(part.tolist() for part in made) == WANTED


def test_a_path_that_does_not_fit_ends_sooner() -> None:
    probs, made = sure_probs(), outputs(2, 6, 2)
    sglang.verify_tree_greedy(*made, **published(), target_predict=probs.argmax(2))
    assert made[1].tolist() == [[0, 3], [6, 10]] and made[2].tolist() == [1, 1]
    assert made[0].tolist() == [3, -1, -1, 4, -1, -1, 11, -1, -1, -1, 12, -1]
    again, coins = outputs(2, 6, 2), (torch.rand(2, 6), torch.rand(2))
    sglang.tree_speculative_sampling_target_only(*again, *published().values(), *coins, probs, torch.zeros_like(probs))
    assert all(map(torch.equal, made, again))


def random_tree(rng: Any, nodes: int) -> tuple[list[int], list[int], list[list[int]]]:
    """Links of a tree with nodes numbered in any way, and the children of each in the order of the links."""
    names = [0, *(1 + rng.permutation(nodes - 1)).tolist()]
    children: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(1, nodes):
        children[names[int(rng.integers(max(0, node - 3), node))]].append(names[node])
    first, sibling = [-1] * nodes, [-1] * nodes
    for parent, line in enumerate(children):
        rng.shuffle(line)
        if line:
            first[parent] = line[0]
        for left, right in zip(line, line[1:], strict=False):
            sibling[left] = right
    return first, sibling, children


@pytest.mark.parametrize("nodes", [1, 2, 6, 23, 65])
def test_trees_may_be_numbered_in_any_way(nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    requests, vocab = 30, 3
    trees = [random_tree(rng, nodes) for _ in range(requests)]
    candidates = torch.tensor(rng.integers(0, vocab, (requests, nodes)))
    places = torch.tensor(rng.permutation(requests * nodes)).view(requests, nodes)
    links = tuple(torch.tensor([tree[part] for tree in trees]) for part in range(2))
    picks = torch.tensor(rng.integers(0, vocab, requests * nodes))
    probs = torch.nn.functional.one_hot(picks[places], vocab).float()
    coins = torch.rand(requests, nodes), torch.rand(requests)
    greedy, judged = outputs(requests, nodes, nodes), outputs(requests, nodes, nodes)
    sglang.verify_tree_greedy(*greedy, candidates, places, *links, picks)
    sglang.tree_speculative_sampling_target_only(
        *judged, candidates, places, *links, *coins, probs, torch.zeros_like(probs)
    )
    wanted = [-1] * (requests * nodes)
    for i, (_, _, children) in enumerate(trees):
        path = [0]
        while True:
            wanted[int(places[i, path[-1]])] = pick = int(picks[places[i, path[-1]]])
            line = [child for child in children[path[-1]] if candidates[i, child] == pick]
            if not line:
                break
            path.append(line[0])
        for made in (greedy, judged):
            assert made[1][i].tolist() == [*places[i, path].tolist(), *[-1] * (nodes - len(path))]
            assert made[2][i] == len(path) - 1
    assert greedy[0].tolist() == judged[0].tolist() == wanted


def forest(requests: int, rows: int) -> tuple[Any, Any, Any, Any]:
    """Rows of probabilities of a root and two drafts, the drafter's for `rows` of them, drafts from those, and pairs of coins."""
    generator = torch.Generator().manual_seed(5)
    p, q = (torch.randn(requests, 3, 5, generator=generator).softmax(2) for _ in range(2))
    drafts = [torch.multinomial(q[:, i], 1, generator=generator) for i in range(2)]
    coins = torch.rand(requests, 3, generator=generator), torch.rand(requests, generator=generator)
    return p, q[:, :rows].contiguous(), torch.cat([torch.zeros_like(drafts[0]), *drafts], 1), coins


# How each rule is called, and what it is of `gumball.judge`.
THRESHOLDS = {"threshold_single": 0.35, "threshold_acc": 0.8}
BY_THRESHOLDS = {"use_draft_prob": False, "reject_draft_prob_threshold": 2.0}
BY_DRAFTER = BY_THRESHOLDS | {"use_draft_prob": True}


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("rule", ["tree", "chain", "rejection", "block", "tokenspeed", "marked"])
def test_judgements_are_gumballs_and_the_numbers_are_seeds(rule: str, rows: int) -> None:
    p, q, candidates, coins = forest(400, rows)
    made, drafts, parents = outputs(400, 3, 3), candidates[:, 1:], None
    places = torch.arange(3 * 400).view(400, 3)
    if rule == "tree":
        links = (torch.tensor([link]).expand(400, 3) for link in ([1, -1, -1], [-1, 2, -1]))
        tree = candidates, places, *links, *coins, p, torch.zeros_like(p)
        sglang.tree_speculative_sampling_target_only(*made, *tree, **THRESHOLDS)
        parents = torch.full((400, 2), -1)
    elif rule in ("rejection", "block"):
        given = candidates, places, candidates, candidates, *coins, p, q, 1.0, 1.0, True
        sglang.chain_speculative_sampling_triton(*made, *given, block_verification=rule == "block")
    else:
        # A draft probability above the threshold says that nothing was drawn.
        q = torch.full_like(q, 3.0) if rule == "marked" else q
        judge, drafter = sglang.chain_speculative_sampling_target_only, () if rule == "chain" else (q,)
        assert tokenspeed.chain_speculative_sampling_target_only is judge
        given = THRESHOLDS | BY_THRESHOLDS if rule == "chain" else BY_DRAFTER
        judge(*made, candidates, *coins, p, *drafter, **given)
    bits = [part.contiguous().view(torch.int32).tolist() for part in (coins[1], coins[0][:, 0])]
    seeds = [high % 2**32 << 32 | low % 2**32 for high, low in zip(*bits, strict=True)]
    by = (
        {"rule": "threshold"} | THRESHOLDS
        if rule in ("tree", "chain")
        else {"rule": "block" if rule == "block" else "rejection"}
    )
    drafts = torch.full_like(drafts, -1) if rule == "marked" else drafts
    drafter = None if rule in ("tree", "chain") else q
    wanted = gumball.judge(drafter, drafts, p, parents, **by, seed=seeds, position=0, draw=0)
    assert made[2].tolist() == wanted.accepted.tolist() and (rule == "marked" or 0 < made[2].float().mean() < 2)
    for i, accepted in enumerate(made[2].tolist()):
        nodes = torch.arange(accepted + 1) if wanted.rows is None else wanted.rows[i, : accepted + 1].long()
        assert made[1][i].tolist() == [*(nodes + 3 * i).tolist(), *[-1] * (2 - accepted)]
        assert made[0][nodes + 3 * i].tolist() == wanted.tokens[i, : accepted + 1].tolist()


def test_a_drafters_probabilities_are_needed_to_judge_by_them() -> None:
    p, q, candidates, coins = forest(4, 2)
    for text, given, extra in (
        ("needs draft_probs", BY_DRAFTER, ()),
        ("must be at least 1", BY_DRAFTER | {"reject_draft_prob_threshold": 0.5}, (q,)),
    ):
        with pytest.raises(ValueError, match=text):
            sglang.chain_speculative_sampling_target_only(*outputs(4, 3, 3), candidates, *coins, p, *extra, **given)


def test_mistakes_are_named() -> None:
    probs, coins = sure_probs(), (torch.rand(2, 6), torch.rand(2))
    given, made = published(), outputs(2, 6, 4)
    tree = sglang.tree_speculative_sampling_target_only
    short = given | {"retrive_next_token": given["retrive_next_token"][:, :5]}
    few = made[0][:11], *made[1:]
    mistakes: list[tuple[str, Any]] = [
        ("retrive_next_token has shape", lambda: tree(*made, *short.values(), *coins, probs, torch.zeros_like(probs))),
        ("predicts has shape", lambda: tree(*few, *given.values(), *coins, probs, torch.zeros_like(probs))),
        (
            "accept_token_num has shape",
            lambda: tree(*made[:2], made[2][:1], *given.values(), *coins, probs, torch.zeros_like(probs)),
        ),
        (
            "float32",
            lambda: tree(*made, *given.values(), coins[0].double(), coins[1].double(), probs, torch.zeros_like(probs)),
        ),
        (
            "uniform samples have shapes",
            lambda: tree(*made, *given.values(), coins[0], coins[1][:1], probs, torch.zeros_like(probs)),
        ),
        ("threshold_acc", lambda: tree(*made, *given.values(), *coins, probs, torch.zeros_like(probs), 1.0, 1.5)),
    ]
    for text, mistake in mistakes:
        with pytest.raises(ValueError, match=text):
            mistake()
    assert (made[0] == -1).all() and (made[1] == -1).all()


def settings(monkeypatch: Any, **given: Any) -> list[Any]:
    """Stand-ins for the modules of SGLang that `eagle_sample` asks. Returns what its group was to broadcast."""
    fields = {
        "speculative_use_rejection_sampling": False,
        "speculative_use_block_verification": False,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
    }
    sent: list[Any] = []
    group = SimpleNamespace(world_size=2, broadcast=lambda tensor, src: sent.append(tensor))
    members = {
        "sglang.srt.runtime_context": {
            "get_spec": lambda: SimpleNamespace(**fields | given),
            "get_parallel": lambda: SimpleNamespace(tp_group=group, attn_tp_group=None),
        },
        "sglang.srt.speculative.spec_utils": {"SIMULATE_ACC_LEN": 0},
        "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": lambda: False},
    }
    for name, values in members.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules or end == len(parts):
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        sys.modules[name].__dict__.update(values)
    monkeypatch.setattr(
        sys.modules["sglang.srt.speculative"],
        "spec_utils",
        sys.modules["sglang.srt.speculative.spec_utils"],
        raising=False,
    )
    return sent


def batch_of(requests: int, **info: Any) -> Any:
    given: dict[str, Any] = {
        "acc_additive_penalties": None,
        "acc_scaling_penalties": None,
        "logit_bias": None,
        "is_all_greedy": False,
        "has_watermark_candidates": False,
        "need_top_k_sampling": False,
        "need_top_p_sampling": False,
        "temperatures": torch.ones(requests, 1),
        "top_ks": torch.full((requests,), 1 << 30),
        "top_ps": torch.ones(requests),
        "sampling_seed": None,
    }
    return SimpleNamespace(
        device="cpu",
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.arange(requests) + 10,
        sampling_info=SimpleNamespace(**given | info),
    )


def asked(requests: int, candidates: Any, links: Any, depth: int) -> Any:
    nodes = candidates.shape[1]
    return SimpleNamespace(
        draft_token_num=nodes,
        draft_token=candidates.reshape(-1),
        max_tree_depth=depth,
        retrieve_index=torch.arange(requests * nodes).view(requests, nodes),
        retrieve_next_token=links[0],
        retrieve_next_sibling=links[1],
        tree_topk=2,
        draft_probs=None,
    )


def test_eagle_sample_judges_a_batch(monkeypatch: Any) -> None:
    sent = settings(monkeypatch)
    requests, vocab = 20_000, 6
    z = torch.tensor([[1.0, 0.5, 0.0, 2.0, -1.0, 0.3], [0.0, 1.0, 2.0, 0.1, 0.2, 0.3], [0.5, 0.1, 0.3, 0.0, 1.0, 2.0]])
    candidates = torch.tensor([[0, 3, 1]]).repeat(requests, 1)
    links = tuple(torch.tensor([link]).repeat(requests, 1) for link in ([1, -1, -1], [-1, 2, -1]))
    verify = asked(requests, candidates, links, 2)
    bias = torch.zeros(requests, vocab)
    bias[:, 2] = 1.0
    scales, added = torch.ones(requests, vocab), torch.zeros(requests, vocab)
    scales[:, 3], added[:, 0] = 2.0, -0.5
    seeds = torch.arange(requests) * 7919 - 1000
    info = {
        "logit_bias": bias,
        "acc_scaling_penalties": scales,
        "acc_additive_penalties": added,
        "sampling_seed": seeds,
        "temperatures": torch.full((requests, 1), 0.7),
        "need_top_k_sampling": True,
        "top_ks": torch.full((requests,), 4),
    }
    mask = SimpleNamespace(apply=lambda logits: logits[:, 5].fill_(-torch.inf))

    def run(seed: int = 0, **changed: Any) -> Any:
        torch.manual_seed(seed)
        logits = SimpleNamespace(next_token_logits=z.repeat(requests, 1))
        return sglang.eagle_sample(verify, batch_of(requests, **info | changed), logits, mask)

    predict, lengths, index = run()
    assert [part.dtype for part in (predict, lengths, index)] == [torch.int32] * 3 and len(sent) == 3
    edited = z[0] + added[0]
    edited = torch.where(edited > 0, edited / scales[0], edited * scales[0]) + bias[0]
    edited[5] = -torch.inf
    law = torch.where(edited >= edited.topk(4).values[-1], edited, -torch.inf).div(0.7).softmax(0)
    seen = torch.bincount(predict.view(requests, 3)[:, 0], minlength=vocab) / requests
    assert (seen - law).abs().max() < 0.015
    # What a request draws is that of its seed at its length, whatever torch's generator and the batch.
    assert all(map(torch.equal, (predict, lengths, index), run(seed=1)))
    assert not torch.equal(predict, run(seed=1, sampling_seed=None)[0])
    taken = (lengths == 2).float().mean() - law[[3, 1]].sum()
    assert abs(taken) < 0.015 and (index[:, 0] == torch.arange(0, 3 * requests, 3)).all()

    greedy = run(is_all_greedy=True)
    first = int(edited.argmax())
    assert (greedy[0].view(requests, 3)[:, 0] == first).all()
    assert greedy[1].tolist() == [2 if first in (1, 3) else 1] * requests


def test_eagle_sample_by_rejection_when_idle_and_refused(monkeypatch: Any) -> None:
    settings(monkeypatch, speculative_use_rejection_sampling=True)
    requests = 20_000
    z = torch.tensor([[1.0, 0.5, 0.0, 2.0], [0.0, 1.0, 2.0, 0.1]])
    q = torch.tensor([0.4, 0.3, 0.2, 0.1])
    drafts = torch.multinomial(q, requests, replacement=True)
    candidates = torch.stack([drafts * 0, drafts], 1)
    links = tuple(torch.tensor([link]).repeat(requests, 1) for link in ([1, -1], [-1, -1]))
    verify = asked(requests, candidates, links, 2)
    verify.draft_probs = q.expand(requests, 1, 4)
    logits = SimpleNamespace(next_token_logits=z.repeat(requests, 1))
    predict, lengths, index = sglang.eagle_sample(verify, batch_of(requests), logits)
    seen = torch.bincount(predict.view(requests, 2)[:, 0], minlength=4) / requests
    assert (seen - z[0].softmax(0)).abs().max() < 0.015 and ((index >= 0).sum(1) == lengths).all()

    batch = batch_of(requests, has_watermark_candidates=True)
    with pytest.raises(NotImplementedError, match="watermarks"):
        sglang.eagle_sample(verify, batch, logits, watermark_state=object())
    batch.forward_mode = SimpleNamespace(is_idle=lambda: True)
    assert [len(part) for part in sglang.eagle_sample(verify, batch, logits)] == [0, 0, 0]
    monkeypatch.setattr(sys.modules["sglang.srt.speculative.spec_utils"], "SIMULATE_ACC_LEN", 2)
    with pytest.raises(NotImplementedError, match="simulates"):
        sglang.eagle_sample(verify, batch_of(requests), logits)


REAL = Path(__file__).parent / "real" / "sglang_kernels.py"


def test_the_real_operators_have_the_same_results() -> None:
    """SGLang's own kernels, run by Triton's interpreter, beside ours."""
    if find_spec("triton") is None or find_spec("sglang") is None:
        pytest.skip("needs triton and sglang, which need not be able to run here")
    done = subprocess.run([sys.executable, str(REAL)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"trees": 60, "chains": 80}


def test_the_names_are_there_without_torch_having_been_asked_for() -> None:
    assert "eagle_sample" in sglang.__all__ and not hasattr(sglang, "nothing_of_this_name")
    program = "import sys, gumball_compat.sglang; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
