"""Greedy choices, ties, and numbers at the edge."""

from __future__ import annotations

from ..engine import Request
from ..reference import law as law_of
from ..reference import softmax
from ..session import Broken, Session, row
from .book import law
from .distribution import DRAWS, ROW

GREEDY = Request(temperature=0.0)


def expect(found: int, allowed: list[int], what: str) -> None:
    """Raises `Broken` if a token is not among those allowed."""
    if found not in allowed:
        raise Broken(f"{what}: the token is {found}, to be expected is {' or '.join(map(str, allowed))}")


@law("greedy and extremes")
def greedy_takes_the_largest(s: Session) -> None:
    """At temperature 0 the token with the largest logit comes, also if it is larger by one bit only."""
    for text, best in (
        (ROW, 4),
        ("[1, 1.0000001, 0.5]", 1),
        ("[-3e38, -3.0000001e38, -2.9999998e38]", 2),
        ("[1e-40, 0, -1e-40]", 0),
    ):
        s.case()
        expect(s.token(text, GREEDY), [best], f"temperature 0 over {text}")


@law("greedy and extremes")
def greedy_settles_ties_always_alike(s: Session) -> None:
    """At temperature 0 a tie gives one of the tied tokens, the same one in every place of a batch."""
    rows = 33 if "batch" in s.engine.features else 1
    seen = {token for _ in range(3) for token in s.tokens(["[0, 3, 1, 3, 3]"] * rows, GREEDY)[0]}
    if len(seen) > 1 or not seen <= {1, 3, 4}:
        raise Broken(f"1, 3 and 4 tie; the tokens are {sorted(seen)}")


@law("greedy and extremes")
def greedy_beside_random(s: Session) -> None:
    """A greedy request stays greedy beside requests that draw."""
    if "batch" not in s.engine.features:
        rows: list[list[int]] = [[s.token(ROW, GREEDY)] for _ in range(20)]
    else:
        rows = [s.tokens([ROW] * 8, [Request(temperature=2.0), GREEDY] * 4)[0][1::2] for _ in range(20)]
    for step in rows:
        for token in step:
            expect(token, [4], "temperature 0 beside temperature 2")


@law("greedy and extremes")
def low_temperatures(s: Session) -> None:
    """A temperature near 0 gives the largest logit, as its limit does, and no error."""
    for temperature in (1e-2, 1e-4, 1e-7, 1e-30):
        s.case()
        expect(s.token("[20, 90, -90, 89]", Request(temperature=temperature)), [1], f"temperature {temperature}")


@law("greedy and extremes")
def low_temperatures_on_ties(s: Session) -> None:
    """At a temperature near 0 tokens that tie for the largest logit share the draws.

    A sampler that takes such a temperature for 0 has one of them win always; that is the end of the range, not its limit.
    """
    request = Request(temperature=0.02)
    s.fits(s.counts("[3, 5, 5, 1]", request, 4000), [0, 0.5, 0.5, 0])


@law("greedy and extremes")
def high_temperatures(s: Session) -> None:
    """At a very high temperature, or the highest that an engine takes, draws follow the law, and nothing at -inf comes."""
    for temperature in (1e4, 1e30):
        s.case()
        request = Request(temperature=min(temperature, s.engine.most_temperature))
        s.fits(s.counts("[10, -10, 0, -inf]", request, 8000), law_of(row("[10, -10, 0, -inf]"), request))


@law("greedy and extremes")
def vocabulary_of_one(s: Session) -> None:
    """Of one token that one is drawn."""
    expect(s.token("[-5]", Request()), [0], "a vocabulary of one")
    expect(s.token("[-5]", GREEDY), [0], "a vocabulary of one at temperature 0")


@law("greedy and extremes")
def largest_numbers(s: Session) -> None:
    """Logits as large as float32 has them do not overflow.

    Masks are often written with the lowest float, and a layer that is about to fail gives the largest.
    """
    for text in ("[3.4e38, -3.4e38, 3.3e38]", "[-3.4e38, -1e38, -3.3e38]"):
        s.case()
        best = int(row(text).argmax())
        expect(s.token(text, Request(temperature=0.5)), [best], f"temperature 0.5 over {text}")


@law("infinity and NaN")
def minus_infinity_is_never_drawn(s: Session) -> None:
    """A token at -inf is never drawn, at any temperature."""
    text = "[-inf, 0, -inf, 0.5, -inf]"
    for temperature in (0.0, 0.5, 1.0, 50.0):
        s.case()
        request = Request(temperature=min(temperature, s.engine.most_temperature))
        counts = s.counts(text, request, 3000)
        if counts[[0, 2, 4, 5]].any():
            raise Broken(
                f"temperature {request.temperature}: of 3000 draws {int(counts[[0, 2, 4]].sum())} are at -inf, {int(counts[5])} gave no token"
            )


@law("infinity and NaN")
def one_token_above_minus_infinity(s: Session) -> None:
    """If all other tokens are at -inf, the one that is left is drawn, however small its logit is."""
    for temperature in (0.0, 1e-4, 1.0):
        s.case()
        expect(
            s.token("[-inf, -inf, -1e30, -inf]", Request(temperature=temperature)), [2], f"temperature {temperature}"
        )


@law("infinity and NaN")
def empty_rows(s: Session) -> None:
    """If no token is allowed, the call says so: by an error, or by no token.

    A grammar that has come to its end, or a ban of everything, gives such rows. A token would be one that was forbidden.
    """
    for request in (Request(), GREEDY):
        s.case()
        _allows_only(s, "[-inf, -inf, -inf, -inf]", request, [])


@law("infinity and NaN")
def nan_is_never_drawn(s: Session) -> None:
    """A token whose logit is NaN is never drawn: there is an error, no token, or one of the others.

    NaN comes from a broken layer or an overflow. A sampler that draws it hides that.
    """
    for request in (Request(), GREEDY, Request(temperature=0.7)):
        s.case()
        _allows_only(s, "[0, nan, 1, 0.5]", request, [0, 2, 3])


@law("infinity and NaN")
def plus_infinity(s: Session) -> None:
    """A token at +inf is the one that comes, or the call says why not.

    A softmax in which infinity is subtracted from infinity is NaN throughout, and then any token may come.
    """
    for request in (Request(), GREEDY):
        s.case()
        _allows_only(s, "[0, inf, 1, 0.5]", request, [1])


def _allows_only(s: Session, text: str, request: Request, allowed: list[int]) -> None:
    try:
        token = s.token(text, request)
    except Broken:
        raise
    except Exception:
        return
    if token not in (-1, *allowed):
        raise Broken(f"{text} at temperature {request.temperature}: the token is {token}, without a word")


@law("infinity and NaN", "batch", "seed")
def neighbours_of_broken_rows(s: Session) -> None:
    """A row of NaN, or one without any token, does not change what other rows of the batch draw."""
    alone = [s.token(ROW, Request(seed=seed)) for seed in range(12)]
    for broken in ("full(10, nan)", "full(10, -inf)"):
        s.case()
        rows, requests = [ROW] * 12 + [broken], [Request(seed=seed) for seed in range(12)] + [Request(seed=99)]
        try:
            (step,) = s.tokens(rows, requests)
        except Exception as error:
            raise Broken(f"one row {broken} makes the whole batch fail: {type(error).__name__}: {error}") from error
        if step[:12] != alone:
            raise Broken(f"beside a row {broken} the tokens are {step[:12]}, alone {alone}")


@law("distribution")
def equal_logits(s: Session) -> None:
    """Tokens with equal logits come equally often, wherever they stand in the vocabulary."""
    s.fits(s.counts("zeros(1000)", Request(), DRAWS), softmax(row("zeros(1000)")), bins=100)
