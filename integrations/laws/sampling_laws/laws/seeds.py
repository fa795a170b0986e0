"""A seed alone decides a request's draws."""

from __future__ import annotations

from ..engine import Request
from ..reference import softmax
from ..session import Broken, Session, row
from .book import law
from .distribution import MANY, ROW

FLAT = "zeros(1000)"


def _sequences(s: Session, seeds: list[int], steps: int = 8) -> list[tuple[int, ...]]:
    """The tokens of each seed over a flat row."""
    if "batch" not in s.engine.features:
        return [tuple(step[0] for step in s.tokens([FLAT], Request(seed=seed), steps=steps)) for seed in seeds]
    return list(zip(*s.tokens([FLAT] * len(seeds), [Request(seed=seed) for seed in seeds], steps=steps)))


@law("seeds", "seed")
def seeded_draws(s: Session) -> None:
    """Over the seeds 0 to 99999 first draws follow the softmax.

    Requests are often numbered, so neighbouring seeds must not be neighbours in anything else.
    """
    s.fits(s.counts(ROW, Request(), MANY, seeds=0), softmax(row(ROW)))


@law("seeds", "seed")
def steps_of_a_seed(s: Session) -> None:
    """The draws of one seed, step after step, follow the softmax."""
    found = row("zeros(11)").astype(int)
    steps = s.tokens([ROW], Request(seed=7), steps=4000)
    for (token,) in steps:
        found[token] += 1
    s.fits(found, softmax(row(ROW)))


@law("seeds", "seed")
def same_seed_same_tokens(s: Session) -> None:
    """A seed gives the same tokens in every run."""
    first = _sequences(s, [3, 4])
    if _sequences(s, [3, 4]) != first:
        raise Broken(f"seeds 3 and 4 gave {first} and then something else")


@law("seeds", "seed")
def other_seed_other_tokens(s: Session) -> None:
    """64 neighbouring seeds give 64 sequences."""
    found = len(set(_sequences(s, list(range(64)))))
    if found != 64:
        raise Broken(f"64 seeds gave {found} different sequences of 8 tokens")


@law("seeds", "seed")
def streams_of_seeds_do_not_overlap(s: Session) -> None:
    """The draws of one seed are not the next seed's, a step earlier or later."""
    for a, b in zip(_sequences(s, [40, 41], steps=12), _sequences(s, [41, 42], steps=12)):
        for shift in (1, 2):
            if a[shift:] == b[:-shift] or b[shift:] == a[:-shift]:
                raise Broken(
                    f"the draws {a} of a seed and those of the next seed, {b}, are the same, {shift} steps apart"
                )


@law("seeds", "seed")
def all_bits_of_a_seed(s: Session) -> None:
    """Seeds that differ in high bits alone give different tokens: of 64 bits, or of as many as the engine's seeds have.

    Seeds that are hashes, times or numbers of users differ anywhere.
    """
    seeds = [5, 5 + (1 << s.engine.seed_bits // 2), 5 + (1 << s.engine.seed_bits - 2)]
    found = _sequences(s, seeds)
    if len(set(found)) != 3:
        raise Broken(f"the seeds {', '.join(map(hex, seeds))} gave {len(set(found))} different sequences of 8 tokens")


@law("seeds", "seed")
def steps_of_a_seed_differ(s: Session) -> None:
    """A seed is not started again at each step."""
    (found,) = _sequences(s, [11], steps=16)
    if len(set(found)) < 8:
        raise Broken(f"16 steps over 1000 equal tokens gave {len(set(found))} different ones")


@law("seeds", "seed", "batch")
def seeds_and_places(s: Session) -> None:
    """A seeded request draws the same tokens alone and in every place of a batch of any size."""
    alone = [step[0] for step in s.tokens([FLAT], Request(seed=21), steps=4)]
    for size, place in ((2, 1), (7, 3), (33, 32)):
        s.case()
        requests = [Request(seed=21 if number == place else 1000 + number) for number in range(size)]
        found = [step[place] for step in s.tokens([FLAT] * size, requests, steps=4)]
        if found != alone:
            raise Broken(f"seed 21 draws {alone} alone, and {found} in place {place} of {size}")


@law("seeds", "seed", "batch", "top_k")
def seeds_and_neighbours(s: Session) -> None:
    """What other requests of the batch ask does not change what a seeded request draws."""
    alone = [step[0] for step in s.tokens([FLAT], Request(seed=21), steps=4)]
    others = [Request(), Request(temperature=0.0), Request(top_k=5, seed=4), Request(temperature=2.0)]
    if "top_p" in s.engine.features:
        others.append(Request(top_p=0.5))
    for other in others:
        s.case()
        found = [step[1] for step in s.tokens([FLAT] * 3, [other, Request(seed=21), other], steps=4)]
        if found != alone:
            raise Broken(f"seed 21 draws {alone} alone, and {found} between two of {other!r}")


@law("seeds", "seed", "batch")
def requests_without_seeds(s: Session) -> None:
    """Requests without a seed draw differently from each other, also beside seeded ones."""
    requests = [Request(), Request(seed=5)] * 10
    steps = s.tokens([FLAT] * 20, requests, steps=8)
    found = len(set(list(zip(*steps))[::2]))
    if found != 10:
        raise Broken(f"10 requests without seeds drew {found} different sequences of 8 tokens")


@law("seeds", "seed", "resume")
def resumed_requests(s: Session) -> None:
    """A request that is admitted again with its output goes on as if it had not been interrupted."""
    whole = [step[0] for step in s.tokens([FLAT], Request(seed=9), steps=6)]
    rest = [step[0] for step in s.tokens([FLAT], Request(seed=9, output=tuple(whole[:3])), steps=3)]
    if rest != whole[3:]:
        raise Broken(f"seed 9 draws {whole}; admitted again behind the third token, {rest}")
