"""TokenSpeed's compiled kernels for chains of drafts, a part of the engine `tokenspeed`: ratio tests after its fused renormalisation, as
its FlashInfer backend has them, and tokens compared with the likeliest."""

import torch

try:
    from tokenspeed_kernel.thirdparty.cuda import fused_topk_topp as fused
    from tokenspeed_kernel.thirdparty.cuda import sampling_chain as chains
except (ImportError, RuntimeError):
    fused = chains = None
try:
    from engines.flashinfer import sampling as flashinfer
except ImportError:
    flashinfer = None

from engines import judged

# What its fused renormalisation takes for a k that is off.
K_OFF = 1 << 30


def ids(*shape):
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def ratio_tests(asked):
    """The verification of its FlashInfer backend: a softmax, the fused renormalisation, ratio tests without a drafter's probabilities."""
    out, coins, to, rows = Outputs(asked), asked.coins(), asked.to, asked.rows * asked.nodes
    candidates, filtered = asked.tokens.int(), any(p.top_k or p.top_p < 1 for p in asked.request)
    k = torch.where(to.k == asked.vocab, K_OFF, to.k)
    fused.prepare_for_device(torch.cuda.current_device())
    size = fused.fused_topk_topp_workspace_size(rows, asked.vocab)
    scratch = torch.empty(size, dtype=torch.uint8, device="cuda")

    def call(logits):
        probs = flashinfer.softmax(logits, temperature=to.temperature)
        if filtered:
            probs = fused.fused_topk_topp_renorm(probs, k, to.p, scratch)
        probs = probs.view(asked.rows, asked.nodes, asked.vocab)
        chains.chain_speculative_sampling_target_only(
            *out.cleared(), candidates, *coins, probs, use_draft_prob=False, reject_draft_prob_threshold=2.0
        )
        return out.predicts

    return call


def by_argmax(asked):
    out, candidates = Outputs(asked), asked.tokens.int()

    def call(logits):
        target = logits.argmax(-1).view(asked.rows, asked.nodes)
        chains.verify_chain_greedy(*out.cleared(), candidates, target, asked.rows, asked.nodes)
        return out.predicts

    return call


class Outputs:
    """What its kernels write to: a token a node, the accepted nodes, which are -1 before, and how many they are."""

    def __init__(self, asked):
        self.predicts, self.count = ids(asked.rows * asked.nodes), ids(asked.rows)
        self.index = ids(asked.rows, asked.nodes)

    def cleared(self):
        return self.predicts, self.index.fill_(-1), self.count


def ways():
    """Chains, by its compiled kernels; its backends of Triton kernels are an engine of their own."""
    if not chains:
        return
    if flashinfer:
        does = "FlashInfer's softmax, {renorms}chain_speculative_sampling_target_only, uniforms given"
        yield from judged.ways(
            does,
            ratio_tests,
            lambda name, drafts: name != "greedy" and not drafts.is_tree,
            fused="fused_topk_topp_renorm, ",
        )
    does = "argmax, verify_chain_greedy"
    yield from judged.ways(does, by_argmax, lambda name, drafts: name == "greedy" and not drafts.is_tree)
