"""Which drafts of a tree are accepted, in operators of torch: nothing waits for a device, and all can be captured in a graph.

Nodes are numbered as TokenSpeed and SGLang number them: node 0 is the root, which holds the last verified token.
"""

from __future__ import annotations

import torch

__all__ = ["accepted_in_chains", "accepted_in_trees", "packed", "parents_of_links"]


def accepted_in_chains(candidates: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    """Returns which nodes of chains are accepted, [requests, nodes] bool; the root always is.

    candidates, picks: [requests, nodes] ids: the nodes' tokens, and the target's token behind each node.
    """
    same = torch.ones_like(candidates, dtype=torch.bool)
    torch.eq(candidates[:, 1:], picks[:, :-1], out=same[:, 1:])
    return same.to(torch.int32).cumprod(1).to(torch.bool)


def accepted_in_trees(candidates: torch.Tensor, parents: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    """Returns which nodes of trees are accepted, [requests, nodes] bool: those on the path of the target's tokens.

    parents: [requests, nodes], each before its node. The root is node 0, whatever its parent; another node without a
    parent, -1, is never accepted. Of siblings with one token the first counts. Otherwise as for chains.
    """
    nodes = candidates.shape[1]
    numbers = torch.arange(nodes, device=candidates.device)
    up = parents.long().clamp(min=0)
    fits = (candidates == picks.gather(1, up)) & (parents >= 0)
    # A sibling before a node, with the same token, takes its place.
    earlier = (up.unsqueeze(2) == up.unsqueeze(1)) & fits.unsqueeze(1) & (numbers < numbers.unsqueeze(1))
    accepted = (fits & ~earlier.any(2)) | (numbers == 0)
    # A node is accepted if all nodes above it are; each round looks twice as far up.
    up = torch.where(numbers == 0, 0, up)
    for _ in range(max(nodes - 1, 1).bit_length()):
        accepted = accepted & accepted.gather(1, up)
        up = up.gather(1, up)
    return accepted


def parents_of_links(first_child: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """Returns the parent of each node from links between nodes, [requests, nodes] int64; -1 for the root.

    first_child, next_sibling: [requests, nodes], a node's number or -1. A node that no link leads to has parent -1.
    """
    requests, nodes = first_child.shape
    numbers = torch.arange(nodes, device=first_child.device).expand(requests, nodes)

    def sources(links: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """For each node the one whose link leads to it. Links of -1 lead to a place behind the last node."""
        there = torch.cat([missing, missing[:, :1]], 1)
        links = links.long()
        return there.scatter(1, torch.where(links < 0, nodes, links), numbers)[:, :nodes]

    first_parent = sources(first_child, torch.full_like(numbers, -1))
    before = sources(next_sibling, numbers)
    # The first of a node's siblings; each round looks twice as far back.
    for _ in range(max(nodes - 1, 1).bit_length()):
        before = before.gather(1, before)
    return first_parent.gather(1, before)


def packed(accepted: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the values of each row's accepted nodes to the front of that row of `out`; the rest of it stays.

    accepted: [requests, nodes] bool. values: [requests, nodes]. out: [requests, width], of any width; what does not fit
    is left out.
    """
    requests, width = out.shape
    place = accepted.to(torch.int64).cumsum(1) - 1
    place = torch.where(accepted & (place < width), place, width)
    room = torch.cat([out, out.new_zeros((requests, 1))], 1)
    out.copy_(room.scatter(1, place, values.to(out.dtype))[:, :width])
