"""Finds texts that were drawn by a watermark's key, from ids alone: no model, no logits, no prompt is needed.

>>> import gumball, numpy
>>> gumball.add_watermark_keys("9 00112233445566778899aabbccddeeff")
1
>>> mark = gumball.Watermark(key=9)
>>> sampler = gumball.Sampler(gumball.SamplingParams(watermark=mark, seed=1), 1000)
>>> row = numpy.arange(1000, dtype=numpy.float32) % 7
>>> ids = [sampler.sample(row) for _ in range(200)]
>>> gumball.detect(ids, mark).p_value < 1e-20
True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ._gumball import detect_mark, marked_parts
from .params import Watermark

__all__ = ["Evidence", "MarkedPart", "detect", "find_marked"]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """How likely it is that a text without a mark scores as much as this one.

    key: The number of the key that the text was looked at with; of several, of the one with the smallest p-value.
    tokens: How many tokens count, namely tokens whose context lies in the text and comes for the first time.
    skipped: How many tokens do not count.
    score: The sum of the scores of these tokens. A text without the mark has the mean `tokens`.
    ln_p: The natural logarithm of the p-value, which was multiplied by how many keys or parts were looked at.
    """

    key: int
    tokens: int
    skipped: int
    score: float
    ln_p: float

    @property
    def p_value(self) -> float:
        """The p-value; 0.0 if it is less than a float can be."""
        return math.exp(self.ln_p)


@dataclasses.dataclass(frozen=True)
class MarkedPart:
    """A part of a text that is marked.

    start: The index of its first id, counted from the end of the prompt.
    end: The index after its last id.
    evidence: Its evidence.
    """

    start: int
    end: int
    evidence: Evidence


def detect(
    ids: Sequence[int],
    watermark: Watermark | None = None,
    *,
    prompt: Sequence[int] = (),
    keys: Sequence[int] | None = None,
    scheme: str = "gumball",
) -> Evidence:
    """Looks for a watermark in a text (W4 of docs/semantics.md).

    ids: the ids of the text. watermark: what it would have been drawn with; by default `Watermark()`. prompt: the ids in
    front of it, if they are known; without them contexts that lie in the prompt do not count. keys: numbers of keys to look
    for, in the place of the watermark's own. scheme: whose mark, "gumball", or another engine's, whose rules stand in the place of the watermark's scope and
    window: "vllm" (0.32 and 0.33, its `gumbel`; it never looks at the prompt), "vllm_dual_key" or "vllm_dual_key=0.3" (its `dual_key_gumbel`, with an alpha of
    0.1 or 0.3), "sglang" (0.5.23), or "sglang=8" or "sglang=8,0.3" where its `key_b` is the key of number 8, with a `mixing_probability` of 0.5 or 0.3. Their
    keys of 64 bits are added as `0x` and up to 16 digits.

    Raises TypeError for another type; ValueError for a number without a key, for a key of more than 64 bits with another engine's scheme, and for
    values outside their range.
    """
    key, row = detect_mark(ids, prompt, Watermark() if watermark is None else watermark, keys, scheme)
    return Evidence(key, *row)


def find_marked(
    ids: Sequence[int],
    watermark: Watermark | None = None,
    *,
    prompt: Sequence[int] = (),
    length: int = 200,
    alpha: float = 1e-4,
    scheme: str = "gumball",
) -> list[MarkedPart]:
    """Looks for the marked parts of a text by windows of `length` ids: the parts with a p-value below `alpha`.

    Each p-value is multiplied by the number of windows. Windows that overlap are one part. The other arguments and the errors
    are those of `detect`.
    """
    watermark = Watermark() if watermark is None else watermark
    found = marked_parts(ids, prompt, watermark, length, alpha, scheme)
    return [MarkedPart(start, end, Evidence(watermark.key, *row)) for start, end, row in found]
