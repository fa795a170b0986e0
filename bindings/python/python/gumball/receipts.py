"""Receipts: what the tokens of a request were drawn from, as one JSON object, and their replay from logits.

>>> import gumball, numpy
>>> asked = gumball.LogprobsParams(mode=["edited", "radius"], top_n=4)
>>> params = gumball.SamplingParams(temperature=0.8, top_k=20, seed=7, logprobs=asked)
>>> rows = numpy.random.default_rng(1).normal(size=(5, 100)).astype("float32") * 4
>>> pool = gumball.Pool(100, slots=1, widths=(4, 0))
>>> slot, receipt = pool.admit(params, [1, 2]), gumball.Receipt(params, 100, prompt=[1, 2])
>>> for row in rows:
...     receipt.push(pool.step(row[None], [slot]))
>>> gumball.verify_receipt(receipt.to_json(), rows)
['equal', 'equal', 'equal', 'equal', 'equal']
>>> set(gumball.verify_receipt(receipt.to_json(), rows + numpy.float32(0.01), tolerance=0.02)) <= {"equal", "within"}
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ._gumball import Outputs, ReceiptOf, replay_receipt
from .errors import InvalidValueError
from .params import SamplingParams, Status

__all__ = ["Receipt", "verify_receipt"]


class Receipt:
    """The receipt of one request, to which each step adds its token (R1 of docs/semantics.md).

    params: The request's. Their `logprobs` say what the receipt holds: the best `top_n`, at least 1, in their `mode`, and radii if the second mode is "radius".
    vocab: The number of logits in a row.
    prompt: The ids of the prompt.
    seed: The seed in use; default: that of `params`.
    draw: The draw index.

    Raises ValueError for parameters outside their ranges, without a seed, or whose logprobs are others.
    """

    def __init__(
        self, params: SamplingParams, vocab: int, *, prompt: Sequence[int] = (), seed: int | None = None, draw: int = 0
    ) -> None:
        seed = params.seed if seed is None else seed
        if seed is None:
            raise InvalidValueError("seed is None, but must be the request's seed: a receipt names it")
        self._of = ReceiptOf(params, vocab, prompt, seed, draw)
        self._top_n = 0 if params.logprobs is None else params.logprobs.top_n

    def push(self, outputs: Outputs, row: int = 0, *, mask: Any = None) -> None:
        """Adds the token of a row of a step's or a verification's outputs, in the order of the text.

        mask: the bitmask of the row, [words] int32 or uint32 on the host, if it had one. A row that a hook changed has no receipt, and is not to be added.

        Raises ValueError for a row without a token, and for outputs of a clustered head, which computes some logits alone.
        """
        if outputs.is_approximate:
            raise InvalidValueError("outputs is approximate, but must be of rows whose logits all were computed")
        top = list(zip(outputs.top_ids[row].tolist(), outputs.top_logprobs[row].tolist()))
        values = outputs.tokens[row], outputs.statuses[row], outputs.second_logprobs[row]
        token, status, radius = (value.item() for value in values)
        self._of.push(token, status, radius, top, mask)

    def push_listed(
        self, token: int, top: Sequence[tuple[int, float]], *, radius: float = 0.0, forced: bool = False, mask: Any = None
    ) -> None:
        """Adds a token that an engine reported with its most likely ids and their logprobs, the likeliest first, fewer than `top_n` where there were no more.

        radius: the token's radius, if the receipt has radii. forced: whether the caller of the engine forced the token. mask: as for `push`.

        Raises ValueError for a token that is no id, and for more tokens than `top_n`.
        """
        asked = self._top_n
        if len(top) > asked:
            raise InvalidValueError(f"top has {len(top)} tokens, but must have at most {asked}")
        filled = [*top, *[(-1, -math.inf)] * (asked - len(top))]
        self._of.push(token, int(Status.FORCED) if forced else 0, radius, filled, mask)

    def to_json(self) -> str:
        """Returns the receipt as canonical JSON (RFC 8785): one receipt is one sequence of bytes, as a signature wants it."""
        return self._of.to_json()


def verify_receipt(receipt: str, logits: Iterable[Any], *, masks: Iterable[Any] | None = None, tolerance: float = 0.0) -> list[str]:
    """Draws the tokens of a receipt again, and returns how each agrees (R3): "equal"; "within", if logits that differ from these by at most
    `tolerance` may have given it; or what cannot be: "token", "radius", "mask", and "digest" where the tolerance is 0.

    receipt: The JSON. logits: of each token the row that it was drawn from, on the host; [tokens, vocab], or rows one after another. masks: of
    each token the bitmask, or None. tolerance: by how much a logit may differ from the one of the draw; 0 for the same logits to the bit.

    Raises ValueError for a text that is no receipt, rows and masks that do not match it, and a tolerance above 0 with parameters of which no radius is
    known (L7).
    """
    return replay_receipt(receipt, logits, masks, tolerance)
