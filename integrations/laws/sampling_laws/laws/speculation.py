"""Drafts change how fast tokens come, and not which."""

from __future__ import annotations

import numpy as np

from ..engine import Request
from ..reference import law as law_of
from ..reference import softmax
from ..session import Broken, Session, row
from .book import law

TARGET = ("[1, 0, -1, 0.5, -2, 0.2]", "[0, 1.5, 0.1, -1, 0.3, -0.5]", "[-1, 0, 2, 0.1, 1, 0.2]")
DRAFT = ("[0, 0, 0, 1, 1, -1]", "[1, 0, 0, 0, 0, 0]")
TIMES = 6000


def _holds(s: Session, request: Request, with_probs: bool = True) -> None:
    """Holds each emitted token to the target's law at its place, given that the drafts before it were accepted."""
    s.case()
    seen = s.speculated(TARGET, DRAFT, request, TIMES, with_probs)
    for place in range(3):
        found = np.zeros(7, np.int64)
        for drafts, emitted in seen:
            if len(emitted) > place and emitted[:place] == drafts[:place]:
                found[emitted[place]] += 1
        if found.sum() > 100:
            try:
                s.fits(found, law_of(row(TARGET[place]), request, s.engine))
            except Broken as error:
                raise Broken(f"token {place + 1} of those that are emitted: {error}") from None
    if all(len(emitted) == 1 for _, emitted in seen):
        raise Broken(f"no draft of {TIMES} requests was accepted")


@law("speculation", "verify")
def drafts_keep_the_law(s: Session) -> None:
    """Emitted tokens follow the target's law, by whichever law drafts are drawn."""
    _holds(s, Request())


@law("speculation", "verify")
def drafts_keep_the_law_at_a_temperature(s: Session) -> None:
    """So they do at another temperature than 1."""
    _holds(s, Request(temperature=0.6))


@law("speculation", "verify", "top_k")
def drafts_keep_the_law_behind_filters(s: Session) -> None:
    """So they do after filters: a draft that top-k removes is not accepted."""
    _holds(s, Request(top_k=3))


@law("speculation", "drafts_without_probs")
def drafts_without_probabilities(s: Session) -> None:
    """So they do for drafts of which no probabilities are known."""
    _holds(s, Request(), with_probs=False)


@law("speculation", "verify")
def impossible_drafts(s: Session) -> None:
    """A draft that the target cannot draw is never emitted, however sure the drafter was."""
    target = ["[0, -inf, 1, 0]", "[0, 0, 0, 0]"]
    for emitted in s.verified(target, [[1]] * 400, ["[-20, 20, -20, -20]"], Request()):
        if emitted[0] == 1 or len(emitted) != 1:
            raise Broken(f"the draft is at -inf in the target's row, and the emitted tokens are {emitted}")


@law("speculation", "verify")
def greedy_drafts(s: Session) -> None:
    """At temperature 0 the drafts that greedy decoding would have given are accepted, and then comes its next token."""
    best = [int(softmax(row(text)).argmax()) for text in TARGET]
    for drafts in ([best[0], best[1]], [best[0], 5], [5, best[1]]):
        s.case()
        right = [place for place in range(2) if drafts[: place + 1] == best[: place + 1]]
        wanted = best[: len(right) + 1]
        (found,) = s.verified(TARGET, [drafts], DRAFT, [Request(temperature=0.0)])
        if found != wanted:
            raise Broken(f"drafts {drafts} of the greedy tokens {best} emit {found}, to be expected is {wanted}")


@law("speculation", "coupled", "seed")
def seeded_tokens_with_and_without_drafts(s: Session) -> None:
    """No draft changes the token that a seeded request emits."""
    for seed in range(40):
        s.case()
        alone = [s.tokens([text], Request(seed=seed))[0][0] for text in TARGET[:1]]
        for drafts in ([alone[0], 1], [(alone[0] + 1) % 6, 0], [0, 2]):
            (found,) = s.verified(TARGET, [drafts], None, [Request(seed=seed)])
            if found[0] != alone[0]:
                raise Broken(f"seed {seed} draws {alone[0]} without drafts, and {found[0]} with the drafts {drafts}")


@law("speculation", "coupled", "seed", "resume")
def seeded_sequences_with_and_without_drafts(s: Session) -> None:
    """So it is with all tokens of a call: the tokens after accepted drafts are the ones that decoding gives there."""
    for seed in range(20):
        s.case()
        alone: list[int] = []
        for text in TARGET:
            alone.append(s.token(text, Request(seed=seed, output=tuple(alone))))
        for drafts in (alone[:2], [alone[0], (alone[1] + 1) % 6], [(alone[0] + 1) % 6, 0]):
            count = next((n for n in range(2) if drafts[n] != alone[n]), 2)
            (found,) = s.verified(TARGET, [drafts], None, [Request(seed=seed)])
            if found != alone[: count + 1]:
                raise Broken(f"seed {seed} draws {alone} without drafts, and with the drafts {drafts} {found}")
