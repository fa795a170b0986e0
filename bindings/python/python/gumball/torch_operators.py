"""The operators of :mod:`gumball.operators` over custom operators of torch; import them from :mod:`gumball.torch`.

Each call of the extension module has a custom operator, with a fake implementation, and a function that takes the
call's own arguments and calls it. ``OPERATORS`` works through these functions, and compiled code gets them in place of
the extension module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import operators
from ._gumball import judge, sample_rows, write_rows
from .errors import InvalidTypeError

# A schema has no type for "a number or a tensor", so each parameter of a row takes two arguments, one of which is None.
_PARAMETERS = {"temperature": "float", "top_k": "int", "top_p": "float", "min_p": "float"}
_KEYS = {"seed": "int", "position": "int", "draw": "int"}


def _pairs(parameters: dict[str, str]) -> str:
    return ", ".join(f"{kind}? {name}, Tensor? {name}s" for name, kind in parameters.items())


_FILTERS_SCHEMA = f"{_pairs(_PARAMETERS)}, str order"
_KEYS_SCHEMA = f"{_pairs(_KEYS)}, bool offsets, bool zero_for_none"


def _split(value: Any, name: str) -> tuple[Any, Any]:
    """Splits a parameter into its two arguments: a number and a tensor."""
    if isinstance(value, torch.Tensor):
        return None, value
    if value is None or isinstance(value, (int, float)):
        return value, None
    raise InvalidTypeError(f"{name} must be a number or a tensor in what is compiled, not {type(value).__name__}")


def _joined(names: dict[str, str], pairs: Sequence[Any]) -> dict[str, Any]:
    """Returns the parameters that arguments of a custom operator stand for, by name."""
    numbers, tensors = pairs[::2], pairs[1::2]
    chosen = (number if tensor is None else tensor for number, tensor in zip(numbers, tensors, strict=True))
    return dict(zip(names, chosen, strict=True))


def _filters(params: Any = None, order: str | Sequence[str] | None = None, **filters: Any) -> list[Any]:
    """Returns the filters as arguments of a custom operator."""
    if params is not None:
        raise InvalidTypeError("params is not for what is compiled; name its filters instead")
    pairs = [argument for name in _PARAMETERS for argument in _split(filters.get(name), name)]
    return [*pairs, order if isinstance(order, str) else ",".join(order or ())]


def _keywords(arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the filters that arguments of a custom operator stand for, as keywords."""
    *pairs, order = arguments
    named = order.split(",") if "," in order else order or None
    return _joined(_PARAMETERS, pairs) | {"order": named}


def _keys(seed: Any, position: Any, draw: Any, offsets: bool, zero_for_none: bool) -> list[Any]:
    """Returns the keys of draws as arguments of a custom operator; seeds as int64, the only integer type of schemas."""
    if isinstance(seed, int) and 2**63 <= seed < 2**64:
        seed -= 2**64
    pairs = *_split(seed, "seed"), *_split(position, "position"), *_split(draw, "draw")
    return [*pairs, offsets, zero_for_none]


# How many arguments of a custom operator are keys of draws.
_KEYS_LENGTH = 2 * len(_KEYS) + 2


def _key_values(arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the keys of draws that arguments of a custom operator stand for, as keywords."""
    *pairs, offsets, zero_for_none = arguments
    keys = _joined(_KEYS, pairs)
    if isinstance(keys["seed"], int):
        keys["seed"] %= 2**64
    return keys | {"offsets": offsets, "zero_for_none": zero_for_none}


def _check_plain(return_statuses: bool, stream: Any) -> None:
    if return_statuses:
        raise InvalidTypeError("return_statuses is not for what is compiled")
    if stream is not None:
        raise InvalidTypeError("stream is not for what is compiled, which runs on torch's current stream")


def _write(
    rows: torch.Tensor,
    out: torch.Tensor | None,
    operator: str,
    dtype: str | None,
    kind: str,
    filters: Sequence[Any],
) -> Any:
    name = "logits" if kind == "logits" else "probs"
    return write_rows(operator, rows, name, out, dtype, kind, False, None, **_keywords(filters))


_WRITE_SCHEMA = f"str operator, str kind, {_FILTERS_SCHEMA}"


@torch.library.custom_op(
    "gumball::write_rows", mutates_args=(), schema=f"(Tensor rows, str? dtype, {_WRITE_SCHEMA}) -> Tensor"
)
def _write_rows(rows: torch.Tensor, dtype: str | None, operator: str, kind: str, *filters: Any) -> Any:
    return _write(rows, None, operator, dtype, kind, filters)


@_write_rows.register_fake
def _(rows: torch.Tensor, dtype: str | None, operator: str, kind: str, *filters: Any) -> torch.Tensor:
    return torch.empty_like(rows, dtype=rows.dtype if dtype is None else torch.float32)


@torch.library.custom_op(
    "gumball::write_rows_out", mutates_args=("out",), schema=f"(Tensor rows, Tensor(a!) out, {_WRITE_SCHEMA}) -> ()"
)
def _write_rows_out(rows: torch.Tensor, out: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    _write(rows, out, operator, None, kind, filters)


@_write_rows_out.register_fake
def _(rows: torch.Tensor, out: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    torch._check(rows.shape == out.shape)


@torch.library.custom_op(
    "gumball::write_rows_", mutates_args=("rows",), schema=f"(Tensor(a!) rows, {_WRITE_SCHEMA}) -> ()"
)
def _write_rows_in_place(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    _write(rows, rows, operator, None, kind, filters)


@_write_rows_in_place.register_fake
def _(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    torch._check(rows.dim() in (1, 2))


def _call_write_rows(
    operator: str, rows: Any, name: str, out: Any, dtype: str | None, kind: str, *plain: Any, **keywords: Any
) -> Any:
    _check_plain(*plain)
    filters = _filters(**keywords)
    if out is None:
        return torch.ops.gumball.write_rows(rows, dtype, operator, kind, *filters)
    if out is rows:
        torch.ops.gumball.write_rows_(rows, operator, kind, *filters)
    else:
        torch.ops.gumball.write_rows_out(rows, out, operator, kind, *filters)
    return out


@torch.library.custom_op(
    "gumball::sample_rows",
    mutates_args=(),
    schema=f"(Tensor rows, str kind, Tensor? indices, int? n, str dtype, {_KEYS_SCHEMA}, {_FILTERS_SCHEMA}) -> Tensor",
)
def _sample_rows(rows: torch.Tensor, kind: str, indices: Any, n: Any, dtype: str, *arguments: Any) -> Any:
    keywords = _key_values(arguments[:_KEYS_LENGTH]) | _keywords(arguments[_KEYS_LENGTH:])
    plain: dict[str, Any] = {"dtype": dtype, "return_statuses": False, "stream": None}
    name = "logits" if kind == "logits" else "probs"
    return sample_rows(rows, name, None, kind, indices, n, **plain, **keywords)


@_sample_rows.register_fake
def _(rows: torch.Tensor, kind: str, indices: Any, n: Any, dtype: str, *arguments: Any) -> torch.Tensor:
    count = rows.shape[0] if rows.dim() == 2 else 1
    outputs = count if indices is None else indices.shape[0]
    shape = (outputs,) if n is None else (count, n)
    return rows.new_empty(shape, dtype=torch.int64 if dtype == "int64" else torch.int32)


def _call_sample_rows(
    rows: Any,
    name: str,
    out: Any,
    kind: str,
    indices: Any,
    n: int | None,
    seed: Any,
    position: Any,
    draw: Any,
    dtype: str,
    return_statuses: bool,
    stream: Any,
    offsets: bool = False,
    zero_for_none: bool = False,
    **filters: Any,
) -> Any:
    _check_plain(return_statuses, stream)
    arguments = [*_keys(seed, position, draw, offsets, zero_for_none), *_filters(**filters)]
    tokens = torch.ops.gumball.sample_rows(rows, kind, indices, n, dtype, *arguments)
    return tokens if out is None else out.copy_(tokens)


def _has(parents: Any, draft_probs: Any, rule: str) -> tuple[bool, bool]:
    """Says whether drafts have rows, and counts of those accepted alone."""
    return parents is not None, parents is None and draft_probs is not None and rule == "rejection"


@torch.library.custom_op(
    "gumball::judge",
    mutates_args=(),
    schema="(Tensor? draft_probs, Tensor draft_token_ids, Tensor target_probs, Tensor? parents, str rule, "
    f"float threshold_single, float threshold_acc, str dtype, {_KEYS_SCHEMA}) -> Tensor[]",
)
def _judge(
    draft_probs: Any, ids: torch.Tensor, target_probs: torch.Tensor, parents: Any, rule: str, single: float, *rest: Any
) -> list[torch.Tensor]:
    (acc, dtype, *keys), arrays = rest, (draft_probs, ids, target_probs, parents)
    shape = operators.drafts_shape(*arrays)
    found = judge(*arrays, shape, rule, (single, acc), dtype=dtype, stream=None, **_key_values(keys))
    tokens, *words = (torch.as_tensor(part) for part in found if part is not None)
    # Copies, since words are rows of one tensor, and no two results of an operator of torch's may share memory.
    return [tokens, *(word.to(torch.int32, copy=True) for word in words)]


@_judge.register_fake
def _(
    draft_probs: Any, ids: torch.Tensor, target_probs: torch.Tensor, parents: Any, rule: str, single: float, *rest: Any
) -> list[torch.Tensor]:
    trees, width = target_probs.shape[0], target_probs.shape[1]
    tokens = target_probs.new_empty((trees, width), dtype=torch.int64 if rest[1] == "int64" else torch.int32)
    has_rows, has_alone = _has(parents, draft_probs, rule)
    rows = [target_probs.new_empty((trees, width), dtype=torch.int32)] * has_rows
    words = [target_probs.new_empty((trees,), dtype=torch.int32) for _ in range(2 + has_alone)]
    return [tokens, *rows, *words]


def _call_judge(
    draft_probs: Any,
    draft_token_ids: Any,
    target_probs: Any,
    parents: Any,
    shape: tuple[int, int, int, int],
    rule: str,
    thresholds: tuple[float, float],
    seed: Any,
    position: Any,
    draw: Any,
    dtype: str,
    stream: Any,
    added: Any = None,
    offsets: bool = False,
    zero_for_none: bool = False,
) -> Any:
    _check_plain(False, stream)
    if added is not None:
        raise InvalidTypeError("added is not for what is compiled; add the counts that come out instead")
    arrays = (draft_probs, draft_token_ids, target_probs, parents)
    keys = _keys(seed, position, draw, offsets, zero_for_none)
    tokens, *found, statuses = torch.ops.gumball.judge(*arrays, rule, *thresholds, dtype, *keys)
    has_rows, has_alone = _has(parents, draft_probs, rule)
    rows, accepted = found[0] if has_rows else None, found[int(has_rows)]
    return tokens, rows, accepted, found[-1] if has_alone else None, statuses


def _no_seed() -> int:
    raise InvalidTypeError(
        "seed is missing: torch may share the results of equal calls, so what is compiled draws no seed"
    )


OPERATORS = operators.Operators(_call_write_rows, _call_sample_rows, _call_judge, _no_seed)


def _stand_in() -> None:
    """Makes compiled code call the custom operators in place of the extension module."""
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is None:
        return
    for original, traced in (
        (write_rows, _call_write_rows),
        (sample_rows, _call_sample_rows),
        (judge, _call_judge),
        (operators.fresh_seed, _no_seed),
    ):
        substitute(original, skip_signature_check=True)(traced)


_stand_in()
