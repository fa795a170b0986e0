"""Penalties act on earlier tokens."""

from __future__ import annotations

from ..engine import Request
from ..session import Broken, Session
from .book import law
from .distribution import ROW
from .filters import follows

OUTPUT = (4, 4, 2, 4, 1)


@law("penalties", "repetition_penalty")
def repetition_penalty(s: Session) -> None:
    """The repetition penalty divides positive and multiplies negative logits of tokens that occur, however often they do."""
    follows(s, ROW, Request(repetition_penalty=1.5, prompt=(0, 7), output=OUTPUT))


@law("penalties", "repetition_penalty", "repetition_of_prompt")
def repetition_penalty_of_the_prompt(s: Session) -> None:
    """The repetition penalty counts the prompt of a request that has no output yet."""
    follows(s, ROW, Request(repetition_penalty=1.5, prompt=(4, 0, 7)))


@law("penalties", "frequency_penalty")
def frequency_penalty(s: Session) -> None:
    """The frequency penalty is subtracted for each occurrence in the output."""
    follows(s, ROW, Request(frequency_penalty=0.7, output=OUTPUT))


@law("penalties", "presence_penalty")
def presence_penalty(s: Session) -> None:
    """The presence penalty is subtracted once, however often a token occurs in the output."""
    follows(s, ROW, Request(presence_penalty=1.2, output=OUTPUT))


@law("penalties", "presence_penalty", "frequency_penalty", "prompt")
def penalties_leave_the_prompt_alone(s: Session) -> None:
    """Frequency and presence penalty do not count the prompt."""
    follows(s, ROW, Request(frequency_penalty=1.0, presence_penalty=1.0, prompt=(4, 4, 2), output=(2,)))


@law("penalties", "presence_penalty", "frequency_penalty", "repetition_penalty")
def penalties_before_temperature(s: Session) -> None:
    """Penalties act on logits, and the temperature divides what they leave."""
    follows(s, ROW, Request(temperature=0.6, frequency_penalty=0.3, output=OUTPUT))
    follows(s, ROW, Request(temperature=1.6, repetition_penalty=1.3, prompt=(4,), output=OUTPUT))


@law("penalties", "presence_penalty")
def emitted_tokens_count(s: Session) -> None:
    """A token counts from the step after the one that emitted it."""
    request = Request(temperature=0.0, presence_penalty=2.0)
    found = [step[0] for step in s.tokens(["[0.9, 0.6, 0.3, 0]"], request, steps=4)]
    if found != [0, 1, 2, 3]:
        raise Broken(
            f"greedy with a presence penalty of 2 over [0.9, 0.6, 0.3, 0] gives {found}, to be expected is [0, 1, 2, 3]"
        )


@law("penalties", "repetition_penalty", "frequency_penalty")
def penalties_at_minus_infinity(s: Session) -> None:
    """Penalties, also ones that favour repeats, do not bring back a token at -inf."""
    for request in (
        Request(repetition_penalty=0.5, prompt=(1,), output=(1,)),
        Request(frequency_penalty=-2.0, output=(1, 1)),
    ):
        s.case()
        counts = s.counts("[0, -inf, 0.5]", request, 300)
        if counts[1] or counts[3]:
            raise Broken(
                f"{request!r}: of 300 draws {int(counts[1])} are of a token at -inf, {int(counts[3])} gave no token"
            )


@law("penalties", "presence_penalty", "batch")
def penalties_of_neighbours(s: Session) -> None:
    """Each request is penalised for its own output."""
    requests = [Request(temperature=0.0, presence_penalty=2.0, output=(number % 3,)) for number in range(12)]
    (step,) = s.tokens(["[0.9, 0.6, 0.3, 0]"] * 12, requests)
    if step != [1, 0, 0] * 4:
        raise Broken(f"outputs 0, 1, 2 in turn over [0.9, 0.6, 0.3, 0] give {step}, to be expected is {[1, 0, 0] * 4}")
