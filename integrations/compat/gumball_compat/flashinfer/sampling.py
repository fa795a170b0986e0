"""FlashInfer's `sampling` of release 0.7: its names, signatures, checks and texts of errors, over gumball's operators.

What is the same: every parameter, the types that come out, the generator's increments, `indices` (parameters are one
for each row of the input, seeds and offsets one for each output), token 0 and `valid` False for a row without a token.

What is not:

* The tokens are Gumball's. They do not depend on the machine, and `deterministic=False` and `enable_pdl` change
  nothing.
* Of tokens that tie at a cut the lower ids stay, so that top-k keeps k.
* Rows from logits are drawn without a softmax in between; with the same generator as from their probabilities, the
  tokens are the same, but for rows where the rounding of the softmax decides.
* `top_k_top_p_sampling_from_logits` and the softmax take bfloat16 and float16 as they are.
* Temperature 0 is one-hot at the first of the largest logits, and a row without a logit above -inf has the softmax 0.
* Numbers outside their range, as a `top_p` below 0, are a ValueError.
* Tensors may lie on the host, too.

Rows are [rows, vocab]. Nothing here looks at what tensors hold, but where `check_nan` asks for it: calls without it
wait for nothing. With seeds and offsets given they can be captured in a graph, as tensors, and compiled whole by torch;
a generator breaks the compiler's graph. How random numbers are found stands in :mod:`.places`.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch

# With the latter there, what torch compiles has operators of torch in the place of the former.
import gumball.torch
from gumball import operators
from gumball.plugins.judged import counted

from .places import checked, get_seed_and_offset

__all__ = [
    "chain_speculative_sampling",
    "get_seed_and_offset",
    "min_p_sampling_from_probs",
    "sampling_from_logits",
    "sampling_from_probs",
    "softmax",
    "top_k_mask_logits",
    "top_k_renorm_prob",
    "top_k_renorm_probs",
    "top_k_sampling_from_probs",
    "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs",
    "top_p_renorm_prob",
    "top_p_renorm_probs",
    "top_p_sampling_from_probs",
]

_ROWS = (torch.float32, torch.float16, torch.bfloat16)
_TEMPERATURES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# What a call draws with and from: indices, generator, seed, offset, return_valid.
_Draw = tuple[Any, Any, Any, Any, bool]


class UnsupportedDtypeError(TypeError, AssertionError):
    """Rows of a type that is not supported; FlashInfer asserts that they are."""


def rows_of(rows: Any, name: str) -> Any:
    """Rows of a type that the operators read."""
    if rows.ndim != 2:
        raise ValueError(f"{name} must be a 2D tensor, but has {rows.ndim} dimensions")
    return rows if rows.dtype in _ROWS else rows.float()


def _supported(rows: Any, name: str) -> Any:
    if rows.dtype not in _ROWS:
        raise UnsupportedDtypeError(f"Unsupported dtype {rows.dtype}, expected float32, float16, or bfloat16")
    return rows_of(rows, name)


def _column(value: Any, rows: Any, *, whole: bool = False) -> Any:
    """A sampling parameter: a number, or one for each row in a tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim != 1:
        if value.ndim > 1:
            text = f"Expected a 1D tensor or scalar for the sampling parameter, but got a {value.ndim}D tensor."
            raise ValueError(text)
        raise ValueError(
            "Expected a 1D tensor of shape (batch_size,) or scalar for the sampling parameter, but got a 0-dimensional tensor."
        )
    if value.size(0) != rows.size(0):
        raise ValueError(
            f"Sampling parameter tensor batch size mismatch: expected length {rows.size(0)} to match the reference tensor "
            f"batch size, but got length {value.size(0)}."
        )
    if whole:
        return value if value.dtype is torch.int64 else _as(value, torch.int32)
    return _as(value, torch.float32)


def _as(values: Any, dtype: Any) -> Any:
    """A tensor of a type: itself, if it is of that, which asks torch for less."""
    return values if values.dtype is dtype else values.to(dtype)


def _check_nan(check: bool, rows: Any, name: str) -> None:
    if check and torch.any(torch.isnan(rows)):
        raise ValueError(f"Input {name} contains NaN.")


def _drawn(
    rows: Any,
    name: str,
    draw: _Draw,
    per_output: int,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    order: Any = None,
) -> Any:
    """Tokens of rows, after filters; a generator moves on by `per_output` for each."""
    indices, generator, seed, offset, return_valid = draw
    rows = rows_of(rows, name)
    top_k, top_p, min_p = _column(top_k, rows, whole=True), _column(top_p, rows), _column(min_p, rows)
    outputs = rows.size(0) if indices is None else indices.size(0)
    places = checked(seed, offset, generator, rows.device, outputs, outputs * per_output)
    dtype = "int64" if indices is not None and indices.dtype is torch.int64 else "int32"
    seed, position = places
    samples = operators.sample(
        rows,
        indices,
        kind="logits" if name == "logits" else "probabilities",
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        order=order,
        seed=seed,
        position=position,
        offsets=True,
        zero_for_none=not return_valid,
        dtype=dtype,
    )
    if not return_valid:
        return samples
    valid = samples >= 0
    return samples.clamp_(min=0), valid


def softmax(
    logits: torch.Tensor,
    temperature: torch.Tensor | float | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """The softmax of logits divided by the temperature, float32 [rows, vocab].

    temperature: a number, or [rows] of any floating type on the logits' device; None is 1. Raises ValueError or
    TypeError for another temperature, and as :func:`gumball.softmax` does.
    """
    if isinstance(temperature, torch.Tensor):
        if temperature.ndim != 1:
            shape = tuple(temperature.shape)
            raise ValueError(f"temperature tensor must be 1D with one value per logits row, got shape {shape}")
        rows, given = logits.size(0), temperature.size(0)
        if given != rows:
            raise ValueError(f"temperature tensor length must equal logits.size(0) ({rows}), got {given}")
        if temperature.device != logits.device:
            text = f"temperature tensor must be on the same device as logits ({logits.device})"
            raise ValueError(f"{text}, got {temperature.device}")
        if temperature.dtype not in _TEMPERATURES:
            text = "temperature tensor must have dtype float16, bfloat16, float32, or float64"
            raise ValueError(f"{text}, got {temperature.dtype}")
        temperature = _as(temperature, torch.float32)
    elif temperature is None:
        temperature = 1.0
    elif isinstance(temperature, bool) or not isinstance(temperature, Real):
        text = "a real scalar, or a 1D floating-point tensor with one value per logits row"
        raise TypeError(f"temperature must be None, {text}")
    return operators.softmax(rows_of(logits, "logits"), temperature)


def sampling_from_logits(
    logits: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """A token for each row of logits, or for each of `indices`: [outputs] int32, or of the indices' type."""
    _check_nan(check_nan, logits, "logits")
    return _drawn(logits, "logits", (indices, generator, seed, offset, False), logits.size(-1))


def sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of probabilities, or for each of `indices`; they need not sum to 1.

    With return_valid also [outputs] bool: whether the row had a token. Token 0 stands where it had none.
    """
    _check_nan(check_nan, probs, "probs")
    return _drawn(probs, "probs", (indices, generator, seed, offset, return_valid), 1)


def top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token of each row from the fewest probabilities that hold the share `top_p` of their row."""
    _check_nan(check_nan, probs, "probs")
    return _drawn(probs, "probs", (indices, generator, seed, offset, return_valid), 32, top_p=top_p)


def top_k_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token of each row from the `top_k` largest probabilities."""
    _check_nan(check_nan, probs, "probs")
    return _drawn(probs, "probs", (indices, generator, seed, offset, return_valid), 32, top_k)


def min_p_sampling_from_probs(
    probs: torch.Tensor,
    min_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token of each row from the probabilities of at least `min_p` times the row's largest."""
    _check_nan(check_nan, probs, "probs")
    return _drawn(probs, "probs", (indices, generator, seed, offset, return_valid), 1, min_p=min_p)


def _order(filter_apply_order: str) -> str | None:
    if filter_apply_order not in ("top_k_first", "joint"):
        raise ValueError(f"Invalid filter_apply_order: {filter_apply_order}")
    return "joint" if filter_apply_order == "joint" else None


def _bounded(top_k: Any, most: int | None, filter_apply_order: str, rows: Any) -> Any:
    """Bounds a tensor of top-k where FlashInfer's fast path does, to which `top_k_max` hands it: rows without top-k have the bound there, too."""
    fast = filter_apply_order == "top_k_first" and isinstance(top_k, torch.Tensor) and rows.size(-1) >= 65536
    if most is None or not fast or not 0 < most <= 256:
        return top_k
    return torch.where((top_k < 1) | (top_k > most), most, top_k)


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    top_k_max: int | None = None,
) -> torch.Tensor:
    """A token of each row of logits from what both filters keep of its softmax.

    filter_apply_order: "top_k_first", top-p on what top-k keeps, or "joint", both on the whole row. check_nan looks at
    the softmax. top_k_max: see :func:`_bounded`.
    """
    order, top_k = _order(filter_apply_order), _bounded(top_k, top_k_max, filter_apply_order, logits)
    if check_nan:
        _check_nan(check_nan, torch.softmax(logits, dim=-1), "probs")
    return _drawn(logits, "logits", (indices, generator, seed, offset, False), 32, top_k, top_p, order=order)


def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
    top_k_max: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token of each row of probabilities from what both filters keep. top_k_max: see :func:`_bounded`."""
    order, top_k = _order(filter_apply_order), _bounded(top_k, top_k_max, filter_apply_order, probs)
    _check_nan(check_nan, probs, "probs")
    return _drawn(probs, "probs", (indices, generator, seed, offset, return_valid), 32, top_k, top_p, order=order)


def top_p_renorm_probs(
    probs: torch.Tensor,
    top_p: torch.Tensor | float,
    is_deterministic: bool = False,
) -> torch.Tensor:
    """The fewest probabilities of each row that hold the share `top_p`, summing to 1, 0 elsewhere; float32."""
    probs = _as(rows_of(probs, "probs"), torch.float32)
    return operators.probabilities(probs, kind="probabilities", top_p=_column(top_p, probs))


def top_k_renorm_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    is_deterministic: bool = False,
) -> torch.Tensor:
    """The `top_k` largest probabilities of each row, summing to 1, 0 elsewhere; of the type of `probs`."""
    probs = _supported(probs, "probs")
    return operators.probabilities(probs, kind="probabilities", top_k=_column(top_k, probs, whole=True))


def top_k_mask_logits(logits: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """The `top_k` largest logits of each row, -inf elsewhere; of the logits' type."""
    logits = _supported(logits, "logits")
    return operators.mask_logits(logits, top_k=_column(top_k, logits, whole=True))


top_p_renorm_prob = top_p_renorm_probs
top_k_renorm_prob = top_k_renorm_probs


def _added(counts: Any, onto: Any | None) -> Any:
    return counts if onto is None else onto.add_(counts)


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accepts chains of drafts, or draws the first that is not accepted anew, so that tokens are the target's.

    draft_probs: [chains, drafts, vocab]. draft_token_ids: [chains, drafts]. target_probs: [chains, drafts + 1, vocab].

    Returns tokens, [chains, drafts + 1] int32: the accepted drafts, one token more, then -1; how many drafts would be
    accepted, each looked at by itself; and how many were emitted, the token after them not counted. Both are [chains]
    int32, or added to the tensors that were handed in, which are returned.
    """
    chains, drafts, _ = draft_probs.shape
    places = checked(seed, offset, generator, draft_probs.device, chains, chains * (drafts + 2))
    chain = (_as(draft_probs, torch.float32), _as(draft_token_ids, torch.int32), _as(target_probs, torch.float32))
    onto = (maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num)
    adds = not torch.compiler.is_compiling() and _fit(onto, chains)
    (seed, position), added = places, onto[::-1] if adds else None
    tokens, _, emitted, accepted, _ = operators.judge(
        *chain, seed=seed, position=position, offsets=True, zero_for_none=True, added=added
    )
    if adds:
        return tokens, accepted, emitted
    return tokens, _added(counted(accepted), onto[0]), _added(counted(emitted), onto[1])


def _fit(counts: tuple[Any, Any], chains: int) -> bool:
    """Whether there are counts that kernels can add to."""
    return all(
        count is not None and count.dtype is torch.int32 and count.shape == (chains,) and count.is_contiguous()
        for count in counts
    )
