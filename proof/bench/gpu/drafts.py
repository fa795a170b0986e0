"""The drafts that a verification judges: of each request as many, a chain or a binary tree, as crates/cuda/examples/replay has them.

A task is named after what rows ask for and the drafts, as `verify-top-k-top-p-chain-3`. Node 0 of a request is its last token, and
nodes 1 on are its drafts; each node has a row of logits.
"""

from dataclasses import dataclass

PREFIX = "verify-"


@dataclass(frozen=True)
class Drafts:
    count: int
    is_tree: bool

    @property
    def nodes(self):
        return self.count + 1

    @property
    def name(self):
        return f"{'tree' if self.is_tree else 'chain'}-{self.count}"

    def parents(self):
        """The parent of each node, -1 for the first."""
        return [-1, *((node - 1) // 2 if self.is_tree else node - 1 for node in range(1, self.nodes))]

    def depths(self):
        depths = [0]
        for parent in self.parents()[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def first_children(self):
        """The first child of each node, or -1."""
        parents = self.parents()
        return [parents.index(node) if node in parents else -1 for node in range(self.nodes)]

    def next_siblings(self):
        """The node that has the same parent and comes next, or -1."""
        parents = self.parents()
        return [
            next((n for n in range(node + 1, self.nodes) if parents[n] == parents[node]), -1)
            for node in range(self.nodes)
        ]

    def tokens(self, requests, vocab):
        """The token of each node, [requests][nodes]: drafts that hardly any row draws."""
        ids = iter(range(requests * self.count))
        return [[0, *(next(ids) % vocab for _ in range(self.count))] for _ in range(requests)]


SHAPES = tuple(Drafts(count, is_tree) for count, is_tree in ((3, False), (5, False), (8, True), (64, True)))


def split(task):
    """What the rows of a task ask for, and the drafts of a request; of a task that judges none, itself and none."""
    for drafts in SHAPES:
        if task.startswith(PREFIX) and task.endswith("-" + drafts.name):
            return task[len(PREFIX) : -len(drafts.name) - 1], drafts
    return task, None
