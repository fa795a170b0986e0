"""torch's operators, as inference code chains them: argmax, and an exponential race over a softmax."""

import torch

import plan
from measure import Way

TRITON = False


def version():
    return torch.__version__


def probs_of(logits):
    return torch.softmax(logits / plan.TEMPERATURE, -1)


def race(probs):
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def within_top_p(probs):
    """Zeroes probabilities, sorted, that begin at top-p of the mass or after it."""
    return probs.masked_fill_(probs.cumsum(-1) - probs >= plan.TOP_P, 0)


def within_min_p(probs):
    return probs.masked_fill_(probs < plan.MIN_P * probs.amax(-1, keepdim=True), 0)


def greedy(logits):
    return logits.argmax(-1)


def plain(logits):
    return race(probs_of(logits))


def min_p(logits):
    return race(within_min_p(probs_of(logits)))


def top_k_top_p(logits):
    values, ids = logits.topk(plan.TOP_K)
    return ids.gather(1, race(within_top_p(probs_of(values)))[:, None])


def top_p(logits):
    values, ids = logits.sort(descending=True)
    return ids.gather(1, race(within_top_p(probs_of(values)))[:, None])


def full(logits):
    values, ids = logits.topk(plan.TOP_K)
    return ids.gather(1, race(within_min_p(within_top_p(probs_of(values))))[:, None])


def ways():
    def way(task, does, call):
        return Way(task, does, lambda rows, vocab: call)

    return [
        way("greedy", "argmax", greedy),
        way("plain", "softmax, exponential race", plain),
        way("min-p", "softmax, mask, exponential race", min_p),
        way("top-k-top-p", "topk, softmax, cumsum, exponential race", top_k_top_p),
        way("top-k-top-p-min-p", "topk, softmax, cumsum, mask, exponential race", full),
        way("top-p", "sort, softmax, cumsum, exponential race", top_p),
    ]
