"""Drafts judged by probabilities with the random numbers that a caller hands in, as SGLang's and TokenSpeed's operators are.

The numbers are not compared with probabilities, as those operators do: their bits are the seed of each request's
judgement, at position 0. Equal numbers give equal tokens, on every machine and in any batch. The tokens are not those that
the other package's kernel would give for these numbers; their distribution is the one that its rule has for uniform numbers.
"""

from __future__ import annotations

import torch

from ..operators import judge

__all__ = ["Keys", "counted", "judged", "seeds_of"]

# The seeds of requests, and their positions.
Keys = tuple[torch.Tensor, torch.Tensor | int]


def seeds_of(uniform_samples: torch.Tensor, uniform_samples_for_final_sampling: torch.Tensor) -> Keys:
    """Returns the seeds of requests, [requests] int64, and position 0.

    uniform_samples: [requests, nodes] float32, of which the first column counts: the low 32 bits. The other:
    [requests] float32, the high 32 bits. Raises ValueError for other shapes and types.
    """
    coins, final = uniform_samples, uniform_samples_for_final_sampling
    if coins.ndim != 2 or final.shape != coins.shape[:1] or coins.shape[1] < 1:
        found = f"{tuple(coins.shape)} and {tuple(final.shape)}"
        raise ValueError(f"the uniform samples have shapes {found}, but must have [requests, nodes] and [requests]")
    if coins.dtype is not torch.float32 or final.dtype is not torch.float32:
        raise ValueError(f"the uniform samples are {coins.dtype} and {final.dtype}, but must be float32")
    high, low = (part.contiguous().view(torch.int32).to(torch.int64) for part in (final, coins[:, 0]))
    return (high << 32) | (low & 0xFFFF_FFFF), 0


def judged(
    draft_probs: torch.Tensor | None,
    drafts: torch.Tensor,
    target_probs: torch.Tensor,
    keys: Keys,
    parents: torch.Tensor | None = None,
    rule: str = "rejection",
    thresholds: tuple[float, float] = (1.0, 1.0),
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Judges trees as :func:`gumball.judge` does; keys: the seed and position of each.

    Returns tokens, [requests, nodes] int32, their rows, which chains have none of, and the number of accepted drafts, [requests] int32. A
    row without a token gives token 0.
    """
    (single, acc), (seed, position) = thresholds, keys
    tokens, rows, accepted, _, _ = judge(
        draft_probs,
        drafts,
        target_probs,
        parents,
        rule=rule,
        threshold_single=single,
        threshold_acc=acc,
        seed=seed,
        position=position,
        draw=0,
        zero_for_none=True,
    )
    return torch.as_tensor(tokens), None if rows is None else torch.as_tensor(rows), counted(accepted)


def counted(counts: torch.Tensor) -> torch.Tensor:
    """Returns counts as a tensor of int32, where they lie."""
    counts = torch.as_tensor(counts)
    return counts.view(torch.int32) if counts.dtype is torch.uint32 else counts
