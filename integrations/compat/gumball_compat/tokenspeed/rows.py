"""TokenSpeed's operators on whole rows: filters on probabilities, the first of the largest logits, a token's logprob."""

from __future__ import annotations

import torch

from gumball import operators

__all__ = [
    "argmax",
    "argmax_pair",
    "fused_topk_topp_available",
    "fused_topk_topp_prepare",
    "fused_topk_topp_renorm",
    "fused_topk_topp_workspace_size",
    "min_p_renorm_prob",
    "selected_token_logprobs",
]

fused_topk_topp_available = True

# What a workspace holds: 16 bytes for each tile of 256 tokens.
_TILE = 256
_RECORD = 16


def fused_topk_topp_renorm(
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """Returns what top-k and then top-p keep of each row of probabilities, scaled to a sum of 1, and 0 elsewhere.

    probs: [rows, vocab] float32. top_ks: [rows] int32; off from the vocabulary up, for example 1 << 30; any smaller k
    is allowed. top_ps: [rows] float32. out: [rows, vocab] float32. workspace and enable_pdl have no effect. Raises
    the errors of :func:`gumball.probabilities`.
    """
    return operators.probabilities(probs, kind="probabilities", top_k=top_ks, top_p=top_ps, out=out)


def fused_topk_topp_workspace_size(batch_size: int, vocab_size: int) -> int:
    """Returns a size in bytes for a workspace: positive, and larger for more rows and for a larger vocabulary.

    The operator keeps memory of its own; a workspace that is handed in is not read or written.
    """
    return _RECORD * (1 + max(batch_size, 0) * -(-max(vocab_size, 0) // _TILE))


def fused_topk_topp_prepare(device: torch.device | str | int) -> None:
    """Prepares calls within a graph's capture: nothing to do."""


def min_p_renorm_prob(probs: torch.Tensor, min_p: torch.Tensor, *, enable_pdl: bool | None = None) -> torch.Tensor:
    """Returns the probabilities of at least min_p times their row's largest, scaled to a sum of 1, and 0 elsewhere.

    probs: [rows, vocab]; the result has its type. min_p: [rows] float32 in 0..=1. enable_pdl has no effect. Raises
    ValueError for other shapes, and the errors of :func:`gumball.probabilities`.
    """
    if probs.ndim != 2 or min_p.shape != probs.shape[:1]:
        found = f"{tuple(probs.shape)} and {tuple(min_p.shape)}"
        raise ValueError(f"probs and min_p have shapes {found}, but must have [rows, vocab] and [rows]")
    return operators.probabilities(probs, kind="probabilities", min_p=min_p)


def argmax(
    logits: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    solution: str | None = None,
    override: str | None = None,
) -> torch.Tensor:
    """Returns the smallest id of each row's largest logits, [rows] int64, or in `out`, int32 or int64.

    logits: [rows, vocab] float32, bfloat16 or float16; or a row alone, [vocab], whose id has the shape (). NaN counts as -inf; a row without a
    logit above -inf gets 0, so that what indexes with an id finds it there.
    solution and override have no effect. Raises ValueError for an `out` of another shape, type or device, and the
    errors of :func:`gumball.sample`.
    """
    if out is not None and (
        out.shape != logits.shape[:-1] or out.dtype not in (torch.int32, torch.int64) or out.device != logits.device
    ):
        found = f"{tuple(out.shape)} {out.dtype} on {out.device}"
        wanted = f"{tuple(logits.shape[:-1])} int32 or int64 on {logits.device}"
        raise ValueError(f"out is {found}, but must be {wanted}")
    if out is None:
        out = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    if out.numel() == 0:
        return out
    dtype = "int64" if out.dtype is torch.int64 else "int32"
    drawn: torch.Tensor = operators.sample(logits, temperature=0.0, seed=0, position=0, draw=0, dtype=dtype)
    torch.clamp(drawn.view(out.shape), min=0, out=out)
    return out


def argmax_pair(logits: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns each row's largest logit and its smallest id, both as float32: [rows, 2].

    A row without a logit above -inf gets -inf and 0. Raises ValueError for logits that are not [rows, vocab] and for
    another `out`, and the errors of argmax.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits has {logits.ndim} dimensions, but must have 2")
    shape = (logits.shape[0], 2)
    if out is None:
        out = logits.new_empty(shape, dtype=torch.float32)
    elif out.shape != shape or out.dtype is not torch.float32 or out.device != logits.device:
        found = f"{tuple(out.shape)} {out.dtype} on {out.device}"
        raise ValueError(f"out is {found}, but must be {shape} float32 on {logits.device}")
    ids = argmax(logits)
    largest = logits.gather(1, ids.unsqueeze(1)).squeeze(1).to(torch.float32)
    # NaN counts as -inf.
    out[:, 0] = torch.where(largest.isnan(), -torch.inf, largest)
    out[:, 1] = ids
    return out


def selected_token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the logprob of one token of each row, at temperature 1: [rows] float32, in `out[:rows]` if that is given.

    logits: [rows, vocab]. tokens: rows ids, int32 or int64, in any shape. -inf for a token whose logit is -inf or NaN, for an id
    outside the vocabulary, and in a row without a logit above -inf. They are those of :func:`gumball.selected_logprobs`, and on a
    GPU the call waits for nothing. Raises ValueError for another number of tokens, and
    for another type or a smaller `out`.
    """
    if logits.ndim != 2 or tokens.numel() != logits.shape[0] or tokens.dtype not in (torch.int32, torch.int64):
        found = f"{tuple(logits.shape)}, and tokens {tuple(tokens.shape)} {tokens.dtype}"
        raise ValueError(f"logits has shape {found}, but must have [rows, vocab], and tokens rows int32 or int64")
    rows, vocab = logits.shape
    if out is None:
        out = logits.new_empty(rows, dtype=torch.float32)
    elif out.ndim != 1 or out.dtype is not torch.float32 or out.shape[0] < rows:
        raise ValueError(f"out is {tuple(out.shape)} {out.dtype}, but must have at least {rows} float32")
    if rows == 0:
        return out[:0]
    tokens = tokens.reshape(rows).to(torch.int64)
    there = (tokens >= 0) & (tokens < vocab)
    operators.selected_logprobs(logits, torch.where(there, tokens, -1), out=out[:rows])
    return out[:rows]
