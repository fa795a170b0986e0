"""Reported logprobs follow the law that they name."""

from __future__ import annotations

import dataclasses
import math

from ..engine import Drawn, Request
from ..reference import law as law_of
from ..reference import softmax
from ..session import Broken, Session, row
from .book import law
from .distribution import ROW

#: How far a float32 logprob may be off.
NEAR = 1e-4


def _right(s: Session, text: str, request: Request) -> list[float]:
    if s.engine.logprobs == "raw":
        request = Request()
    elif s.engine.logprobs == "tempered":
        request = dataclasses.replace(request, top_k=0, top_p=1.0, min_p=0.0)
    return [math.log(x) if x > 0 else -math.inf for x in law_of(row(text), request, s.engine).tolist()]


def _draws(s: Session, text: str, request: Request, draws: int = 24) -> list[Drawn]:
    if "batch" in s.engine.features:
        return s.drawn([text] * draws, request)[0]
    return [s.drawn([text], request)[0][0] for _ in range(draws)]


@law("logprobs", "logprobs")
def logprobs_are_those_of_the_law(s: Session) -> None:
    """The logprob of a drawn token is the logarithm of its probability, in the law that the engine says it reports."""
    for request in (Request(logprobs=0), Request(logprobs=0, temperature=0.7), Request(logprobs=0, temperature=1.5)):
        s.case()
        right = _right(s, ROW, request)
        for token, logprob, _ in _draws(s, ROW, request):
            if logprob is None or not abs(logprob - right[token]) < NEAR:
                raise Broken(
                    f"token {token} is reported with {logprob}, its logprob is {right[token]:.6f} ({s.engine.logprobs})"
                )


@law("logprobs", "logprobs", "top_k", "top_p")
def logprobs_behind_filters(s: Session) -> None:
    """So it is after filters, which only a processed logprob sees."""
    for request in (Request(logprobs=0, top_k=3), Request(logprobs=0, top_p=0.6, temperature=0.8)):
        s.case()
        right = _right(s, ROW, request)
        for token, logprob, _ in _draws(s, ROW, request):
            if logprob is None or not abs(logprob - right[token]) < NEAR:
                raise Broken(
                    f"{request!r}: token {token} is reported with {logprob}, its logprob is {right[token]:.6f} ({s.engine.logprobs})"
                )


@law("logprobs", "top_logprobs")
def top_logprobs_are_the_largest(s: Session) -> None:
    """The most probable tokens are reported, from the largest down, with their logprobs."""
    right = _right(s, ROW, Request())
    best = sorted(range(10), key=lambda token: -right[token])[:4]
    for _, _, top in _draws(s, ROW, Request(logprobs=4), 4):
        ids = [token for token, _ in top][:4]
        if ids != best or not all(abs(logprob - right[token]) < NEAR for token, logprob in top):
            raise Broken(f"the most probable tokens are {best}, reported are {list(top)}")


@law("logprobs", "logprobs")
def logprobs_of_greedy_tokens(s: Session) -> None:
    """A greedy token has a finite logprob, also in a row with -inf, and a row of one token has logprob 0."""
    for text in (ROW, "[-inf, 2, 1, -inf]", "[-inf, -7, -inf]"):
        s.case()
        token, logprob, _ = _draws(s, text, Request(temperature=0.0, logprobs=0), 1)[0]
        right = math.log(softmax(row(text)).max())
        wanted = [right] if s.engine.logprobs == "raw" else [right, 0.0]
        if logprob is None or not any(abs(logprob - value) < NEAR for value in wanted):
            raise Broken(
                f"token {token} of {text} at temperature 0 is reported with {logprob}, to be expected is {wanted[0]:.6f}"
            )


@law("logprobs", "logprobs", "seed")
def logprobs_do_not_change_draws(s: Session) -> None:
    """A request draws the same tokens with and without logprobs."""
    for count in (0, 3):
        s.case()
        plain = [step[0] for step in s.tokens(["zeros(1000)"], Request(seed=2), steps=4)]
        found = [step[0] for step in s.tokens(["zeros(1000)"], Request(seed=2, logprobs=count), steps=4)]
        if found != plain:
            raise Broken(f"seed 2 draws {plain}, and with logprobs={count} {found}")


@law("logprobs", "logprobs", "mask")
def logprobs_of_processed_rows(s: Session) -> None:
    """So it is under a mask, which a raw logprob does not see."""
    request = Request(allowed=(1, 5, 6, 9), logprobs=0)
    right = _right(s, ROW, request)
    for token, logprob, _ in _draws(s, ROW, request):
        if logprob is None or not abs(logprob - right[token]) < NEAR:
            raise Broken(
                f"token {token} is reported with {logprob}, its logprob is {right[token]:.6f} ({s.engine.logprobs})"
            )
