"""SGLang's operators that judge trees and chains of drafts, of release 0.5.23: names, arguments and outputs.

Outputs are written in their place: a request's accepted nodes, as their places in `predicts`, go to the front of its row
of `accept_index`; to each of these places goes the token that is emitted there, the accepted drafts and one more; the number
of accepted drafts goes to `accept_token_num`. All else stays: callers fill `accept_index` with -1. A row without a
token emits 0. Trees may be linked in any way that makes a tree: nodes are numbered anew before they are judged. Nodes that
would not fit a row of `accept_index` are not judged.

The uniform numbers are the only source of randomness, and serve as seeds: see :mod:`gumball.plugins.judged`.

Nothing waits for a device, and all can be captured in a graph, but for one look at the links on the host. The errors are
those of :func:`gumball.judge`, ValueError for shapes that do not fit, and RefusedError, a ValueError, for
arguments that would have no effect.
"""

from __future__ import annotations

import torch

from gumball.errors import RefusedError
from gumball.plugins.errors import refuse_unless
from gumball.plugins.judged import Keys, judged, seeds_of
from gumball.plugins.walks import accepted_in_trees, in_link_order, packed, write_at

__all__ = [
    "chain_speculative_sampling_target_only",
    "chain_speculative_sampling_triton",
    "judge_chains_at",
    "judge_in_order",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]


_NO_THRESHOLDS = "drafts are judged by the drafter's probabilities, without thresholds; those are of tree_speculative_sampling_target_only"


def _check(
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], candidates: torch.Tensor, **inputs: torch.Tensor
) -> None:
    """Checks the shapes of outputs, and of inputs that must have that of candidates."""
    (predicts, accept_index, accept_token_num), shape = outputs, tuple(candidates.shape)
    if candidates.ndim != 2 or shape[1] < 1:
        raise ValueError(f"candidates has shape {shape}, but must have [requests, nodes]")
    for name, tensor in inputs.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but must have that of candidates, {shape}")
    if predicts.ndim != 1 or len(predicts) < shape[0] * shape[1]:
        raise ValueError(f"predicts has shape {tuple(predicts.shape)}, but must have {shape[0] * shape[1]} elements")
    if accept_index.ndim != 2 or len(accept_index) != shape[0] or accept_index.shape[1] < 1:
        found = tuple(accept_index.shape)
        raise ValueError(f"accept_index has shape {found}, but must have ({shape[0]}, the longest path)")
    if accept_token_num.shape != shape[:1]:
        found = tuple(accept_token_num.shape)
        raise ValueError(f"accept_token_num has shape {found}, but must have ({shape[0]},)")


def _write(
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    places: torch.Tensor,
    tokens: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """Writes paths that lie at the front of each row: places and tokens, [requests, nodes], of accepted drafts and one more."""
    predicts, accept_index, accept_token_num = outputs
    there = torch.arange(places.shape[1], device=places.device) <= accepted.unsqueeze(1)
    write_at(predicts, places.long(), there, tokens)
    packed(there, places, accept_index)
    accept_token_num.copy_(accepted)


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Judges trees by thresholds (rule S7): with both 1 every token has the target's distribution.

    predicts: [requests * nodes] int32; accept_index: [requests, path] int32; accept_token_num: [requests] int32, all
    written. candidates: [requests, nodes] ids, the root's first. retrive_index: their places in `predicts`.
    retrive_next_token, retrive_next_sibling: the first child and next sibling of each, or -1. uniform_samples: [requests,
    nodes] and uniform_samples_for_final_sampling: [requests], float32; the bits of the latter, then those of the
    former's first column, are each request's seed, so that equal numbers give equal tokens, though not SGLang's.
    target_probs: [requests, nodes, vocab] float32. draft_probs: zeros, as SGLang hands in, which the host looks at and a GPU,
    where that would be a wait, does not. deterministic has no effect: all is. On a GPU the rows of target_probs are copied, since nodes may have to be numbered anew.
    """
    outputs = predicts, accept_index, accept_token_num
    links = {"retrive_next_token": retrive_next_token, "retrive_next_sibling": retrive_next_sibling}
    _check(outputs, candidates, retrive_index=retrive_index, uniform_samples=uniform_samples, **links)
    if not draft_probs.is_cuda and draft_probs.any():
        raise RefusedError(
            "draft_probs has numbers other than 0, but must be zeros: the drafter's probabilities do not enter by this rule; "
            "judge chains by them with chain_speculative_sampling_triton"
        )
    order, parents = in_link_order(retrive_next_token, retrive_next_sibling, accept_index.shape[1] - 1)
    if order.is_cuda or not torch.equal(order, torch.arange(order.shape[1]).expand_as(order)):
        target_probs = target_probs.gather(1, order.unsqueeze(2).expand_as(target_probs))
    keys = seeds_of(uniform_samples, uniform_samples_for_final_sampling)
    judge_in_order(
        outputs, candidates, retrive_index, order, parents, target_probs, keys, (threshold_single, threshold_acc)
    )


def judge_in_order(
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    order: torch.Tensor,
    parents: torch.Tensor,
    target_probs: torch.Tensor,
    keys: Keys,
    thresholds: tuple[float, float],
) -> None:
    """Judges trees by thresholds. order, parents: as in_link_order returns them; target_probs: rows in that order."""
    drafts = torch.where(parents < 0, -1, candidates.gather(1, order))[:, 1:]
    above = (parents[:, 1:] - 1).clamp(min=-1)
    tokens, rows, accepted = judged(
        None, drafts.contiguous(), target_probs.contiguous(), keys, above.contiguous(), "threshold", thresholds
    )
    assert rows is not None
    nodes = order.gather(1, rows.clamp(min=0).long())
    _write(outputs, retrive_index.gather(1, nodes), tokens, accepted)


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accepts the path of drafts along which each equals the target's token at the node above it.

    target_predict: the target's token at each place of `predicts`. The other arguments: as for
    tree_speculative_sampling_target_only. Of siblings with one token the first linked counts.
    """
    outputs = predicts, accept_index, accept_token_num
    links = {"retrive_next_token": retrive_next_token, "retrive_next_sibling": retrive_next_sibling}
    _check(outputs, candidates, retrive_index=retrive_index, **links)
    order, parents = in_link_order(retrive_next_token, retrive_next_sibling, accept_index.shape[1] - 1)
    places = retrive_index.long().gather(1, order)
    picks = target_predict.reshape(-1)[places]
    accepted = accepted_in_trees(candidates.gather(1, order), parents, picks)
    write_at(predicts, places, accepted, picks)
    packed(accepted, places, accept_index)
    accept_token_num.copy_(accepted.sum(1) - 1)


def _without_sentinels(candidates: torch.Tensor, draft_probs: torch.Tensor, most: float) -> torch.Tensor:
    """The drafts of chains, -1 for drafts that cannot have been drawn: their probability is not above 0 and at most `most`."""
    drafts = candidates[:, 1:].long()
    vocab = draft_probs.shape[2]
    there = (drafts >= 0) & (drafts < vocab)
    index = torch.where(there, drafts, 0).unsqueeze(2)
    q = draft_probs[:, : drafts.shape[1]].gather(2, index).squeeze(2)
    return torch.where(there & (q > 0) & (q <= most), drafts, -1).contiguous()


def chain_speculative_sampling_triton(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
) -> None:
    """Judges chains by the drafter's probabilities: by rejection (rule S4), or as blocks (S6).

    draft_probs: [requests, nodes or nodes - 1, vocab] float32; row i is what node i + 1 was drawn from. A draft whose
    probability there is not above 0 and at most 1 cannot have been drawn. The thresholds must be 1, as this rule has none. The links,
    which say nothing of chains, and deterministic have no effect. The other arguments: as for tree_speculative_sampling_target_only.
    """
    outputs = predicts, accept_index, accept_token_num
    _check(outputs, candidates, retrive_index=retrive_index, uniform_samples=uniform_samples)
    refuse_unless(1.0, {"threshold_single": threshold_single, "threshold_acc": threshold_acc}, _NO_THRESHOLDS)
    keys = seeds_of(uniform_samples, uniform_samples_for_final_sampling)
    judge_chains_at(outputs, candidates, retrive_index, target_probs, draft_probs, keys, 1.0, block=block_verification)


def judge_chains_at(
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    candidates: torch.Tensor,
    places: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    keys: Keys,
    most: float,
    *,
    block: bool = False,
) -> None:
    """Judges chains by the drafter's probabilities, in rows for all nodes or all but the last. places: of nodes in the outputs."""
    nodes = candidates.shape[1]
    if draft_probs.ndim != 3 or draft_probs.shape[1] not in (nodes - 1, nodes):
        found = tuple(draft_probs.shape)
        raise ValueError(f"draft_probs has shape {found}, but must have {nodes} or {nodes - 1} rows for each request")
    drafts = _without_sentinels(candidates, draft_probs, most)
    rule = "block" if block else "rejection"
    tokens, _, accepted = judged(draft_probs.contiguous(), drafts, target_probs.contiguous(), keys, rule=rule)
    _write(outputs, places, tokens, accepted)


def chain_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    enable_pdl: bool | None = None,
    *,
    use_draft_prob: bool,
    reject_draft_prob_threshold: float,
) -> None:
    """Judges chains by thresholds (rule S7), or by the drafter's probabilities (S4): TokenSpeed's operator of this name.

    Node i of request r has place `r * nodes + i`. use_draft_prob: judge by draft_probs, [requests, nodes, vocab], whose
    row i is what node i + 1 was drawn from; a draft whose probability there is above reject_draft_prob_threshold, which is at least
    1, or not above 0, cannot have been drawn, and ends the chain. The thresholds must be 1 then, and without it draft_probs None.
    deterministic and enable_pdl have no effect. The other arguments: as for tree_speculative_sampling_target_only. Raises ValueError if
    use_draft_prob comes without draft_probs, and for a reject_draft_prob_threshold below 1.
    """
    outputs = predicts, accept_index, accept_token_num
    _check(outputs, candidates, uniform_samples=uniform_samples)
    keys = seeds_of(uniform_samples, uniform_samples_for_final_sampling)
    requests, nodes = candidates.shape
    places = torch.arange(requests * nodes, device=candidates.device).view(requests, nodes)
    if use_draft_prob:
        if draft_probs is None:
            raise ValueError("use_draft_prob needs draft_probs")
        if not reject_draft_prob_threshold >= 1:
            raise ValueError(f"reject_draft_prob_threshold is {reject_draft_prob_threshold}, but must be at least 1")
        refuse_unless(1.0, {"threshold_single": threshold_single, "threshold_acc": threshold_acc}, _NO_THRESHOLDS)
        most = reject_draft_prob_threshold
        judge_chains_at(outputs, candidates, places, target_probs, draft_probs, keys, most)
        return
    refuse_unless(
        None,
        {"draft_probs": draft_probs},
        "by thresholds they are not read; leave them out, or pass use_draft_prob=True",
    )
    drafts, thresholds = candidates[:, 1:].contiguous(), (threshold_single, threshold_acc)
    tokens, _, accepted = judged(None, drafts, target_probs.contiguous(), keys, rule="threshold", thresholds=thresholds)
    _write(outputs, places, tokens, accepted)
