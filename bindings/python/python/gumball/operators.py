"""Operators over rows, without requests: softmax, renormalised and masked rows, draws, judged drafts.

They serve programs that hold probabilities, or must return them, and that choose seeds and positions themselves. A
row's result is a function of its numbers, its parameters and its draw; the batch does not change it.

Rows are [rows, vocab], or [vocab] for one row, of float32, bfloat16 or float16, and may be strided. They may be numpy
arrays, torch tensors, or objects with ``__dlpack__``. The result is a torch tensor if the
rows are one, otherwise a numpy array. If ``out`` is given, the result is written there, and ``out`` is returned.
``out`` may be the input itself, which is then changed in place; otherwise it must not share memory with it.
``temperature``, ``top_k``, ``top_p`` and ``min_p`` are a number, or a list or an array with one per row; None turns
the parameter off. ``params`` is a SamplingParams for all other filters and bans.

With ``return_statuses=True`` the result is (result, statuses): each row's bits of :class:`gumball.Status`, a uint32
array.

On a GPU the rows belong to torch or CuPy, or to any other library if ``out`` is given. All arrays lie on the same
device. A call only launches kernels, on torch's current stream or on ``stream``. It waits for nothing, copies only
lists of numbers, and can be captured in a CUDA graph after a first call. There numbers stay what they are in each replay,
so seeds and positions lie in arrays on the device. Values in arrays on the device are not
validated: a value outside its range counts as the nearest value inside. Statuses are int32 there. All calls on one
stream share memory, so two graphs captured on the same stream must not be replayed at the same time. A ``stream``
must live until its work is done.

All functions raise ValueError for a wrong shape, value or device, TypeError for a wrong type, and UnavailableError if
the GPU, its driver or memory is missing. After an error nothing has been written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ._gumball import (
    judge,
    mask_logits,
    probabilities,
    radii,
    row_count,
    sample,
    sample_from_pools,
    selected_logprobs,
    softmax,
)

__all__ = [
    "JudgedDrafts",
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


class JudgedDrafts(NamedTuple):
    """What becomes of a batch of trees of drafts.

    tokens: [trees, drafts + 1]: the accepted drafts, the token drawn behind them, then -1. rows: [trees, drafts + 1] int32:
    the rows of target_probs that these tokens come from, then -1; these are also the rows whose keys and values a
    model's cache keeps. None for chains, whose token i comes from row i. accepted: [trees] uint32, the number of accepted
    drafts; the token drawn behind them is not counted. accepted_alone: [trees] uint32, the number that would be accepted if
    each were judged by itself; None but for chains that are judged by rejection with draft_probs. statuses: [trees] uint32, of
    the row that the last token was drawn from; None if counts were `added`. Two of them are equal if they are one object.
    """

    tokens: Any
    rows: Any
    accepted: Any
    accepted_alone: Any
    statuses: Any

    # Arrays have no one truth to compare by.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)
