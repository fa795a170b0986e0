"""torch's custom operators: what they come to, what the compiler is told of them, and that it takes them whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gumball

torch = pytest.importorskip("torch")

VOCAB = 900


@pytest.fixture
def logits(batch: np.ndarray) -> Any:
    return torch.from_numpy(batch)


def calls(ops: Any, logits: Any) -> dict[str, Any]:
    """Each function, of this package or of gumball.torch, on the same rows."""
    probs = gumball.softmax(logits)
    column, ks, seeds = torch.linspace(0.5, 2, 7), torch.arange(1, 8), torch.arange(-3, 4)
    lines = torch.tensor([6, 0, 0, 3])
    chains = (probs[:4].reshape(2, 2, VOCAB), torch.tensor([[1, 2], [3, 4]]), probs[:6].reshape(2, 3, VOCAB))
    return {
        "softmax": lambda: ops.softmax(logits, column),
        "softmax in bfloat16": lambda: ops.softmax(logits.bfloat16(), 0.7),
        "softmax to out": lambda: ops.softmax(logits, 0.7, torch.empty_like(logits)),
        "softmax in place": lambda: in_place(ops.softmax, logits.clone(), column),
        "probabilities": lambda: ops.probabilities(
            logits, temperature=0.7, top_k=ks, top_p=0.9, order=["top_p", "top_k"]
        ),
        "top_k_renorm_probs": lambda: ops.top_k_renorm_probs(probs, 5),
        "top_k_renorm_probs in float16": lambda: ops.top_k_renorm_probs(probs.half(), ks),
        "top_p_renorm_probs": lambda: ops.top_p_renorm_probs(probs, 0.9, torch.empty_like(probs)),
        "top_p_renorm_probs in place": lambda: in_place(ops.top_p_renorm_probs, probs.clone(), 0.5),
        "min_p_renorm_probs": lambda: ops.min_p_renorm_probs(probs, 0.1),
        "top_k_top_p_renorm_probs": lambda: ops.top_k_top_p_renorm_probs(probs, ks, 0.9, order="joint"),
        "mask_logits": lambda: ops.mask_logits(logits, min_p=column / 4),
        "top_k_mask_logits": lambda: ops.top_k_mask_logits(logits, 3),
        "sampling_from_probs": lambda: ops.sampling_from_probs(probs, top_p=0.9, seed=seeds, position=3),
        "sampling_from_probs with indices": lambda: ops.sampling_from_probs(
            probs, lines, seed=2**64 - 3, dtype="int64"
        ),
        "sampling_from_probs n": lambda: ops.sampling_from_probs(probs, n=3, seed=7, top_k=ks, draw=2),
        "sampling_from_logits": lambda: ops.sampling_from_logits(logits, temperature=column, seed=5),
        "sampling_from_logits to out": lambda: ops.sampling_from_logits(
            logits, seed=5, out=torch.empty(7, dtype=torch.int32)
        ),
        "judge": lambda: ops.judge(*chains, seed=9, position=seeds[:2] + 3)[0],
        "judge of trees": lambda: ops.judge(
            None, *chains[1:], torch.full((2, 2), -1), rule="threshold", threshold_acc=0.5, seed=9
        )[1],
    }


def in_place(work: Any, rows: Any, value: Any) -> Any:
    assert work(rows, value, rows) is rows
    return rows


NAMES = list(calls(gumball, torch.zeros(7, VOCAB)))


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_the_packages_function(name: str, logits: Any) -> None:
    import gumball.torch as ops

    wanted, seen = calls(gumball, logits)[name](), calls(ops, logits)[name]()
    assert seen.dtype == wanted.dtype and torch.equal(seen, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_compiler_takes_it_whole(name: str, logits: Any) -> None:
    import gumball.torch as ops

    # Compiled code may call the package's functions too; torch 2.4 cannot put operators in their place.
    for of in (ops, gumball) if hasattr(torch.compiler, "substitute_in_graph") else (ops,):
        torch.compiler.reset()
        compiled = torch.compile(calls(of, logits)[name], backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(), calls(gumball, logits)[name]())


def test_schemas_and_fakes_are_right(logits: Any) -> None:
    import gumball.torch as ops

    assert ops.softmax is not gumball.softmax
    probs, none = gumball.softmax(logits), [None] * 8
    column, seeds, tests = torch.ones(7), torch.arange(7), ("test_schema", "test_faketensor")
    keys, named = [None, seeds, 0, None, None, None, True, False], torch.ops.gumball
    chains = (probs[:4].reshape(2, 2, VOCAB), torch.zeros(2, 2, dtype=torch.int64), probs[:6].reshape(2, 3, VOCAB))
    columns, chain_keys = [None, column, *none[:6], ""], [3, None, 0, None, None, None, False, True]
    for operator, arguments in [
        (named.write_rows, (logits.half(), "float32", "softmax", "logits", *columns)),
        (named.write_rows_out, (logits, torch.empty_like(logits), "softmax", "logits", 0.5, *none[:7], "")),
        (named.write_rows_, (logits.clone(), "softmax", "logits", *columns)),
        (named.write_rows, (probs.half(), None, "probabilities", "probabilities", *none, "")),
        (named.write_rows, (logits.half(), None, "mask_logits", "logits", *none, "")),
        (named.write_rows_out, (logits, torch.empty_like(logits), "probabilities", "logits", *none, "")),
        (named.write_rows_, (logits.clone(), "mask_logits", "logits", *none, "joint")),
        (named.sample_rows, (probs, "probabilities", None, None, "int64", *keys, *none, "")),
        (named.sample_rows, (probs, "probabilities", None, 2, "int32", *keys, *none, "")),
        (named.judge, (*chains, None, "rejection", 1.0, 1.0, "int32", *chain_keys)),
        (named.judge, (None, *chains[1:], chains[1] - 1, "threshold", 0.5, 0.5, "int64", *chain_keys)),
    ]:
        torch.library.opcheck(operator.default, arguments, test_utils=tests)


def test_mistakes_are_told(logits: Any) -> None:
    import gumball.torch as ops

    with pytest.raises(TypeError, match="temperature must be a number or a tensor in what is compiled, not list"):
        ops.softmax(logits, [1.0] * 7)
    with pytest.raises(ValueError, match="temperature is -1"):
        ops.softmax(logits, -1.0)
    with pytest.raises(TypeError, match="seed"):
        ops.sampling_from_probs(logits)
    counts = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(TypeError, match="added is not for what is compiled"):
        ids = torch.zeros(1, 2, dtype=torch.int32)
        ops.judge(logits[None, :2], ids, logits[None, :3], seed=1, added=(counts, counts))
