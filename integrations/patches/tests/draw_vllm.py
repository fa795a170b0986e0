"""Draws with the sampler of a patched vLLM's runner V2, without a GPU: its pools lie in ordinary memory, and nothing edits logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample import states
from vllm.v1.worker.gpu.sample.sampler import Sampler

import gumball

VOCAB, SLOTS = 3000, 16


class Backed:
    """Of vLLM's `UvaBackedTensor` what samplers use."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.gpu = torch.zeros(size, dtype=dtype)
        self.np = self.gpu.numpy()

    def copy_to_uva(self) -> None:
        """Nothing: there is one memory."""


class Edits:
    """An editor of logits that some requests need: it bans id 0."""

    def add_request(self, req_idx: int, params: Any) -> bool:
        """Whether the request needs it."""
        return bool(params.extra_args)

    def apply(self, logits: torch.Tensor, _: Any) -> torch.Tensor:
        """Bans the id in all rows."""
        logits[:, 0] = -torch.inf
        return logits


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_p": 0.9, "seed": -3},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "seed": 2**63 - 1},
    {"temperature": 0.9, "min_p": 0.1, "seed": 11},
]


def sampler_of(speculates: bool = False, masks: bool = False) -> Any:
    """A sampler, whose constructor would want a whole engine's configuration for its other states."""
    states.UvaBackedTensor = Backed
    made: Any = object.__new__(Sampler)
    nothing = SimpleNamespace(add_request=lambda *_: False, apply=lambda *_: None)
    for name in ("PenaltiesState", "LogitBiasState", "BadWordsState", "LogprobTokenIdsState", "ThinkingBudgetState"):
        Sampler.__init__.__globals__[name] = lambda *_: nothing
    Sampler.__init__.__globals__["LogitsProcRequestState"] = SimpleNamespace(from_request_state=lambda _: None)
    config = SimpleNamespace(speculative_config=object() if speculates else None, reasoning_config=None)
    Sampler.__init__(made, config, SLOTS, VOCAB, torch.device("cpu"), None, return_sampling_mask=masks)
    made.logits_processors = [Edits()]
    return made


def main() -> None:
    """Compares each row's token with the one that `gumball.Sampler` draws alone."""
    assert sampler_of().use_gumball
    assert not sampler_of(speculates=True).use_gumball and not sampler_of(masks=True).use_gumball
    sampler = sampler_of()
    slots = [4, 0, 9, 15, 2]
    lengths = [7, 1, 30, 2, 1000]
    logits = torch.randn(len(KINDS), VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    logits[:, 0] = 25.0
    for banned in (False, True):
        for slot, kind in zip(slots, KINDS, strict=True):
            sampler.add_request(slot, SamplingParams(**kind, extra_args={"ban": 1} if banned else None))
        index = torch.tensor(slots, dtype=torch.int32)
        position = torch.tensor(lengths) - 1
        rows = logits.clone()
        numpy_index = np.array(slots)
        given = (rows, index, index, numpy_index, position, None, None, np.array(lengths))
        tokens, _ = sampler.sample(*given)
        assert torch.equal(rows, logits), "the logits as they came are what raw logprobs are of"
        own = logits.clone()
        if banned:
            own[:, 0] = -torch.inf
        for row, (kind, length) in enumerate(zip(KINDS, lengths, strict=True)):
            ours = kind | {"seed": kind.get("seed", 0) % 2**64}
            params = gumball.SamplingParams(**ours, order=["min_p", "top_k", "top_p"])
            alone = gumball.Sampler(params, VOCAB, prompt=[1] * length).sample(own[row].numpy())
            assert int(tokens[row]) == alone, (banned, kind)
    print("equal")


if __name__ == "__main__":
    main()
