"""An engine in one screen: requests come, draft, are verified, stream, are preempted and end, over a model of torch.

    python 05_engine.py

A model with a cache keeps of it the rows that `Outputs.request(i).rows` names. What a request writes depends on its own prompt, parameters and
seed alone: the last lines compare each text with the one that the request writes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gumball import Pool, SamplingParams, State

VOCAB, STOP, DRAFTS = 500, 0, 3
torch.manual_seed(1)
EMBEDDING, HEAD = torch.randn(VOCAB, 64), torch.randn(64, VOCAB)


def model(ids: list[int], rows: int, width: int = 32) -> torch.Tensor:
    """Logits after each of the last ids, [rows, VOCAB]; an id counts half as much as the one after it. Yours goes here."""
    ends = range(len(ids) - rows + 1, len(ids) + 1)
    seen = [EMBEDDING[ids[max(0, end - width) : end]].flip(0) for end in ends]
    return torch.stack([(x * 0.5 ** torch.arange(len(x))[:, None]).sum(0) @ HEAD / 2 for x in seen])


def drafter(ids: list[int]) -> torch.Tensor:
    return model(ids, 1, width=6)


@dataclass
class Request:
    name: str
    prompt: list[int]
    params: SamplingParams
    most: int = 40
    state: State | None = None  # Of a request that was preempted.
    slot: int = -1


class Engine:
    def __init__(self, most_running: int, requests: list[Request]) -> None:
        self.pool = Pool(VOCAB, slots=most_running, rows=most_running * (DRAFTS + 1))
        self.most_running, self.waiting, self.running = most_running, requests, list[Request]()

    def preempt(self, request: Request) -> None:
        """Takes a request's slot away; it goes on later, here or in a pool on another machine."""
        request.state = self.pool.state(request.slot)
        self.end(request)
        self.waiting.insert(0, request)

    def end(self, request: Request) -> None:
        self.pool.release(request.slot)
        self.running.remove(request)

    def step(self) -> Iterator[tuple[str, list[int]]]:
        """Advances each running request by a token or more, and yields its new tokens."""
        pool = self.pool
        while self.waiting and len(self.running) < self.most_running:
            request = self.waiting.pop(0)
            request.slot = (
                pool.admit(request.params, request.prompt)
                if request.state is None
                else pool.resume(request.params, request.state)
            )
            self.running.append(request)
        slots = [request.slot for request in self.running]
        texts = [request.prompt + pool.output(request.slot) for request in self.running]
        paths: list[list[int]] = [[] for _ in slots]
        for _ in range(DRAFTS):
            rows = torch.cat([drafter(text + path) for text, path in zip(texts, paths)])
            for path, drafts in zip(paths, pool.draft(rows, slots, paths).tolist()):
                path += drafts
        rows = torch.cat([model(text + path, DRAFTS + 1) for text, path in zip(texts, paths)])
        for request, text, new in zip(list(self.running), texts, pool.verify(rows, slots, paths).emitted()):
            room = request.most - (len(text) - len(request.prompt))
            new = new[: min(room, new.index(STOP) + 1 if STOP in new else room)]
            yield request.name, new
            if STOP in new or len(new) == room:
                self.end(request)


def texts_of(most_running: int, requests: list[Request]) -> dict[str, list[int]]:
    engine, texts, step = Engine(most_running, list(requests)), {request.name: list[int]() for request in requests}, 0
    while engine.running or engine.waiting:
        for name, tokens in engine.step():
            texts[name] += tokens
        step += 1
        if step % 5 == 0 and engine.running and len(requests) > 1:
            engine.preempt(engine.running[0])
    return texts


def requests() -> list[Request]:
    kinds = [
        dict(temperature=0),
        dict(seed=7),
        dict(seed=8, top_p=0.9, repetition_penalty=1.2),
        dict(seed=9, min_p=0.02),
    ]
    return [Request(f"request {i}", [i + 1, 2, 3], SamplingParams(**kinds[i % 4])) for i in range(6)]  # type: ignore[arg-type]


together = texts_of(4, requests())
for request in requests():
    assert texts_of(1, [request])[request.name] == together[request.name]
    print(request.name, together[request.name])
