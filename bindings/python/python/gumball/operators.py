"""Operators over rows, without requests: softmax, renormalised and masked rows, draws, judged drafts.

They serve programs that hold probabilities, or must return them, and that choose seeds and positions themselves. A
row's result is a function of its numbers, its parameters and its draw; the batch does not change it.

Rows are [rows, vocab], or [vocab] for one row, of float32, bfloat16 or float16, and may be strided. They may be numpy
arrays, torch tensors, or objects with ``__dlpack__`` or ``__array_interface__``. The result is a torch tensor if the
rows are one, otherwise a numpy array. If ``out`` is given, the result is written there, and ``out`` is returned.
``out`` may be the input itself, which is then changed in place; otherwise it must not share memory with it.
``temperature``, ``top_k``, ``top_p`` and ``min_p`` are a number, or a list or an array with one per row; None turns
the parameter off. ``params`` is a SamplingParams for all other filters and bans.

With ``return_statuses=True`` the result is (result, statuses): each row's bits of :class:`gumball.Status`, a uint32
array.

On a GPU the rows belong to torch or CuPy, or to any other library if ``out`` is given. All arrays lie on the same
device. A call only launches kernels, on torch's current stream or on ``stream``. It waits for nothing, copies only
lists of numbers, and can be captured in a CUDA graph after a first call. Values in arrays on the device are not
validated: a value outside its range counts as the nearest value inside. Statuses are int32 there. All calls on one
stream share memory, so two graphs captured on the same stream must not be replayed at the same time. A ``stream``
must live until its work is done.

All functions raise ValueError for a wrong shape, value or device, TypeError for a wrong type, and UnavailableError if
the GPU, its driver or memory is missing. After an error nothing has been written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import _gumball
from ._gumball import sample_from_pools, sample_rows, token_logprobs, write_rows
from .errors import InvalidValueError
from .params import SamplingParams

__all__ = [
    "JudgedDrafts",
    "judge",
    "mask_logits",
    "min_p_renorm_probs",
    "probabilities",
    "row_count",
    "sampling_from_logits",
    "sampling_from_pools",
    "sampling_from_probs",
    "selected_logprobs",
    "softmax",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_k_top_p_renorm_probs",
    "top_p_renorm_probs",
]

# An array of any library.
_Array: TypeAlias = Any
# A CUDA stream's handle, or an object that holds one.
_Stream: TypeAlias = int | Any
_Numbers: TypeAlias = float | Sequence[float] | _Array
_Integers: TypeAlias = int | Sequence[int] | _Array
_Order: TypeAlias = str | Sequence[str]


class JudgedDrafts(NamedTuple):
    """What becomes of a batch of trees of drafts.

    tokens: [trees, drafts + 1]: the accepted drafts, the token drawn behind them, then -1. rows: [trees, drafts + 1] int32:
    the rows of target_probs that these tokens come from, then -1; these are also the rows whose keys and values a
    model's cache keeps. None for chains, whose token i comes from row i. accepted: [trees] uint32, the number of accepted
    drafts; the token drawn behind them is not counted. accepted_alone: [trees] uint32, the number that would be accepted if
    each were judged by itself; None but for chains that are judged by rejection with draft_probs. statuses: [trees] uint32, of
    the row that the last token was drawn from; None if counts were `added`.
    """

    tokens: Any
    rows: Any
    accepted: Any
    accepted_alone: Any
    statuses: Any


def fresh_seed() -> int:
    """Returns a seed from fresh entropy."""
    return secrets.randbits(64)


def _check_dtype(dtype: str) -> None:
    if dtype not in ("int32", "int64"):
        raise InvalidValueError(f"dtype is {dtype}, but must be int32 or int64")


def drafts_shape(
    draft_probs: _Array | None, draft_token_ids: _Array, target_probs: _Array, parents: _Array | None
) -> tuple[int, int, int, int]:
    """Returns the numbers of trees, drafts, rows of the drafter and ids of arrays that go together; raises ValueError for others."""

    def shape_of(array: _Array, name: str, *allowed: Any) -> tuple[int, ...]:
        found: tuple[int, ...] | None = getattr(array, "shape", None)
        if found is None or tuple(found) not in allowed:
            text = "no shape" if found is None else f"shape {tuple(found)}"
            raise InvalidValueError(f"{name} has {text}, but must have {' or '.join(map(str, allowed))}")
        return tuple(found)

    shape = tuple(getattr(target_probs, "shape", ()))
    if len(shape) != 3 or shape[1] < 1:
        shape_of(target_probs, "target_probs", "[trees, drafts + 1, vocab]")
    trees, width, vocab = shape
    rows = width
    if draft_probs is not None:
        rows = shape_of(draft_probs, "draft_probs", (trees, width - 1, vocab), (trees, width, vocab))[1]
    shape_of(draft_token_ids, "draft_token_ids", (trees, width - 1))
    if parents is not None:
        shape_of(parents, "parents", (trees, width - 1))
    return trees, width - 1, rows, vocab


class Operators:
    """The functions of this module, over a set of calls: this package's, or torch's custom operators."""

    def __init__(
        self,
        write_rows: Callable[..., Any],
        sample_rows: Callable[..., Any],
        judge: Callable[..., Any],
        fresh_seed: Callable[[], int],
    ) -> None:
        self._write_rows, self._sample_rows, self._judge = write_rows, sample_rows, judge
        self._fresh_seed = fresh_seed

    def softmax(
        self,
        logits: _Array,
        temperature: _Numbers = 1.0,
        out: _Array | None = None,
        *,
        return_statuses: bool = False,
        stream: _Stream | None = None,
    ) -> Any:
        """Returns the softmax of each row of logits at its temperature, fused; float32 [rows, vocab] without `out`.

        temperature: in 0..=2^100, a number, [rows] or [rows, 1]; at 0 the first of the largest logits gets 1, the others
        0. `out`: of the logits' shape and of any of the three types, on a GPU float32 or the logits' own; each number is
        rounded to it once. The maximum is subtracted before the division by the temperature, so logits of +-1e6 at 0.01
        stay finite. Equal logits get equal probabilities, bit for bit. NaN counts as -inf and +inf as the largest
        float32. A row without a logit above -inf becomes all 0. On a GPU a call launches one or two kernels.
        """
        return self._write_rows(
            "softmax", logits, "logits", out, "float32", "logits", return_statuses, stream, temperature=temperature
        )

    def probabilities(
        self,
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
        """Returns the distribution that each row's token is drawn from; float32 without `out`.

        Temperature and filters are applied. kind: "logits", or "probabilities" for rows that hold those, need not sum to 1
        and allow only temperatures 0 and 1. order: the order of the filters, as in SamplingParams; with "joint" all
        filters see the unfiltered row. A row without a token becomes all 0.
        """
        filters = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, params=params)
        return self._write_rows("probabilities", rows, "rows", out, "float32", kind, return_statuses, stream, **filters)

    def _renormalised(self, probs: _Array, out: _Array | None, return_statuses: bool, **filters: Any) -> Any:
        return self._write_rows(
            "probabilities", probs, "probs", out, None, "probabilities", return_statuses, None, **filters
        )

    def top_k_renorm_probs(
        self, probs: _Array, top_k: _Integers, out: _Array | None = None, *, return_statuses: bool = False
    ) -> Any:
        """Returns the k largest probabilities of each row, scaled to a sum of 1, and 0 for the others.

        Ties at the cut keep the lower ids. probs need not sum to 1. top_k: off if below 1 or at least the vocabulary. The
        result has the type of probs, or of `out`.
        """
        return self._renormalised(probs, out, return_statuses, top_k=top_k)

    def top_p_renorm_probs(
        self, probs: _Array, top_p: _Numbers, out: _Array | None = None, *, return_statuses: bool = False
    ) -> Any:
        """Returns the fewest largest probabilities that hold the share top_p of each row's sum, scaled to a sum of 1.

        All others become 0. top_p: at least 0; off from 1 up. At least one probability stays. Ties at the cut keep the
        lower ids.
        """
        return self._renormalised(probs, out, return_statuses, top_p=top_p)

    def min_p_renorm_probs(
        self, probs: _Array, min_p: _Numbers, out: _Array | None = None, *, return_statuses: bool = False
    ) -> Any:
        """Returns the probabilities of each row that are at least min_p times its largest, scaled to a sum of 1.

        All others become 0. min_p: in 0..=1.
        """
        return self._renormalised(probs, out, return_statuses, min_p=min_p)

    def top_k_top_p_renorm_probs(
        self,
        probs: _Array,
        top_k: _Integers,
        top_p: _Numbers,
        out: _Array | None = None,
        *,
        order: _Order | None = None,
        return_statuses: bool = False,
    ) -> Any:
        """Applies top_k, then top_p to what top_k keeps, in one operator; with order="joint" both see the whole row."""
        return self._renormalised(probs, out, return_statuses, top_k=top_k, top_p=top_p, order=order)

    def mask_logits(
        self,
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
        """Returns each row of logits with -inf for tokens that its filters and bans do not keep, in the logits' own type.

        out=logits masks in place. Filters weigh tokens at the temperature, but the kept logits are not divided by it.
        -0.0 becomes 0.0. +inf becomes the largest finite float32, which bfloat16 and float16 round to +inf again. A row
        of only -inf stays as it is.
        """
        filters = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, params=params)
        return self._write_rows(
            "mask_logits", logits, "logits", out, None, "logits", return_statuses, stream, **filters
        )

    def top_k_mask_logits(
        self, logits: _Array, top_k: _Integers, out: _Array | None = None, *, return_statuses: bool = False
    ) -> Any:
        """Returns the k largest logits of each row, and -inf for the others. Ties at the cut keep the lower ids."""
        return self._write_rows(
            "mask_logits", logits, "logits", out, None, "logits", return_statuses, None, top_k=top_k
        )

    def _sample(
        self,
        rows: _Array,
        kind: str,
        outputs: tuple[Any, ...],
        keys: tuple[Any, ...],
        plain: tuple[Any, ...],
        filters: dict[str, Any],
    ) -> Any:
        (indices, n, dtype, out), (seed, position, draw) = outputs, keys
        _check_dtype(dtype)
        if n is not None and (not isinstance(n, int) or n < 0):
            raise InvalidValueError(f"n is {n}, but must be an integer of at least 0")
        seed = self._fresh_seed() if seed is None else seed
        name = "logits" if kind == "logits" else "probs"
        return self._sample_rows(rows, name, out, kind, indices, n, seed, position, draw, dtype, *plain, **filters)

    def sampling_from_probs(
        self,
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
        offsets: bool = False,
        zero_for_none: bool = False,
        dtype: str = "int32",
        out: _Array | None = None,
        return_statuses: bool = False,
        stream: _Stream | None = None,
    ) -> Any:
        """Draws a token for each row of probabilities after its filters; -1 for a row without a number above 0.

        Rows need not sum to 1. indices: the row that each output reads; a row may occur any number of times: [outputs].
        n: the number of tokens to draw from each row instead: [rows, n]. Without both, the outputs are [rows]. dtype:
        "int32" or "int64". top_k, top_p, min_p: one per row, not per output.

        seed: in 0..2^64. position: in 0..2^32, the number of tokens before the drawn one. Both are a number, or one per
        output; with n, one per row. If seed is None, it is drawn from fresh entropy. draw: the draw index, in 0..2^32;
        None takes each output's own index, so that outputs with equal seed and position draw independently. The token
        equals that of a Pool whose sequence has this seed, position and draw index.

        offsets: position holds numbers of 64 bits. The low word of each is the position; the high word, with its sign,
        times 0x9E3779B97F4A7C15 is added to the seed, modulo 2^64, so that no two offsets of a seed share random numbers.
        zero_for_none: a row without a token gives 0, and not -1; its status says EMPTY either way.

        With return_statuses, the statuses are those of the row that each output reads, in the outputs' shape.
        """
        filters = dict(top_k=top_k, top_p=top_p, min_p=min_p, order=order, params=params)
        outputs, keys = (indices, n, dtype, out), (seed, position, draw)
        plain = (return_statuses, stream, offsets, zero_for_none)
        return self._sample(probs, "probabilities", outputs, keys, plain, filters)

    def sampling_from_logits(
        self,
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
        offsets: bool = False,
        zero_for_none: bool = False,
        dtype: str = "int32",
        out: _Array | None = None,
        return_statuses: bool = False,
        stream: _Stream | None = None,
    ) -> Any:
        """Draws a token for each row of logits, after temperature and filters; otherwise as sampling_from_probs."""
        filters = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, params=params)
        outputs, keys = (indices, n, dtype, out), (seed, position, draw)
        plain = (return_statuses, stream, offsets, zero_for_none)
        return self._sample(logits, "logits", outputs, keys, plain, filters)

    def judge(
        self,
        draft_probs: _Array | None,
        draft_token_ids: _Array,
        target_probs: _Array,
        parents: _Array | None = None,
        *,
        rule: str = "rejection",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        seed: _Integers | None = None,
        position: _Integers = 0,
        draw: _Integers | None = None,
        offsets: bool = False,
        zero_for_none: bool = False,
        added: tuple[_Array, _Array | None] | None = None,
        dtype: str = "int32",
        stream: _Stream | None = None,
    ) -> JudgedDrafts:
        """Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the walk ends.

        rule: "rejection", sibling after sibling; "block", a chain as a whole, which accepts more; "threshold", which accepts a
        draft of at least threshold_single, or if a coin times threshold_acc is below its probability and that of the
        siblings before it. By the first two every emitted token has the distribution of the target's row; thresholds
        below 1 are biased towards the drafts.

        draft_token_ids: [trees, drafts] integers, at most 64 drafts a tree. An id outside the vocabulary was not drawn: it is
        never accepted, and fills trees of fewer drafts. parents: [trees, drafts] integers, -1 for the root or the index of a
        draft before it; None: chains, where each draft follows the one before it. By rejection with draft_probs they are
        fastest and may have any length. target_probs: [trees, drafts + 1, vocab] float32: the root's row, then the one
        behind each draft. draft_probs: the same of the drafter, of which the last row may be left out, since rows without
        children are not read, nor any for "threshold"; None if it has no probabilities, or drafts were not drawn from them one
        after the other without replacement. For "block" drafts must not have been drawn by the random words of their positions.
        Probabilities are read without a copy if they are contiguous. seed, position (of the first draft) and draw are a
        number, or one per tree; draw None takes the tree's own index. offsets, zero_for_none: as of sampling_from_probs.

        added: two arrays, [trees] int32 without gaps, beside the rows. The numbers of accepted drafts and of those accepted alone
        are added to them, and they are the result's `accepted` and `accepted_alone`; its `statuses` is None then. The second is
        None for trees that have no such number. Raises ValueError for arrays of another shape, and TypeError for another type.

        On a GPU a tree whose parents are wrong accepts no draft, and its status says NO_TREE. Elsewhere it is a ValueError.
        """
        arrays = (draft_probs, draft_token_ids, target_probs, parents)
        shape = drafts_shape(*arrays)
        _check_dtype(dtype)
        seed = self._fresh_seed() if seed is None else seed
        rule_of, keys = (rule, (threshold_single, threshold_acc)), (seed, position, draw)
        return JudgedDrafts(*self._judge(*arrays, shape, *rule_of, *keys, dtype, stream, added, offsets, zero_for_none))


def sampling_from_pools(
    logits: _Array,
    slots: _Integers,
    *,
    seed: Sequence[int] | _Array,
    position: _Integers = 0,
    draw: _Integers | None = None,
    rows_per_slot: int = 1,
    temperature: _Numbers | None = None,
    top_k: _Integers | None = None,
    top_p: _Numbers | None = None,
    min_p: _Numbers | None = None,
    order: _Order | None = None,
    params: SamplingParams | None = None,
    high_draws: bool = False,
    zero_for_none: bool = False,
    kind: str = "logits",
    dtype: str = "int32",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """Draws a token for each row, by numbers that lie in pools with an element for each of many requests, without gathering them.

    slots: for each request the element that it reads; it has rows_per_slot neighbouring rows, of which each is one position
    on. seed: the pool of seeds, in 0..2^64 or int64, whose length is that of all pools. position, draw, temperature, top_k, top_p,
    min_p: pools, or a number for all. high_draws: position holds 64-bit numbers, whose low word is the position and whose high
    word the draw index. On a GPU pools and slots are arrays there, which kernels read, or lists, which are copied. The other
    arguments, and what is drawn: as of sampling_from_logits.

    Raises ValueError for a slot of the host that no pool has, and for pools of different lengths. In a GPU's memory a slot such
    as -1 has no token: -1.
    """
    filters: dict[str, Any] = dict(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, params=params
    )
    _check_dtype(dtype)
    name = "logits" if kind == "logits" else "probs"
    keys = seed, position, draw, high_draws
    return sample_from_pools(
        logits, name, out, kind, slots, rows_per_slot, *keys, dtype, return_statuses, stream, zero_for_none, **filters
    )


def selected_logprobs(
    logits: _Array,
    tokens: Sequence[int] | _Array,
    *,
    kind: str = "logits",
    out: _Array | None = None,
    return_ranks: bool = False,
    return_statuses: bool = False,
    stream: _Stream | None = None,
) -> Any:
    """Returns the logprob of one token of each row: out, or a new array [rows] float32. With return_ranks or return_statuses
    a tuple of it and of these, [rows] uint32 of numpy, on a GPU int32.

    They are the ones that a Pool reports of these tokens with LogprobsParams(mode="raw"): at temperature 1, without edits and
    filters. tokens: [rows] ids, or one for all rows; -1 for none. For rows on a GPU they are a list or an array of the host, which
    is copied there, or int32 or int64 in its memory. A token whose logit is -inf or NaN, or whose probability is 0, and -1, have
    logprob -inf and rank 0; the most likely token has rank 1. kind: "logits", or "probabilities" for rows that hold those and
    need not sum to 1.

    Raises ValueError for an id of the host outside the vocabulary. In a GPU's memory such an id counts as -1, and the row's
    status is NO_ID.
    """
    name = "logits" if kind == "logits" else "probs"
    return token_logprobs(logits, name, tokens, out, kind, return_ranks, return_statuses, stream)


def row_count(rows: _Array, name: str = "rows") -> int:
    """Returns the number of rows that an operator would read: the first of two dimensions, or 1 for a row alone.

    rows: [rows, vocab] or [vocab], as for all functions here; nothing of them is read. name: what errors call them. Raises
    as the operators do for an array that they do not take, by shape, type or place.
    """
    return _gumball.row_count(rows, name)


_OPERATORS = Operators(write_rows, sample_rows, _gumball.judge, fresh_seed)
judge = _OPERATORS.judge
mask_logits = _OPERATORS.mask_logits
min_p_renorm_probs = _OPERATORS.min_p_renorm_probs
probabilities = _OPERATORS.probabilities
sampling_from_logits = _OPERATORS.sampling_from_logits
sampling_from_probs = _OPERATORS.sampling_from_probs
softmax = _OPERATORS.softmax
top_k_mask_logits = _OPERATORS.top_k_mask_logits
top_k_renorm_probs = _OPERATORS.top_k_renorm_probs
top_k_top_p_renorm_probs = _OPERATORS.top_k_top_p_renorm_probs
top_p_renorm_probs = _OPERATORS.top_p_renorm_probs
