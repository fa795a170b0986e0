"""What does not fit, by a table over every operator: the kind of error, the argument it names, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball
from bad_arrays import BAD_ARRAYS, BAD_FOR_WORK, Bad, misaligned
from producers import Said

ROWS, VOCAB = 4, 96
Operator = Callable[..., Any]
NAN = float("nan")

# How each operator is called, and what its rows are called.
WRITERS: dict[str, tuple[Operator, str]] = {
    "softmax": (lambda rows, **o: gumball.softmax(rows, 0.7, **o), "logits"),
    "probabilities": (lambda rows, **o: gumball.probabilities(rows, top_k=5, **o), "rows"),
    "of probabilities": (lambda rows, **o: gumball.probabilities(rows, kind="probabilities", **o), "rows"),
    "mask_logits": (lambda rows, **o: gumball.mask_logits(rows, min_p=0.1, **o), "logits"),
}
DRAWERS: dict[str, tuple[Operator, str]] = {
    "sample": (lambda rows, **o: gumball.sample(rows, **({"seed": 1, "position": 0} | o)), "rows"),
}
OTHERS: dict[str, tuple[Operator, str]] = {
    "selected_logprobs": (lambda rows, **o: gumball.selected_logprobs(rows, 3, **o), "rows"),
    "sample_from_pools": (
        lambda rows, **o: gumball.sample_from_pools(rows, [0] * 4, seed=[1], position=0, **o),
        "rows",
    ),
    "row_count": (gumball.operators.row_count, "rows"),
}


NO_VOCABULARY: Bad = {
    "no vocabulary": (lambda rows: rows[:, :0], ValueError, r"{}\.shape\[1\] is 0"),
    "too large a vocabulary": (
        lambda rows: np.zeros((4, (1 << 20) + 1), np.float32),
        ValueError,
        r"{}\.shape\[1\] is 1048577",
    ),
}
BAD_OUT: Bad = {
    "float64": (lambda out: out.astype(np.float64), TypeError, "out is of float64"),
    "a list": (lambda out: out.tolist(), TypeError, "out must be an array"),
    "fewer rows": (lambda out: out[:-1], ValueError, "out has"),
    "three dimensions": (lambda out: out[None, None], ValueError, "dimensions"),
    "every other element": (lambda out: np.repeat(out, 2, -1)[..., ::2], ValueError, "apart in a row"),
    "misaligned": (misaligned, ValueError, "out's address is"),
    "read-only": (lambda out: np.broadcast_to(out.flat[0], out.shape), ValueError, "read-only|apart in a row|stride"),
    "on a GPU": (lambda out: Said(on_gpu=True), ValueError, "out is on cuda:0, but must be on the host"),
}


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(9).random((ROWS, VOCAB)).astype(np.float32)


def refuses(call: Callable[[], Any], kind: type[Exception], text: str, *arrays: Any) -> None:
    before = [array.tobytes() if isinstance(array, np.ndarray) else None for array in arrays]
    with pytest.raises(kind, match=text):
        call()
    assert [array.tobytes() if isinstance(array, np.ndarray) else None for array in arrays] == before


@pytest.mark.parametrize("bad", [*BAD_ARRAYS, *BAD_FOR_WORK, *NO_VOCABULARY])
def test_rows_that_do_not_fit_are_told(bad: str, rows: np.ndarray) -> None:
    make, kind, text = (BAD_ARRAYS | BAD_FOR_WORK | NO_VOCABULARY)[bad]
    for name, (operator, argument) in (WRITERS | DRAWERS | OTHERS).items():
        if name != "row_count" or bad in BAD_ARRAYS:
            wrong = make(rows)
            refuses(lambda wrong=wrong, operator=operator: operator(wrong), kind, text.format(argument), wrong)


@pytest.mark.parametrize("bad", BAD_OUT)
def test_a_place_for_the_result_that_does_not_fit_is_told(bad: str, rows: np.ndarray) -> None:
    make, kind, text = BAD_OUT[bad]
    for name, (operator, argument) in (WRITERS | DRAWERS).items():
        out = np.full(ROWS, 77, np.int32) if name in DRAWERS else np.full(rows.shape, 0.5, np.float32)
        wrong = make(out)
        refuses(lambda wrong=wrong, operator=operator: operator(rows, out=wrong), kind, text, rows, wrong, out)
        if name in WRITERS:
            for shared in (rows[1:], rows.ravel()[7 : 7 + 3 * VOCAB].reshape(3, VOCAB)):
                call = lambda operator=operator, shared=shared: operator(rows[:3], out=shared)  # noqa: E731
                refuses(call, ValueError, f"out shares memory with {argument}", rows)


SHORT = [1] * (ROWS - 1)
# Options that do not fit, by the operators that take them.
BAD_FILTERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({name: "long"}, TypeError, name) for name in ("temperature", "top_k", "top_p", "min_p")),
    *(({name: SHORT}, ValueError, f"{name} has length 3") for name in ("temperature", "top_k", "top_p", "min_p")),
    *(({name: []}, ValueError, f"{name} has length 0") for name in ("temperature", "top_k", "top_p", "min_p")),
    *(({name: NAN}, ValueError, f"{name} is NaN") for name in ("temperature", "top_p", "min_p")),
    ({"temperature": [1.0, 1.0, 1.0, -2.0]}, ValueError, "temperature is -2"),
    ({"top_p": -0.1}, ValueError, "top_p is -0.1"),
    ({"min_p": [0.1, 1.5, 0.1, 0.1]}, ValueError, "min_p is 1.5"),
    ({"top_k": 2.5}, TypeError, "top_k"),
    ({"top_k": [1, 2, 3, "four"]}, TypeError, "top_k"),
    ({"order": "backwards"}, ValueError, "backwards"),
    ({"order": ["top_k", "top_k"]}, ValueError, "top_k"),
    ({"params": {"top_k": 3}}, TypeError, "params must be a gumball.SamplingParams, not dict"),
    ({"stream": 0}, ValueError, "stream is for rows on a GPU, but .* is on cpu"),
    ({"stream": "mine"}, TypeError, "stream must be the handle"),
    ({"top_q": 1}, TypeError, "unexpected keyword argument 'top_q'"),
]
BAD_DRAWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"indices": [0, 1, ROWS]}, ValueError, "indices is 4, but must be a row in 0..4"),
    ({"indices": [0.5]}, TypeError, "indices"),
    ({"indices": np.zeros((2, 2), np.int64)}, ValueError, "indices"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": 1 << 64}, ValueError, "seed"),
    ({"seed": [1, 2]}, ValueError, "seed has length 2"),
    ({"seed": "tail"}, TypeError, "seed"),
    ({"position": 1 << 32}, ValueError, "position"),
    ({"draw": [1, 2, 3]}, ValueError, "draw has length 3"),
    ({"dtype": "float32"}, ValueError, "dtype is float32"),
]
BAD_POOLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"slots": [5] * 4}, ValueError, "slots is 5"),
    ({"slots": [1, 2]}, ValueError, "slots has length 2"),
    ({"rows_per_slot": 3}, ValueError, "rows_per_slot is 3"),
    ({"seed": 1}, ValueError, "seed must be a pool"),
    ({"top_k": [1, 2, 3]}, ValueError, "top_k has length 3"),
    ({"high_draws": True, "draw": 1}, ValueError, "high_draws conflicts with draw"),
]


def test_options_that_do_not_fit_are_told(rows: np.ndarray) -> None:
    out, tokens = np.full(rows.shape, 0.5, np.float32), np.full(ROWS, 77, np.int32)
    for options, kind, text in BAD_FILTERS:
        for call in (
            lambda **o: gumball.probabilities(rows, out=out, **o),
            lambda **o: gumball.mask_logits(rows, out=out, **o),
            lambda **o: gumball.sample(rows, seed=1, position=0, out=tokens, **o),
        ):
            refuses(lambda call=call, options=options: call(**options), kind, text, rows, out, tokens)
    for operator, _ in DRAWERS.values():
        for options, kind, text in BAD_DRAWS:
            refuses(lambda operator=operator, options=options: operator(rows, **options), kind, text, rows)
    for options, kind, text in BAD_POOLS:
        given = {"slots": [1] * 4, "seed": [1, 2], "position": 0} | options
        refuses(lambda given=given: gumball.sample_from_pools(rows, **given), kind, text, rows)
    for ids, kind, text in (
        ([1, 2], ValueError, "tokens has length 2, but must have one per row, 4"),
        ([900] * 4, ValueError, r"tokens is 900, but must be an id in 0\.\.96, or -1"),
        ([0.5] * 4, TypeError, "tokens must be an integer"),
    ):
        refuses(lambda ids=ids: gumball.selected_logprobs(rows, ids), kind, text, rows)
    for options, text in (({"temperature": 0.5}, "temperature"), ({"kind": "scores"}, "kind is scores")):
        refuses(
            lambda o=options: gumball.probabilities(rows, **({"kind": "probabilities"} | o)), ValueError, text, rows
        )


Q, P = np.full((3, 2, VOCAB), 1 / VOCAB, np.float32), np.full((3, 3, VOCAB), 1 / VOCAB, np.float32)
DRAFTS = np.zeros((3, 2), np.int32)
ADDED = np.zeros(3, np.int32)
BAD_DRAFTS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((Q.astype(np.float64), DRAFTS, P), {}, TypeError, "draft_probs is of float64"),
    ((Q, DRAFTS, P.astype(np.float16)), {}, TypeError, "target_probs is of float16"),
    ((Q[0], DRAFTS, P), {}, ValueError, "draft_probs has shape"),
    ((Q, DRAFTS, P[0]), {}, ValueError, "target_probs has 2 dimensions, but must be"),
    ((Q.tolist(), DRAFTS, P), {}, TypeError, "draft_probs must be an array"),
    ((Q[:, :, :-1], DRAFTS, P), {}, ValueError, "draft_probs has shape"),
    ((Q, DRAFTS[:, :1], P), {}, ValueError, r"draft_token_ids has shape \[3, 1\], but must have shape \[3, 2\]"),
    ((Q, DRAFTS.astype(np.float32), P), {}, TypeError, "draft_token_ids"),
    ((Q, DRAFTS, P), {"dtype": "int16"}, ValueError, "dtype is int16"),
    ((Q, DRAFTS, P), {"seed": [1, 2], "position": 0}, ValueError, "seed has length 2"),
    ((Q, DRAFTS, P), {"position": [1]}, ValueError, "position has length 1"),
    ((None, DRAFTS, P), {"rule": "nucleus"}, ValueError, 'rule is "nucleus"'),
    ((None, DRAFTS, P), {"rule": "threshold", "threshold_acc": 2.0}, ValueError, "threshold_acc is 2"),
    ((None, DRAFTS, P, DRAFTS + 1), {}, ValueError, "parents is 1 for node 0 of tree 0"),
    (
        (None, DRAFTS, P, DRAFTS - 1),
        {"rule": "block"},
        ValueError,
        "parents is -1 for node 1 of tree 0, but must be 0 in",
    ),
    ((Q, DRAFTS, P), {"added": (ADDED[:2], ADDED)}, ValueError, "accepted has length 2, but must have one per tree, 3"),
    ((Q, DRAFTS, P), {"added": (ADDED.astype(np.int64), ADDED)}, TypeError, "accepted is of int64"),
]


@pytest.mark.parametrize(("arguments", "options", "kind", "text"), BAD_DRAFTS)
def test_drafts_that_do_not_fit_are_told(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    refuses(lambda: gumball.judge(*arguments, **options), kind, text, Q, DRAFTS, P, ADDED)
