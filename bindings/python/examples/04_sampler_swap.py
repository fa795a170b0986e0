"""Where a serving engine has its sampler: logits of the running batch in, tokens out, in some thirty lines.

    python 04_sampler_swap.py

An engine's sampler stage gets tensors of temperatures, top-k and top-p for whatever batch the scheduler made. Here a request
brings its parameters once, when it arrives, and the scheduler's batch is a list of slots. What is left of the stage:
"""

from __future__ import annotations

import torch

from gumball import Batch, Pool, SamplingParams, Step
from gumball.torch import tokens_of


class Sampler:
    """The sampler of an engine, by the engine's own request ids."""

    def __init__(self, vocab: int, device: str, most: int = 256) -> None:
        self.pool = Pool(vocab, device=device, slots=most, rows=most)
        self.slots: dict[str, int] = {}

    def add(self, request: str, prompt: list[int], **params: object) -> None:
        """A request arrives. The names are vLLM's and SGLang's."""
        self.slots[request] = self.pool.admit(SamplingParams(**params), prompt)  # type: ignore[arg-type]

    def finish(self, request: str) -> None:
        """A request ends, or is aborted."""
        self.pool.release(self.slots.pop(request))

    def __call__(self, logits: torch.Tensor, batch: list[str], bitmask: torch.Tensor | None = None) -> torch.Tensor:
        """The next tokens of the scheduler's batch, [rows] int32 on the device; nothing waits.

        logits: [rows, vocab]. bitmask: [rows, words] int32, as xgrammar and llguidance fill it.
        """
        # Masks in device memory are given with the work, masks in host memory with the assignment.
        slots, there = [self.slots[request] for request in batch], bitmask is not None and bitmask.is_cuda
        self.pool.assign(Batch(slots, masks=None if there else bitmask))
        self.pool.enqueue([Step(logits, masks=bitmask if there else None)])
        return tokens_of(self.pool)


if __name__ == "__main__":
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    sampler = Sampler(1000, device)
    sampler.add("a", [1, 2], temperature=0.8, top_p=0.9, seed=1)
    sampler.add("b", [3], temperature=0, frequency_penalty=0.5)
    for batch in (["a", "b"], ["b", "a"], ["a"]):
        print(batch, sampler(torch.randn(len(batch), 1000, device=device), batch).tolist())
    sampler.finish("b")
