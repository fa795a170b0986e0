"""TokenSpeed's penalties and bias over counts that lie in a pool by request, in operators of torch.

A :class:`gumball.Pool` needs neither: it counts by itself, and edits the few logits that penalties touch when it reads a row.
"""

from __future__ import annotations

import torch

from .draws import check_requests

__all__ = ["accumulate_counts_inplace", "apply_penalties_logit_bias_inplace"]


def apply_penalties_logit_bias_inplace(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    counts: torch.Tensor,
    logit_bias: torch.Tensor,
    freq_pen_pool: torch.Tensor,
    pres_pen_pool: torch.Tensor,
    rep_pen_pool: torch.Tensor,
    *,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Edits logits in their place, and returns them: repetition, frequency, presence, bias, in this sequence, in float32.

    logits: [requests * num_tokens_per_req, vocab]. counts: [pool, vocab] integers, how often each id has come; logit_bias:
    [pool, vocab]; the others [pool]. Ids that have not come keep their logit, but for the bias. Each result is rounded to
    the logits' type once. A logit of -inf stays. Raises ValueError for shapes that do not fit.
    """
    if logits.ndim != 2 or counts.ndim != 2 or logit_bias.ndim != 2:
        raise ValueError("logits, counts and logit_bias must have 2 dimensions")
    (rows, vocab), n = logits.shape, num_tokens_per_req
    check_requests(req_pool_indices, rows, n)
    if counts.shape[1] < vocab or logit_bias.shape[1] < vocab:
        widths = f"{counts.shape[1]} and {logit_bias.shape[1]} ids"
        raise ValueError(f"counts and logit_bias have {widths}, but must have those of logits, {vocab}")
    index = req_pool_indices.to(torch.int64)

    def of_request(pool: torch.Tensor) -> torch.Tensor:
        return pool.index_select(0, index).to(torch.float32).view(-1, 1, 1)

    seen = counts.index_select(0, index)[:, :vocab].unsqueeze(1).to(torch.float32)
    repetition = of_request(rep_pen_pool)
    z = logits.view(rows // n, n, vocab).to(torch.float32)
    z = torch.where(seen > 0, torch.where(z > 0, z / repetition, z * repetition), z)
    z = z - of_request(freq_pen_pool) * seen
    z = torch.where(seen > 0, z - of_request(pres_pen_pool), z)
    z = z + logit_bias.index_select(0, index)[:, :vocab].unsqueeze(1).to(torch.float32)
    logits.copy_(z.view(rows, vocab))
    return logits


def accumulate_counts_inplace(
    counts: torch.Tensor, pool_idx: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor
) -> None:
    """Adds weights to `counts[pool_idx, tokens]`, [pool, vocab] integers; the same place may come more than once.

    pool_idx, tokens, weights: as many integers each. Ids outside the vocabulary are left out. Raises ValueError for
    other shapes.
    """
    total = tokens.numel()
    if counts.ndim != 2 or pool_idx.numel() != total or weights.numel() != total:
        found = f"{counts.ndim} dimensions and {pool_idx.numel()}, {total}, {weights.numel()} elements"
        raise ValueError(f"counts and pool_idx, tokens, weights have {found}, but must have 2 and as many of each")
    tokens, weights = tokens.reshape(-1).to(torch.int64), weights.reshape(-1).to(counts.dtype)
    there = (tokens >= 0) & (tokens < counts.shape[1])
    places = pool_idx.reshape(-1).to(torch.int64), torch.where(there, tokens, 0)
    counts.index_put_(places, torch.where(there, weights, 0), accumulate=True)
