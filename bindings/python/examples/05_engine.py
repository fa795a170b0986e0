"""An engine in one screen: requests are admitted, stepped, drafted for, verified, streamed, preempted and released, over a model of torch.

    python 05_engine.py

What a request writes depends on its own prompt, parameters and seed alone: the last lines compare each text with the one that the request
writes alone. A model with a cache keeps of it, after a verification, the rows that `Outputs.request(i).rows` names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gumball import Pool, SamplingParams, State

VOCAB, STOP, SLOTS, DRAFTS, MOST = 500, 0, 4, 3, 40
torch.manual_seed(1)
EMBEDDING, HEAD = torch.randn(VOCAB, 64), torch.randn(64, VOCAB)


def model(ids: list[int], rows: int = 1, width: int = 32) -> torch.Tensor:
    """Logits after each of the last ids, [rows, VOCAB]. Your model goes here, and your draft model where the width is 6."""
    seen = [EMBEDDING[ids[max(0, end - width) : end]].flip(0) for end in range(len(ids) - rows + 1, len(ids) + 1)]
    return torch.stack([(x * 0.5 ** torch.arange(len(x))[:, None]).sum(0) @ HEAD / 2 for x in seen])


@dataclass
class Request:
    name: str
    prompt: list[int]
    params: SamplingParams
    state: State | None = None  # Of a request that was preempted.
    slot: int = -1


class Engine:
    def __init__(self, requests: list[Request]) -> None:
        self.pool = Pool(VOCAB, slots=SLOTS)  # device="cuda:0", rows=SLOTS * (DRAFTS + 1) draws the same tokens.
        self.waiting, self.running, self.steps = requests, list[Request](), 0

    def schedule(self) -> None:
        """Fills the slots; in every fifth step the oldest request gives way, as if the model's cache were full."""
        self.steps += 1
        if self.steps % 5 == 0 and self.waiting and len(self.running) == SLOTS:
            oldest = self.running[0]
            oldest.state = self.pool.state(oldest.slot)  # Resumes here, or in a pool on another machine.
            self.release(oldest)
            self.waiting.append(oldest)
        while self.waiting and len(self.running) < SLOTS:
            new = self.waiting.pop(0)
            if new.state is None:
                new.slot = self.pool.admit(new.params, new.prompt)
            else:
                new.slot = self.pool.resume(new.params, new.state)
            self.running.append(new)

    def release(self, request: Request) -> None:
        self.pool.release(request.slot)
        self.running.remove(request)

    def step(self) -> Iterator[tuple[str, list[int]]]:
        """Advances each running request by a token or more, and streams the new tokens."""
        self.schedule()
        slots = [request.slot for request in self.running]
        texts = [request.prompt + self.pool.output(request.slot) for request in self.running]
        if len(slots) == SLOTS:  # Enough rows to keep a device busy: drafts are for fewer.
            tokens = self.pool.step(torch.cat([model(text) for text in texts]), slots).tokens
            emitted = [[int(token)] for token in tokens]
        else:
            paths: list[list[int]] = [[] for _ in slots]
            for _ in range(DRAFTS):
                rows = torch.cat([model(text + path, width=6) for text, path in zip(texts, paths)])
                for path, drafts in zip(paths, self.pool.draft(rows, slots, paths).tolist()):
                    path += drafts
            rows = torch.cat([model(text + path, DRAFTS + 1) for text, path in zip(texts, paths)])
            emitted = self.pool.verify(rows, slots, paths).emitted()
        for request, text, new in zip(list(self.running), texts, emitted):
            room = MOST - (len(text) - len(request.prompt))
            new = new[: min(room, new.index(STOP) + 1 if STOP in new else room)]
            yield request.name, new
            if STOP in new or len(new) == room:
                self.release(request)


def texts_of(requests: list[Request]) -> dict[str, list[int]]:
    engine, texts = Engine(requests), {request.name: list[int]() for request in requests}
    while engine.running or engine.waiting:
        for name, tokens in engine.step():
            texts[name] += tokens  # Sent to its client here.
    return texts


def requests() -> list[Request]:
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(seed=7),
        SamplingParams(seed=8, top_p=0.9, repetition_penalty=1.2),
        SamplingParams(seed=9, min_p=0.02),
    ]
    return [Request(f"request {i}", [i + 1, 2, 3], kinds[i % 4]) for i in range(6)]


together = texts_of(requests())
for request in requests():
    assert texts_of([request])[request.name] == together[request.name]
    print(request.name, together[request.name])
