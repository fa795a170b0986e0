"""SGLang's Triton kernels: the softmax of few rows, the chain of drafts, and, where its file lies among the packages, the fused
softmax of its pull request 22166, which no release has. The rest of its sampler is torch's and FlashInfer's."""

import importlib.metadata

import torch
from sglang.kernels.ops.sampling.temperature_softmax import ROW_LIMIT, temperature_softmax
from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

import plan
from measure import Way

try:
    from sglang.srt.layers import fused_sampling
except ImportError:
    fused_sampling = None

TRITON = True


def version():
    return importlib.metadata.version("sglang")


def temperatures(task, rows):
    return torch.tensor(plan.column(plan.request(task), "temperature", rows), device="cuda")[:, None]


def split(task):
    def make(rows, vocab):
        if rows > ROW_LIMIT:
            raise ValueError(f"for more than {ROW_LIMIT} rows it calls torch")
        t = temperatures(task, rows)
        return lambda logits: temperature_softmax(logits, t)

    return make


def split_in_place(rows, vocab):
    call = split("softmax-in-place")(rows, vocab)
    return lambda logits: logits.copy_(call(logits))


def fused(task, name):
    """A function of the pull request, after what a server does when it starts."""

    def make(rows, vocab):
        fused_sampling.warmup_fused_temperature_softmax(vocab)
        t = temperatures(task, rows)
        return lambda logits: getattr(fused_sampling, name)(logits, t)

    return make


def chain(rows, vocab):
    slots = plan.DRAFTS + 1
    predicts = torch.full((rows * slots,), -1, dtype=torch.int32, device="cuda")
    accepted = torch.full((rows, slots), -1, dtype=torch.int32, device="cuda")
    counts = torch.zeros(rows, dtype=torch.int32, device="cuda")
    slot_ids = torch.arange(rows * slots, device="cuda").view(rows, slots)
    coins, last_coins = torch.rand(rows, slots, device="cuda"), torch.rand(rows, device="cuda")

    def call(batch):
        draft_probs, _, target_probs, candidates = batch
        chain_speculative_sampling_triton(
            predicts,
            accepted,
            counts,
            candidates,
            slot_ids,
            None,
            None,
            coins,
            last_coins,
            target_probs,
            draft_probs,
            1.0,
            1.0,
            True,
        )
        return predicts.view(rows, slots)

    return call


def ways():
    found = [
        Way("softmax", f"temperature_softmax, to {ROW_LIMIT} rows", split("softmax")),
        Way("softmax-mixed", f"temperature_softmax, to {ROW_LIMIT} rows", split("softmax-mixed")),
        Way(
            "softmax-in-place", f"temperature_softmax, copied back, to {ROW_LIMIT} rows", split_in_place, in_place=True
        ),
        Way("chain", "chain_speculative_sampling_triton, uniforms given", chain, given="drafts"),
    ]
    for task in plan.SOFTMAXES if fused_sampling else ():
        in_place = task == "softmax-in-place"
        name = "fused_temperature_softmax_inplace" if in_place else "fused_temperature_softmax"
        types = ("f32", "bf16", "f16")
        found.append(Way(task, f"{name} (PR 22166)", fused(task, name), dtypes=types, in_place=in_place))
    return found
