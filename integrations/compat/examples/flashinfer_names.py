"""A sampler that was written for FlashInfer and draws with Gumball: its import lines name `gumball_compat.flashinfer`, not `flashinfer`.

    python flashinfer_names.py

The class is what an engine in the style of SGLang or vLLM has between its logits and its tokens.
"""

from __future__ import annotations

import torch

import gumball_compat.flashinfer as flashinfer
from gumball_compat.flashinfer.logits_processor import LogitsPipe, MinP, Sample, Softmax, Temperature


class Sampler:
    """Tensors of parameters, one number for each row of the batch that the scheduler made."""

    def __init__(self, seed: int, device: str) -> None:
        self.seed = torch.tensor([seed], device=device)
        self.offset = torch.zeros(1, dtype=torch.int64, device=device)

    def __call__(
        self, logits: torch.Tensor, temperatures: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor
    ) -> torch.Tensor:
        """The next tokens, [rows] int32. Nothing waits for the device, so that it can lie in a CUDA graph."""
        probs = flashinfer.softmax(logits, temperatures)
        tokens = flashinfer.sampling.top_k_top_p_sampling_from_probs(
            probs, top_ks, top_ps, filter_apply_order="joint", seed=self.seed, offset=self.offset
        )
        self.offset += 4
        return tokens


if __name__ == "__main__":
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    sampler, rows = Sampler(7, device), 4
    parameters = (
        torch.linspace(0.6, 1.2, rows, device=device),
        torch.tensor([50, 40, 1, 1000], device=device),
        torch.full((rows,), 0.9, device=device),
    )
    for _ in range(3):
        print(sampler(torch.randn(rows, 1000, device=device) * 3, *parameters).tolist())
    pipe = LogitsPipe([Temperature(), Softmax(), MinP(), Sample()])
    print(pipe(torch.randn(rows, 1000, device=device) * 3, temperature=0.8, min_p=0.05).tolist())
