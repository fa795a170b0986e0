"""A plain sampler that keeps all laws, and breaks some of them on demand.

Each fault is one that samplers have had. It names the laws that must notice it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sampling_laws import FEATURES, Drawn, Engine, Request
from sampling_laws.engine import Floats
from sampling_laws.reference import edited, law, softmax

Doubles = NDArray[np.float64]

#: Each fault, with the laws that it breaks.
FAULTS: dict[str, list[str]] = {
    "a token five per cent too often": ["plain-draws", "seeded-draws"],
    "a random number with 6 bits": ["draws-at-a-temperature", "equal-logits"],
    "ids behind 31500 are lost": ["wide-rows"],
    "probabilities below 1e-5 are lost": ["rare-tokens"],
    "no maximum is subtracted": ["shifted-rows"],
    "one random number for all rows": ["rows-of-a-batch-are-independent"],
    "one random number for all steps": ["steps-are-independent", "steps-of-a-seed", "steps-of-a-seed-differ"],
    "greedy in float16": ["greedy-takes-the-largest"],
    "greedy ties by chance": ["greedy-settles-ties-always-alike"],
    "greedy if the first request is": ["greedy-beside-random"],
    "temperatures below 0.001 overflow": ["low-temperatures"],
    "temperatures below 0.1 are 0": ["low-temperatures-on-ties"],
    "temperatures above 5 are 5": ["high-temperatures"],
    "a vocabulary of one has no token": ["vocabulary-of-one"],
    "large logits overflow": ["largest-numbers"],
    "-inf is -100": ["minus-infinity-is-never-drawn"],
    "-inf is -10000": ["one-token-above-minus-infinity"],
    "empty rows give token 0": ["empty-rows", "masks-that-allow-nothing"],
    "NaN is the largest": ["nan-is-never-drawn"],
    "+inf makes the row NaN, which gives token 0": ["plus-infinity"],
    "NaN raises": ["neighbours-of-broken-rows"],
    "top-k keeps k + 1": ["top-k-leaves-k", "top-k-of-one"],
    "top-k keeps ties": ["top-k-on-ties"],
    "top-k beyond the vocabulary raises": ["top-k-beyond-the-vocabulary"],
    "top-p ends before the mass": ["top-p-leaves-the-shortest-prefix", "top-p-near-nothing", "top-p-on-ties"],
    "top-p with twice the mass": ["top-p-of-wide-rows"],
    "min-p relative to 1": ["min-p-leaves-what-is-probable-enough"],
    "top-p beside top-k": ["top-k-and-top-p"],
    "filters at temperature 1": ["temperature-before-filters"],
    "filters of the first request": ["filters-of-neighbours"],
    "masks subtract 5": ["masks-are-hard"],
    "masks after filters": ["masks-before-filters"],
    "mask of the first request": ["masks-of-neighbours"],
    "bias after temperature": ["bias-is-added"],
    "bias replaces": ["bias-does-not-revive"],
    "seeds count for nothing": ["same-seed-same-tokens"],
    "all seeds are one": ["other-seed-other-tokens"],
    "seeds plus positions": ["streams-of-seeds-do-not-overlap"],
    "seeds of 32 bits": ["all-bits-of-a-seed"],
    "the place in the batch is part of the seed": ["seeds-and-places"],
    "a greedy neighbour takes a random number": ["seeds-and-neighbours"],
    "no seed is seed 42": ["requests-without-seeds"],
    "positions start again": ["resumed-requests", "seeded-sequences-with-and-without-drafts"],
    "repetition counts": ["repetition-penalty"],
    "repetition of output alone": ["repetition-penalty-of-the-prompt"],
    "frequency once": ["frequency-penalty"],
    "presence counts": ["presence-penalty"],
    "penalties of the prompt": ["penalties-leave-the-prompt-alone"],
    "penalties after temperature": ["penalties-before-temperature"],
    "the last token is forgotten": ["emitted-tokens-count"],
    "penalties revive": ["penalties-at-minus-infinity"],
    "outputs of the first request": ["penalties-of-neighbours"],
    "logprobs without temperature": ["logprobs-are-those-of-the-law"],
    "logprobs without filters": ["logprobs-behind-filters"],
    "most probable tokens from the least on": ["top-logprobs-are-the-largest"],
    "greedy logprobs are NaN": ["logprobs-of-greedy-tokens"],
    "logprobs take a random number": ["logprobs-do-not-change-draws"],
    "logprobs without masks": ["logprobs-of-processed-rows"],
    "all drafts are accepted": [
        "drafts-keep-the-law",
        "drafts-without-probabilities",
        "impossible-drafts",
        "greedy-drafts",
    ],
    "drafts without temperature": ["drafts-keep-the-law-at-a-temperature"],
    "drafts without filters": ["drafts-keep-the-law-behind-filters"],
    "nothing is subtracted after a rejection": ["drafts-keep-the-law"],
    "drafts have a seed of their own": ["seeded-tokens-with-and-without-drafts"],
}


def uniform(*keys: int) -> float:
    """A number in 0..1 that is a function of the keys."""
    mixed = 0x9E3779B97F4A7C15
    for key in keys:
        mixed = (mixed ^ key & 0xFFFFFFFFFFFFFFFF) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 29) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 32
    return (mixed >> 11) / (1 << 53)


def _key(request: Request) -> Any:
    """What the law of a request depends on."""
    filters = (request.temperature, request.top_k, request.top_p, request.min_p, request.allowed)
    penalties = (request.repetition_penalty, request.frequency_penalty, request.presence_penalty)
    return filters, penalties, tuple(request.logit_bias.items()), request.prompt, request.output


class Plain(Engine):
    """Draws by inverse transform from the reference's law, in float64."""

    name = "a plain sampler"
    features = frozenset(FEATURES)
    logprobs = "processed"

    def __init__(self, fault: str = "") -> None:
        self.fault, self.started, self.extra = fault, 0, 0
        self.known: dict[Any, tuple[Doubles, Doubles]] = {}

    def start(self, seed: int) -> None:
        self.started, self.extra = seed << 40, 0

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterator[list[Drawn]]:
        seeds = [self.seed(request, place) for place, request in enumerate(requests)]
        outputs = [list(request.output) for request in requests]
        for number, step in enumerate(logits):
            drawn = []
            for place, (row, request) in enumerate(zip(step, requests)):
                asked = self.asked(request, requests[0], outputs, place)
                start = 0 if self.fault == "positions start again" else len(request.output)
                u = self.random(seeds[0 if self.fault == "one random number for all rows" else place], start + number)
                drawn.append(self.token(row, asked, u))
            for output, each in zip(outputs, drawn):
                if each.token >= 0:
                    output.append(each.token)
            self.extra += any(request.temperature == 0 for request in requests) + any(
                request.logprobs is not None for request in requests
            )
            yield drawn

    def asked(self, request: Request, first: Request, outputs: list[list[int]], place: int) -> Request:
        """The request with the output that it has by now."""
        output = outputs[0 if self.fault == "outputs of the first request" else place]
        if not self.fault and not output:
            return request
        if self.fault == "the last token is forgotten":
            output = output[:-1]
        request = dataclasses.replace(request, output=tuple(output))
        if self.fault == "greedy if the first request is":
            request = dataclasses.replace(request, temperature=first.temperature)
        if self.fault == "filters of the first request":
            request = dataclasses.replace(request, top_k=first.top_k, top_p=first.top_p)
        if self.fault == "mask of the first request":
            request = dataclasses.replace(request, allowed=first.allowed)
        return request

    def seed(self, request: Request, place: int) -> int:
        if request.seed is None:
            self.started += 1
            return 42 if self.fault == "no seed is seed 42" else self.started
        if self.fault == "seeds count for nothing":
            self.started += 1
            return self.started
        seed = request.seed if self.fault != "all seeds are one" else 1
        seed = seed if self.fault != "seeds of 32 bits" else seed & 0xFFFFFFFF
        return seed if self.fault != "the place in the batch is part of the seed" else seed + place

    def random(self, seed: int, position: int) -> float:
        if self.fault == "seeds plus positions":
            return uniform(seed + position)
        if self.fault == "one random number for all steps":
            position = 0
        if self.fault in ("a greedy neighbour takes a random number", "logprobs take a random number"):
            position += self.extra
        u = uniform(seed, position)
        return math.floor(u * 64) / 64 if self.fault == "a random number with 6 bits" else u

    def token(self, row: Floats, request: Request, u: float) -> Drawn:
        """The token that a random number gives, with its logprob."""
        key = (row[:1000].tobytes(), row.size, _key(request), u if "chance" in self.fault else 0)
        if key not in self.known:
            p = self.law(np.array(row), request, u)
            self.known[key] = p, np.cumsum(p)
        p, sums = self.known[key]
        if not p.size or not sums[-1] > 0:
            return Drawn(-1)
        token = int(np.searchsorted(sums, u * sums[-1], side="right"))
        if request.logprobs is None:
            return Drawn(token)
        reported = request
        if self.fault == "logprobs without temperature":
            reported = dataclasses.replace(request, temperature=1.0)
        if self.fault == "logprobs without filters":
            reported = dataclasses.replace(request, top_k=0, top_p=1.0)
        if self.fault == "logprobs without masks":
            reported = dataclasses.replace(request, allowed=None)
        p = law(row, reported)
        best = sorted(range(p.size), key=lambda token: -p[token])[: request.logprobs]
        if self.fault == "most probable tokens from the least on":
            best.reverse()
        logprob = math.log(p[token])
        if self.fault == "greedy logprobs are NaN" and request.temperature == 0 and np.isinf(row).any():
            logprob = math.nan
        return Drawn(token, logprob, tuple((token, math.log(p[token])) for token in best))

    def law(self, row: Floats, request: Request, u: float = 0.0) -> Doubles:
        """The probabilities of a row's tokens; all 0 if there is none to draw."""
        fault, size = self.fault, row.size
        if fault == "a vocabulary of one has no token" and size == 1:
            return np.zeros(1)
        if np.isnan(row).any():
            if fault == "NaN is the largest":
                return np.isnan(row).astype(np.float64)
            if fault == "NaN raises":
                raise ValueError("NaN")
            row = np.where(np.isnan(row), -np.inf, row)
        if (row == np.inf).any():
            return np.eye(size)[0 if fault == "+inf makes the row NaN, which gives token 0" else int(row.argmax())]
        if fault in ("-inf is -100", "-inf is -10000"):
            row = np.maximum(row, -100.0 if fault == "-inf is -100" else -10000.0)
        z, request = self.edited(row, request)
        if not (z > -np.inf).any():
            return np.eye(size)[0] if fault == "empty rows give token 0" else np.zeros(size)
        temperature = request.temperature
        if temperature == 0:
            if fault == "greedy in float16":
                z = z.astype(np.float16)
            if fault == "greedy ties by chance":
                ties = np.flatnonzero(z == z.max())
                return np.eye(size)[ties[int(u * ties.size)]]
            return np.eye(size)[int(z.argmax())]
        if (
            fault == "temperatures below 0.001 overflow"
            and temperature < 1e-3
            or fault == "large logits overflow"
            and abs(z).max() > 1e38
        ):
            return np.eye(size)[int(z.argmin())]
        if fault == "temperatures below 0.1 are 0" and temperature < 0.1:
            return np.eye(size)[int(z.argmax())]
        if fault == "temperatures above 5 are 5":
            temperature = min(temperature, 5.0)
        if fault == "no maximum is subtracted" and abs(z[z > -np.inf]).max() > 80:
            return np.ones(size) / size
        return self.filtered(z, dataclasses.replace(request, temperature=temperature))

    def edited(self, row: Floats, request: Request) -> tuple[Doubles, Request]:
        """The row after all edits, and the request without them."""
        fault, asked = self.fault, request
        t = request.temperature or 1.0
        if fault == "repetition of output alone":
            asked = dataclasses.replace(asked, prompt=())
        if fault == "penalties of the prompt":
            asked = dataclasses.replace(asked, output=(*asked.prompt, *asked.output))
        if fault == "frequency once":
            asked = dataclasses.replace(
                asked, frequency_penalty=0.0, presence_penalty=asked.frequency_penalty + asked.presence_penalty
            )
        if fault == "presence counts":
            asked = dataclasses.replace(
                asked, presence_penalty=0.0, frequency_penalty=asked.frequency_penalty + asked.presence_penalty
            )
        if fault == "penalties after temperature":
            asked = dataclasses.replace(
                asked, frequency_penalty=asked.frequency_penalty * t, presence_penalty=asked.presence_penalty * t
            )
        if fault == "bias after temperature":
            asked = dataclasses.replace(asked, logit_bias={token: bias * t for token, bias in asked.logit_bias.items()})
        if fault in ("masks subtract 5", "masks after filters"):
            asked = dataclasses.replace(asked, allowed=None)
        source = row
        if fault == "penalties revive" and request.output:
            source = np.maximum(row, -1.0)
        z = edited(source, asked)
        if fault == "repetition counts":
            z = edited(z, Request(repetition_penalty=asked.repetition_penalty, output=asked.output[:1]))
        if fault == "bias replaces":
            for token, bias in asked.logit_bias.items():
                z[token] = bias
        if fault == "masks subtract 5" and request.allowed is not None:
            z[[token for token in range(row.size) if token not in request.allowed]] -= 5
        rest = Request(temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p)
        return z, rest if fault != "masks after filters" else dataclasses.replace(rest, allowed=request.allowed)

    def filtered(self, z: Doubles, request: Request) -> Doubles:
        """The probabilities after the filters."""
        fault, of = self.fault, Engine()
        if fault == "top-k beyond the vocabulary raises" and request.top_k > z.size:
            raise ValueError("top_k")
        if fault == "top-k keeps k + 1" and request.top_k:
            request = dataclasses.replace(request, top_k=request.top_k + 1)
        if fault == "top-k keeps ties" and request.top_k:
            z = np.where(z < np.sort(z)[-request.top_k], -np.inf, z)
            request = dataclasses.replace(request, top_k=0)
        if fault == "top-p with twice the mass":
            request = dataclasses.replace(request, top_p=min(1.0, 2 * request.top_p))
        if fault == "min-p relative to 1":
            request = dataclasses.replace(request, min_p=request.min_p / softmax(z / request.temperature).max())
        of.joint = fault == "top-p beside top-k"
        of.temperature_last = fault == "filters at temperature 1"
        p = law(z, dataclasses.replace(request, allowed=None), of)
        if fault == "top-p ends before the mass" and request.top_p < 1:
            p[np.flatnonzero(p)[np.argsort(p[p > 0], kind="stable")[0]]] = 0
        if request.allowed is not None:
            p[[token for token in range(z.size) if token not in request.allowed]] = 0
        if fault == "probabilities below 1e-5 are lost":
            p[p < 1e-5] = 0
        if fault == "a token five per cent too often":
            p[int(p.argmax())] *= 1.05
        if fault == "ids behind 31500 are lost":
            p[31500:] = 0
        return np.asarray(p / p.sum() if p.sum() else p, np.float64)

    def verify(
        self, target: Floats, drafts: Sequence[Sequence[int]], probs: Floats | None, requests: Sequence[Request]
    ) -> list[list[int]]:
        return [
            self.judged(rows, ids, None if probs is None else probs[number], request)
            for number, (rows, ids, request) in enumerate(zip(target, drafts, requests))
        ]

    def judged(self, rows: Floats, drafts: Sequence[int], probs: Floats | None, request: Request) -> list[int]:
        """The emitted tokens: coupled without probabilities, by rejection with them."""
        seed, emitted = self.seed(request, 0), list(request.output)
        if self.fault == "drafts have a seed of their own":
            seed += 1 << 50
        start = len(emitted)
        if self.fault == "positions start again":
            seed = request.seed if request.seed is not None else seed
        asked = dataclasses.replace(request, top_k=0) if self.fault == "drafts without filters" else request
        if self.fault == "drafts without temperature" and request.temperature:
            asked = dataclasses.replace(request, temperature=1.0)
        for place, row in enumerate(rows):
            p = self.law(row, dataclasses.replace(asked, output=tuple(emitted)))
            draft = drafts[place] if place < len(drafts) else -1
            u = self.random(seed, start + place)
            if self.fault == "all drafts are accepted" and draft >= 0:
                emitted.append(draft)
            elif probs is None or draft < 0 or request.temperature == 0:
                emitted.append(self.drawn(p, u))
            elif uniform(seed, place, 1) * probs[place][draft] < p[draft]:
                emitted.append(draft)
            else:
                rest = np.maximum(p - probs[place], 0) if self.fault != "nothing is subtracted after a rejection" else p
                emitted.append(self.drawn(rest, u))
                break
            if emitted[-1] != draft:
                break
        return emitted[start:]

    @staticmethod
    def drawn(p: Doubles, u: float) -> int:
        sums = np.cumsum(p)
        return int(np.searchsorted(sums, u * sums[-1], side="right"))
