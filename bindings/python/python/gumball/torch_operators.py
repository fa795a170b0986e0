"""The operators of :mod:`gumball.operators` over custom operators of torch; import them from :mod:`gumball.torch`.

Each function there has a custom operator, with a fake implementation, and a function here of the same name and
arguments that calls it. Compiled code gets the functions here in place of the package's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import operators
from .errors import InvalidTypeError, InvalidValueError

__all__ = [
    "judge",
    "mask_logits",
    "probabilities",
    "radii",
    "row_count",
    "sample",
    "sample_from_pools",
    "selected_logprobs",
    "softmax",
]

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
        raise InvalidTypeError("params is not taken in compiled code; name its filters instead")
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


def _check_plain(stream: Any, return_statuses: bool = False) -> None:
    if return_statuses:
        raise InvalidTypeError("return_statuses is not taken in compiled code")
    if stream is not None:
        raise InvalidTypeError("stream is not taken in compiled code, which runs on torch's current stream")


def _write(rows: torch.Tensor, out: Any, operator: str, kind: str, arguments: Sequence[Any]) -> Any:
    filters = _keywords(arguments)
    if operator == "softmax":
        return operators.softmax(rows, filters["temperature"], out)
    if operator == "mask_logits":
        return operators.mask_logits(rows, out=out, **filters)
    return operators.probabilities(rows, kind=kind, out=out, **filters)


_WRITE_SCHEMA = f"str operator, str kind, {_FILTERS_SCHEMA}"


@torch.library.custom_op("gumball::write_rows", mutates_args=(), schema=f"(Tensor rows, {_WRITE_SCHEMA}) -> Tensor")
def _write_rows(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> Any:
    return _write(rows, None, operator, kind, filters)


@_write_rows.register_fake
def _(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> torch.Tensor:
    is_own = operator == "mask_logits" or kind == "probabilities"
    return torch.empty_like(rows, dtype=rows.dtype if is_own else torch.float32)


@torch.library.custom_op(
    "gumball::write_rows_out", mutates_args=("out",), schema=f"(Tensor rows, Tensor(a!) out, {_WRITE_SCHEMA}) -> ()"
)
def _write_rows_out(rows: torch.Tensor, out: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    _write(rows, out, operator, kind, filters)


@_write_rows_out.register_fake
def _(rows: torch.Tensor, out: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    torch._check(rows.shape == out.shape)


@torch.library.custom_op(
    "gumball::write_rows_", mutates_args=("rows",), schema=f"(Tensor(a!) rows, {_WRITE_SCHEMA}) -> ()"
)
def _write_rows_in_place(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    _write(rows, rows, operator, kind, filters)


@_write_rows_in_place.register_fake
def _(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> None:
    torch._check(rows.dim() in (1, 2))


def _written(operator: str, rows: Any, kind: str, out: Any, plain: Sequence[Any], arguments: dict[str, Any]) -> Any:
    _check_plain(*plain)
    filters = _filters(**arguments)
    if out is None:
        return torch.ops.gumball.write_rows(rows, operator, kind, *filters)
    if out is rows:
        torch.ops.gumball.write_rows_(rows, operator, kind, *filters)
    else:
        torch.ops.gumball.write_rows_out(rows, out, operator, kind, *filters)
    return out


def softmax(
    logits: Any, temperature: Any = 1.0, out: Any = None, *, return_statuses: bool = False, stream: Any = None
) -> Any:
    """As :func:`gumball.softmax`."""
    return _written("softmax", logits, "logits", out, (stream, return_statuses), {"temperature": temperature})


def probabilities(
    rows: Any,
    *,
    kind: str = "logits",
    out: Any = None,
    return_statuses: bool = False,
    stream: Any = None,
    **filters: Any,
) -> Any:
    """As :func:`gumball.probabilities`."""
    return _written("probabilities", rows, kind, out, (stream, return_statuses), filters)


def mask_logits(
    logits: Any, *, out: Any = None, return_statuses: bool = False, stream: Any = None, **filters: Any
) -> Any:
    """As :func:`gumball.mask_logits`."""
    return _written("mask_logits", logits, "logits", out, (stream, return_statuses), filters)


@torch.library.custom_op(
    "gumball::sample",
    mutates_args=(),
    schema=f"(Tensor rows, str kind, Tensor? indices, str dtype, {_KEYS_SCHEMA}, {_FILTERS_SCHEMA}) -> Tensor",
)
def _sample(rows: torch.Tensor, kind: str, indices: Any, dtype: str, *arguments: Any) -> Any:
    keywords = _key_values(arguments[:_KEYS_LENGTH]) | _keywords(arguments[_KEYS_LENGTH:])
    return operators.sample(rows, indices, kind=kind, dtype=dtype, **keywords)


@_sample.register_fake
def _(rows: torch.Tensor, kind: str, indices: Any, dtype: str, *arguments: Any) -> torch.Tensor:
    outputs = (rows.shape[0] if rows.dim() == 2 else 1) if indices is None else indices.shape[0]
    return rows.new_empty((outputs,), dtype=_DTYPES[dtype])


_DTYPES = {"int32": torch.int32, "int64": torch.int64}


def _check_draws(seed: Any, dtype: str) -> None:
    if seed is None:
        raise InvalidTypeError(
            "seed is missing: torch may share the results of equal calls, so what is compiled draws no seed"
        )
    if dtype not in _DTYPES:
        raise InvalidValueError(f"dtype is {dtype}, but must be int32 or int64")


def sample(
    rows: Any,
    indices: Any = None,
    *,
    kind: str = "logits",
    seed: Any = None,
    position: Any = None,
    draw: Any = None,
    offsets: bool = False,
    zero_for_none: bool = False,
    dtype: str = "int32",
    out: Any = None,
    return_statuses: bool = False,
    stream: Any = None,
    **filters: Any,
) -> Any:
    """As :func:`gumball.sample`, with a seed and a position."""
    _check_plain(stream, return_statuses)
    _check_draws(seed, dtype)
    arguments = [*_keys(seed, position, draw, offsets, zero_for_none), *_filters(**filters)]
    tokens = torch.ops.gumball.sample(rows, kind, indices, dtype, *arguments)
    return tokens if out is None else out.copy_(tokens)


@torch.library.custom_op(
    "gumball::radii", mutates_args=(), schema=f"(Tensor rows, {_KEYS_SCHEMA}, {_FILTERS_SCHEMA}) -> Tensor"
)
def _radii(rows: torch.Tensor, *arguments: Any) -> Any:
    keys = _key_values(arguments[:_KEYS_LENGTH])
    del keys["offsets"], keys["zero_for_none"]
    return operators.radii(rows, **keys, **_keywords(arguments[_KEYS_LENGTH:]))


@_radii.register_fake
def _(rows: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return rows.new_empty((row_count(rows),), dtype=torch.float32)


def radii(
    rows: Any, *, seed: Any, position: Any = None, draw: Any = None, out: Any = None, stream: Any = None, **filters: Any
) -> Any:
    """As :func:`gumball.radii`."""
    _check_plain(stream)
    found = torch.ops.gumball.radii(rows, *_keys(seed, position, draw, False, False), *_filters(**filters))
    return found if out is None else out.copy_(found)


@torch.library.custom_op(
    "gumball::sample_from_pools",
    mutates_args=(),
    schema=f"(Tensor rows, Tensor slots, int rows_per_slot, bool high_draws, str kind, str dtype, {_KEYS_SCHEMA}, {_FILTERS_SCHEMA}) -> Tensor",
)
def _sample_from_pools(
    rows: torch.Tensor,
    slots: torch.Tensor,
    rows_per_slot: int,
    high_draws: bool,
    kind: str,
    dtype: str,
    *arguments: Any,
) -> Any:
    keys = _key_values(arguments[:_KEYS_LENGTH])
    del keys["offsets"]
    named: dict[str, Any] = {"rows_per_slot": rows_per_slot, "high_draws": high_draws, "kind": kind, "dtype": dtype}
    return operators.sample_from_pools(rows, slots, **named, **keys, **_keywords(arguments[_KEYS_LENGTH:]))


@_sample_from_pools.register_fake
def _(
    rows: torch.Tensor,
    slots: torch.Tensor,
    rows_per_slot: int,
    high_draws: bool,
    kind: str,
    dtype: str,
    *arguments: Any,
) -> torch.Tensor:
    return rows.new_empty((row_count(rows),), dtype=_DTYPES[dtype])


def sample_from_pools(
    rows: Any,
    slots: Any,
    *,
    seed: Any,
    position: Any = None,
    draw: Any = None,
    rows_per_slot: int = 1,
    high_draws: bool = False,
    zero_for_none: bool = False,
    kind: str = "logits",
    dtype: str = "int32",
    out: Any = None,
    return_statuses: bool = False,
    stream: Any = None,
    **filters: Any,
) -> Any:
    """As :func:`gumball.sample_from_pools`, with slots and seeds in tensors."""
    _check_plain(stream, return_statuses)
    _check_draws(seed, dtype)
    for name, value in (("slots", slots), ("seed", seed)):
        if not isinstance(value, torch.Tensor):
            raise InvalidTypeError(f"{name} must be a tensor in what is compiled, not {type(value).__name__}")
    arguments = [*_keys(seed, position, draw, False, zero_for_none), *_filters(**filters)]
    tokens = torch.ops.gumball.sample_from_pools(rows, slots, rows_per_slot, high_draws, kind, dtype, *arguments)
    return tokens if out is None else out.copy_(tokens)


@torch.library.custom_op(
    "gumball::selected_logprobs",
    mutates_args=(),
    schema="(Tensor rows, int? token, Tensor? tokens, str kind, bool return_ranks) -> Tensor[]",
)
def _selected_logprobs(rows: torch.Tensor, token: Any, tokens: Any, kind: str, return_ranks: bool) -> list[Any]:
    chosen = token if tokens is None else tokens
    found = operators.selected_logprobs(rows, chosen, kind=kind, return_ranks=return_ranks)
    if not return_ranks:
        return [found]
    return [found[0], torch.as_tensor(found[1]).to(torch.int32, copy=True)]


@_selected_logprobs.register_fake
def _(rows: torch.Tensor, token: Any, tokens: Any, kind: str, return_ranks: bool) -> list[torch.Tensor]:
    dtypes = [torch.float32, torch.int32] if return_ranks else [torch.float32]
    return [rows.new_empty((row_count(rows),), dtype=dtype) for dtype in dtypes]


def selected_logprobs(
    rows: Any,
    tokens: Any,
    *,
    kind: str = "logits",
    out: Any = None,
    return_ranks: bool = False,
    return_statuses: bool = False,
    stream: Any = None,
) -> Any:
    """As :func:`gumball.selected_logprobs`; ranks are int32 everywhere."""
    _check_plain(stream, return_statuses)
    logprobs, *ranks = torch.ops.gumball.selected_logprobs(rows, *_split(tokens, "tokens"), kind, return_ranks)
    logprobs = logprobs if out is None else out.copy_(logprobs)
    return (logprobs, *ranks) if return_ranks else logprobs


def row_count(rows: Any, name: str = "rows") -> int:
    """As :func:`gumball.row_count`, of a tensor."""
    if not isinstance(rows, torch.Tensor):
        raise InvalidTypeError(f"{name} must be a tensor in what is compiled, not {type(rows).__name__}")
    if rows.dim() not in (1, 2):
        raise InvalidValueError(
            f"{name} has {rows.dim()} dimensions, but must be [rows, vocab], or [vocab] for one row"
        )
    return rows.shape[0] if rows.dim() == 2 else 1


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
    acc, dtype, *keys = rest
    named: dict[str, Any] = {"threshold_single": single, "threshold_acc": acc, **_key_values(keys)}
    found = operators.judge(draft_probs, ids, target_probs, parents, rule=rule, dtype=dtype, **named)
    tokens, *words = (torch.as_tensor(part) for part in found if part is not None)
    # Copies, since words are rows of one tensor, and no two results of an operator of torch's may share memory.
    return [tokens, *(word.to(torch.int32, copy=True) for word in words)]


@_judge.register_fake
def _(
    draft_probs: Any, ids: torch.Tensor, target_probs: torch.Tensor, parents: Any, rule: str, single: float, *rest: Any
) -> list[torch.Tensor]:
    trees, width = target_probs.shape[0], target_probs.shape[1]
    tokens = target_probs.new_empty((trees, width), dtype=_DTYPES[rest[1]])
    has_rows, has_alone = _has(parents, draft_probs, rule)
    rows = [target_probs.new_empty((trees, width), dtype=torch.int32)] * has_rows
    words = [target_probs.new_empty((trees,), dtype=torch.int32) for _ in range(2 + has_alone)]
    return [tokens, *rows, *words]


def judge(
    draft_probs: Any,
    draft_token_ids: Any,
    target_probs: Any,
    parents: Any = None,
    *,
    rule: str = "rejection",
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    seed: Any = None,
    position: Any = None,
    draw: Any = None,
    offsets: bool = False,
    zero_for_none: bool = False,
    added: Any = None,
    dtype: str = "int32",
    stream: Any = None,
) -> operators.JudgedDrafts:
    """As :func:`gumball.judge`, with a seed and a position."""
    _check_plain(stream)
    _check_draws(seed, dtype)
    if added is not None:
        raise InvalidTypeError("added is not taken in compiled code; add the returned counts instead")
    arrays, rule_of = (draft_probs, draft_token_ids, target_probs, parents), (rule, threshold_single, threshold_acc)
    keys = _keys(seed, position, draw, offsets, zero_for_none)
    tokens, *found, statuses = torch.ops.gumball.judge(*arrays, *rule_of, dtype, *keys)
    has_rows, has_alone = _has(parents, draft_probs, rule)
    rows, accepted = found[0] if has_rows else None, found[int(has_rows)]
    return operators.JudgedDrafts(tokens, rows, accepted, found[-1] if has_alone else None, statuses)


def _stand_in() -> None:
    """Makes compiled code call the custom operators in place of the extension module."""
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is None:
        return
    for name in __all__:
        substitute(getattr(operators, name), skip_signature_check=True)(globals()[name])


_stand_in()
