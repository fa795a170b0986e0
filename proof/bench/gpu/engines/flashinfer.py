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

try:
    from flashinfer import cake_sampling
    from flashinfer.jit import cake_sampling as cake_module
except ImportError:
    cake_sampling = None

import plan
from engines import judged
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


def draw_k_first(probs, to):
    return sampling.top_k_top_p_sampling_from_probs(probs, to.k, to.p, top_k_max=to.most_k, **to.random)


def draw_top_p(probs, to):
    return sampling.top_p_sampling_from_probs(probs, to.p, **to.random)


def draw_top_k(probs, to):
    return sampling.top_k_sampling_from_probs(probs, to.k, **to.random)


def draw_cake(probs, to):
    # One seed a call, and parameters of rows; the largest k is known to the host, which would wait for it otherwise.
    return cake_sampling.top_k_top_p_sampling_from_probs(
        probs, to.k, to.p, top_k_max=to.most_k, philox_seed=1, philox_offset=0
    )


def renorm_and_draw(probs, to):
    probs = sampling.top_k_renorm_probs(probs, to.k)
    probs = sampling.top_p_renorm_probs(probs, to.p)
    return draw_min_p(probs, to)


def from_logits(logits, to):
    return sampling.sampling_from_logits(logits, **to.random)


def from_logits_int_k(logits, to):
    return sampling.top_k_top_p_sampling_from_logits(logits, to.most_k, to.p, **to.random)


def from_logits_k_tensor(logits, to):
    return sampling.top_k_top_p_sampling_from_logits(logits, to.k, to.p, top_k_max=to.most_k, **to.random)


def divided(logits, to):
    return logits / to.temperature[:, None]


def steps(task, does, *calls, given="logits", request=None):
    """A way that makes calls one after another."""

    def call(x, to):
        for each in calls:
            x = each(x, to)
        return x

    return way(task, does, call, given, request)


def both(task, does, draw, **of_way):
    """Two ways: with its softmax, and given the probabilities."""
    return [
        steps(task, f"softmax, {does}", softmax, draw, **of_way),
        steps(task, does, draw, given="probabilities", **of_way),
    ]


def draw_by(params):
    """The operator for a request alone, and its name."""
    if params.min_p:
        return "min_p_sampling_from_probs", draw_min_p
    name, call = {
        (False, False): ("sampling_from_probs", draw),
        (False, True): ("top_p_sampling_from_probs", draw_top_p),
        (True, False): ("top_k_sampling_from_probs", draw_top_k),
        (True, True): ("top_k_top_p_sampling_from_probs (joint)", draw_joint),
    }[params.of_one().top_k > 0, params.top_p < 1]
    return name, call


def over_families():
    """Ways of the requests that are asked of every family of rows. None of its operators takes penalties, or min-p beside others."""
    mixture = tuple(params.without("min_p", "repetition", "frequency") for params in plan.MIXTURE)
    k_and_p = "top_k_top_p_sampling_from_probs"
    found = both("mixture", f"{k_and_p} (joint), without penalties and min-p", draw_joint, request=mixture)
    for task in ("top-p-95", "top-k-1000", "top-k-20000", "top-k-40000", "joint"):
        found += both(task, *draw_by(*plan.REQUESTS[task]))
    for task in ("top-k-top-p-t1", "top-k-300-top-p", "top-k-1000-top-p"):
        found += both(task, f"{k_and_p} (k per row)", draw_k_first) + both(task, f"{k_and_p} (joint)", draw_joint)
    for index, params in enumerate(plan.MIXTURE):
        name, call = draw_by(params)
        less = ", without penalties" if params.penalised() else ""
        found += both(f"mixture-{index}", name + less, call, request=(params.without("repetition", "frequency"),))
    return found


def chain_verification(asked):
    """Ratio tests, with a drafter that is sure of its drafts."""
    probs = judged.target_probs(
        asked,
        lambda logits, temperature: sampling.softmax(logits, temperature=temperature),
        sampling.top_k_renorm_probs,
        sampling.top_p_renorm_probs,
    )
    drafter, ids = asked.drafter(), asked.tokens[:, 1:].int().contiguous()

    def call(logits):
        return sampling.chain_speculative_sampling(
            next(drafter), ids, probs(logits), *asked.to.counts, **asked.to.random
        )[0]

    return call


def verifications():
    does = "softmax, {renorms}chain_speculative_sampling"
    return judged.ways(does, chain_verification, lambda name, drafts: not drafts.is_tree and name != "greedy")


def cake_ways():
    """Ways of its newer kernels, for a k of at most 1024, where they are compiled beforehand."""
    compiled = sorted(env.get_aot_path("cake_sampling").parents[1].glob("cake_sampling_*")) if cake_sampling else []
    if not compiled:
        return []
    # It would derive the name from 48 MB of sources, which are not carried.
    cake_module.get_cake_sampling_uri = lambda: compiled[-1].name
    name = "cake_top_k_top_p_sampling_from_probs"
    tasks = ("top-k-top-p", "top-k-top-p-t1", "top-k-300-top-p", "top-k-1000", "top-k-1000-top-p")
    found = [way for task in tasks for way in both(task, name, draw_cake)]
    return [*found, steps("probs-top-k-top-p", name, draw_cake, given="probabilities")]


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
        steps(
            "probs-top-k-top-p",
            "top_k_top_p_sampling_from_probs (k per row, its most)",
            draw_k_first,
            given="probabilities",
        ),
        steps("top-k-top-p", "top_k_top_p_sampling_from_logits (k per row)", from_logits_k_tensor, given="scaled"),
    ]
    # Without the module compiled beforehand it would compile for more than ten minutes.
    fast_k = env.get_aot_path("topk").exists()
    if fast_k:
        name = "top_k_top_p_sampling_from_logits (k an int)"
        found.insert(4, steps("top-k-top-p", "division, " + name, divided, from_logits_int_k))
        found.append(steps("top-k-top-p", name, from_logits_int_k, given="scaled"))
        for task in ("top-k-top-p-t1", "top-k-300-top-p", "top-k-1000-top-p"):
            found.append(steps(task, "division, " + name, divided, from_logits_int_k))
    return [*found, *over_families(), *cake_ways(), *operators(sampling, fast_k), *verifications()]
