"""The operators of :mod:`gumball.operators` as custom operators of torch; import them from :mod:`gumball.torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import operators
from ._gumball import sample_rows, write_rows

__all__ = [
    "chain_speculative_sampling",
    "mask_logits",
    "min_p_renorm_probs",
    "probabilities",
    "sampling_from_logits",
    "sampling_from_probs",
    "softmax",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_k_top_p_renorm_probs",
    "top_p_renorm_probs",
]

# A schema has no type for "a number or a tensor", so each parameter of a row takes two arguments, one of which is None.
_PARAMETERS = {"temperature": "float", "top_k": "int", "top_p": "float", "min_p": "float"}
_KEYS = {"seed": "int", "position": "int", "draw": "int"}


def _pairs(parameters: dict[str, str]) -> str:
    return ", ".join(f"{kind}? {name}, Tensor? {name}s" for name, kind in parameters.items())


_FILTERS_SCHEMA, _KEYS_SCHEMA = f"{_pairs(_PARAMETERS)}, str order", _pairs(_KEYS)


def _split(value: Any, name: str) -> tuple[Any, Any]:
    """Splits a parameter into its two arguments: a number and a tensor."""
    if isinstance(value, torch.Tensor):
        return None, value
    if value is None or isinstance(value, (int, float)):
        return value, None
    raise TypeError(f"{name} must be a number or a tensor in what is compiled, not {type(value).__name__}")


def _joined(names: dict[str, str], pairs: Sequence[Any]) -> dict[str, Any]:
    """Returns the parameters that arguments of a custom operator stand for, by name."""
    numbers, tensors = pairs[::2], pairs[1::2]
    chosen = (number if tensor is None else tensor for number, tensor in zip(numbers, tensors, strict=True))
    return dict(zip(names, chosen, strict=True))


def _filters(order: str | Sequence[str] | None, **filters: Any) -> list[Any]:
    """Returns the filters as arguments of a custom operator."""
    pairs = [argument for name in _PARAMETERS for argument in _split(filters.get(name), name)]
    return [*pairs, order if isinstance(order, str) else ",".join(order or ())]


def _keywords(arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the filters that arguments of a custom operator stand for, as keywords."""
    *pairs, order = arguments
    named = order.split(",") if "," in order else order or None
    return _joined(_PARAMETERS, pairs) | {"order": named}


def _keys(seed: Any, position: Any, draw: Any) -> list[Any]:
    """Returns the keys of draws as arguments of a custom operator; seeds as int64, the only integer type of schemas."""
    if isinstance(seed, int) and 2**63 <= seed < 2**64:
        seed -= 2**64
    return [*_split(seed, "seed"), *_split(position, "position"), *_split(draw, "draw")]


def _key_values(arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the keys of draws that arguments of a custom operator stand for, by name."""
    keys = _joined(_KEYS, arguments)
    if isinstance(keys["seed"], int):
        keys["seed"] %= 2**64
    return keys


def _write(rows: torch.Tensor, out: torch.Tensor | None, operator: str, kind: str, filters: Sequence[Any]) -> Any:
    dtype = "float32" if _is_widened(operator, kind) else None
    name = "logits" if kind == "logits" else "probs"
    return write_rows(operator, rows, name, out, dtype, kind, False, None, **_keywords(filters))


def _is_widened(operator: str, kind: str) -> bool:
    """Whether an operator writes float32 instead of the rows' own type."""
    return operator != "mask_logits" and kind == "logits"


_WRITE_SCHEMA = f"str operator, str kind, {_FILTERS_SCHEMA}"


@torch.library.custom_op("gumball::write_rows", mutates_args=(), schema=f"(Tensor rows, {_WRITE_SCHEMA}) -> Tensor")
def _write_rows(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> Any:
    return _write(rows, None, operator, kind, filters)


@_write_rows.register_fake
def _(rows: torch.Tensor, operator: str, kind: str, *filters: Any) -> torch.Tensor:
    return torch.empty_like(rows, dtype=torch.float32 if _is_widened(operator, kind) else rows.dtype)


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


@torch.library.custom_op(
    "gumball::sample_rows",
    mutates_args=(),
    schema=f"(Tensor rows, str kind, Tensor? indices, int? n, str dtype, {_KEYS_SCHEMA}, {_FILTERS_SCHEMA}) -> Tensor",
)
def _sample_rows(rows: torch.Tensor, kind: str, indices: Any, n: Any, dtype: str, *arguments: Any) -> Any:
    keys, filters = _key_values(arguments[: 2 * len(_KEYS)]), _keywords(arguments[2 * len(_KEYS) :])
    seed, position, draw = keys.values()
    name = "logits" if kind == "logits" else "probs"
    return sample_rows(rows, name, None, kind, indices, n, seed, position, draw, dtype, False, None, **filters)


@_sample_rows.register_fake
def _(rows: torch.Tensor, kind: str, indices: Any, n: Any, dtype: str, *arguments: Any) -> torch.Tensor:
    count = rows.shape[0] if rows.dim() == 2 else 1
    outputs = count if indices is None else indices.shape[0]
    shape = (outputs,) if n is None else (count, n)
    return rows.new_empty(shape, dtype=torch.int64 if dtype == "int64" else torch.int32)


@torch.library.custom_op(
    "gumball::verify_chains",
    mutates_args=(),
    schema="(Tensor draft_probs, Tensor draft_token_ids, Tensor target_probs, str dtype, "
    f"{_KEYS_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _verify_chains(
    draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor, dtype: str, *keys: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    chains = (draft_probs, draft_token_ids, target_probs)
    found = operators.chain_speculative_sampling(*chains, dtype=dtype, **_key_values(keys))
    tokens, *words = (torch.as_tensor(part) for part in found)
    accepted, emitted, statuses = (word if word.dtype == torch.int32 else word.to(torch.int32) for word in words)
    return tokens, accepted, emitted, statuses


@_verify_chains.register_fake
def _(
    draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor, dtype: str, *keys: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    chains, width = target_probs.shape[0], target_probs.shape[1]
    tokens = target_probs.new_empty((chains, width), dtype=torch.int64 if dtype == "int64" else torch.int32)
    accepted, emitted, statuses = (target_probs.new_empty((chains,), dtype=torch.int32) for _ in range(3))
    return tokens, accepted, emitted, statuses


def _written(rows: torch.Tensor, out: torch.Tensor | None, operator: str, kind: str, filters: list[Any]) -> Any:
    if out is None:
        return torch.ops.gumball.write_rows(rows, operator, kind, *filters)
    if out is rows:
        torch.ops.gumball.write_rows_(rows, operator, kind, *filters)
    else:
        torch.ops.gumball.write_rows_out(rows, out, operator, kind, *filters)
    return out


def softmax(logits: torch.Tensor, temperature: Any = 1.0, out: torch.Tensor | None = None) -> Any:
    """:func:`gumball.softmax` as an operator of torch."""
    return _written(logits, out, "softmax", "logits", _filters(None, temperature=temperature))


def probabilities(
    rows: torch.Tensor,
    *,
    kind: str = "logits",
    temperature: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: str | Sequence[str] | None = None,
    out: torch.Tensor | None = None,
) -> Any:
    """:func:`gumball.probabilities` as an operator of torch; rows of probabilities keep their own type."""
    filters = _filters(order, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return _written(rows, out, "probabilities", kind, filters)


def _renormalised(probs: torch.Tensor, out: torch.Tensor | None, filters: list[Any]) -> Any:
    return _written(probs, out, "probabilities", "probabilities", filters)


def top_k_renorm_probs(probs: torch.Tensor, top_k: Any, out: torch.Tensor | None = None) -> Any:
    """:func:`gumball.top_k_renorm_probs` as an operator of torch."""
    return _renormalised(probs, out, _filters(None, top_k=top_k))


def top_p_renorm_probs(probs: torch.Tensor, top_p: Any, out: torch.Tensor | None = None) -> Any:
    """:func:`gumball.top_p_renorm_probs` as an operator of torch."""
    return _renormalised(probs, out, _filters(None, top_p=top_p))


def min_p_renorm_probs(probs: torch.Tensor, min_p: Any, out: torch.Tensor | None = None) -> Any:
    """:func:`gumball.min_p_renorm_probs` as an operator of torch."""
    return _renormalised(probs, out, _filters(None, min_p=min_p))


def top_k_top_p_renorm_probs(
    probs: torch.Tensor,
    top_k: Any,
    top_p: Any,
    out: torch.Tensor | None = None,
    *,
    order: str | Sequence[str] | None = None,
) -> Any:
    """:func:`gumball.top_k_top_p_renorm_probs` as an operator of torch."""
    return _renormalised(probs, out, _filters(order, top_k=top_k, top_p=top_p))


def mask_logits(
    logits: torch.Tensor,
    *,
    temperature: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: str | Sequence[str] | None = None,
    out: torch.Tensor | None = None,
) -> Any:
    """:func:`gumball.mask_logits` as an operator of torch."""
    filters = _filters(order, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return _written(logits, out, "mask_logits", "logits", filters)


def top_k_mask_logits(logits: torch.Tensor, top_k: Any, out: torch.Tensor | None = None) -> Any:
    """:func:`gumball.top_k_mask_logits` as an operator of torch."""
    return _written(logits, out, "mask_logits", "logits", _filters(None, top_k=top_k))


def _sampled(
    rows: torch.Tensor,
    kind: str,
    outputs: tuple[torch.Tensor | None, int | None, str, torch.Tensor | None],
    keys: list[Any],
    filters: list[Any],
) -> Any:
    indices, n, dtype, out = outputs
    tokens = torch.ops.gumball.sample_rows(rows, kind, indices, n, dtype, *keys, *filters)
    return tokens if out is None else out.copy_(tokens)


def sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None = None,
    *,
    seed: Any,
    n: int | None = None,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: str | Sequence[str] | None = None,
    position: Any = 0,
    draw: Any = None,
    dtype: str = "int32",
    out: torch.Tensor | None = None,
) -> Any:
    """:func:`gumball.sampling_from_probs` as an operator of torch.

    The seed is required: torch may share the results of equal calls, and so must not see an operator that draws a
    seed.
    """
    filters = _filters(order, top_k=top_k, top_p=top_p, min_p=min_p)
    return _sampled(probs, "probabilities", (indices, n, dtype, out), _keys(seed, position, draw), filters)


def sampling_from_logits(
    logits: torch.Tensor,
    indices: torch.Tensor | None = None,
    *,
    seed: Any,
    n: int | None = None,
    temperature: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: str | Sequence[str] | None = None,
    position: Any = 0,
    draw: Any = None,
    dtype: str = "int32",
    out: torch.Tensor | None = None,
) -> Any:
    """:func:`gumball.sampling_from_logits` as an operator of torch; the seed is required."""
    filters = _filters(order, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return _sampled(logits, "logits", (indices, n, dtype, out), _keys(seed, position, draw), filters)


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    *,
    seed: Any,
    position: Any = 0,
    draw: Any = None,
    dtype: str = "int32",
) -> operators.DraftChainSamples:
    """:func:`gumball.chain_speculative_sampling` as an operator of torch; counts and statuses are int32."""
    keys = _keys(seed, position, draw)
    found = torch.ops.gumball.verify_chains(draft_probs, draft_token_ids, target_probs, dtype, *keys)
    return operators.DraftChainSamples(*found)


def _stand_in(traced: Callable[..., Any]) -> None:
    """Makes torch.compile replace the function of gumball with the same name by this one."""
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is not None:
        substitute(getattr(operators, traced.__name__), skip_signature_check=True)(traced)


for _name in __all__:
    _stand_in(globals()[_name])
