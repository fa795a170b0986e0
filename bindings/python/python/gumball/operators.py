"""Operators over rows, without requests: softmax, renormalised and masked rows, draws, chains of drafts.

For programs that hold probabilities, or must return them, and bring seeds and positions themselves. What a row comes to is a
function of its numbers, its parameters and its draw; the batch changes nothing.

All of them take rows as [rows, vocab], or [vocab] for one row, of float32, bfloat16 or float16: numpy's arrays, torch's tensors,
and what has ``__dlpack__`` or ``__array_interface__``; rows may be strided. What comes out is a tensor of torch if a tensor of
torch went in, and an array of numpy otherwise; or it is written to ``out``, which is then returned.
``out`` may be the input itself, which is changed in place, and otherwise shares no memory with it. ``temperature``, ``top_k``,
``top_p`` and ``min_p`` are a number, or a list or an array of one for each row; where one is None it is off. ``params`` is a
SamplingParams, for whatever other filter and ban it has.

With ``return_statuses=True`` what each row's data had to say comes too: (result, statuses), bits of :class:`gumball.Status` in an
array of uint32.

On a GPU the rows are torch's, CuPy's, or anybody's with ``out`` given, and all arrays lie on the same device. A call is launches on torch's current stream, or on ``stream``: it waits for nothing, copies
nothing but lists of numbers, and stands in a CUDA graph that is captured after a first call. Parameters of rows are numbers,
lists, or arrays on the device, which nobody looks at: what is outside its range counts as the nearest that is allowed. Statuses are
int32 there. What is captured or enqueued on one stream shares memory: two graphs captured on the same stream must not be
replayed side by side. A ``stream`` lives until its work is done.

All raise ValueError for a shape, a value or a place that is not so, TypeError for another type, and UnavailableError for what a
GPU lacks. Nothing was written then.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ._gumball import (
    describe,
    draw_rows,
    rows_on_device,
    sample_on_device,
    softmax_on_device,
    verify_chains,
    verify_on_device,
    write_on_device,
    write_rows,
)
from .params import SamplingParams

__all__ = [
    "ChainSamples",
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

# Anybody's array.
_Array: TypeAlias = Any
# A CUDA stream's handle, or an object that holds one.
_Stream: TypeAlias = int | Any
_Numbers: TypeAlias = float | Sequence[float] | _Array
_Integers: TypeAlias = int | Sequence[int] | _Array
_Order: TypeAlias = str | Sequence[str]


def _torch_of(array: _Array) -> Any:
    """torch, if the array is a tensor of it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, getattr(torch, "Tensor", ())) else None


def _empty(like: _Array, shape: tuple[int, ...], dtype: str) -> _Array:
    """An array of the caller's kind."""
    if (torch := _torch_of(like)) is not None:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    import numpy

    if dtype == "bfloat16":
        import ml_dtypes

        return numpy.empty(shape, ml_dtypes.bfloat16)
    return numpy.empty(shape, dtype)


def _words(values: list[int]) -> _Array:
    import numpy

    return numpy.array(values, numpy.uint32)


def _flat(values: _Array) -> _Array:
    """A column [rows, 1] as [rows]."""
    return values.reshape(-1) if getattr(values, "ndim", 0) > 1 else values


# Temperature, top_k, top_p, min_p, order and params, as they were given.
_Filters: TypeAlias = tuple[Any, Any, Any, Any, Any, Any]


def _named(filters: _Filters) -> dict[str, Any]:
    """Filters by their names, as rows of the host take them."""
    *columns, order, params = filters
    flat = (_flat(column) for column in columns)
    return dict(zip(("temperature", "top_k", "top_p", "min_p"), flat, strict=True)) | {"order": order, "params": params}


# What is written, rows, out, dtype, kind, the rows' name, filters, and whether statuses are returned.
_Asked: TypeAlias = tuple[str, _Array, _Array | None, str | None, str, str, _Filters, bool]


def _written(asked: _Asked, stream: _Stream | None) -> Any:
    done = write_on_device(*asked, stream)
    return _written_on_host(asked) if done is None else done


def _written_on_host(asked: _Asked) -> Any:
    what, rows, out, dtype, kind, name, filters, return_statuses = asked
    named = _named(filters)
    shape, own = describe(rows, name)
    if out is None:
        out = _empty(rows, shape, dtype or own)
    statuses = write_rows(what, rows, out, kind, name, **named)
    return (out, _words(statuses)) if return_statuses else out


def softmax(
    logits: _Array,
    temperature: _Numbers = 1.0,
    out: _Array | None = None,
    *,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """The softmax of each row of logits at its temperature, fused; float32 [rows, vocab] if there is no `out`.

    temperature: in 0..=2^100, a number, [rows] or [rows, 1]; at 0 the first of the largest logits has 1 and the others 0. `out`: of
    the logits' shape, in any of the three types (on a GPU float32 or the logits' own); each number is rounded to it once. The
    maximum is subtracted before the temperature divides, so that logits of +-1e6 at 0.01 stay finite; equal logits have equal
    probabilities, bit for bit. A NaN counts as -inf, +inf as the largest float32, and a row without a logit above -inf is all 0.
    On a GPU this is one launch or two.
    """
    done = softmax_on_device(logits, temperature, out, return_statuses, stream)
    if done is not None:
        return done
    filters = (temperature, None, None, None, None, None)
    return _written_on_host(("probabilities", logits, out, "float32", "logits", "logits", filters, return_statuses))


def probabilities(
    rows: _Array,
    *,
    kind: str = "logits",
    temperature: _Numbers | None = None,
    top_k: _Integers | None = None,
    top_p: _Numbers | None = None,
    min_p: _Numbers | None = None,
    order: _Order | None = None,
    params: SamplingParams | None = None,
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """The distribution that each row's token is drawn from, after temperature and filters; float32 if there is no `out`.

    kind: "logits", or "probabilities" for rows of those, which need not sum to 1 and take no temperature but 0 and 1. order: of
    the filters, as in SamplingParams; "joint" has all look at the unfiltered row. A row without a token is all 0.
    """
    filters = (temperature, top_k, top_p, min_p, order, params)
    return _written(("probabilities", rows, out, "float32", kind, "rows", filters, return_statuses), stream)


def _renormalised(probs: _Array, out: _Array | None, return_statuses: bool, filters: _Filters) -> Any:
    return _written(("probabilities", probs, out, None, "probabilities", "probs", filters, return_statuses), None)


def top_k_renorm_probs(
    probs: _Array, top_k: _Integers, out: _Array | None = None, *, return_statuses: bool = False
) -> Any:
    """The k largest probabilities of each row, summing to 1, and 0 elsewhere; of ties at the cut those with the lower ids.

    probs need not sum to 1. top_k: off if below 1 or at least the vocabulary. The result has the type of probs, or of `out`.
    """
    return _renormalised(probs, out, return_statuses, (None, top_k, None, None, None, None))


def top_p_renorm_probs(
    probs: _Array, top_p: _Numbers, out: _Array | None = None, *, return_statuses: bool = False
) -> Any:
    """The fewest probabilities of each row that hold the share top_p of its sum, summing to 1, and 0 elsewhere.

    top_p: at least 0, off from 1 up. One probability stays at least. Of ties at the cut those with the lower ids stay.
    """
    return _renormalised(probs, out, return_statuses, (None, None, top_p, None, None, None))


def min_p_renorm_probs(
    probs: _Array, min_p: _Numbers, out: _Array | None = None, *, return_statuses: bool = False
) -> Any:
    """The probabilities of each row that are at least min_p times its largest, summing to 1, and 0 elsewhere.

    min_p: in 0..=1.
    """
    return _renormalised(probs, out, return_statuses, (None, None, None, min_p, None, None))


def top_k_top_p_renorm_probs(
    probs: _Array,
    top_k: _Integers,
    top_p: _Numbers,
    out: _Array | None = None,
    *,
    order: _Order | None = None,
    return_statuses: bool = False,
) -> Any:
    """top_k, then top_p on what that keeps, in one operator; with order="joint" both on the whole row."""
    return _renormalised(probs, out, return_statuses, (None, top_k, top_p, None, order, None))


def mask_logits(
    logits: _Array,
    *,
    temperature: _Numbers | None = None,
    top_k: _Integers | None = None,
    top_p: _Numbers | None = None,
    min_p: _Numbers | None = None,
    order: _Order | None = None,
    params: SamplingParams | None = None,
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """Each row of logits with -inf for what its filters and bans do not keep, in the logits' own type; out=logits is in place.

    The temperature is that at which filters weigh tokens; the logits that stay are not divided by it. -0.0 comes out as 0.0.
    +inf comes out as the largest finite number in float32; bfloat16 and float16 round that to +inf again. A row of only -inf stays as it is.
    """
    filters = (temperature, top_k, top_p, min_p, order, params)
    return _written(("masked", logits, out, None, "logits", "logits", filters, return_statuses), stream)


def top_k_mask_logits(
    logits: _Array, top_k: _Integers, out: _Array | None = None, *, return_statuses: bool = False
) -> Any:
    """The k largest logits of each row, and -inf elsewhere; of ties at the cut those with the lower ids."""
    filters = (None, top_k, None, None, None, None)
    return _written(("masked", logits, out, None, "logits", "logits", filters, return_statuses), None)


def _drawn(
    rows: _Array,
    kind: str,
    name: str,
    indices: _Array | None,
    n: int | None,
    seed: _Integers | None,
    position: _Integers,
    draw: _Integers | None,
    dtype: str,
    out: _Array | None,
    return_statuses: bool,
    stream: _Stream | None,
    filters: _Filters,
) -> Any:
    if dtype not in ("int32", "int64"):
        raise ValueError(f"dtype is {dtype}, but must be int32 or int64")
    if n is not None and (not isinstance(n, int) or n < 0):
        raise ValueError(f"n is {n}, but must be an integer of at least 0")
    seed = secrets.randbits(64) if seed is None else seed
    if n is not None and (lines := rows_on_device(rows, name)) is not None:
        if indices is not None:
            raise ValueError("n conflicts with indices, which name each output")
        indices, seed, position = _each_line(rows, lines, n), _repeated(seed, n), _repeated(position, n)
        out = _empty_beside(rows, (lines, n), dtype) if out is None else out
    done = sample_on_device(
        rows, out, kind, name, indices, filters, seed, position, draw, dtype, return_statuses, stream
    )
    if done is not None:
        return done
    shape, _ = describe(rows, name)
    lines = shape[0] if len(shape) == 2 else 1
    if out is None:
        each = (lines if indices is None else len(indices),) if n is None else (lines, n)
        out = _empty(rows, each, dtype)
    draws: dict[str, Any] = {"indices": indices, "n": n, "seed": seed, "position": position, "draw": draw}
    told = draw_rows(rows, out, kind, name, **draws, **_named(filters))
    if not return_statuses:
        return out
    statuses = _words(told)
    if n is not None:
        statuses = statuses.repeat(n).reshape(lines, n)
    elif indices is not None:
        statuses = statuses[_listed(indices)]
    return out, statuses


def _beside(rows: _Array) -> tuple[Any, dict[str, Any]]:
    """torch, or CuPy, whose array it is, and the keywords that put another where the rows lie."""
    if (torch := _torch_of(rows)) is not None:
        return torch, {"device": rows.device}
    return sys.modules[type(rows).__module__.partition(".")[0]], {}


def _each_line(rows: _Array, lines: int, n: int) -> _Array:
    """Each line n times, where the rows lie."""
    namespace, place = _beside(rows)
    return namespace.arange(lines * n, dtype=namespace.int32, **place) // max(n, 1)


def _empty_beside(rows: _Array, shape: tuple[int, ...], dtype: str) -> _Array:
    namespace, place = _beside(rows)
    return namespace.empty(shape, dtype=getattr(namespace, dtype), **place)


def _repeated(values: Any, n: int) -> Any:
    """Each value n times, where there is one for each row."""
    if isinstance(values, (list, tuple)):
        return [value for value in values for _ in range(n)]
    if getattr(values, "ndim", 0) == 0:
        return values
    return values.repeat_interleave(n) if _torch_of(values) is not None else values.repeat(n)


def _listed(indices: _Array) -> Any:
    import numpy

    return numpy.asarray(indices)


def sampling_from_probs(
    probs: _Array,
    indices: _Array | None = None,
    *,
    n: int | None = None,
    top_k: _Integers | None = None,
    top_p: _Numbers | None = None,
    min_p: _Numbers | None = None,
    order: _Order | None = None,
    params: SamplingParams | None = None,
    seed: _Integers | None = None,
    position: _Integers = 0,
    draw: _Integers | None = None,
    dtype: str = "int32",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """A token for each row of probabilities, which need not sum to 1, after its filters; -1 for a row without one above 0.

    indices: the row that each output reads, any of them any number of times: [outputs]. n: so many tokens of each row instead:
    [rows, n]. Otherwise the outputs are [rows]. dtype: "int32" or "int64". top_k, top_p, min_p: one for each row, not output.

    seed: in 0..2^64, position: in 0..2^32, the number of tokens before the drawn one; a number or one for each output, with n one for
    each row. seed None: fresh entropy. draw: the draw index, in 0..2^32; each output's own number if None, which tells outputs
    of one seed and position apart. The token is that of a Pool whose sequence has this seed, position and draw index.

    With return_statuses they are of the row that each output reads, in the outputs' shape.
    """
    filters = (None, top_k, top_p, min_p, order, params)
    return _drawn(
        probs, "probabilities", "probs", indices, n, seed, position, draw, dtype, out, return_statuses, stream, filters
    )


def sampling_from_logits(
    logits: _Array,
    indices: _Array | None = None,
    *,
    n: int | None = None,
    temperature: _Numbers | None = None,
    top_k: _Integers | None = None,
    top_p: _Numbers | None = None,
    min_p: _Numbers | None = None,
    order: _Order | None = None,
    params: SamplingParams | None = None,
    seed: _Integers | None = None,
    position: _Integers = 0,
    draw: _Integers | None = None,
    dtype: str = "int32",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """A token for each row of logits, after temperature and filters; the rest as for sampling_from_probs."""
    filters = (temperature, top_k, top_p, min_p, order, params)
    return _drawn(
        logits, "logits", "logits", indices, n, seed, position, draw, dtype, out, return_statuses, stream, filters
    )


class ChainSamples(NamedTuple):
    """What became of a batch of chains.

    tokens: [chains, drafts + 1]: the accepted drafts, the token drawn after them, then -1. accepted: [chains] uint32, how many
    drafts would be accepted if each were judged by itself. emitted: [chains] uint32, how many drafts were emitted: accepted, and
    all before them too; the token after them is not counted. statuses: [chains] uint32, of the row that was drawn from.
    """

    tokens: Any
    accepted: Any
    emitted: Any
    statuses: Any


def chain_speculative_sampling(
    draft_probs: _Array,
    draft_token_ids: _Array,
    target_probs: _Array,
    *,
    seed: _Integers | None = None,
    position: _Integers = 0,
    draw: _Integers | None = None,
    dtype: str = "int32",
    stream: _Stream | None = None,
) -> ChainSamples:
    """Accepts each chain's drafts, or replaces the first that is not accepted by one of the residual, so that every emitted token has
    the distribution of the target's row.

    draft_probs: [chains, drafts, vocab] float32, what the drafts were drawn from. draft_token_ids: [chains, drafts] integers; an id
    outside the vocabulary was not drawn: its row is drawn plainly and ends the chain. target_probs: [chains, drafts + 1, vocab]
    float32. Read where they lie if contiguous, else copied. seed, position (of the first draft), draw (None: the chain's number): a
    number, or one for each chain.
    """
    for name, array in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        if len(getattr(array, "shape", ())) != 3:
            found = f"{len(array.shape)} dimensions" if hasattr(array, "shape") else "no shape"
            raise ValueError(f"{name} has {found}, but must have 3: chains, drafts and vocab")
    chains, width, vocab = target_probs.shape
    if width < 1 or tuple(draft_probs.shape) != (chains, width - 1, vocab):
        text = f"({chains}, {max(width - 1, 0)}, {vocab}), target_probs having one row more"
        raise ValueError(f"draft_probs has shape {tuple(draft_probs.shape)}, but must have {text}")
    if tuple(draft_token_ids.shape) != (chains, width - 1):
        text = f"{tuple(draft_token_ids.shape)}, but must have ({chains}, {width - 1})"
        raise ValueError(f"draft_token_ids has shape {text}")
    if dtype not in ("int32", "int64"):
        raise ValueError(f"dtype is {dtype}, but must be int32 or int64")
    seed = secrets.randbits(64) if seed is None else seed
    shape = (chains, width - 1, vocab)
    done = verify_on_device(draft_probs, draft_token_ids, target_probs, shape, seed, position, draw, dtype, stream)
    if done is not None:
        return ChainSamples(*done)
    flat = (
        draft_probs.reshape(chains * (width - 1), vocab),
        draft_token_ids.reshape(-1),
        target_probs.reshape(chains * width, vocab),
    )
    tokens = _empty(target_probs, (chains, width), dtype)
    which: dict[str, Any] = {"chains": chains, "drafts": width - 1, "seed": seed, "position": position, "draw": draw}
    accepted, emitted, statuses = verify_chains(*flat, tokens, **which)
    return ChainSamples(tokens, _words(accepted), _words(emitted), _words(statuses))
