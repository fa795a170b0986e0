"""FlashInfer's sampling operators. Parameters lie in tensors, one value a row, as servers hold them; k also as an int,
for which FlashInfer has a faster path."""

import importlib.metadata
import os
import tempfile

import torch

# Where it would compile, and for what: what is carried is compiled already.
os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", tempfile.gettempdir())
if "FLASHINFER_CUDA_ARCH_LIST" not in os.environ:
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}a"

from flashinfer import sampling
from flashinfer.jit import env

import plan
from measure import Way

TRITON = False


def version():
    return importlib.metadata.version("flashinfer-python")


class Parameters:
    def __init__(self, rows):
        def tensor(value, dtype=torch.float32, count=rows):
            return torch.full((count,), value, dtype=dtype, device="cuda")

        self.temperature = tensor(plan.TEMPERATURE)
        self.k, self.p = tensor(plan.TOP_K, torch.int32), tensor(plan.TOP_P)
        self.min_p = tensor(plan.MIN_P)
        # Both are wanted as tensors in a graph.
        self.random = {"seed": tensor(1, torch.int64, 1), "offset": tensor(0, torch.int64, 1)}


def softmax(x, to):
    return sampling.softmax(x, temperature=to.temperature)


def draw(probs, to):
    return sampling.sampling_from_probs(probs, **to.random)


def draw_min_p(probs, to):
    return sampling.min_p_sampling_from_probs(probs, to.min_p, **to.random)


def draw_joint(probs, to):
    return sampling.top_k_top_p_sampling_from_probs(probs, to.k, to.p, filter_apply_order="joint", **to.random)


def draw_top_p(probs, to):
    return sampling.top_p_sampling_from_probs(probs, to.p, **to.random)


def renorm_and_draw(probs, to):
    probs = sampling.top_k_renorm_probs(probs, to.k)
    probs = sampling.top_p_renorm_probs(probs, to.p)
    return draw_min_p(probs, to)


def from_logits(logits, to):
    return sampling.sampling_from_logits(logits, **to.random)


def from_logits_int_k(logits, to):
    return sampling.top_k_top_p_sampling_from_logits(logits, plan.TOP_K, to.p, **to.random)


def from_logits_k_tensor(logits, to):
    return sampling.top_k_top_p_sampling_from_logits(logits, to.k, to.p, **to.random)


def divided(logits, to):
    return logits / plan.TEMPERATURE


def ways():
    def way(task, does, *steps, given="logits"):
        def make(rows, vocab):
            to = Parameters(rows)

            def call(x):
                for step in steps:
                    x = step(x, to)
                return x

            return call

        return Way(task, does, make, given)

    found = [
        way("plain", "softmax, sampling_from_probs", softmax, draw),
        way("plain", "division, sampling_from_logits", divided, from_logits),
        way("min-p", "softmax, min_p_sampling_from_probs", softmax, draw_min_p),
        way("top-k-top-p", "softmax, top_k_top_p_sampling_from_probs (joint)", softmax, draw_joint),
        way("top-p", "softmax, top_p_sampling_from_probs", softmax, draw_top_p),
        way("top-k-top-p-min-p", "softmax, top_k_renorm, top_p_renorm, min_p_sampling", softmax, renorm_and_draw),
        way("plain", "sampling_from_probs", draw, given="probabilities"),
        way("min-p", "min_p_sampling_from_probs", draw_min_p, given="probabilities"),
        way("top-k-top-p", "top_k_top_p_sampling_from_probs (joint)", draw_joint, given="probabilities"),
        way("top-p", "top_p_sampling_from_probs", draw_top_p, given="probabilities"),
        way("plain", "sampling_from_logits", from_logits, given="scaled"),
        way("top-k-top-p", "top_k_top_p_sampling_from_logits (k per row)", from_logits_k_tensor, given="scaled"),
    ]
    # Without the module compiled beforehand it would compile for more than ten minutes.
    if env.get_aot_path("topk").exists():
        name = "top_k_top_p_sampling_from_logits (k an int)"
        found.insert(4, way("top-k-top-p", "division, " + name, divided, from_logits_int_k))
        found.append(way("top-k-top-p", name, from_logits_int_k, given="scaled"))
    return found
