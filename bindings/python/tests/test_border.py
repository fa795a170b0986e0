"""Every callable of the package, with wrong values for each of its arguments: taken, or refused by a gumball.Error that names the argument."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gumball
import gumball.dist
import gumball.flat
from bad_arrays import BAD_ARRAYS, BAD_FOR_WORK
from gumball import Head, Pool, Receipt, Sampler, SamplingParams, Step

VOCAB = 16
gumball.add_watermark_keys("0 000102030405060708090a0b0c0d0e0f")
ROWS = np.linspace(-1, 1, 2 * VOCAB, dtype=np.float32).reshape(2, VOCAB)
WEIGHTS = np.ones((VOCAB, 4), np.float32)
WRONG: dict[str, Any] = {
    "None": None,
    "a text": "wrong",
    "half a character": "\ud800",
    "bytes": b"wrong",
    "a fraction": 1.5,
    "below 0": -1,
    "huge": 1 << 70,
    "an object": object(),
    "an array of another shape and type": np.zeros((2, 3, 5), np.complex64),
}
# What a call is handed where its argument has no default, by the argument's name.
GIVEN: dict[str, Callable[[], Any]] = {
    "rows": lambda: ROWS,
    "logits": lambda: ROWS,
    "vocab": lambda: VOCAB,
    "params": lambda: SamplingParams(seed=1),
    "weights": lambda: WEIGHTS,
    "states": lambda: np.ones((2, 4), np.float32),
    "slots": lambda: [0, 0],
    "seed": lambda: [1],
    "tokens": lambda: [1, 2],
    "draft_probs": lambda: np.full((1, 1, VOCAB), 1 / VOCAB, np.float32),
    "draft_token_ids": lambda: np.zeros((1, 1), np.int32),
    "target_probs": lambda: np.full((1, 2, VOCAB), 1 / VOCAB, np.float32),
    "state": lambda: gumball.State(),
    "min": lambda: 0.5,
    "max": lambda: 1.5,
    "tau": lambda: 3.0,
    "eta": lambda: 0.1,
}
# Arguments that hold any value until a call reads it, or that are Python's own.
ANY = {"self", "_kind", "_error", "_trace", "args", "kwargs", "filters", "changes"}


def pool() -> Pool:
    made = Pool(VOCAB, slots=4)
    for seed in (1, 2):
        made.admit(SamplingParams(seed=seed), [1, 2])
    return made


# How the objects are made whose methods are walked.
OBJECTS: dict[type, Callable[[], Any]] = {
    Pool: pool,
    Sampler: lambda: Sampler(SamplingParams(seed=1), VOCAB, prompt=[1]),
    Head: lambda: Head.auto(WEIGHTS, screen=False),
    Receipt: lambda: Receipt(SamplingParams(seed=1, logprobs=3), VOCAB),
    SamplingParams: SamplingParams,
}
# What these methods are handed, beside what has a default.
HANDED: dict[str, dict[str, Callable[[], Any]]] = {
    "Pool.step": {"batch": lambda: [0, 1]},
    "Pool.verify": {"batch": lambda: [0, 1], "drafts": lambda: [[], []]},
    "Pool.assign": {"batch": lambda: [0, 1]},
    "Pool.draft": {"batch": lambda: [0, 1]},
    "Pool.plan": {"slots": lambda: [0, 1]},
    "Head.save": {"path": lambda: "there/is/none"},
    "detect": {"ids": lambda: [1, 2]},
    "find_marked": {"ids": lambda: [1, 2]},
    "Receipt": {"params": lambda: SamplingParams(seed=1, logprobs=3)},
    "Receipt.push": {"outputs": lambda: pool().step(ROWS, [0, 1])},
    "Receipt.push_listed": {"top": lambda: [(1, -0.5)]},
    "verify_receipt": {"receipt": lambda: Receipt(SamplingParams(seed=1, logprobs=3), VOCAB).to_json()},
    "sample_seed": {"seed": lambda: 1},
    "prompt_seed": {"run": lambda: 1},
    "Sampler.sample": {"logits": lambda: ROWS[0]},
    # A seed is refused where there is none.
    **{name: {"position": lambda: 0} for name in ("radii", "sample", "sample_from_pools", "judge")},
}
# By what else a refusal names an argument: by a part of it, or as the engine does.
SAME = {
    "batch": "slots|counts|batch|drafts",
    "slots": "slots|counts",
    "ids": "ids|drafts",
    "device": "device|weights",
    "keys": "keys|watermark.key",
    "key": "watermark.key",
}


def parameters(work: Any) -> dict[str, inspect.Parameter]:
    try:
        return {p.name: p for p in inspect.signature(work).parameters.values() if p.name not in ANY}
    except (TypeError, ValueError):
        return {}


def callables() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every function, class and method, by its name, as what gives the callable on a fresh object."""
    for module in (gumball, gumball.operators):
        for name in module.__all__:
            it = getattr(module, name)
            if callable(it) and not (isinstance(it, type) and issubclass(it, BaseException | gumball.Status)):
                yield name, lambda it=it: it
    for kind, make in OBJECTS.items():
        for name, member in vars(kind).items():
            if not name.startswith("_") and callable(getattr(kind, name)) and name != "close":
                of_class = isinstance(member, staticmethod | classmethod) or inspect.isbuiltin(getattr(kind, name))
                make_it = (lambda kind=kind, name=name: getattr(kind, name)) if of_class else (lambda make=make, name=name: getattr(make(), name))  # fmt: skip
                yield f"{kind.__name__}.{name}", make_it


CALLABLES = dict(callables())


def test_the_walk_reaches_every_callable_of_the_package() -> None:
    assert len(CALLABLES) > 60
    assert {"Pool.admit", "Sampler.fork", "Head.clustered", "judge", "Ranks"} <= set(CALLABLES)


def call(name: str, wrong: dict[str, Any]) -> None:
    """Calls it with a wrong value, and what is right for the other arguments that have no default."""
    work, handed = CALLABLES[name](), HANDED.get(name, {})
    positional, named = [], {}
    for argument in parameters(work).values():
        make = handed.get(argument.name) or GIVEN.get(argument.name, lambda: 0)
        if argument.name in wrong:
            value = wrong[argument.name]
        elif argument.name in handed or argument.default is inspect.Parameter.empty:
            value = make()
        else:
            continue
        if argument.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[argument.name] = value
    work(*positional, **named)


def refusal(name: str, wrong: dict[str, Any]) -> str:
    """What a call is refused with; nothing if it is taken."""
    try:
        call(name, wrong)
    except gumball.Error as error:
        return str(error)
    except OSError:
        assert {"file", "path"} & wrong.keys()
    return ""


@pytest.mark.parametrize("name", CALLABLES)
def test_a_wrong_value_is_taken_or_refused_by_the_name_of_its_argument(name: str) -> None:
    # Of a call that needs a GPU, or what only other calls make, the arguments behind that are not reached.
    arguments = parameters(CALLABLES[name]())
    right, faults = refusal(name, {}) if arguments else "", []
    for argument in arguments:
        for what, value in WRONG.items():
            try:
                text = refusal(name, {argument: value})
            except BaseException as error:
                faults.append(f"{argument}={what}: {type(error).__name__}: {error}")
                continue
            if text not in ("", right) and not re.match(rf"({SAME.get(argument, re.escape(argument))})\b", text):
                faults.append(f"{argument}={what}: {text}")
    assert not faults, "\n".join(faults)


# Rows that do not fit two requests, besides arrays that no call takes.
BAD_ROWS: dict[str, Callable[[np.ndarray], Any]] = {
    name: make for name, (make, *_) in (BAD_ARRAYS | BAD_FOR_WORK).items()
} | {
    "no vocabulary": lambda rows: rows[:, :0],
    "too large a vocabulary": lambda rows: np.zeros((2, (1 << 20) + 1), np.float32),
    "another vocabulary": lambda rows: rows[:, :-1],
    "a row too few": lambda rows: rows[:-1],
}
BAD_LISTS: dict[str, Any] = {
    "masks": np.ones((1, 1), np.int32),
    "mask_present": [True],
    "forced": [VOCAB, -1],
    "row_indices": [0, 2],
    "hooks": [None],
    "counts": [70, 70],
}
VALUES = (
    gumball.Batch,
    gumball.Drafts,
    gumball.Hidden,
    gumball.Probabilities,
    gumball.Scored,
    gumball.Step,
    gumball.Verify,
)


@pytest.mark.parametrize("bad", [*BAD_ROWS, *BAD_LISTS])
def test_a_refusal_of_a_pool_begins_with_a_name_of_its_call_or_of_a_value(bad: str) -> None:
    made, head, params = pool(), Head.auto(WEIGHTS), SamplingParams()
    batches: list[Any] = [[0, 1]]
    if bad in BAD_LISTS:
        given = {"masks": np.ones((2, 1), np.int32)} if bad == "mask_present" else {}
        batches = [gumball.Batch([0, 1], **given, **{bad: BAD_LISTS[bad]})]
    make = BAD_ROWS.get(bad, lambda rows: rows)
    wide, narrow = make(ROWS), make(np.ones((2, 4), np.float32))
    made.assign([0, 1])
    names = {name for it in VALUES for name in parameters(it)}
    refused = 0
    for batch in batches:
        for rows in (wide, gumball.Probabilities(wide), gumball.Hidden(head, narrow)):
            for method, arguments in {
                "step": (rows, batch),
                "verify": (rows, batch, [[], []]),
                "draft": (rows, batch),
                "score": (rows, params, [1, 2, 3], gumball.Batch() if isinstance(batch, list) else batch),
                "assign": (batch,),
                "enqueue": ([Step(rows)],),
            }.items():
                work = getattr(made, method)
                try:
                    work(*arguments)
                except gumball.Error as error:
                    name = re.match("[a-z_]*", str(error))[0]
                    assert name in names | {*parameters(work)}, f"{method}: {error}"
                    refused += 1
    assert refused > 3


def test_a_flag_that_is_a_number_is_refused_by_its_name() -> None:
    with pytest.raises(gumball.InvalidTypeError, match=r"^kept must be True or False, not int$") as raised:
        Pool(VOCAB, kept=1)  # type: ignore[arg-type]
    assert raised.type.__name__ == "InvalidTypeError" and raised.type.__doc__ == gumball.InvalidTypeError.__doc__
    assert type(pickle.loads(pickle.dumps(raised.value))) is gumball.InvalidTypeError


LONG = "x" * (1 << 20)


@pytest.mark.parametrize(
    "refused",
    [
        lambda text: SamplingParams(**{text: 1}),
        lambda text: SamplingParams(order=text),
        lambda text: SamplingParams(order=[text]),
        lambda text: SamplingParams(penalty_scope=text),
        lambda text: SamplingParams(logprobs=gumball.LogprobsParams(mode=text)),
        lambda text: SamplingParams.from_json(json.dumps({text: 1})),
        lambda text: SamplingParams.from_json(json.dumps(text)),
        lambda text: SamplingParams.from_json(json.dumps({"order": text})),
        lambda text: SamplingParams.from_json(json.dumps({"order": [text]})),
        lambda text: SamplingParams.from_json(json.dumps({"temperature": text})),
        lambda text: SamplingParams.from_json(json.dumps({"stop_ids": [text]})),
        lambda text: SamplingParams.from_json(json.dumps({"logit_bias": {text: 1}})),
        lambda text: SamplingParams.from_json(json.dumps({"logit_bias": [[1, text]]})),
        lambda text: SamplingParams.from_json(json.dumps({"dry": {text: 1}})),
        lambda text: SamplingParams.from_json(text),
        lambda text: Pool(VOCAB, device=text),
        lambda text: Pool(VOCAB, route=text),
        lambda text: Pool(VOCAB, level=text),
        lambda text: Sampler(SamplingParams(), VOCAB, route=text),
        lambda text: gumball.Batch([0], mode=text),
        lambda text: gumball.sample(ROWS, seed=1, kind=text),
        lambda text: gumball.sample(ROWS, seed=1, dtype=text),
        lambda text: gumball.sample(ROWS, seed=1, order=text),
        lambda text: gumball.judge(None, np.zeros((1, 1), np.int32), np.ones((1, 2, VOCAB), np.float32), rule=text),
        lambda text: gumball.flat.flat_params({"typical_p": text}, "the request"),
    ],
)
def test_a_callers_text_comes_back_short_and_without_control_characters(refused: Callable[[str], Any]) -> None:
    for text in (LONG, "\x1b[2J\x00\u202e", "\n" * 1000, "\ud800"):
        with pytest.raises((gumball.Error, TypeError)) as raised:
            refused(text)
        said = str(raised.value)
        assert isinstance(raised.value, gumball.Error), said[:200]
        assert len(said) < 2000 and said.isprintable(), said[:200]


def test_values_that_hold_arrays_compare_and_never_by_numpys_truth() -> None:
    array = np.arange(3)
    state, other = (gumball.State(prompt=array, output=array) for _ in range(2))
    assert state == other and state != gumball.State(prompt=array)
    ranks, other_ranks = (gumball.Ranks(0, ["unix:a"], split=array) for _ in range(2))
    assert ranks == other_ranks
    judged, again = (gumball.operators.JudgedDrafts(*[array] * 5) for _ in range(2))
    assert judged == judged and judged != again and len({judged, again}) == 2
    for kind in vars(gumball).values():
        if not isinstance(kind, type) or not hasattr(kind, "__dataclass_fields__"):
            continue
        sequences = {n: array for n, f in kind.__dataclass_fields__.items() if "Sequence" in f.type and n != "order"}
        for name in sequences:
            given = {"tau": 1.0, "eta": 0.1, "min": 0.5, "max": 1.0}
            needed = {n: given[n] for n in given if n in kind.__dataclass_fields__}
            try:
                one, two = (kind(**needed, **{name: array}) for _ in range(2))
            except gumball.Error:
                continue
            assert one == two, f"{kind.__name__}.{name}"
            with pytest.raises(TypeError, match="unhashable"):
                hash(one)
