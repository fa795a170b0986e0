"""Filters leave the tokens of their definition, and no others."""

from __future__ import annotations

import numpy as np

from ..engine import Request
from ..reference import law as law_of
from ..session import Broken, Session, row
from .book import law
from .distribution import DRAWS, ROW, WIDE


def follows(s: Session, text: str, request: Request, draws: int = DRAWS) -> None:
    """Holds draws of a request to its law."""
    s.case()
    s.fits(s.counts(text, request, draws), law_of(row(text), request, s.engine))


@law("filters", "top_k")
def top_k_leaves_k(s: Session) -> None:
    """Top-k draws from the k most probable tokens, in their proportions, and never another one."""
    for k in (2, 5):
        follows(s, ROW, Request(top_k=k))


@law("filters", "top_k")
def top_k_on_ties(s: Session) -> None:
    """Top-k leaves no more than k tokens where logits tie.

    In bfloat16 logits ties are common. An engine that keeps all that tie with the k-th token lets more through than was asked.
    """
    counts = s.counts("[1, 2, 1, 1, 1, 0]", Request(top_k=3), 2000)
    kept = [token for token, count in enumerate(counts.tolist()) if count]
    if len(kept) > 3 or not {1} <= set(kept) <= {0, 1, 2, 3, 4}:
        raise Broken(f"top_k=3 drew {len(kept)} different tokens, {kept}")


@law("filters", "top_k")
def top_k_of_one(s: Session) -> None:
    """Top-k of 1 gives the largest logit at any temperature."""
    counts = s.counts(ROW, Request(top_k=1, temperature=2.0), 500)
    if counts[4] != 500:
        raise Broken(f"top_k=1 gave the largest logit in {int(counts[4])} of 500 draws")


@law("filters", "top_k")
def top_k_beyond_the_vocabulary(s: Session) -> None:
    """A k as large as the vocabulary, or larger, leaves all tokens."""
    for k in (10, 5000):
        follows(s, ROW, Request(top_k=k))


@law("filters", "top_p")
def top_p_leaves_the_shortest_prefix(s: Session) -> None:
    """Top-p draws from the fewest most probable tokens that have the mass p, the one that reaches it included."""
    for p in (0.3, 0.75, 0.95):
        follows(s, ROW, Request(top_p=p))


@law("filters", "top_p")
def top_p_near_nothing(s: Session) -> None:
    """However small p is, the most probable token stays."""
    counts = s.counts(ROW, Request(top_p=1e-6), 500)
    if counts[4] != 500:
        raise Broken(f"top_p=1e-6 gave the most probable token in {int(counts[4])} of 500 draws")


@law("filters", "top_p")
def top_p_on_ties(s: Session) -> None:
    """Top-p leaves as many of equal tokens as the mass needs: of ten with p = 0.35 four."""
    counts = s.counts("zeros(10)", Request(top_p=0.35), 2000)
    kept = sum(count > 0 for count in counts.tolist())
    if kept != 4:
        raise Broken(f"of ten equal tokens top_p=0.35 drew {kept} different ones, to be expected are 4")


@law("filters", "top_p")
def top_p_of_wide_rows(s: Session) -> None:
    """In a vocabulary of 32000 top-p draws no token after the cut, and the tokens before it in proportion.

    Tokens within a thousandth of the mass around the cut count for neither side, so sums in float32 do.
    """
    request = Request(top_p=0.5)
    p = law_of(row(WIDE), Request())
    order = (-p).argsort(kind="stable")
    sums = p[order].cumsum()
    beyond = order[sums - p[order] > 0.501]
    counts = s.counts(WIDE, request, 4000)
    if counts[beyond].any() or counts[-1]:
        raise Broken(
            f"of 4000 draws with top_p=0.5 {int(counts[beyond].sum())} lie behind the cut, {int(counts[-1])} gave no token"
        )
    near = law_of(row(WIDE), request)
    s.fits(counts, near + (counts[:-1] > 0) * (near == 0) * 1e-12, bins=50)


@law("filters", "min_p")
def min_p_leaves_what_is_probable_enough(s: Session) -> None:
    """Min-p draws from the tokens that are at least min_p times as probable as the most probable one."""
    for p in (0.1, 0.5):
        follows(s, ROW, Request(min_p=p))


@law("filters", "top_k", "top_p")
def top_k_and_top_p(s: Session) -> None:
    """With both, top-p counts the mass that top-k leaves, or where an engine says so the mass of the whole row."""
    follows(s, ROW, Request(top_k=4, top_p=0.7))


@law("filters", "top_p")
def temperature_before_filters(s: Session) -> None:
    """Filters see the row at its temperature, or where an engine says so at temperature 1."""
    for temperature in (0.5, 2.0):
        follows(s, ROW, Request(temperature=temperature, top_p=0.75))


@law("filters", "batch", "top_k", "top_p")
def filters_of_neighbours(s: Session) -> None:
    """Each row of a batch has its own filters."""
    kinds = [Request(top_k=1), Request(top_p=0.4), Request(), Request(top_k=3, temperature=2.0)]
    found = [[0] * 11 for _ in kinds]
    for _ in range(40):
        (step,) = s.tokens([ROW] * 200, kinds * 50)
        for place, token in enumerate(step):
            found[place % 4][token] += 1
    for kind, counts in zip(kinds, found):
        s.fits(np.array(counts), law_of(row(ROW), kind, s.engine))


@law("masks and bias", "mask")
def masks_are_hard(s: Session) -> None:
    """Draws under a mask follow the law of the allowed tokens alone, and greedy takes the largest of them."""
    request = Request(allowed=(1, 5, 6, 9))
    follows(s, ROW, request)
    s.case()
    token = s.token(ROW, Request(allowed=(1, 5, 6, 9), temperature=0.0))
    if token != 6:
        raise Broken(f"temperature 0 with 1, 5, 6 and 9 allowed gives {token}, to be expected is 6")


@law("masks and bias", "mask", "top_k")
def masks_before_filters(s: Session) -> None:
    """Top-k counts allowed tokens: k of them are left if the mask allows as many."""
    follows(s, ROW, Request(allowed=(0, 1, 3, 7), top_k=2))


@law("masks and bias", "mask")
def masks_that_allow_nothing(s: Session) -> None:
    """A mask that allows no token gives an error or no token.

    It is what a grammar hands over that has nothing left to say; a token that comes all the same breaks the grammar's promise.
    """
    for temperature in (1.0, 0.0):
        s.case()
        try:
            token = s.token(ROW, Request(allowed=(), temperature=temperature))
        except Broken:
            raise
        except Exception:
            continue
        if token != -1:
            raise Broken(f"no token is allowed, and at temperature {temperature} token {token} comes")


@law("masks and bias", "mask", "batch")
def masks_of_neighbours(s: Session) -> None:
    """A mask is for its own row."""
    for _ in range(20):
        (step,) = s.tokens([ROW] * 40, [Request(allowed=(3,)), Request(temperature=0.0)] * 20)
        if step != [3, 4] * 20:
            raise Broken(f"rows that allow 3 alone beside greedy rows, whose token is 4, give {step}")


@law("masks and bias", "logit_bias")
def bias_is_added(s: Session) -> None:
    """A logit bias is added to the logits before every other step."""
    follows(s, ROW, Request(logit_bias={4: -3.0, 3: 8.0}, temperature=0.8))


@law("masks and bias", "logit_bias")
def bias_does_not_revive(s: Session) -> None:
    """A bias does not bring back a token at -inf."""
    counts = s.counts("[0, -inf, 0]", Request(logit_bias={1: 100.0}), 300)
    if counts[1] or counts[3]:
        raise Broken(f"of 300 draws {int(counts[1])} are of a token at -inf with a bias of 100")
