"""What FlashInfer's functions cost on a GPU, ours under their names and FlashInfer's own where it is installed: `cost_of_names.py [FILE.json]`.

The times are those of cost_of_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import cost_of_calls as cost
from gumball_compat.flashinfer import sampling as compat


def calls(rows: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    logits, column = 2 * torch.randn(rows, cost.VOCAB, device="cuda"), torch.full((rows,), 0.8, device="cuda")
    ks, probs = torch.full((rows,), 50, device="cuda"), torch.softmax(logits, -1)
    target, draft = (torch.rand(rows, count, cost.VOCAB, device="cuda") for count in (4, 3))
    drafts = torch.zeros(rows, 3, device="cuda", dtype=torch.int32)
    given = {"seed": torch.tensor([7], device="cuda"), "offset": torch.tensor([0], device="cuda")}
    counts = [torch.zeros(rows, device="cuda", dtype=torch.int32) for _ in range(2)]
    found: dict[str, Callable[[], Any]] = {
        "compat softmax": lambda: compat.softmax(logits, column),
        "compat sampling_from_probs": lambda: compat.sampling_from_probs(probs, **given),
        "compat sampling_from_probs, a generator": lambda: compat.sampling_from_probs(probs),
        "compat top_k_sampling_from_probs": lambda: compat.top_k_sampling_from_probs(probs, ks, **given),
        "compat top_k_top_p_sampling_from_probs": lambda: compat.top_k_top_p_sampling_from_probs(
            probs, ks, column, **given
        ),
        "compat top_k_renorm_probs": lambda: compat.top_k_renorm_probs(probs, ks),
        "compat chain_speculative_sampling": lambda: compat.chain_speculative_sampling(
            draft, drafts, target, *counts, **given
        ),
    }
    try:
        from flashinfer import sampling
    except ImportError:
        return found
    return found | {
        "flashinfer softmax": lambda: sampling.softmax(logits, column),
        "flashinfer sampling_from_logits": lambda: sampling.sampling_from_logits(logits),
        "flashinfer sampling_from_probs": lambda: sampling.sampling_from_probs(probs),
        "flashinfer top_k_top_p_sampling_from_probs": lambda: sampling.top_k_top_p_sampling_from_probs(probs, 50, 0.9),
    }


if __name__ == "__main__":
    cost.main(calls)
