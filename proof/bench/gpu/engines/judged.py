"""The inputs of verifications of drafts, for every engine that judges them: drafts, the links of their tree, a drafter's probabilities, and the
probabilities that ratio tests take."""

import itertools

import torch

import drafts
import plan
from engines.surface import Parameters
from measure import Way


def of_nodes(values, dtype=torch.int64):
    """Values of the nodes of each request as a tensor in device memory."""
    return torch.tensor(values, dtype=dtype, device="cuda")


class Judged:
    """Requests with drafts; `request` is what they ask for in turn, which may be a part of what the task asks for."""

    def __init__(self, task, rows, vocab, request):
        _, self.drafts = drafts.split(task)
        self.rows, self.vocab = rows, vocab
        self.nodes = self.drafts.nodes
        self.tokens = of_nodes(self.drafts.tokens(rows, vocab))
        self.request = tuple(params.of_one() for params in request)
        self.to = Parameters(rows, vocab, self.request)
        # Engines spread a request's parameters over its rows before they draw.
        for name in ("temperature", "p", "k"):
            setattr(self.to, name, getattr(self.to, name).repeat_interleave(self.nodes))

    def links(self):
        """Each node's place among all, its first child and its next sibling, as int64 [requests, nodes]."""
        places = torch.arange(self.rows * self.nodes, device="cuda").view(self.rows, self.nodes)
        linked = (self.drafts.first_children(), self.drafts.next_siblings())
        return places, *(of_nodes([nodes] * self.rows) for nodes in linked)

    def coins(self):
        """Uniform numbers for the nodes, and for the last token of each request."""
        return torch.rand(self.rows, self.nodes, device="cuda"), torch.rand(self.rows, device="cuda")

    def drafter(self):
        """Probabilities of a drafter that is sure of each draft, without end: batches that are cold together, one after the other."""
        batches = plan.batches(self.vocab, self.rows * self.drafts.count)
        probs = torch.zeros((batches, self.rows, self.drafts.count, self.vocab), device="cuda")
        probs.scatter_(-1, self.tokens[:, 1:, None].expand(batches, -1, -1, -1), 1.0)
        return itertools.cycle(probs)


def target_probs(judged, softmax, top_k_renorm, top_p_renorm):
    """Returns the call that makes probabilities as the requests ask for them, from logits to [requests, nodes, vocab]. `softmax` divides by the temperature; `top_k_renorm` and `top_p_renorm` take one parameter a row."""
    to = judged.to
    calls = [(softmax, to.temperature)]
    if any(params.top_k for params in judged.request):
        calls.append((top_k_renorm, to.k))
    if any(params.top_p < 1 for params in judged.request):
        calls.append((top_p_renorm, to.p))

    def call(logits):
        for each, parameter in calls:
            logits = each(logits, parameter)
        return logits.view(judged.rows, judged.nodes, judged.vocab)

    return call


def renorms(task):
    """The renormalisations that a task needs, as ways name them."""
    request = plan.request(task)
    names = {
        "top_k_renorm_probs": any(params.of_one().top_k for params in request),
        "top_p_renorm_probs": any(params.top_p < 1 for params in request),
    }
    return "".join(f"{name}, " for name, takes in names.items() if takes)


def ways(does, verify, takes, fused=None):
    """A way for each verification that is taken, by the name of what rows ask for and its drafts; `verify(judged)` gives the call. `fused`:
    how the name of a renormalisation that does both stands in that of a way.
    Where a mixture is asked for it is one without penalties and min-p, which probabilities alone do not support."""
    for task in plan.VERIFICATIONS:
        name, shape = drafts.split(task)
        if not takes(name, shape):
            continue
        less = name == "mixture"
        request = plan.request(task)
        if less:
            request = tuple(params.without("min_p", "repetition", "frequency") for params in request)

        def make(rows, vocab, task=task, request=request):
            return verify(Judged(task, rows, vocab, request))

        named = does.format(renorms=renorms(task) and (fused or renorms(task)))
        yield Way(task, named + ", without penalties and min-p" * less, make, request=request)
