"""SGLang's kernels: the Triton softmax of few rows, the Triton chain of drafts, and, where its file lies among the packages, the fused
softmax of its pull request 22166, which no release has; verifications of drafts, as its EAGLE worker makes them. The rest of its sampler is
torch's and FlashInfer's."""

import importlib.metadata

import torch
from sglang.kernels.ops.sampling.temperature_softmax import ROW_LIMIT, temperature_softmax
from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

import plan
from engines import judged
from measure import Way

try:
    from sglang.srt.layers import fused_sampling
except ImportError:
    fused_sampling = None
try:
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only
    from sglang.kernels.ops.speculative.tree import verify_tree_greedy

    from engines.flashinfer import sampling as flashinfer
except ImportError:
    flashinfer = None

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


def divided_softmax(logits, temperature):
    return torch.softmax(logits / temperature[:, None], -1)


def flashinfer_softmax(logits, temperature):
    return flashinfer.softmax(logits, temperature=temperature)


class Outputs:
    """What its kernels write to: a token a node, the accepted nodes of a path, and how many they are."""

    def __init__(self, asked):
        path = (asked.rows, max(asked.drafts.depths()) + 1)
        self.predicts = torch.zeros(asked.rows * asked.nodes, dtype=torch.int32, device="cuda")
        self.accept_index = torch.full(path, -1, dtype=torch.int32, device="cuda")
        self.accept_token_num = torch.zeros(asked.rows, dtype=torch.int32, device="cuda")

    def all(self):
        return self.predicts, self.accept_index, self.accept_token_num


def target_only(softmax):
    """Ratio tests without a drafter's probabilities. The kernel writes into the probabilities that it is given, which are zeros at first."""

    def verify(asked):
        probs = judged.target_probs(asked, softmax, flashinfer.top_k_renorm_probs, flashinfer.top_p_renorm_probs)
        out, links, coins = Outputs(asked), asked.links(), asked.coins()

        def call(logits):
            target = probs(logits)
            rest = (*coins, target, torch.zeros_like(target))
            tree_speculative_sampling_target_only(*out.all(), asked.tokens, *links, *rest)
            return out.predicts

        return call

    return verify


def with_drafter(softmax):
    """Ratio tests of chains, with a drafter that is sure of its drafts."""

    def verify(asked):
        probs = judged.target_probs(asked, softmax, flashinfer.top_k_renorm_probs, flashinfer.top_p_renorm_probs)
        out, (places, *_), coins, drafter = Outputs(asked), asked.links(), asked.coins(), asked.drafter()

        def call(logits):
            rest = (*coins, probs(logits), next(drafter), 1.0, 1.0, True)
            chain_speculative_sampling_triton(*out.all(), asked.tokens, places, None, None, *rest)
            return out.predicts

        return call

    return verify


def by_argmax(asked):
    out, links = Outputs(asked), asked.links()

    def call(logits):
        target = logits.argmax(-1).view(asked.rows, asked.nodes)
        verify_tree_greedy(*out.all(), asked.tokens, *links, target)
        return out.predicts

    return call


def verifications():
    if not flashinfer:
        return
    softmaxes = {"division, torch.softmax": divided_softmax, "FlashInfer's softmax": flashinfer_softmax}
    for name, softmax in softmaxes.items():
        before = name + ", {renorms}"
        yield from judged.ways(
            before + "zeros, tree_speculative_sampling_target_only, uniforms given",
            target_only(softmax),
            lambda name, _: name != "greedy",
        )
        yield from judged.ways(
            before + "chain_speculative_sampling_triton, uniforms given",
            with_drafter(softmax),
            lambda name, drafts: name != "greedy" and not drafts.is_tree,
        )
    yield from judged.ways("argmax, verify_tree_greedy", by_argmax, lambda name, _: name == "greedy")


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
    return [*found, *verifications()]
