"""Logprobs of given tokens for training, over the tokens that the sampler kept, with their gradient; import it from :mod:`gumball.torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from . import _gumball, operators
from .errors import InvalidTypeError, InvalidValueError, UnavailableError
from .params import SamplingParams

__all__ = ["edited", "hidden_logprobs", "kept_bitmask", "logprobs"]

_TOKENS = "Tensor ids, float temperature, Tensor? temperatures, Tensor? kept, int ignored"


def _engine_tokens(tokens: tuple[Any, ...]) -> tuple[Any, Any, Any, int]:
    """Returns the arguments of `_TOKENS` as the engine takes them."""
    ids, temperature, temperatures, kept, ignored = tokens
    return ids, temperature if temperatures is None else temperatures, kept, ignored


@torch.library.custom_op(
    "gumball::logprobs",
    mutates_args=(),
    schema=f"(Tensor logits, {_TOKENS}, bool entropy, bool in_place) -> (Tensor, Tensor, Tensor)",
)
def _logprobs(logits: torch.Tensor, *arguments: Any) -> Any:
    *tokens, entropy, _ = arguments
    ids, temperature, kept, ignored = _engine_tokens(tuple(tokens))
    found, entropies, weighed = _gumball.logprobs_of(logits, ids, temperature, kept, ignored, entropy)
    return found, weighed.new_empty((0,)) if entropies is None else entropies, weighed


@_logprobs.register_fake
def _(logits: torch.Tensor, *arguments: Any) -> Any:
    ids, entropy, rows = arguments[0], arguments[-2], logits.shape[0]
    shapes = (tuple(ids.shape), (rows if entropy else 0,), (rows, 3))
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in shapes)


_GRADIENT = f"{_TOKENS}, Tensor weighed, Tensor of_logprobs, Tensor? of_entropies"


def _write_gradient(logits: torch.Tensor, out: torch.Tensor, arguments: tuple[Any, ...]) -> None:
    *tokens, weighed, of_logprobs, of_entropies = arguments
    ids, temperature, kept, ignored = _engine_tokens(tuple(tokens))
    by = (weighed, of_logprobs, of_entropies)
    _gumball.logprobs_gradient(logits, ids, temperature, kept, ignored, *by, out)


@torch.library.custom_op(
    "gumball::logprobs_gradient", mutates_args=(), schema=f"(Tensor logits, {_GRADIENT}) -> Tensor"
)
def _gradient(logits: torch.Tensor, *arguments: Any) -> torch.Tensor:
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    _write_gradient(logits, out, arguments)
    return out


@_gradient.register_fake
def _(logits: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "gumball::logprobs_gradient_", mutates_args=("logits",), schema=f"(Tensor(a!) logits, {_GRADIENT}) -> ()"
)
def _gradient_in_place(logits: torch.Tensor, *arguments: Any) -> None:
    _write_gradient(logits, logits, arguments)


@_gradient_in_place.register_fake
def _(logits: torch.Tensor, *arguments: Any) -> None:
    torch._check(logits.dim() == 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, ids, ctx.temperature, temperatures, kept, ctx.ignored, ctx.entropy, ctx.in_place = inputs
    ctx.save_for_backward(logits, ids, temperatures, kept, output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_logprobs: Any, of_entropies: Any, _: Any) -> tuple[Any, ...]:
    logits, ids, temperatures, kept, weighed = ctx.saved_tensors
    if of_logprobs is None:
        of_logprobs = torch.zeros(ids.shape, dtype=torch.float32, device=logits.device)
    of_entropies = of_entropies.contiguous() if ctx.entropy and of_entropies is not None else None
    tokens = (ids, ctx.temperature, temperatures, kept, ctx.ignored)
    arguments = (*tokens, weighed, of_logprobs.contiguous(), of_entropies)
    if ctx.in_place:
        torch.ops.gumball.logprobs_gradient_(logits, *arguments)
        gradient = logits
    else:
        gradient = torch.ops.gumball.logprobs_gradient(logits, *arguments)
    return gradient, *[None] * 7


torch.library.register_autograd("gumball::logprobs", _backward, setup_context=_save)


@torch.library.custom_op(
    "gumball::kept_bitmask", mutates_args=(), schema="(Tensor lengths, Tensor ids, int vocab) -> Tensor"
)
def _kept_bitmask(lengths: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    if ids.device.type == "cpu":
        if bool((lengths < 0).any()):
            raise InvalidValueError(
                f"kept has a row of length {int(lengths.min())}, but must have lengths of at least 0"
            )
        if int(lengths.sum()) != ids.numel():
            offsets = lengths.numel() > 0 and int(lengths[0]) == 0 and int(lengths[-1]) == ids.numel()
            hint = "; of offsets, as these seem to be, .diff() has the lengths" if offsets else ""
            raise InvalidValueError(
                f"kept has {ids.numel()} ids and lengths that sum to {int(lengths.sum())}, but must have as many{hint}"
            )
        if bool(((ids < 0) | (ids >= vocab)).any()):
            raise InvalidValueError(f"kept holds an id outside 0..{vocab}")
    rows, words = lengths.numel(), (vocab + 31) // 32
    ends = lengths.long().cumsum(0)
    row = torch.searchsorted(ends, torch.arange(ids.numel(), device=ids.device), right=True)
    bit = row * (words * 32) + ids.long()
    # What only a device knows to be no id of a row holds nothing; an id that comes twice is one.
    bit = torch.where((row < rows) & (ids >= 0) & (ids < vocab), bit, -1).sort().values
    is_new = (bit >= 0) & (bit != torch.nn.functional.pad(bit[:-1], (1, 0), value=-1))
    value = torch.bitwise_left_shift(torch.ones_like(bit), bit % 32)
    value = torch.where(value == 1 << 31, -(1 << 31), value) * is_new
    mask = torch.zeros(rows * words, dtype=torch.int32, device=ids.device)
    return mask.index_add_(0, bit.clamp(min=0) // 32, value.int()).view(rows, words)


@_kept_bitmask.register_fake
def _(lengths: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    return ids.new_empty((lengths.numel(), (vocab + 31) // 32), dtype=torch.int32)


def kept_bitmask(lengths: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """Returns kept sets as bitmasks, [rows, ceil(vocab / 32)] int32: bit `id % 32` of word `id // 32` holds an id.

    lengths: [rows], how many ids each row has; of offsets (CSR) `offsets.diff()`. ids: those of all rows, one row after the other, in any order within a row.
    Both are int32 or int64 on one device. Raises TypeError for what is no tensor, and ValueError on the host for lengths below 0 or that do not sum to the number of ids, and for an
    id outside the vocabulary; on a GPU such an id is in no set.
    """
    _check_tensor(lengths, "lengths")
    _check_tensor(ids, "ids")
    return torch.ops.gumball.kept_bitmask(lengths.reshape(-1), ids.reshape(-1), vocab)


# How many rows `_top_ids` works on at once: of these it makes copies.
_TOP_ROWS = 128


@torch.library.custom_op(
    "gumball::top_ids", mutates_args=(), schema="(Tensor logits, Tensor? kept, int count) -> Tensor"
)
def _top_ids(logits: torch.Tensor, kept: Any, count: int) -> torch.Tensor:
    rows, vocab = logits.shape
    found = torch.full((rows, count), -1, dtype=torch.int64, device=logits.device)
    for start in range(0, rows, _TOP_ROWS):
        part = logits[start : start + _TOP_ROWS]
        if kept is not None:
            bits = (
                kept[start : start + _TOP_ROWS, :, None] >> torch.arange(32, device=kept.device, dtype=torch.int32) & 1
            )
            bits = torch.nn.functional.pad(bits.flatten(1), (0, vocab))[:, :vocab]
            part = part.masked_fill(bits == 0, -torch.inf)
        # The operator settles ties at the cut by id; torch's topk, which does not, then has none to settle.
        part = operators.mask_logits(part, top_k=count)
        values, ids = part.topk(min(count, vocab), sorted=False)
        ids, by_id = ids.sort()
        values, by_value = values.gather(1, by_id).sort(descending=True, stable=True)
        ids = ids.gather(1, by_value)
        found[start : start + _TOP_ROWS, : ids.shape[1]] = torch.where(values > -torch.inf, ids, -1)
    return found


@_top_ids.register_fake
def _(logits: torch.Tensor, kept: Any, count: int) -> torch.Tensor:
    return logits.new_empty((logits.shape[0], count), dtype=torch.int64)


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise InvalidTypeError(f"{name} must be a tensor, not {type(value).__name__}")


def _row_shape(rows: torch.Tensor, ids: torch.Tensor, name: str = "logits") -> torch.Size:
    """Returns the dimensions before the last one, which ids have as well, with one more or without."""
    if rows.dim() < 1 or rows.shape[:-1] not in (ids.shape, ids.shape[:-1]):
        raise InvalidValueError(
            f"ids has shape {list(ids.shape)}, but must have that of {name}'s rows, {list(rows.shape[:-1])}, or one more dimension"
        )
    return rows.shape[:-1]


def _temperatures(temperature: Any, shape: torch.Size) -> tuple[float, torch.Tensor | None]:
    """Returns the temperature of all rows, and a tensor with a temperature for each row, or None."""
    if isinstance(temperature, torch.Tensor):
        own = temperature.shape
        if len(own) > len(shape) or any(a not in (1, b) for a, b in zip(own[::-1], shape[::-1], strict=False)):
            raise InvalidValueError(
                f"temperature has shape {list(own)}, but must expand to that of the rows, {list(shape)}"
            )
        return 1.0, temperature.detach().float().expand(shape).reshape(-1).contiguous()
    if isinstance(temperature, (int, float)):
        return float(temperature), None
    raise InvalidTypeError(f"temperature must be a number or a tensor, not {type(temperature).__name__}")


def _bitmask(kept: Any, rows: int, vocab: int) -> torch.Tensor | None:
    """Returns sets as bitmasks, [rows, words]. rows: how many sets there must be."""
    if kept is None:
        return None
    if isinstance(kept, tuple) and len(kept) == 2:
        lengths, ids = kept
        _check_tensor(lengths, "kept[0]")
        _check_tensor(ids, "kept[1]")
        return kept_bitmask(_lengths(lengths, rows), ids, vocab)
    if isinstance(kept, (tuple, list)):
        raise InvalidTypeError(
            f"kept is a {type(kept).__name__} of {len(kept)}, but must be a bitmask, or a tuple of two tensors, (lengths, ids) or (offsets, ids)"
        )
    _check_tensor(kept, "kept")
    return kept.reshape(-1, kept.shape[-1])


def _lengths(given: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns how many ids each row has. given: that, or offsets, of which there is one more."""
    if given.shape != (rows + 1,):
        return given
    if given.device.type == "cpu" and int(given[0]) != 0:
        raise InvalidValueError(f"kept has offsets from {int(given[0])} on, but must have them from 0 on")
    return given.diff()


def _of_record(ids: torch.Tensor, kept: torch.Tensor | None, ignored: int) -> torch.Tensor:
    """Replaces the ids of rows whose set holds no id by the ignored one. Leaves wrong ids and sets to the operator, whose errors name them."""
    if kept is None or kept.shape[0] != ids.shape[0] or ids.is_floating_point():
        return ids
    ids = ids if ids.dtype in (torch.int32, torch.int64) else ids.long()
    return ids.masked_fill(~kept.any(1, keepdim=True), ignored)


def logprobs(
    logits: torch.Tensor,
    ids: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    kept: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    entropy: bool = False,
    top: int = 0,
    ignore_index: int = -100,
    in_place: bool = False,
) -> Any:
    """Returns the logprobs of ids, of ids' shape, float32; with entropy or top a tuple of them and of the rows' entropies, then of top's ids and logprobs.
    Logprobs and entropies have gradients.

    A logprob is, bit for bit, what a pool reports for these logits: in the mode "processed" if kept is the step's kept set, without kept in
    "tempered", at temperature 1 in "raw" (rules L4 and L5 of docs/semantics.md); in any batch, in any chunk of rows, on a CPU and a GPU.
    An id outside its row's set has -inf and no gradient; ids of ignore_index have 0 and none; at temperature 0 each id of the set has 0 and none.
    A row whose set holds no id has no record of a draw, as of a prompt, a tool's text or padding: its ids are ignored.
    Entropies are those of the same set, in nats. A row whose ids are all ignored has entropy 0 and no gradient.

    logits: [.., vocab] float32, bfloat16 or float16. ids: [..], or [.., K] for K ids of each row, K up to 1024; int32 or int64, -1 for none.
    temperature: a number, or a tensor that expands to [..], in 0..=2^100; a constant. kept: a bitmask [.., ceil(vocab / 32)] int32, or a tuple
    (lengths [..], ids), of which :func:`kept_bitmask` makes one, or (offsets [rows + 1], ids), as of a CSR matrix; a constant.
    top: also returns the ids of each row's most likely tokens of its set, [.., top] int64, in the order of tokens, and their logprobs; where there are
    fewer, id -1 with -inf, and in a row that is ignored ignore_index with 0. It reads the rows a few times more, in chunks that are copied. top and K together are at most 1024.
    in_place: backward writes the gradient over the logits, which nothing else may need then; torch raises if something does.

    Memory beside logits and results: 12 bytes a row, and for backward the gradient, in the logits' type, unless in_place. Rows whose starts are not
    evenly spaced, as those of logits[:, :-1], are copied first, in their type: give all rows instead, with ignore_index for the last.

    Raises TypeError or ValueError that names the argument; for values in a GPU's memory no error: an id that is none of the vocabulary has -inf there.
    """
    _check_tensor(logits, "logits")
    _check_tensor(ids, "ids")
    shape, vocab = _row_shape(logits, ids), logits.shape[-1]
    rows = logits.reshape(-1, vocab)
    width = 1 if ids.shape == shape else ids.shape[-1]
    temperature, temperatures = _temperatures(temperature, shape)
    kept = _bitmask(kept, rows.shape[0], vocab)
    asked = _of_record(ids.reshape(-1, width), kept, ignore_index)
    if not isinstance(top, int) or not 0 <= top <= 1024:
        raise InvalidValueError(f"top is {top}, but must be in 0..=1024")
    if top:
        best = torch.ops.gumball.top_ids(rows.detach(), kept, top)
        best = best.masked_fill((asked == ignore_index).all(1, keepdim=True), ignore_index)
        asked = torch.cat([asked, best.to(asked.dtype)], 1)
    tokens = (asked, temperature, temperatures, kept, ignore_index)
    found, entropies, _ = torch.ops.gumball.logprobs(rows, *tokens, entropy, in_place)
    answers = [found[:, :width].reshape(ids.shape)]
    if entropy:
        answers.append(entropies.reshape(shape))
    if top:
        answers += [best.reshape(*shape, top), found[:, width:].reshape(*shape, top)]
    return tuple(answers) if len(answers) > 1 else answers[0]


class _Edited(torch.autograd.Function):
    """Rows in float32 with other logits in some columns, whose derivatives by the rows are given."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, columns: torch.Tensor, values: Any, slopes: Any) -> torch.Tensor:
        ctx.save_for_backward(columns, slopes)
        ctx.dtype = logits.dtype
        return logits.to(torch.float32, copy=True).index_copy_(1, columns, values)

    @staticmethod
    def backward(ctx: Any, *of: torch.Tensor) -> Any:
        columns, slopes = ctx.saved_tensors
        scaled = of[0].index_select(1, columns).mul_(slopes)
        return of[0].index_copy(1, columns, scaled).to(ctx.dtype), None, None, None


@torch.compiler.disable
def edited(
    logits: torch.Tensor,
    params: SamplingParams,
    ids: Sequence[int] | torch.Tensor,
    *,
    prompt_len: int,
    start: int | None = None,
) -> torch.Tensor:
    """Returns logits as a step edits them by penalties, DRY and biases, [rows, vocab] float32, with a gradient (rule L6 of docs/semantics.md).

    A kept set tells which tokens bans and grammars left, but not how far these edits moved logits. `logprobs(edited(..), ..)` over the set is, bit for bit, what
    the step reported in the mode "processed", if the logits are the step's.

    logits: [rows, vocab] of one sequence, of which row i predicts ids[start + i]. params: the request's; what does not edit logits does not matter, and
    neither do bans. ids: the sequence, prompt and answer, of which prompt_len are prompt. start: the place of the first row's token; prompt_len if left out.

    Memory: the rows in float32, twice in backward. The logits of ids in the sequence go to the host and back, so a GPU is waited for; under torch.compile the graph
    breaks here. Hand over a long sequence in pieces, start moving on.

    Raises TypeError or ValueError that names the argument.
    """
    _check_tensor(logits, "logits")
    if logits.dim() != 2:
        raise InvalidValueError(
            f"logits has {logits.dim()} dimensions, but must have two, [rows, vocab] of one sequence"
        )
    if not isinstance(params, SamplingParams):
        raise InvalidTypeError(f"params must be SamplingParams, not {type(params).__name__}")
    known = [int(id) for id in ids]
    vocab, biased = logits.shape[1], dict(params.logit_bias)
    columns = sorted({id for id in {*known, *biased} if 0 <= id < vocab})
    at = torch.tensor(columns, dtype=torch.int64, device=logits.device)
    values = logits.detach().index_select(1, at).float()
    if values.numel() == 0:
        return logits.float()
    start = prompt_len if start is None else start
    found = _gumball.edit_columns(params, known, prompt_len, start, columns, values.cpu().contiguous().numpy())
    values, slopes = (torch.from_numpy(of).reshape(values.shape).to(logits.device) for of in found)
    return _Edited.apply(logits, at, values, slopes)


def _by_liger(
    states: torch.Tensor, head: Any, ids: torch.Tensor, temperature: Any, entropy: bool, ignored: int
) -> list[torch.Tensor]:
    """Returns the logprobs of Liger's fused function, [rows], and with entropy the entropies."""
    try:
        from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction
    except ImportError as error:
        raise UnavailableError(
            f"liger is True, but liger-kernel cannot be imported ({error}); install it, or leave liger out"
        ) from error
    found = LigerFusedLinearScaledCrossEntropyFunction.apply(
        states, head.weight, ids.long(), temperature, ignored, return_entropy=entropy
    )
    costs, *entropies = found if entropy else (found,)
    return [-costs, *entropies]


def hidden_logprobs(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    ids: torch.Tensor,
    *,
    chunk: int = 1024,
    temperature: float | torch.Tensor = 1.0,
    kept: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    entropy: bool = False,
    ignore_index: int = -100,
    in_place: bool = True,
    liger: bool = False,
) -> Any:
    """As :func:`logprobs` of head(hidden), which is computed by chunks of rows, and once more in backward: no more than a chunk's logits ever exist.

    hidden: [.., width]. head: a `torch.nn.Linear`, or whatever else makes logits [rows, vocab] of [rows, width]; its parameters get their gradients.
    chunk: rows of a chunk, at least 1. in_place: not for a head whose own backward needs its logits, as of one that ends in a tanh. The values are those
    of one call over all rows if the head's products are; torch's may have other bits in another shape. Memory beside the results: a chunk's logits, over which their gradient is written; bitmasks, if kept is lists; in backward a gradient of
    the head's parameters beside the one that they are added to.
    liger: computes them by Liger's fused function of the package liger-kernel, which takes less time in backward on a Hopper GPU. It knows no sets, takes one id
    of each row, not -1, a `torch.nn.Linear` without bias and one temperature above 0, chooses its chunks itself, and its values are near a step's, not its bits.

    Raises TypeError or ValueError that names the argument, and UnavailableError for liger without the package.
    """
    _check_tensor(hidden, "hidden")
    _check_tensor(ids, "ids")
    if not isinstance(chunk, int) or chunk < 1:
        raise InvalidValueError(f"chunk is {chunk}, but must be a number of rows, at least 1")
    shape = _row_shape(hidden, ids, "hidden")
    states, width = hidden.reshape(-1, hidden.shape[-1]), 1 if ids.shape == shape else ids.shape[-1]
    flat = ids.reshape(-1, width)
    of_all, of_each = _temperatures(temperature, shape)
    if liger:
        for name, found, is_taken, allowed in (
            ("kept", "given", kept is None, "None"),
            ("ids", f"of shape {list(ids.shape)}", ids.shape == shape, "one for each row"),
            ("head", type(head).__name__, getattr(head, "bias", 0) is None, "a torch.nn.Linear without bias"),
            (
                "temperature",
                "a tensor" if of_each is not None else of_all,
                of_each is None and of_all > 0,
                "a number above 0",
            ),
        ):
            if not is_taken:
                raise InvalidValueError(f"{name} is {found}, but must be {allowed} beside liger=True")
        answers = [one.reshape(shape) for one in _by_liger(states, head, flat[:, 0], of_all, entropy, ignore_index)]
        return tuple(answers) if entropy else answers[0]
    words: list[torch.Tensor | None] = [None]

    def part(states: torch.Tensor, rows: slice) -> Any:
        logits = head(states)
        if words[0] is None and kept is not None:
            words[0] = _bitmask(kept, flat.shape[0], logits.shape[-1])
        of_rows = of_all if of_each is None else of_each[rows]
        sets = None if words[0] is None else words[0][rows]
        named: Any = {
            "temperature": of_rows,
            "kept": sets,
            "entropy": entropy,
            "ignore_index": ignore_index,
            "in_place": in_place,
        }
        answers = logprobs(logits, flat[rows], **named)
        return answers if entropy else (answers,)

    starts = range(0, states.shape[0], chunk) if states.shape[0] else [0]
    parts = [
        checkpoint(part, states[start : start + chunk], slice(start, start + chunk), use_reentrant=False)
        for start in starts
    ]
    found, *entropies = (torch.cat(answers) for answers in zip(*parts, strict=True))
    found = found.reshape(ids.shape)
    return (found, entropies[0].reshape(shape)) if entropy else found
