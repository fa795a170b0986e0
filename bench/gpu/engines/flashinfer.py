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
from engines.surface import operators, way

TRITON = False


def version():
    return importlib.metadata.version("flashinfer-python")


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


def steps(task, does, *calls, given="logits"):
    """A way that makes calls one after another."""

    def call(x, to):
        for each in calls:
            x = each(x, to)
        return x

    return way(task, does, call, given)


def ways():
    found = [
        steps("plain", "softmax, sampling_from_probs", softmax, draw),
        steps("plain", "division, sampling_from_logits", divided, from_logits),
        steps("min-p", "softmax, min_p_sampling_from_probs", softmax, draw_min_p),
        steps("top-k-top-p", "softmax, top_k_top_p_sampling_from_probs (joint)", softmax, draw_joint),
        steps("top-p", "softmax, top_p_sampling_from_probs", softmax, draw_top_p),
        steps("top-k-top-p-min-p", "softmax, top_k_renorm, top_p_renorm, min_p_sampling", softmax, renorm_and_draw),
        steps("plain", "sampling_from_probs", draw, given="probabilities"),
        steps("min-p", "min_p_sampling_from_probs", draw_min_p, given="probabilities"),
        steps("top-k-top-p", "top_k_top_p_sampling_from_probs (joint)", draw_joint, given="probabilities"),
        steps("top-p", "top_p_sampling_from_probs", draw_top_p, given="probabilities"),
        steps("plain", "sampling_from_logits", from_logits, given="scaled"),
        steps("top-k-top-p", "top_k_top_p_sampling_from_logits (k per row)", from_logits_k_tensor, given="scaled"),
    ]
    # Without the module compiled beforehand it would compile for more than ten minutes.
    fast_k = env.get_aot_path("topk").exists()
    if fast_k:
        name = "top_k_top_p_sampling_from_logits (k an int)"
        found.insert(4, steps("top-k-top-p", "division, " + name, divided, from_logits_int_k))
        found.append(steps("top-k-top-p", name, from_logits_int_k, given="scaled"))
    return found + operators(sampling, fast_k)
