"""The operators of :mod:`gumball.operators` as custom operators of torch; import them from :mod:`gumball.torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from . import operators

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

# A schema has no type for "a number or a tensor", so each row parameter takes two arguments, one of which is None.
_Float = Optional[float]
_Int = Optional[int]
_Column = Optional[torch.Tensor]


def _one(number: Any, column: Any) -> Any:
    return number if column is None else column


def _two(value: Any, name: str) -> tuple[Any, Any]:
    """Splits a row parameter into its two arguments: a number and a tensor."""
    if isinstance(value, torch.Tensor):
        return None, value
    if value is None or isinstance(value, (int, float)):
        return value, None
    raise TypeError(f"{name} must be a number or a tensor in what is compiled, not {type(value).__name__}")


def _signed(value: Any) -> Any:
    """Returns a seed as int64, the only integer type of schemas."""
    return value - 2**64 if isinstance(value, int) and 2**63 <= value < 2**64 else value


def _unsigned(value: Any) -> Any:
    return value % 2**64 if isinstance(value, int) else value


@torch.library.custom_op("gumball::softmax", mutates_args=())
def _softmax(logits: torch.Tensor, temperature: _Float, temperatures: _Column) -> torch.Tensor:
    done: torch.Tensor = operators.softmax(logits, _one(temperature, temperatures))
    return done


@_softmax.register_fake
def _(logits: torch.Tensor, temperature: _Float, temperatures: _Column) -> torch.Tensor:
    return torch.empty_like(logits, dtype=torch.float32)


@torch.library.custom_op("gumball::softmax_out", mutates_args=("out",))
def _softmax_out(logits: torch.Tensor, out: torch.Tensor, temperature: _Float, temperatures: _Column) -> None:
    operators.softmax(logits, _one(temperature, temperatures), out)


@_softmax_out.register_fake
def _(logits: torch.Tensor, out: torch.Tensor, temperature: _Float, temperatures: _Column) -> None:
    torch._check(logits.shape == out.shape)


@torch.library.custom_op("gumball::softmax_", mutates_args=("logits",))
def _softmax_in_place(logits: torch.Tensor, temperature: _Float, temperatures: _Column) -> None:
    operators.softmax(logits, _one(temperature, temperatures), logits)


@_softmax_in_place.register_fake
def _(logits: torch.Tensor, temperature: _Float, temperatures: _Column) -> None:
    torch._check(logits.dim() in (1, 2))


def _filters(
    temperature: Any,
    temperatures: Any,
    top_k: Any,
    top_ks: Any,
    top_p: Any,
    top_ps: Any,
    min_p: Any,
    min_ps: Any,
    order: str,
) -> dict[str, Any]:
    """Returns the filters as keywords of an operator of gumball."""
    filters = {
        "temperature": _one(temperature, temperatures),
        "top_k": _one(top_k, top_ks),
        "top_p": _one(top_p, top_ps),
        "min_p": _one(min_p, min_ps),
        "order": order.split(",") if "," in order else order or None,
    }
    return {name: value for name, value in filters.items() if value is not None}


def _flat(filters: dict[str, Any], order: Any) -> list[Any]:
    """Returns the filters as arguments of a custom operator."""
    found: list[Any] = []
    for name in ("temperature", "top_k", "top_p", "min_p"):
        found.extend(_two(filters.get(name), name))
    return [*found, order if isinstance(order, str) else ",".join(order or ())]


def _write(rows: torch.Tensor, what: str, kind: str, filters: dict[str, Any], out: torch.Tensor | None) -> torch.Tensor:
    written: torch.Tensor
    if what == "masked":
        written = operators.mask_logits(rows, out=out, **filters)
    elif out is None and kind == "probabilities":
        written = operators.probabilities(rows, kind=kind, out=torch.empty_like(rows), **filters)
    else:
        written = operators.probabilities(rows, kind=kind, out=out, **filters)
    return written


@torch.library.custom_op("gumball::write_rows", mutates_args=())
def _write_rows(
    rows: torch.Tensor,
    what: str,
    kind: str,
    temperature: _Float,
    temperatures: _Column,
    top_k: _Int,
    top_ks: _Column,
    top_p: _Float,
    top_ps: _Column,
    min_p: _Float,
    min_ps: _Column,
    order: str,
) -> torch.Tensor:
    filters = _filters(temperature, temperatures, top_k, top_ks, top_p, top_ps, min_p, min_ps, order)
    return _write(rows, what, kind, filters, None)


@_write_rows.register_fake
def _(rows: torch.Tensor, what: str, kind: str, *filters: Any) -> torch.Tensor:
    as_float = what != "masked" and kind == "logits"
    return torch.empty_like(rows, dtype=torch.float32) if as_float else torch.empty_like(rows)


@torch.library.custom_op("gumball::write_rows_out", mutates_args=("out",))
def _write_rows_out(
    rows: torch.Tensor,
    out: torch.Tensor,
    what: str,
    kind: str,
    temperature: _Float,
    temperatures: _Column,
    top_k: _Int,
    top_ks: _Column,
    top_p: _Float,
    top_ps: _Column,
    min_p: _Float,
    min_ps: _Column,
    order: str,
) -> None:
    filters = _filters(temperature, temperatures, top_k, top_ks, top_p, top_ps, min_p, min_ps, order)
    _write(rows, what, kind, filters, out)


@_write_rows_out.register_fake
def _(rows: torch.Tensor, out: torch.Tensor, what: str, kind: str, *filters: Any) -> None:
    torch._check(rows.shape == out.shape)


@torch.library.custom_op("gumball::write_rows_", mutates_args=("rows",))
def _write_rows_in_place(
    rows: torch.Tensor,
    what: str,
    kind: str,
    temperature: _Float,
    temperatures: _Column,
    top_k: _Int,
    top_ks: _Column,
    top_p: _Float,
    top_ps: _Column,
    min_p: _Float,
    min_ps: _Column,
    order: str,
) -> None:
    filters = _filters(temperature, temperatures, top_k, top_ks, top_p, top_ps, min_p, min_ps, order)
    _write(rows, what, kind, filters, rows)


@_write_rows_in_place.register_fake
def _(rows: torch.Tensor, what: str, kind: str, *filters: Any) -> None:
    torch._check(rows.dim() in (1, 2))


@torch.library.custom_op("gumball::draw_rows", mutates_args=())
def _draw_rows(
    rows: torch.Tensor,
    kind: str,
    indices: _Column,
    n: _Int,
    temperature: _Float,
    temperatures: _Column,
    top_k: _Int,
    top_ks: _Column,
    top_p: _Float,
    top_ps: _Column,
    min_p: _Float,
    min_ps: _Column,
    order: str,
    seed: _Int,
    seeds: _Column,
    position: _Int,
    positions: _Column,
    draw: _Int,
    draws: _Column,
    dtype: str,
) -> torch.Tensor:
    filters = _filters(temperature, temperatures, top_k, top_ks, top_p, top_ps, min_p, min_ps, order)
    which = {"seed": _one(_unsigned(seed), seeds), "position": _one(position, positions), "draw": _one(draw, draws)}
    of = operators.sampling_from_logits if kind == "logits" else operators.sampling_from_probs
    drawn: torch.Tensor = of(rows, indices, n=n, dtype=dtype, **filters, **which)
    return drawn


@_draw_rows.register_fake
def _(rows: torch.Tensor, kind: str, indices: Any, n: Any, *rest: Any) -> torch.Tensor:
    lines = rows.shape[0] if rows.dim() == 2 else 1
    outputs = lines if indices is None else indices.shape[0]
    shape = (outputs,) if n is None else (lines, n)
    return rows.new_empty(shape, dtype=torch.int64 if rest[-1] == "int64" else torch.int32)


@torch.library.custom_op("gumball::verify_chains", mutates_args=())
def _verify_chains(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    seed: _Int,
    seeds: _Column,
    position: _Int,
    positions: _Column,
    draw: _Int,
    draws: _Column,
    dtype: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    which = {"seed": _one(_unsigned(seed), seeds), "position": _one(position, positions), "draw": _one(draw, draws)}
    found = operators.chain_speculative_sampling(draft_probs, draft_token_ids, target_probs, dtype=dtype, **which)
    tokens, *words = (torch.as_tensor(part) for part in found)
    accepted, emitted, statuses = (word if word.dtype == torch.int32 else word.to(torch.int32) for word in words)
    return tokens, accepted, emitted, statuses


@_verify_chains.register_fake
def _(
    draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    chains, width = target_probs.shape[0], target_probs.shape[1]
    dtype = torch.int64 if rest[-1] == "int64" else torch.int32
    tokens = target_probs.new_empty((chains, width), dtype=dtype)
    accepted, emitted, statuses = (target_probs.new_empty((chains,), dtype=torch.int32) for _ in range(3))
    return tokens, accepted, emitted, statuses


def softmax(logits: torch.Tensor, temperature: Any = 1.0, out: torch.Tensor | None = None) -> torch.Tensor:
    """:func:`gumball.softmax` as an operator of torch."""
    given = _two(temperature, "temperature")
    if out is None:
        done: torch.Tensor = torch.ops.gumball.softmax(logits, *given)
        return done
    if out is logits:
        torch.ops.gumball.softmax_(logits, *given)
    else:
        torch.ops.gumball.softmax_out(logits, out, *given)
    return out


def _written(
    rows: torch.Tensor, what: str, kind: str, out: torch.Tensor | None, order: Any, **filters: Any
) -> torch.Tensor:
    flat = _flat(filters, order)
    if out is None:
        done: torch.Tensor = torch.ops.gumball.write_rows(rows, what, kind, *flat)
        return done
    if out is rows:
        torch.ops.gumball.write_rows_(rows, what, kind, *flat)
    else:
        torch.ops.gumball.write_rows_out(rows, out, what, kind, *flat)
    return out


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
) -> torch.Tensor:
    """:func:`gumball.probabilities` as an operator of torch; rows of probabilities keep their own type."""
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return _written(rows, "probabilities", kind, out, order, **filters)


def top_k_renorm_probs(probs: torch.Tensor, top_k: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """:func:`gumball.top_k_renorm_probs` as an operator of torch."""
    return _written(probs, "probabilities", "probabilities", out, None, top_k=top_k)


def top_p_renorm_probs(probs: torch.Tensor, top_p: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """:func:`gumball.top_p_renorm_probs` as an operator of torch."""
    return _written(probs, "probabilities", "probabilities", out, None, top_p=top_p)


def min_p_renorm_probs(probs: torch.Tensor, min_p: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """:func:`gumball.min_p_renorm_probs` as an operator of torch."""
    return _written(probs, "probabilities", "probabilities", out, None, min_p=min_p)


def top_k_top_p_renorm_probs(
    probs: torch.Tensor,
    top_k: Any,
    top_p: Any,
    out: torch.Tensor | None = None,
    *,
    order: str | Sequence[str] | None = None,
) -> torch.Tensor:
    """:func:`gumball.top_k_top_p_renorm_probs` as an operator of torch."""
    return _written(probs, "probabilities", "probabilities", out, order, top_k=top_k, top_p=top_p)


def mask_logits(
    logits: torch.Tensor,
    *,
    temperature: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: str | Sequence[str] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`gumball.mask_logits` as an operator of torch."""
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return _written(logits, "masked", "logits", out, order, **filters)


def top_k_mask_logits(logits: torch.Tensor, top_k: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """:func:`gumball.top_k_mask_logits` as an operator of torch."""
    return _written(logits, "masked", "logits", out, None, top_k=top_k)


def _drawn(
    rows: torch.Tensor,
    kind: str,
    indices: torch.Tensor | None,
    n: int | None,
    seed: Any,
    position: Any,
    draw: Any,
    dtype: str,
    out: torch.Tensor | None,
    order: Any,
    **filters: Any,
) -> torch.Tensor:
    which = [*_two(_signed(seed), "seed"), *_two(position, "position"), *_two(draw, "draw")]
    drawn: torch.Tensor = torch.ops.gumball.draw_rows(rows, kind, indices, n, *_flat(filters, order), *which, dtype)
    return drawn if out is None else out.copy_(drawn)


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
) -> torch.Tensor:
    """:func:`gumball.sampling_from_probs` as an operator of torch.

    The seed is required: torch may share the results of equal calls, and so must not see an operator that draws a
    seed.
    """
    which = (indices, n, seed, position, draw, dtype, out, order)
    return _drawn(probs, "probabilities", *which, top_k=top_k, top_p=top_p, min_p=min_p)


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
) -> torch.Tensor:
    """:func:`gumball.sampling_from_logits` as an operator of torch; the seed is required."""
    which = (indices, n, seed, position, draw, dtype, out, order)
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return _drawn(logits, "logits", *which, **filters)


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    *,
    seed: Any,
    position: Any = 0,
    draw: Any = None,
    dtype: str = "int32",
) -> operators.ChainSamples:
    """:func:`gumball.chain_speculative_sampling` as an operator of torch; counts and statuses are int32."""
    which = [*_two(_signed(seed), "seed"), *_two(position, "position"), *_two(draw, "draw")]
    found = torch.ops.gumball.verify_chains(draft_probs, draft_token_ids, target_probs, *which, dtype)
    return operators.ChainSamples(*found)


def _stand_in(traced: Callable[..., Any]) -> None:
    """Makes torch.compile replace the function of gumball with the same name by this one."""
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is not None:
        substitute(getattr(operators, traced.__name__), skip_signature_check=True)(traced)


for _name in __all__:
    _stand_in(globals()[_name])
