"""Which drafts of a tree are accepted, in operators of torch: nothing waits for a device, and all can be captured in a graph.

Nodes are numbered as TokenSpeed and SGLang number them: node 0 is the root, which holds the last verified token.
"""

from __future__ import annotations

import torch

__all__ = ["accepted_in_chains", "accepted_in_trees", "in_link_order", "packed", "write_at"]


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


def in_link_order(
    first_child: torch.Tensor, next_sibling: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers the nodes of trees so that parents come before children, and siblings in the order of their links.

    A tree whose numbers are so already keeps them.
    first_child, next_sibling: [requests, nodes], a node's number or -1; node 0 is the root. Returns the old number of each
    new node, and the new number of its parent, both [requests, nodes] int64. The parent is -1 for the root, for nodes
    that it does not lead to, and for those deeper than `most`.
    """
    requests, nodes = first_child.shape
    numbers = torch.arange(nodes, device=first_child.device).expand(requests, nodes)

    def sources(links: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """For each node the one whose link leads to it. Links of -1 lead to a place after the last node."""
        there = torch.cat([missing, missing[:, :1]], 1)
        links = links.long()
        return there.scatter(1, torch.where(links < 0, nodes, links), numbers)[:, :nodes]

    def to_the_top(above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For each node the last one on the way up, and how many steps lead there. Each round looks twice as far."""
        steps = (above != numbers).long()
        for _ in range(max(nodes - 1, 1).bit_length()):
            steps = steps + steps.gather(1, above)
            above = above.gather(1, above)
        return above, steps

    eldest, rank = to_the_top(sources(next_sibling, numbers))
    parents = sources(first_child, torch.full_like(numbers, -1)).gather(1, eldest)
    parents = torch.where(numbers == 0, -1, parents)
    root, depth = to_the_top(torch.where(parents < 0, numbers, parents))
    left_out = (root != 0) | (depth > most)
    order = torch.sort(torch.where(left_out, nodes, depth) * nodes + rank, dim=1, stable=True).indices
    kept = ((parents < numbers) & ((next_sibling < 0) | (next_sibling > numbers))).all(1, keepdim=True)
    order = torch.where(kept, numbers, order)
    places = torch.zeros_like(order).scatter(1, order, numbers)
    parents = torch.where((parents < 0) | left_out, -1, places.gather(1, parents.clamp(min=0)))
    return order, parents.gather(1, order)


def write_at(out: torch.Tensor, places: torch.Tensor, there: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values to elements of `out`, which has one dimension, where `there` is true; the rest of it stays.

    places, there, values: of one shape.
    """
    room = torch.cat([out, out.new_zeros(1)])
    index = torch.where(there, places, len(out)).reshape(-1)
    out.copy_(room.scatter(0, index, values.to(out.dtype).reshape(-1))[: len(out)])


def packed(accepted: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the values of each row's accepted nodes to the front of that row of `out`; the rest of it stays.

    accepted: [requests, nodes] bool. values: [requests, nodes]. out: [requests, width] without gaps, of any width; what
    does not fit is left out.
    """
    width = out.shape[1]
    place = accepted.to(torch.int64).cumsum(1) - 1
    first = torch.arange(len(out), device=out.device).unsqueeze(1) * width
    write_at(out.view(-1), place + first, accepted & (place < width), values)
