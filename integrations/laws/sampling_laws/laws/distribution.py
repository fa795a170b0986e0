"""Draws follow the law of the row."""

from __future__ import annotations

from ..engine import Request
from ..reference import law as law_of
from ..reference import quantile, softmax
from ..session import Broken, Session, row
from .book import law

#: Ten tokens of all sizes, none of them a tie.
ROW = "[0.5, -2, 1.5, -7, 2, -0.5, 0, -4, 1, -1]"
#: As many tokens as a small model has, of probabilities a hundredfold apart.
WIDE = "sin(arange(32000) * 12.9898) * 2.5"
DRAWS = 20000
#: As many as it takes to notice that a token comes five per cent too often.
MANY = 100000


@law("distribution")
def plain_draws(s: Session) -> None:
    """Draws at temperature 1 follow the softmax of the row."""
    s.fits(s.counts(ROW, Request(), MANY), softmax(row(ROW)))


@law("distribution")
def draws_at_a_temperature(s: Session) -> None:
    """Draws at a temperature follow the softmax of the logits divided by it."""
    for temperature in (0.6, 1.7):
        s.case()
        request = Request(temperature=temperature)
        s.fits(s.counts(ROW, request, DRAWS), law_of(row(ROW), request))


@law("distribution")
def wide_rows(s: Session) -> None:
    """In a vocabulary of 32000 each part of the ids is drawn as often as its probability says."""
    s.fits(s.counts(WIDE, Request(), 6000), softmax(row(WIDE)), bins=50)


@law("distribution")
def rare_tokens(s: Session) -> None:
    """Tokens that are rare together come as often as they should: 2000 of them share a hundredth.

    Sums in float32 and random numbers with few bits lose tails first.
    """
    text = "r_[[12.196], zeros(1000), full(1000, -0.01)]"
    s.fits(s.counts(text, Request(), DRAWS), softmax(row(text)), bins=3)


@law("distribution")
def shifted_rows(s: Session) -> None:
    """A constant that is added to all logits changes nothing."""
    for shift in ("4096", "-4096"):
        s.case()
        text = f"r_[{ROW}] + {shift}"
        s.fits(s.counts(text, Request(), DRAWS), softmax(row(text)))


@law("distribution", "batch")
def rows_of_a_batch_are_independent(s: Session) -> None:
    """What one row of a batch draws says nothing about the next row's draw."""
    pairs = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    for _ in range(30):
        (step,) = s.tokens(["[0, 0.5, -0.5]"] * 400, Request())
        for a, b in zip(step[::2], step[1::2]):
            pairs[a][b] += 1
    _independent(pairs, "rows")


@law("distribution")
def steps_are_independent(s: Session) -> None:
    """What a request draws in one step says nothing about its next step's draw."""
    pairs = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    rows = 300 if "batch" in s.engine.features else 1
    for _ in range(1 if rows > 1 else 300):
        steps = s.tokens(["[0, 0.5, -0.5]"] * rows, Request(), steps=40)
        for a, b in zip(steps[::2], steps[1::2]):
            for x, y in zip(a, b):
                pairs[x][y] += 1
    _independent(pairs, "steps")


def _independent(pairs: list[list[int]], of: str) -> None:
    total = sum(map(sum, pairs))
    p = softmax([0, 0.5, -0.5])
    found = sum((pairs[a][b] - total * p[a] * p[b]) ** 2 / (total * p[a] * p[b]) for a in range(3) for b in range(3))
    if found > quantile(8):
        raise Broken(
            f"chi-square of {total} pairs of {of} is {found:.0f}, of independent ones above {quantile(8):.0f} once in a million times"
        )
