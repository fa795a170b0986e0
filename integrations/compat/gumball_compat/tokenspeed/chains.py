"""TokenSpeed's verification operators: drafts against tokens of the target that have been drawn already.

Outputs are written in their place, as TokenSpeed writes them; elements that it leaves alone stay as they are. All is done in
operators of torch, which wait for nothing and can be captured. A :class:`gumball.Pool` draws and verifies in one call.
"""

from __future__ import annotations

import torch

from gumball.plugins.walks import accepted_in_chains, accepted_in_trees, packed

__all__ = ["verify_chain_greedy", "verify_chain_target_sampled", "verify_tree"]


def _check(name: str, found: int, wanted: int) -> None:
    if found < wanted:
        raise ValueError(f"{name} has {found} elements, but must have at least {wanted}")


def _check_outputs(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    target: torch.Tensor,
) -> tuple[int, int]:
    if candidates.ndim != 2 or candidates.shape[1] < 1:
        raise ValueError(f"candidates has shape {tuple(candidates.shape)}, but must have [requests, nodes]")
    requests, nodes = candidates.shape
    if accept_index.shape != candidates.shape:
        found, wanted = tuple(accept_index.shape), tuple(candidates.shape)
        raise ValueError(f"accept_index has shape {found}, but must have that of candidates, {wanted}")
    _check("predicts", predicts.numel(), requests * nodes)
    _check("accept_token_num", accept_token_num.numel(), requests)
    _check("the target's tokens", target.numel(), requests * nodes)
    return requests, nodes


def verify_chain_target_sampled(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    target_sampled: torch.Tensor,
    *,
    enable_pdl: bool | None = None,
) -> None:
    """Accepts the drafts of chains while they equal the target's tokens.

    candidates: [requests, nodes] ids: the last verified token, then the drafts. target_sampled: [requests * nodes] ids, the
    target's token behind each candidate. Written are, for a request whose nodes begin at place `base`, with a drafts
    accepted: `predicts[base .. base + a]`, the target's tokens; `accept_index[request, .. a]`, the places base to
    base + a; `accept_token_num[request]`, a. Raises ValueError for shapes that do not fit. enable_pdl has no effect.
    """
    requests, nodes = _check_outputs(predicts, accept_index, accept_token_num, candidates, target_sampled)
    picks = target_sampled.reshape(-1)[: requests * nodes].view(requests, nodes)
    accepted = accepted_in_chains(candidates, picks)
    lines = predicts[: requests * nodes].view(requests, nodes)
    lines.copy_(torch.where(accepted, picks.to(predicts.dtype), lines))
    places = torch.arange(requests * nodes, device=candidates.device).view(requests, nodes).to(accept_index.dtype)
    accept_index.copy_(torch.where(accepted, places, accept_index))
    accept_token_num[:requests] = accepted.sum(1) - 1


def verify_chain_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    target_predict: torch.Tensor,
    batch_size: int,
    num_draft_tokens: int,
    enable_pdl: bool | None = None,
) -> None:
    """Accepts the drafts of chains while they equal the target's largest logits' ids, target_predict.

    candidates: [batch_size, num_draft_tokens]. Otherwise as verify_chain_target_sampled, which this is. Raises ValueError for
    candidates of another shape.
    """
    if tuple(candidates.shape) != (batch_size, num_draft_tokens):
        found = tuple(candidates.shape)
        raise ValueError(f"candidates has shape {found}, but must have ({batch_size}, {num_draft_tokens})")
    verify_chain_target_sampled(predicts, accept_index, accept_token_num, candidates, target_predict)


def verify_tree(
    predicts: torch.Tensor,
    accept_length: torch.Tensor,
    path: torch.Tensor,
    candidates: torch.Tensor,
    parent: torch.Tensor,
    target: torch.Tensor,
) -> None:
    """Accepts the path of drafts in trees along which each equals the target's token after its parent.

    candidates, parent, path: [requests, nodes]; node 0 is the root, each other's parent a node before it. Of siblings with
    one token the first counts. target: [requests * nodes] ids. Written are `predicts`, the target's tokens along the path, at the
    front of a request's places; `accept_length`, their number; `path`, the numbers of their nodes, then -1. Raises ValueError
    for shapes that do not fit.
    """
    requests, nodes = _check_outputs(predicts, path, accept_length, candidates, target)
    picks = target.reshape(-1)[: requests * nodes].view(requests, nodes)
    accepted = accepted_in_trees(candidates, parent, picks)
    packed(accepted, picks, predicts[: requests * nodes].view(requests, nodes))
    path.fill_(-1)
    packed(accepted, torch.arange(nodes, device=path.device).expand(requests, nodes), path)
    accept_length[:requests] = accepted.sum(1)
