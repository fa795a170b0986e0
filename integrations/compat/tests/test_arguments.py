"""No argument is accepted and ignored: each is read, or refused where it would have no effect, or a package's page says why it may have none."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from gumball.errors import RefusedError

INTEGRATIONS = Path(__file__).parents[2]
# Those that take calls which others make.
PACKAGES = ("compat", "sglang", "tokenspeed", "vllm")


def arguments(function: ast.FunctionDef) -> list[str]:
    given = function.args
    rest = [one for one in (given.vararg, given.kwarg) if one is not None]
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def unread(body: list[ast.stmt]) -> set[tuple[str, str]]:
    """The arguments that no function reads, as (function, argument), of functions and methods without an underscore before their names."""
    found = set()
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found |= {(f"{node.name}.{function}", one) for function, one in unread(node.body)}
        if not isinstance(node, ast.FunctionDef) or re.match("_(?!_)", node.name):
            continue
        if any(isinstance(one, ast.Name) and one.id == "abstractmethod" for one in node.decorator_list):
            continue
        read = {one.id for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name)}
        found |= {(node.name, one) for one in arguments(node) if one not in read}
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_an_argument_that_nobody_reads_stands_on_the_page(name: str) -> None:
    pytest.importorskip("torch")
    from gumball_compat.flashinfer.logits_processor import operators

    folder, page = INTEGRATIONS / name / f"gumball_{name}", (INTEGRATIONS / name / "README.md").read_text()
    ignored = set()
    for path in folder.rglob("*.py"):
        module = path.relative_to(folder).parts[0].removesuffix(".py")
        ignored |= {(module, *one) for one in unread(ast.parse(path.read_text()).body)}
    for op_name, op in vars(operators).items():
        if name == "compat" and op_name.endswith("Op") and not op_name.startswith("_"):
            ignored |= {("flashinfer", op_name, one) for one in getattr(op, "UNREAD", ())}
    table = re.search(r"^##+ Arguments that change nothing$.*?(^\|.*?)(^$|\Z)", page, re.M | re.S)
    assert table is not None
    said = set()
    for line in table[1].splitlines()[2:]:
        module, functions, names, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for function in re.findall(r"`([^`]+)`", functions):
            said |= {(module, function, one) for one in re.findall(r"`([^`]+)`", names)}
    assert ignored == said, f"not on the page: {sorted(ignored - said)}; read: {sorted(said - ignored)}"


def test_llama_cpps_arguments_that_it_applies_no_more() -> None:
    from gumball_compat import llama_cpp

    theirs: dict[str, Any] = dict(top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.8, repeat_penalty=1.0)
    theirs |= dict(frequency_penalty=0.0, presence_penalty=0.0, mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1)
    theirs |= dict(last_n_tokens_size=64)
    plain = llama_cpp.params_of(theirs, seed=1, ours={})
    assert llama_cpp.params_of(theirs | {"tfs_z": 1.0, "penalize_nl": True}, seed=1, ours={}) == plain
    for name, value in (("tfs_z", 0.9), ("penalize_nl", False), ("of_another_release", 1)):
        with pytest.raises(RefusedError, match=f"{name} is {value}, .*; leave it out"):
            llama_cpp.params_of(theirs | {name: value}, seed=1, ours={})


def test_llama_cpps_reasoning_budget_is_a_section() -> None:
    from gumball_compat.llama_cpp import with_section

    def ids(text: str) -> list[int]:
        return list(text.encode())

    made = with_section(
        {"reasoning_budget": 2**40, "reasoning_budget_message": "!", "section_min": 2, "top_a": 0.1}, ids
    )
    assert made == {
        "section_open": ids("<think>"),
        "section_close": ids("</think>"),
        "section_end": ids("!</think>"),
        "section_budget": 2**32 - 1,
        "section_min": 2,
        "top_a": 0.1,
    }
    assert with_section({"reasoning_budget": -1, "section_close": [5]}, ids) == {"section_close": [5]}
    wrong = [({"reasoning_budget": -2}, "at least -1"), ({"reasoning_budget": True}, "must be a whole number")]
    wrong += [({"reasoning_budget_message": 5}, "must be text")]
    wrong += [({"reasoning_budget": 5, "section_close": [5]}, "section_close is given beside reasoning_budget")]
    for given, text in wrong:
        with pytest.raises(RefusedError, match=text):
            with_section(given, ids)


def test_llama_cpps_window_of_penalties() -> None:
    from gumball_compat import llama_cpp

    theirs: dict[str, Any] = dict(
        temp=0.0, repeat_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.25, mirostat_mode=0
    )

    def read(size: int, **ours: Any) -> tuple[float, float, float, int]:
        params = llama_cpp.params_of(theirs | {"last_n_tokens_size": size}, seed=1, ours=ours)
        penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        return *(round(penalty, 6) for penalty in penalties), params.penalty_window

    assert read(64) == (1.1, 0.5, 0.25, 64)
    assert read(64, penalty_window=0) == (1.1, 0.5, 0.25, 0)
    assert read(0) == read(-1) == (1.0, 0.0, 0.0, 0)


def test_drafts_arguments_without_effect_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from gumball_compat import sglang

    def places() -> Any:
        return torch.arange(2).view(1, 2)

    probs, ids, none = torch.full((1, 2, 4), 0.25), torch.zeros(1, 2, dtype=torch.int32), torch.full((1, 2), -1)
    made = torch.full((2,), -1, dtype=torch.int32), torch.full((1, 2), -1, dtype=torch.int32), torch.zeros(1).int()
    coins = torch.rand(1, 2), torch.rand(1)
    links = torch.tensor([[1, -1]]), none
    tree = [*made, ids, places(), *links, *coins, probs]
    chain = [*made, ids, *coins, probs]
    by_drafter: dict[str, Any] = {"use_draft_prob": True, "reject_draft_prob_threshold": 1.0}
    by_thresholds = by_drafter | {"use_draft_prob": False}
    triton, only = sglang.chain_speculative_sampling_triton, sglang.chain_speculative_sampling_target_only
    for text, mistake in [
        ("draft_probs has numbers other than 0", lambda: sglang.tree_speculative_sampling_target_only(*tree, probs)),
        ("threshold_single is 0.9, but must be 1.0 here; ", lambda: triton(*tree, probs, 0.9, 1.0, True)),
        ("threshold_acc is 0.5, but must be 1.0 here; ", lambda: triton(*tree, probs, 1.0, 0.5, True)),
        ("threshold_acc is 0.5, but", lambda: only(*chain, probs, 1.0, 0.5, **by_drafter)),
        ("draft_probs is given, but must be None here; .*use_draft_prob", lambda: only(*chain, probs, **by_thresholds)),
        (
            "uno_target_max_top_k is given, but must be None here; leave SGLang's own",
            lambda: sglang.eagle_sample(None, None, None, uno_target_max_top_k=20),
        ),
    ]:
        with pytest.raises(RefusedError, match=text):
            mistake()
    assert (made[0] == -1).all() and (made[1] == -1).all()
    sglang.tree_speculative_sampling_target_only(*tree, torch.zeros_like(probs))
    triton(*tree, probs, 1, 1, False)
    only(*chain, probs, 1.0, 1.0, **by_drafter)
    only(*chain, None, 0.9, 0.5, **by_thresholds)


def test_a_pipe_refuses_what_none_of_its_processors_takes() -> None:
    torch = pytest.importorskip("torch")
    from gumball_compat.flashinfer.logits_processor import (
        LogitsPipe,
        Sample,
        Softmax,
        Temperature,
        TensorType,
        TopK,
        TopP,
    )

    logits, filters = torch.zeros(2, 8), {"top_k": 3, "top_p": 0.9}
    plain, probs = [Temperature(), Softmax(), TopK(), TopP(), Sample()], logits.softmax(-1)
    joint = [TopK(joint_topk_topp=True), TopP(), Sample()]
    for compiled in (True, False):
        pipe = LogitsPipe(plain, compile=compiled)
        pipe(logits, temperature=0.5, **filters, generator=None, indices=None)
        with pytest.raises(
            RefusedError, match="min_p is given, but no operator of the pipe takes it; those take .*top_k"
        ):
            pipe(logits, temperature=0.5, **filters, min_p=0.1)
    with pytest.raises(RefusedError, match="seed is given"):
        LogitsPipe([Sample(seed=3)], input_type=TensorType.PROBS)(probs)
    LogitsPipe(joint, input_type=TensorType.PROBS)(probs, **filters)
    for apart, kind, compiled in (
        (joint, TensorType.PROBS, False),
        ([TopK(joint_topk_topp=True), Softmax(), TopP(), Sample()], TensorType.LOGITS, True),
    ):
        with pytest.raises(RefusedError, match="joint_topk_topp is True, but .*; put them so, or leave it out"):
            LogitsPipe(apart, compile=compiled, input_type=kind)(logits, **filters)
