"""FlashInfer's operators on rows, of any module that has its surface: its own, or one in its place. Parameters lie in tensors, one
value a row, as servers hold them."""

import torch

import plan
from measure import Way


class Parameters:
    """The parameters of rows that ask for a request's in turn; a k that is off is the vocabulary."""

    def __init__(self, rows, vocab, request):
        request = tuple(params.of_one() for params in request)

        def tensor(values, dtype=torch.float32):
            return torch.tensor(values, dtype=dtype, device="cuda")

        def column(name):
            return plan.column(request, name, rows)

        self.temperature, self.p, self.min_p = (tensor(column(name)) for name in ("temperature", "top_p", "min_p"))
        self.k = tensor([k or vocab for k in column("top_k")], torch.int32)
        self.most_k = max(column("top_k"))
        # Both are wanted as tensors in a graph.
        self.random = {"seed": tensor([1], torch.int64), "offset": tensor([0], torch.int64)}
        self.counts = [tensor([0] * rows, torch.int32) for _ in range(2)]


def way(task, does, call, given="logits", request=None, **of_way):
    """Returns a way that calls `call(batch, parameters)`. `request`: the parameters, if an engine supports only a part of the task's."""
    request = request or plan.request(task)

    def make(rows, vocab):
        to = Parameters(rows, vocab, request)
        return lambda batch: call(batch, to)

    return Way(task, does, make, given, request=request, **of_way)


def operators(api, fast_k, prefix=""):
    """The ways of a module's operators; fast_k: whether it has another path for a k that is an int."""

    def drawn(task, name, *parameters, does=None, **how):
        def call(probs, to):
            return getattr(api, name)(probs, *(getattr(to, each) for each in parameters), **how, **to.random)

        return way(task, prefix + (does or name), call, given="probabilities")

    def written(task, name, parameter, given="probabilities"):
        return way(task, prefix + name, lambda rows, to: getattr(api, name)(rows, getattr(to, parameter)), given=given)

    def softmax(logits, to):
        return api.softmax(logits, temperature=to.temperature)

    def chain(batch, to):
        # It adds to the counts that it is given.
        return api.chain_speculative_sampling(*batch[:3], *to.counts, **to.random)[0]

    def first_k_an_int(probs, to):
        return api.top_k_top_p_sampling_from_probs(probs, plan.TOP_K, to.p, **to.random)

    def both_renorms(probs, to):
        return api.top_p_renorm_probs(api.top_k_renorm_probs(probs, to.k), to.p)

    both, types = "top_k_top_p_sampling_from_probs", ("f32", "bf16", "f16")
    found = [
        way("softmax", prefix + "softmax", softmax, dtypes=types),
        way("softmax-mixed", prefix + "softmax", softmax, dtypes=types),
        way(
            "softmax-in-place",
            prefix + "softmax, copied back",
            lambda x, to: x.copy_(softmax(x, to)),
            dtypes=types,
            in_place=True,
        ),
        drawn("probs-plain", "sampling_from_probs"),
        drawn("probs-top-k", "top_k_sampling_from_probs", "k"),
        drawn("probs-top-p", "top_p_sampling_from_probs", "p"),
        drawn("probs-min-p", "min_p_sampling_from_probs", "min_p"),
        drawn("probs-top-k-top-p", both, "k", "p", does=f"{both} (k per row)"),
        drawn("probs-joint", both, "k", "p", does=f"{both} (joint)", filter_apply_order="joint"),
        drawn("probs-top-p-99", "top_p_sampling_from_probs", "p"),
        drawn("probs-top-k-1000", "top_k_sampling_from_probs", "k"),
        drawn("probs-joint-1000", both, "k", "p", does=f"{both} (joint)", filter_apply_order="joint"),
        written("top-k-renorm", "top_k_renorm_probs", "k"),
        written("top-p-renorm", "top_p_renorm_probs", "p"),
        way(
            "top-k-top-p-renorm", prefix + "top_k_renorm_probs, top_p_renorm_probs", both_renorms, given="probabilities"
        ),
        written("top-k-mask", "top_k_mask_logits", "k", given="logits"),
        way("chain", prefix + "chain_speculative_sampling", chain, given="drafts"),
    ]
    if fast_k:
        found.append(way("probs-top-k-top-p", f"{both} (k an int)", first_k_an_int, given="probabilities"))
    return found
