"""torch's operators, as inference code combines them: argmax, an exponential race over a softmax, rows sorted or masked."""

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


def softmax(logits):
    return torch.softmax(logits / plan.TEMPERATURE, -1, dtype=torch.float32)


def softmax_mixed(rows, vocab):
    temperatures = plan.column(plan.request("softmax-mixed"), "temperature", rows)
    t = torch.tensor(temperatures, device="cuda")[:, None]
    return lambda logits: torch.softmax(logits / t, -1, dtype=torch.float32)


def softmax_in_place(logits):
    logits.div_(plan.TEMPERATURE)
    logits.copy_(torch.softmax(logits, -1))


def first_of_probs(probs):
    """A race over probabilities that stay as they are."""
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)


def top_k_of_probs(renormalise, p):
    def call(probs):
        values, ids = probs.topk(plan.TOP_K)
        values = values / values.sum(-1, keepdim=True) if renormalise else values
        return ids.gather(1, race(within_top_p(values) if p else values)[:, None])

    return call


def top_p_of_probs(probs):
    values, ids = probs.sort(descending=True)
    return ids.gather(1, race(within_top_p(values))[:, None])


def min_p_of_probs(probs):
    return race(probs.masked_fill(probs < plan.MIN_P * probs.amax(-1, keepdim=True), 0))


def scattered(probs, values, ids):
    return torch.zeros_like(probs).scatter_(-1, ids, values / values.sum(-1, keepdim=True))


def top_k_renorm(probs):
    return scattered(probs, *probs.topk(plan.TOP_K))


def top_p_renorm(probs):
    values, ids = probs.sort(descending=True)
    return scattered(probs, within_top_p(values), ids)


def top_k_top_p_renorm(joint):
    def call(probs):
        values, ids = probs.topk(plan.TOP_K)
        values = values if joint else values / values.sum(-1, keepdim=True)
        return scattered(probs, within_top_p(values), ids)

    return call


def top_k_mask(logits):
    return logits.masked_fill(logits < logits.topk(plan.TOP_K).values[:, -1:], -torch.inf)


def ways():
    def way(task, does, call, given="logits", **of_way):
        return Way(task, does, lambda rows, vocab: call, given, **of_way)

    types, probs = ("f32", "bf16", "f16"), "probabilities"
    return [
        way("greedy", "argmax", greedy),
        way("plain", "softmax, exponential race", plain),
        way("min-p", "softmax, mask, exponential race", min_p),
        way("top-k-top-p", "topk, softmax, cumsum, exponential race", top_k_top_p),
        way("top-k-top-p-min-p", "topk, softmax, cumsum, mask, exponential race", full),
        way("top-p", "sort, softmax, cumsum, exponential race", top_p),
        way("softmax", "div, softmax", softmax, dtypes=types),
        Way("softmax-mixed", "div, softmax", softmax_mixed, dtypes=types),
        way("softmax-in-place", "div_, softmax, copy_", softmax_in_place, dtypes=types, in_place=True),
        way("probs-plain", "exponential race", first_of_probs, probs),
        way("probs-top-k", "topk, exponential race", top_k_of_probs(renormalise=False, p=False), probs),
        way("probs-top-p", "sort, cumsum, exponential race", top_p_of_probs, probs),
        way("probs-min-p", "mask, exponential race", min_p_of_probs, probs),
        way(
            "probs-top-k-top-p", "topk, div, cumsum, exponential race", top_k_of_probs(renormalise=True, p=True), probs
        ),
        way("probs-joint", "topk, cumsum, exponential race", top_k_of_probs(renormalise=False, p=True), probs),
        way("top-k-renorm", "topk, div, scatter", top_k_renorm, probs),
        way("top-p-renorm", "sort, cumsum, div, scatter", top_p_renorm, probs),
        way("top-k-top-p-renorm", "topk, div, cumsum, div, scatter", top_k_top_p_renorm(joint=False), probs),
        way("joint-renorm", "topk, cumsum, div, scatter", top_k_top_p_renorm(joint=True), probs),
        way("top-k-mask", "topk, masked_fill", top_k_mask),
    ]
