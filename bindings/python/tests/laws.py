"""What operators must come to, wherever their rows lie: bodies for `test_laws.py` on the host, `gpu/proofs.py` on a GPU.

A body takes a place, which makes arrays of its own kind and brings them back, raises AssertionError, and returns what it
saw. References are in float64. Statistical bodies fix their seeds; each rejects a right sampler once in a million seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gumball
from gumball import Status

Rows = NDArray[Any]
TYPES = ("float32", "bfloat16", "float16")
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"top_k": 20},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.02},
    "top-k, top-p": {"top_k": 40, "top_p": 0.8},
    "joint": {"top_k": 30, "top_p": 0.95, "order": "joint"},
}
# One in a million, one-sided, of a normal variable.
SIGMAS = 4.7535


class Place(NamedTuple):
    """Where arrays lie: `put` takes numbers there, in another type if one is named; `back` brings them as numpy's."""

    name: str
    put: Callable[..., Any]
    back: Callable[[Any], Rows]


def model_like(vocab: int, seed: int) -> Rows:
    """Logits like a model's: a bell of deviation 2, and peaks raised by 6 to 14."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 2, vocab)
    row[rng.choice(vocab, min(20, vocab // 4), replace=False)] += rng.uniform(6, 14, min(20, vocab // 4))
    return row.astype(np.float32)


def softmax64(logits: Rows, temperature: Any = 1.0) -> Rows:
    z = logits.astype(np.float64)
    z = (z - z.max(-1, keepdims=True)) / np.asarray(temperature, np.float64).reshape(-1, 1)
    weights = np.exp(z)
    return weights / weights.sum(-1, keepdims=True)


def law64(probs: Rows, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, order: str = "") -> Rows:
    """What filters leave of a row, in float64, by a full sort."""
    p = probs.astype(np.float64) / probs.sum(dtype=np.float64)
    ids = np.argsort(-p, kind="stable")
    count = top_k if 0 < top_k < p.size else p.size
    weighed = ids if order == "joint" else ids[:count]
    if top_p < 1:
        sums = np.cumsum(p[weighed])
        count = min(count, int(np.searchsorted(sums, top_p * sums[-1])) + 1)
    kept = ids[:count]
    kept = kept[p[kept] >= min_p * p[ids[0]]]
    law = np.zeros_like(p)
    law[kept] = p[kept] / p[kept].sum()
    return law


def quantile(degrees: int) -> float:
    """What a chi-square of so many degrees exceeds once in a million (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + SIGMAS * math.sqrt(spread)) ** 3


def fits(counts: Rows, law: Rows) -> str:
    """Asserts that counts follow a law: by the angle between them, and by chi-square, small bins as one."""
    total = counts.sum()
    cosine = float(counts @ law / np.linalg.norm(counts) / np.linalg.norm(law))
    assert cosine > 0.99, cosine
    expected = total * law
    large = expected >= 5
    seen, wanted = counts[large].astype(np.float64), expected[large]
    if (rest := expected[~large].sum()) > 0:
        seen, wanted = np.append(seen, counts[~large].sum()), np.append(wanted, rest)
    chi2 = float(((seen - wanted) ** 2 / wanted).sum())
    assert len(wanted) < 2 or chi2 < quantile(len(wanted) - 1), (chi2, len(wanted))
    return f"cosine {cosine:.5f}, chi-square {chi2:.0f} of {len(wanted) - 1}"


def softmax_meets_its_bounds(place: Place, vocabularies: tuple[int, ...] = (111, 32_000, 128_256)) -> str:
    """Absolute and relative 1e-5 for every type of input, from T = 0.01 to 100 and mixed; sums; in place, in bfloat16 too."""
    worst = 0.0
    for vocab in vocabularies:
        logits = np.stack([model_like(vocab, seed) for seed in range(6)])
        for temperature in (0.01, 1.0, 100.0, [0.01, 0.3, 0.7, 1.0, 2.0, 100.0]):
            cold = np.broadcast_to(np.asarray(temperature), 6) < 0.1
            for dtype in TYPES:
                rows = place.put(logits, dtype)
                exact = softmax64(place.back(rows), temperature)
                own = temperature if isinstance(temperature, float) else place.put(np.array(temperature, np.float32))
                got = place.back(gumball.softmax(rows, own))
                np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
                sums = np.abs(got.sum(1, dtype=np.float64) - 1)
                assert (sums <= np.where(cold, 1e-5, 2.5e-7)).all(), (vocab, temperature, dtype, sums)
                worst = max(worst, float(np.abs(got - exact).max()))
                first = place.back(rows).argmax(1)
                assert (got[range(6), first] == got.max(1)).all()
                assert gumball.softmax(rows, own, out=rows) is rows
                loose = {"float32": (1e-5, 1e-5), "bfloat16": (1e-1, 2e-2), "float16": (1e-2, 2e-3)}[dtype]
                np.testing.assert_allclose(place.back(rows), exact, rtol=loose[0], atol=loose[1])
                assert (place.back(rows) == place.back(place.put(got, dtype))).all(), "rounded once"
    return f"off by {worst:.1e} at most"


def softmax_of_normal_rows_is_close(place: Place) -> str:
    """1e-8 absolute on N(0, 1) rows of 128256 tokens, 2.5e-7 in their sums."""
    logits = np.random.default_rng(1).normal(0, 1, (8, 128_256)).astype(np.float32)
    off, sums = 0.0, 0.0
    for dtype in TYPES:
        rows = place.put(logits, dtype)
        got = place.back(gumball.softmax(rows))
        off = max(off, float(np.abs(got - softmax64(place.back(rows))).max()))
        sums = max(sums, float(np.abs(got.sum(1, dtype=np.float64) - 1).max()))
    assert off < 1e-8 and sums < 2.5e-7, (off, sums)
    return f"off by {off:.1e}, sums by {sums:.1e}"


def softmax_keeps_ties_and_extremes(place: Place) -> str:
    """Equal logits have equal bits; the first of the largest stays the argmax in every type; +-1e6 at T = 0.01; no rows."""
    rng = np.random.default_rng(2)
    ties = np.round(rng.normal(0, 2, (64, 5000)) * 4).astype(np.float32) / 4
    for dtype in TYPES:
        rows = place.put(ties, dtype)
        got = place.back(gumball.softmax(rows, 0.7))
        assert (got.argmax(1) == ties.argmax(1)).all()
        for row, line in zip(ties, got, strict=True):
            values, where = np.unique(row, return_inverse=True)
            first = np.array([line[row == value][0] for value in values])
            assert (line == first[where]).all()
        gumball.softmax(rows, 0.7, out=rows)
        assert (place.back(rows).argmax(1) == ties.argmax(1)).all()
    extreme = rng.choice(np.array([1e6, -1e6, 999_999.9, 0], np.float32), (5, 3000))
    got = place.back(gumball.softmax(place.put(extreme), 0.01))
    assert np.isfinite(got).all() and np.abs(got.sum(1, dtype=np.float64) - 1).max() < 1e-5
    assert place.back(gumball.softmax(place.put(ties[:0], "bfloat16"))).shape == (0, 5000)
    return f"{ties.size * len(TYPES)} probabilities"


def renormalised_rows_are_right(place: Place, vocabularies: tuple[int, ...] = (111, 32_000, 128_256)) -> str:
    """Within 1e-3 of float64, for a value a row, and unnormalised rows."""
    off = 0.0
    for vocab in vocabularies:
        probs = np.stack([softmax64(model_like(vocab, seed))[0] for seed in range(5)]).astype(np.float32)
        rows = place.put(probs * np.float32(3))
        k, p, m = [1, 10, vocab // 2, 0, 100], [0.1, 0.5, 0.9, 1.0, 0.99], [0.0, 0.01, 0.1, 0.5, 1.0]
        top_k, top_p, min_p = (
            place.put(np.array(k)),
            place.put(np.array(p, np.float32)),
            place.put(np.array(m, np.float32)),
        )
        pairs: list[tuple[Any, list[dict[str, Any]]]] = [
            (gumball.top_k_renorm_probs(rows, top_k), [{"top_k": a} for a in k]),
            (gumball.top_p_renorm_probs(rows, top_p), [{"top_p": a} for a in p]),
            (gumball.min_p_renorm_probs(rows, min_p), [{"min_p": a} for a in m]),
            (gumball.top_k_top_p_renorm_probs(rows, top_k, top_p), [{"top_k": a, "top_p": b} for a, b in zip(k, p)]),
            (
                gumball.top_k_top_p_renorm_probs(rows, top_k, top_p, order="joint"),
                [{"top_k": a, "top_p": b, "order": "joint"} for a, b in zip(k, p)],
            ),
        ]
        for got, asked in pairs:
            wanted = np.stack([law64(row, **one) for row, one in zip(probs, asked, strict=True)])
            off = max(off, float(np.abs(place.back(got) - wanted).max()))
        assert off < 1e-3, off
    return f"off by {off:.1e} at most"


def draws_follow(place: Place, rows: int, vocab: int, draws: int, filters: dict[str, Any], kind: str = "probs") -> str:
    """Draws from rows that hold one row, turned by their number, follow its law; none is of a token that was cut."""
    logits = model_like(vocab, 7)
    probs = softmax64(logits)[0].astype(np.float32)
    line, draw = (probs, gumball.sampling_from_probs) if kind == "probs" else (logits, gumball.sampling_from_logits)
    batch = place.put(np.stack([np.roll(line, row) for row in range(rows)]))
    tokens = place.back(draw(batch, n=-(-draws // rows), seed=11, **filters))
    assert tokens.min() >= 0 and tokens.max() < vocab
    for row in {0, rows // 2, rows - 1}:
        of = "logits" if kind == "logits" else "probabilities"
        kept = place.back(gumball.probabilities(batch[row : row + 1], kind=of, **filters))[0] > 0
        assert kept[tokens[row]].all()
    turned = (tokens.astype(np.int64) - np.arange(rows)[:, None]) % vocab
    return fits(np.bincount(turned.ravel(), minlength=vocab), law64(probs, **filters))


def routes_agree(place: Place, rows: int = 40, each: int = 500, vocab: int = 32_000) -> str:
    """Drawn from logits and from their softmax, with the same seeds, tokens are nearly always the same; both follow the law."""
    base = model_like(vocab, 8)
    logits = place.put(np.tile(base, (rows, 1)))
    seeds, differ = place.put(np.arange(100, 100 + rows)), {}
    for name, filters in FILTERS.items():
        for temperature in (0.7, 1.0):
            probs = gumball.softmax(logits, temperature)
            one = place.back(
                gumball.sampling_from_logits(logits, n=each, temperature=temperature, seed=seeds, **filters)
            )
            two = place.back(gumball.sampling_from_probs(probs, n=each, seed=seeds, **filters))
            law = law64(softmax64(base, temperature)[0], **filters)
            for tokens in (one, two):
                fits(np.bincount(tokens.ravel(), minlength=vocab), law)
            share = differ[f"{name} at {temperature}"] = float((one != two).mean())
            assert share < 3e-4, (name, temperature, share)
    return f"at most {max(differ.values()):.1e} differ"


def seeds_and_positions_settle_draws(place: Place) -> str:
    """Equal seed, position and draw index: equal tokens, in any batch and any order; other ones: independent tokens."""
    vocab, rows = 5000, 64
    probs = place.put(np.tile(softmax64(np.random.default_rng(3).normal(0, 1, vocab))[0].astype(np.float32), (rows, 1)))

    def drawn(lines: Any = probs, **options: Any) -> Rows:
        return place.back(gumball.sampling_from_probs(lines, **({"seed": 5, "position": 9} | options)))

    tokens = drawn()
    assert (drawn() == tokens).all() and (drawn(dtype="int64") == tokens).all()
    turned = np.arange(rows)[::-1].copy()
    assert (drawn(place.put(place.back(probs)[:7]), draw=place.put(turned[:7])) == tokens[turned[:7]]).all()
    assert (drawn(seed=place.put(np.full(rows, 5)), position=place.put(np.full(rows, 9))) == tokens).all()
    # Of 64 independent pairs 4 coincide with a chance below one in a million.
    for other in (drawn(seed=6), drawn(position=10), drawn(draw=place.put(np.arange(rows) + rows))):
        assert (other == tokens).sum() < 4
    assert (drawn(draw=3) == drawn(draw=3)[0]).all()
    return f"{rows} rows"


def hostile_rows_harm_nobody(place: Place) -> str:
    """Rows of NaN, infinities and equal numbers yield ids or none; neighbours, and what lies around, keep their bits."""
    vocab, rows = 1003, 15
    clean = np.stack([model_like(vocab, seed) for seed in range(rows)])
    bad = {1: np.nan, 3: np.inf, 5: -np.inf, 7: 0.25, 9: 3e38, 11: -3e38}
    dirty = clean.copy()
    for row, value in bad.items():
        dirty[row] = value
    dirty[13, ::2], dirty[13, 1::2] = np.nan, np.inf
    untouched = np.array([row for row in range(rows) if row not in {*bad, 13}])
    operators: dict[str, Callable[..., Any]] = {
        "softmax": lambda rows, **o: gumball.softmax(rows, 0.7, **o),
        "probabilities": lambda rows, **o: gumball.probabilities(rows, top_p=0.9, **o),
        "mask": lambda rows, **o: gumball.mask_logits(rows, top_k=9, min_p=0.1, **o),
        "top_k_mask": lambda rows, **o: gumball.top_k_mask_logits(rows, 9, **o),
        "renorm": lambda rows, **o: gumball.top_k_top_p_renorm_probs(rows, 50, 0.9, **o),
        "top_p": lambda rows, **o: gumball.top_p_renorm_probs(rows, 0.9, **o),
        "min_p": lambda rows, **o: gumball.min_p_renorm_probs(rows, 0.1, **o),
    }
    for dtype in TYPES:
        for name, operator in operators.items():
            wide = np.full((rows + 2, vocab + 6), 7, np.float32)
            wide[1:-1, 3:-3] = dirty
            around = place.put(wide, dtype)
            got = place.back(operator(around[1:-1, 3:-3]))
            assert (got[untouched] == place.back(operator(place.put(clean, dtype)))[untouched]).all(), name
            assert not np.isnan(got).any() and (name.endswith("mask") or (got >= 0).all()), name
            operator(around[1:-1, 3:-3], out=around[1:-1, 3:-3])
            after = place.back(around)
            after[1:-1, 3:-3] = 7
            assert (after == 7).all(), name
        for draw in (gumball.sampling_from_logits, gumball.sampling_from_probs):
            for filters in FILTERS.values():
                tokens, statuses = draw(place.put(dirty, dtype), seed=3, return_statuses=True, **filters)
                tokens, statuses = place.back(tokens), place.back(statuses)
                assert ((tokens >= -1) & (tokens < vocab)).all()
                empty = statuses & Status.EMPTY != 0
                assert ((tokens == -1) == empty).all() and empty[1] and empty[5] and not empty[[3, 7]].any()
                assert (
                    tokens[untouched] == place.back(draw(place.put(clean, dtype), seed=3, **filters))[untouched]
                ).all()
    return f"{len(operators) + 2} operators"


BODIES: list[Callable[[Place], str]] = [
    softmax_meets_its_bounds,
    softmax_of_normal_rows_is_close,
    softmax_keeps_ties_and_extremes,
    renormalised_rows_are_right,
    routes_agree,
    seeds_and_positions_settle_draws,
    hostile_rows_harm_nobody,
]
