"""A session: an engine, the calls that a law makes of it, and the program that makes them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import Drawn, Engine, Request, engine
from .reference import chi_square, softmax

#: The names in the expressions of rows.
NAMES = {name: getattr(np, name) for name in ("arange", "full", "inf", "linspace", "nan", "ones", "r_", "sin", "zeros")}


class Broken(Exception):
    """A law does not hold; the text has the observed and the expected result."""


class NotApplicable(Exception):
    """A law says nothing about this engine; the text says why."""


def row(text: str) -> NDArray[np.float32]:
    """A row of logits from an expression of numpy's, such as "[0, 1, -inf]"."""
    values = eval(text, {"__builtins__": {}}, NAMES)  # The texts stand in the laws of this package.
    return np.asarray(values, np.float32)


class Session:
    """Calls of an engine. The calls since `case` can be printed as a program."""

    def __init__(self, of: Engine | str, seed: int = 1) -> None:
        """seed: what requests without seeds, and drafts, are drawn from."""
        self.engine = engine(of) if isinstance(of, str) else of
        self.seed = seed
        self.calls: list[str] = []
        self.plain: list[tuple[str, Request, int]] = []
        self.case()

    def case(self) -> None:
        """Begins another case: forgets the calls, and starts the draws of requests without seeds again."""
        self.calls.clear()
        self.plain.clear()
        self.engine.start(self.seed)

    def drawn(
        self, rows: str | Sequence[str], requests: Request | Sequence[Request], steps: int = 1
    ) -> list[list[Drawn]]:
        """Lets each request draw `steps` tokens; returns the tokens of each step.

        rows: an expression for each request, or one for all; each step has the same rows. requests: one for each row, or one for
        all rows.
        """
        self.calls.append(f"print(s.tokens({_text(rows)}, {_text(requests)}{_steps(steps)}))")
        if isinstance(rows, str) and isinstance(requests, Request) and steps == 1:
            self.plain.append((rows, requests, 1))
        requests = (
            [requests] * (1 if isinstance(rows, str) else len(rows)) if isinstance(requests, Request) else requests
        )
        if isinstance(rows, str):
            logits = np.broadcast_to(row(rows), (steps, len(requests), row(rows).size))
        else:
            logits = np.broadcast_to(np.stack([row(text) for text in rows]), (steps, len(rows), row(rows[0]).size))
        return self._sample(logits, requests)

    def tokens(
        self, rows: str | Sequence[str], requests: Request | Sequence[Request], steps: int = 1
    ) -> list[list[int]]:
        """The tokens of `drawn`."""
        return [[drawn.token for drawn in step] for step in self.drawn(rows, requests, steps)]

    def token(self, text: str, request: Request) -> int:
        """The token that one request draws from one row."""
        return self.tokens(text, request)[0][0]

    def counts(self, text: str, request: Request, draws: int, seeds: int | None = None) -> NDArray[np.int64]:
        """How often each token is drawn from a row by `draws` requests; -1 is counted after the last token.

        seeds: the seed of the first request, each further one having the next seed; None: requests as they are.
        """
        self.calls.append(f"print(s.counts({text!r}, {request!r}, {draws}{'' if seeds is None else f', {seeds}'}))")
        if seeds is None:
            self.plain.append((text, request, draws))
        values = row(text)
        most = max(1, min(self.engine.most_rows, 2_000_000 // values.size)) if "batch" in self.engine.features else 1
        found = np.zeros(values.size + 1, np.int64)
        for first in range(0, draws, most):
            rows = min(most, draws - first)
            requests = [_seeded(request, seeds, first + i) for i in range(rows)]
            step = self._sample(np.broadcast_to(values, (1, rows, values.size)), requests)[0]
            found += np.bincount([drawn.token % found.size for drawn in step], minlength=found.size)
        return found

    def verified(
        self,
        target: Sequence[str],
        drafts: Sequence[Sequence[int]],
        probs: Sequence[str] | None,
        requests: Request | Sequence[Request],
    ) -> list[list[int]]:
        """The tokens that each request emits after its drafts were judged.

        target: rows of the target model, the same for all requests: behind the history, then behind each draft. probs: rows of
        logits of the draft model, whose probabilities are handed over, or None. requests: one for each list of drafts, or one
        for all.
        """
        self.calls.append(f"print(s.verified({list(target)!r}, {_text(drafts)}, {probs!r}, {_text(requests)}))")
        return self._verify(
            target, drafts, probs, [requests] * len(drafts) if isinstance(requests, Request) else requests
        )

    def speculated(
        self, target: Sequence[str], draft: Sequence[str], request: Request, times: int, with_probs: bool = True
    ) -> list[tuple[list[int], list[int]]]:
        """Draws drafts from a draft model's rows, and has them judged, in each round again; returns drafts and emitted tokens.

        Drafts are drawn independently from the rows of `draft`, so the target's rows do not depend on them either.
        """
        flag = "" if with_probs else ", with_probs=False"
        self.calls.append(
            f"print(np.bincount([emitted[0] for _, emitted in "
            f"s.speculated({list(target)!r}, {list(draft)!r}, {request!r}, {times}{flag})]))"
        )
        random = np.random.default_rng(4 + self.seed)
        laws = [softmax(row(text)) for text in draft]
        drafts = np.stack([random.choice(p.size, times, p=p) for p in laws], axis=1).tolist()
        emitted: list[list[int]] = []
        for first in range(0, times, self.engine.most_rows):
            some = drafts[first : first + self.engine.most_rows]
            emitted += self._verify(target, some, draft if with_probs else None, [request] * len(some))
        return list(zip(drafts, emitted))

    def _verify(
        self,
        target: Sequence[str],
        drafts: Sequence[Sequence[int]],
        probs: Sequence[str] | None,
        requests: Sequence[Request],
    ) -> list[list[int]]:
        rows = np.stack([row(text) for text in target])
        logits = np.ascontiguousarray(np.broadcast_to(rows, (len(requests), *rows.shape)))
        of_drafts = None
        if probs is not None:
            each = np.stack([softmax(row(text)) for text in probs]).astype(np.float32)
            of_drafts = np.ascontiguousarray(np.broadcast_to(each, (len(requests), *each.shape)))
        found = self.engine.verify(logits, drafts, of_drafts, requests)
        return [[int(token) for token in emitted] for emitted in found]

    def fits(self, counts: NDArray[np.int64], law: Any, bins: int = 0) -> None:
        """Holds counts to a law: no token that it gives no probability, and a chi-square below the bound of one in a million.

        bins: how many sets of neighbouring ids are counted together; 0: each token by itself.
        """
        draws = int(counts.sum())
        *each, none = counts.tolist()
        if none:
            raise Broken(f"{none} of {draws} rows gave no token")
        never = [token for token, p in enumerate(law) if p == 0 and each[token]]
        if never:
            seen = ", ".join(f"{token} ({each[token]} times)" for token in never[:3])
            raise Broken(f"of {draws} draws some gave tokens that have no probability: {seen}")
        found, expected = np.asarray(each), np.asarray(law) * draws
        if bins:
            edges = np.linspace(0, found.size, bins + 1).astype(int)[:-1]
            found, expected = np.add.reduceat(found, edges), np.add.reduceat(expected, edges)
        distance, most = chi_square(found, expected)
        if distance > most:
            worst = int(np.argmax(np.abs(found - expected) / np.sqrt(expected + 1)))
            what = (
                f"ids {worst * len(each) // bins} to {(worst + 1) * len(each) // bins - 1}"
                if bins
                else f"token {worst}"
            )
            raise Broken(
                f"chi-square of {draws} draws is {distance:.0f}, and of a right sampler above {most:.0f} once in a million times; "
                f"{what} came {found[worst]} times, where {expected[worst]:.1f} are expected"
            )

    def program(self, name: str) -> str:
        """The program that makes the calls again, in at most ten lines: by the engine's own package alone, if the adapter has one and they are
        one call.
        """
        if len(self.plain) == len(self.calls) == 1 and (own := self.engine.program(*self.plain[0])):
            return own
        lines = [
            "from sampling_laws import Request, Session",
            f"s = Session({name!r}{'' if self.seed == 1 else f', seed={self.seed}'})",
            *self.calls[-7:],
        ]
        return "\n".join(lines if "np." not in "".join(lines) else ["import numpy as np", *lines])

    def _sample(self, logits: NDArray[np.float32], requests: Sequence[Request]) -> list[list[Drawn]]:
        found = self.engine.sample(np.ascontiguousarray(logits), requests)
        steps = [[drawn if isinstance(drawn, Drawn) else Drawn(int(drawn)) for drawn in step] for step in found]
        if [len(step) for step in steps] != [len(requests)] * len(logits):
            raise Broken(f"{len(logits)} steps of {len(requests)} requests gave {[len(step) for step in steps]} tokens")
        return steps


def _seeded(request: Request, seeds: int | None, number: int) -> Request:
    if seeds is None:
        return request
    return Request(**{**vars(request), "seed": seeds + number})


def _steps(steps: int) -> str:
    return "" if steps == 1 else f", steps={steps}"


def _text(values: Any) -> str:
    """A list as Python writes it, in short where its items repeat."""
    if isinstance(values, (str, Request)):
        return repr(values)
    for period in range(1, len(values) // 2 + 1):
        if len(values) % period == 0 and all(value == values[place % period] for place, value in enumerate(values)):
            return f"{list(values[:period])!r} * {len(values) // period}"
    if len(values) > 4 and isinstance(values[0], Request):
        seeds = [value.seed for value in values]
        if None not in seeds and seeds == list(range(seeds[0], seeds[0] + len(seeds))):
            text = repr(values[0]).replace(f"seed={seeds[0]}", "seed=seed")
            return f"[{text} for seed in range({seeds[0]}, {seeds[-1] + 1})]"
    return repr(list(values))
