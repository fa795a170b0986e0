"""What does not fit, by a table over every operator: the kind of error, the argument it names, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball

ROWS, VOCAB = 4, 96
Operator = Callable[..., Any]

# Operators that write rows: how they are called, and what their rows are called.
WRITERS: dict[str, tuple[Operator, str]] = {
    "softmax": (lambda rows, **o: gumball.softmax(rows, 0.7, **o), "logits"),
    "probabilities": (lambda rows, **o: gumball.probabilities(rows, top_k=5, **o), "rows"),
    "top_k_renorm_probs": (lambda rows, **o: gumball.top_k_renorm_probs(rows, 5, **o), "probs"),
    "top_p_renorm_probs": (lambda rows, **o: gumball.top_p_renorm_probs(rows, 0.5, **o), "probs"),
    "min_p_renorm_probs": (lambda rows, **o: gumball.min_p_renorm_probs(rows, 0.1, **o), "probs"),
    "top_k_top_p_renorm_probs": (lambda rows, **o: gumball.top_k_top_p_renorm_probs(rows, 5, 0.5, **o), "probs"),
    "mask_logits": (lambda rows, **o: gumball.mask_logits(rows, min_p=0.1, **o), "logits"),
    "top_k_mask_logits": (lambda rows, **o: gumball.top_k_mask_logits(rows, 5, **o), "logits"),
}
DRAWERS: dict[str, tuple[Operator, str]] = {
    "sampling_from_probs": (lambda rows, **o: gumball.sampling_from_probs(rows, **({"seed": 1} | o)), "probs"),
    "sampling_from_logits": (lambda rows, **o: gumball.sampling_from_logits(rows, **({"seed": 1} | o)), "logits"),
}


def misaligned(array: np.ndarray) -> np.ndarray:
    """The same, a byte beyond where its elements may lie."""
    raw = np.zeros(array.nbytes + 16, np.uint8)
    first = -raw.ctypes.data % 8 + 1
    moved = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[:] = array
    return moved


# What no operator takes: how it is made of good rows, the error, and what is said.
BAD_ROWS: dict[str, tuple[Callable[[np.ndarray], Any], type[Exception], str]] = {
    "float64": (lambda rows: rows.astype(np.float64), TypeError, "{} is of float64, but must be of float32"),
    "int32": (lambda rows: rows.astype(np.int32), TypeError, "{} is of int32, but must be of float32"),
    "bool": (lambda rows: rows > 0, TypeError, "{} is of bool"),
    "complex": (lambda rows: rows.astype(np.complex64), TypeError, "{} is of another type"),
    "objects": (lambda rows: rows.astype(object), TypeError, "{} is of another type"),
    "big-endian": (lambda rows: rows.astype(">f4"), TypeError, "{} is of elements in another byte order"),
    "a list": (lambda rows: rows.tolist(), TypeError, "{} must be an array"),
    "None": (lambda rows: None, TypeError, "{} must be an array"),
    "text": (lambda rows: "rows", TypeError, "{} must be an array"),
    "three dimensions": (lambda rows: rows[None], ValueError, "{} has 3 dimensions"),
    "a number": (lambda rows: np.array(3, np.float32), ValueError, "{} has 0 dimensions"),
    "every other element": (lambda rows: rows[:, ::2], ValueError, "{} has elements 2 apart in a row"),
    "transposed": (lambda rows: np.asfortranarray(rows), ValueError, "{} has elements 4 apart in a row"),
    "backwards": (lambda rows: rows[:, ::-1], ValueError, "{} has elements -1 apart in a row"),
    "upside down": (lambda rows: rows[::-1], ValueError, "{}'s stride is -96"),
    "one row over and over": (lambda rows: np.broadcast_to(rows[0], rows.shape), ValueError, "stride is 0"),
    "misaligned": (misaligned, ValueError, "{}'s address is"),
    "no vocabulary": (lambda rows: rows[:, :0], ValueError, "vocab is 0"),
    "too large a vocabulary": (lambda rows: np.zeros((1, (1 << 20) + 1), np.float32), ValueError, "vocab is 1048577"),
}
BAD_OUT: dict[str, tuple[Callable[[np.ndarray], Any], type[Exception], str]] = {
    "float64": (lambda out: out.astype(np.float64), TypeError, "out is of float64"),
    "a list": (lambda out: out.tolist(), TypeError, "out must be an array"),
    "fewer rows": (lambda out: out[:-1], ValueError, "out has"),
    "three dimensions": (lambda out: out[None, None], ValueError, "dimensions"),
    "every other element": (lambda out: np.repeat(out, 2, -1)[..., ::2], ValueError, "apart in a row"),
    "misaligned": (misaligned, ValueError, "out's address is"),
    "read-only": (lambda out: np.broadcast_to(out.flat[0], out.shape), ValueError, "read-only|apart in a row|stride"),
}


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(9).random((ROWS, VOCAB)).astype(np.float32)


def refuses(call: Callable[[], Any], kind: type[Exception], text: str, *arrays: Any) -> None:
    before = [array.tobytes() if isinstance(array, np.ndarray) else None for array in arrays]
    with pytest.raises(kind, match=text):
        call()
    assert [array.tobytes() if isinstance(array, np.ndarray) else None for array in arrays] == before


@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("name", [*WRITERS, *DRAWERS])
def test_rows_that_do_not_fit_are_told(name: str, bad: str, rows: np.ndarray) -> None:
    operator, argument = (WRITERS | DRAWERS)[name]
    make, kind, text = BAD_ROWS[bad]
    wrong = make(rows)
    refuses(lambda: operator(wrong), kind, text.format(argument), wrong)


@pytest.mark.parametrize("bad", BAD_OUT)
@pytest.mark.parametrize("name", [*WRITERS, *DRAWERS])
def test_a_place_for_the_result_that_does_not_fit_is_told(name: str, bad: str, rows: np.ndarray) -> None:
    operator, _ = (WRITERS | DRAWERS)[name]
    out = np.full(ROWS, 77, np.int32) if name in DRAWERS else np.full(rows.shape, 0.5, np.float32)
    make, kind, text = BAD_OUT[bad]
    wrong = make(out)
    refuses(lambda: operator(rows, out=wrong), kind, text, rows, wrong, out)


@pytest.mark.parametrize("name", WRITERS)
def test_overlapping_results_are_told(name: str, rows: np.ndarray) -> None:
    operator, argument = WRITERS[name]
    for out in (rows[1:], rows.ravel()[7 : 7 + 3 * VOCAB].reshape(3, VOCAB)):
        refuses(lambda out=out: operator(rows[:3], out=out), ValueError, f"out shares memory with {argument}", rows)


# Parameters outside their ranges, and of the wrong kind, by name: values, and what is said.
BAD_VALUES: dict[str, list[tuple[Any, type[Exception], str]]] = {
    "temperature": [
        (-1.0, ValueError, "temperature is -1"),
        (float("nan"), ValueError, "temperature is NaN"),
        (float("inf"), ValueError, "temperature is inf"),
        ([1.0, 1.0, 1.0, -2.0], ValueError, "temperature is -2"),
    ],
    "top_p": [(-0.1, ValueError, "top_p is -0.1"), (float("nan"), ValueError, "top_p is NaN")],
    "min_p": [
        (1.5, ValueError, "min_p is 1.5"),
        (-0.5, ValueError, "min_p is -0.5"),
        (float("nan"), ValueError, "min_p is NaN"),
    ],
    "top_k": [(2.5, TypeError, "top_k"), ([1, 2, 3, "four"], TypeError, "top_k")],
    "order": [("backwards", ValueError, "backwards"), (["top_k", "top_k"], ValueError, "top_k")],
    "params": [({"top_k": 3}, TypeError, "params must be a gumball.SamplingParams, not dict")],
}


@pytest.mark.parametrize("parameter", BAD_VALUES)
def test_parameters_that_do_not_fit_are_told(parameter: str, rows: np.ndarray) -> None:
    out, tokens = np.full(rows.shape, 0.5, np.float32), np.full(ROWS, 77, np.int32)
    calls: dict[str, Operator] = {
        "probabilities": lambda **o: gumball.probabilities(rows, out=out, **o),
        "mask_logits": lambda **o: gumball.mask_logits(rows, out=out, **o),
        "sampling_from_logits": lambda **o: gumball.sampling_from_logits(rows, seed=1, out=tokens, **o),
    }
    shared = [
        ("long", TypeError, parameter),
        ([1] * (ROWS - 1), ValueError, f"{parameter} has length 3"),
        ([], ValueError, parameter),
    ]
    values = BAD_VALUES[parameter] + (shared if parameter not in ("order", "params") else [])
    for call in calls.values():
        for value, kind, text in values:
            refuses(lambda call=call, value=value: call(**{parameter: value}), kind, text, rows, out, tokens)


def test_draws_that_do_not_fit_are_told(rows: np.ndarray) -> None:
    tokens = np.full(ROWS, 77, np.int32)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"indices": [0, 1, ROWS]}, ValueError, "indices is 4, but must be a row in 0..4"),
        ({"indices": [-1]}, ValueError, "indices"),
        ({"indices": [0.5]}, TypeError, "indices"),
        ({"indices": np.zeros((2, 2), np.int64)}, ValueError, "indices"),
        ({"n": -1}, ValueError, "n is -1"),
        ({"n": 2, "indices": [1]}, ValueError, "n conflicts with indices"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1 << 64}, ValueError, "seed"),
        ({"seed": [1, 2]}, ValueError, "seeds has length 2"),
        ({"seed": "tail"}, TypeError, "seed"),
        ({"position": -1}, ValueError, "position"),
        ({"position": 1 << 32}, ValueError, "position"),
        ({"draw": [1, 2, 3]}, ValueError, "draws has length 3"),
        ({"dtype": "float32"}, ValueError, "dtype is float32"),
    ]
    for operator, _ in DRAWERS.values():
        for options, kind, text in cases:
            refuses(lambda operator=operator, options=options: operator(rows, **options), kind, text, rows, tokens)


def test_chains_that_do_not_fit_are_told() -> None:
    chains, n = 3, 2
    q, p = np.full((chains, n, VOCAB), 1 / VOCAB, np.float32), np.full((chains, n + 1, VOCAB), 1 / VOCAB, np.float32)
    drafts = np.zeros((chains, n), np.int32)
    cases: list[tuple[tuple[Any, Any, Any], dict[str, Any], type[Exception], str]] = [
        ((q.astype(np.float64), drafts, p), {}, TypeError, "draft_probs is of float64"),
        ((q, drafts, p.astype(np.float16)), {}, TypeError, "target_probs is of float16"),
        ((q[0], drafts, p), {}, ValueError, "draft_probs has shape"),
        ((q, drafts, p[0]), {}, ValueError, "target_probs has shape"),
        ((q.tolist(), drafts, p), {}, ValueError, "draft_probs has no shape"),
        ((q[:, :1], drafts, p), {}, ValueError, "draft_probs has shape"),
        ((q[:, :, :-1], drafts, p), {}, ValueError, "draft_probs has shape"),
        ((q, drafts[:, :1], p), {}, ValueError, "draft_token_ids has shape"),
        ((q, drafts.astype(np.float32), p), {}, TypeError, "draft_token_ids"),
        ((q, drafts, p), {"dtype": "int16"}, ValueError, "dtype is int16"),
        ((q, drafts, p), {"seed": -1}, ValueError, "seed"),
        ((q, drafts, p), {"seed": [1, 2]}, ValueError, "seeds has length 2"),
        ((q, drafts, p), {"position": [1]}, ValueError, "positions has length 1"),
    ]
    for arguments, options, kind, text in cases:
        call = lambda a=arguments, o=options: gumball.judge(*a, **o)  # noqa: E731
        refuses(call, kind, text, q, drafts, p)


@pytest.mark.parametrize("name", [*WRITERS, *DRAWERS])
def test_tensors_that_do_not_fit_are_told(name: str) -> None:
    torch = pytest.importorskip("torch")
    operator, argument = (WRITERS | DRAWERS)[name]
    rows = torch.rand(ROWS, VOCAB)
    cases: list[tuple[Any, type[Exception], str]] = [
        (rows.double(), TypeError, f"{argument} is of float64"),
        (rows.to(torch.int8), TypeError, f"{argument} is of"),
        (rows[:, ::2], ValueError, "2 apart in a row"),
        (rows.T.contiguous().T, ValueError, "4 apart in a row"),
        (rows[:1].expand(ROWS, VOCAB), ValueError, "stride is 0"),
        (rows.to_sparse(), TypeError, f"{argument} cannot be read"),
        (rows.to("meta"), TypeError, f"{argument} cannot be read"),
    ]
    for wrong, kind, text in cases:
        with pytest.raises(kind, match=text):
            operator(wrong)
