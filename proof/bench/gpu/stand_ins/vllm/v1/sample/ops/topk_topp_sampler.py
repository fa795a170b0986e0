"""Stands in for vLLM's choice among filters, which where there is Triton takes its Triton kernels."""

from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton


def apply_top_k_top_p(logits, k, p, has_topp_only_rows=True):
    if k is None and p is None:
        return logits
    return apply_top_k_top_p_triton(logits, k, p, has_topp_only_rows=has_topp_only_rows)
