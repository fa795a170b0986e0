"""vLLM's Triton kernels, in the order of its GPU sampler: a copy of the logits, since what follows works in place, then
temperature, min-p, top-k with top-p, and a Gumbel race. Without a filter the race divides by the temperature itself."""

import importlib.metadata

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
from vllm.v1.worker.gpu.sample.min_p import apply_min_p

import plan
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("vllm")


def sampler(rows, temperature=plan.TEMPERATURE, filters=(), k=False, p=False):
    def tensor(value, dtype=torch.float32):
        return torch.full((rows,), value, dtype=dtype, device="cuda")

    index = torch.arange(rows, dtype=torch.int32, device="cuda")
    seeds = torch.arange(rows, dtype=torch.int64, device="cuda")
    temperatures, min_ps, positions = tensor(temperature), tensor(plan.MIN_P), tensor(9, torch.int64)
    top_k = tensor(plan.TOP_K, torch.int32) if k else None
    top_p = tensor(plan.TOP_P) if p else None
    filtered = k or p or "min_p" in filters

    def call(logits):
        if filtered:
            logits = torch.empty_like(logits).copy_(logits)
            apply_temperature(logits, index, temperatures)
        if "min_p" in filters:
            apply_min_p(logits, index, min_ps)
        if k or p:
            logits = apply_top_k_top_p_triton(logits, top_k, top_p, has_topp_only_rows=not k)
        return gumbel_sample(
            logits, index, temperatures, seeds, positions, apply_temperature=not filtered, is_drafting=False
        )

    return call


def masked(rows, vocab):
    k = torch.full((rows,), plan.TOP_K, dtype=torch.int32, device="cuda")
    return lambda logits: apply_top_k_top_p_triton(torch.empty_like(logits).copy_(logits), k, None)


def ways():
    def way(task, does, **asked):
        return Way(task, does, lambda rows, vocab: sampler(rows, **asked))

    top = "apply_top_k_top_p_triton"
    return [
        way("greedy", "gumbel_sample at temperature 0", temperature=0.0),
        way("plain", "gumbel_sample, temperature inside"),
        way("min-p", "copy, apply_temperature, apply_min_p, gumbel_sample", filters=("min_p",)),
        way("top-k-top-p", f"copy, apply_temperature, {top}, gumbel_sample", k=True, p=True),
        way("top-p", f"copy, apply_temperature, {top}, gumbel_sample", p=True),
        way(
            "top-k-top-p-min-p",
            f"copy, apply_temperature, apply_min_p, {top}, gumbel_sample",
            filters=("min_p",),
            k=True,
            p=True,
        ),
        Way("top-k-mask", f"copy, {top}", masked),
    ]
