"""Gumball: a pool on the CPU, to which each request is admitted on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gumball
from gumball import Batch, Drafts

from ..engine import FEATURES, Drawn, Engine, Floats, Request


class Gumball(Engine):
    name = "Gumball"
    remark = "A pool on the CPU. Drafts with probabilities are judged by `rejection`, those without by `coupled`."
    version = version("gumball")
    features = frozenset(FEATURES)
    logprobs = "processed"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.started = 0

    def start(self, seed: int) -> None:
        self.started = seed << 40

    def pool(self, vocab: int, requests: Sequence[Request]) -> tuple[gumball.Pool, list[int]]:
        top = max([request.logprobs or 0 for request in requests])
        pool = gumball.Pool(vocab, slots=len(requests), rows=8 * len(requests), top_n=top, **self.options)
        slots = [pool.admit(self.params(request), list(request.prompt)) for request in requests]
        for slot, request in zip(slots, requests):
            for token in request.output:
                pool.push(slot, token)
        return pool, slots

    def params(self, request: Request) -> gumball.SamplingParams:
        self.started += 1
        top = request.logprobs
        return gumball.SamplingParams(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            seed=self.started if request.seed is None else request.seed,
            repetition_penalty=request.repetition_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            logit_bias=dict(request.logit_bias),
            logprobs=None if top is None else gumball.LogprobsParams(mode=self.logprobs, top_n=top),
        )

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        pool, slots = self.pool(logits.shape[2], requests)
        given = [request.allowed is not None for request in requests]
        masks = (
            np.stack([_mask(request.allowed or (), logits.shape[2]) for request in requests]) if any(given) else None
        )
        for step in logits:
            out = pool.step(step, Batch(slots, masks=masks, mask_present=None if masks is None else given))
            top = [tuple(zip(ids, probs)) for ids, probs in zip(out.top_ids.tolist(), out.top_logprobs.tolist())]
            yield [Drawn(*drawn) for drawn in zip(out.tokens.tolist(), out.logprobs.tolist(), top or [()] * len(slots))]

    def verify(
        self, target: Floats, drafts: Sequence[Sequence[int]], probs: Floats | None, requests: Sequence[Request]
    ) -> Sequence[Sequence[int]]:
        pool, slots = self.pool(target.shape[2], requests)
        whole = None
        if probs is not None:  # A row for each row of logits, of which the last of a request is not read.
            whole = np.concatenate([probs, probs[:, -1:]], axis=1).reshape(-1, target.shape[2])
        mode = "coupled" if probs is None else "rejection"
        rows = target.reshape(-1, target.shape[2])
        emitted: Sequence[Sequence[int]]
        emitted = pool.verify(rows, Batch(slots, mode=mode), Drafts(list(drafts), probs=whole)).emitted()
        return emitted


def _mask(allowed: Sequence[int], vocab: int) -> NDArray[np.uint32]:
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words
