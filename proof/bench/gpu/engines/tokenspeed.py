"""TokenSpeed's Triton kernels: Gumbel races whose parameters and scratch lie in pools that its runtime keeps, as its backends
`triton` and `triton_full` call them; and its fused renormalisation of top-k and top-p."""

import importlib.metadata

import torch
from tokenspeed_kernel.ops.sampling.triton import generic, gumbel, logprobs, min_p, penalties, topk_topp, topp

try:
    from tokenspeed_kernel.thirdparty.cuda import fused_topk_topp as fused
except (ImportError, RuntimeError):
    fused = None

import plan
from engines import tokenspeed_chains
from measure import Way

TRITON = True
# TokenSpeed's backends use these: a block takes BLOCK candidates, and k is padded to the least of PADS that holds it.
BLOCK, PADS = 1024, (64, 128)
K_OFF = 1 << 30


def version():
    return importlib.metadata.version("tokenspeed-kernel")


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def ids(*shape):
    return empty(*shape, dtype=torch.int32)


class Pools:
    """What rows ask for that take a request's parameters in turn, and where their tokens go."""

    def __init__(self, rows, vocab, request):
        request = tuple(params.of_one() for params in request)

        def pool(name, dtype=torch.float32):
            return torch.tensor(plan.column(request, name, rows), dtype=dtype, device="cuda")

        self.index = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.temperature, self.p, self.min_p = pool("temperature"), pool("top_p"), pool("min_p")
        self.k = torch.tensor(
            [k or K_OFF for k in plan.column(request, "top_k", rows)], dtype=torch.int32, device="cuda"
        )
        self.seed = torch.arange(rows, dtype=torch.int64, device="cuda")
        self.offsets = torch.full((rows,), 9, dtype=torch.int32, device="cuda")
        self.out = ids(rows)
        self.pad = next((pad for pad in PADS if max(plan.column(request, "top_k", rows)) <= pad), None)
        self.has_min_p = any(plan.column(request, "min_p", rows))
        if any(params.edited() for params in request):
            self.edits(rows, vocab, request, pool)

    def edits(self, rows, vocab, request, pool):
        history = torch.randint(vocab, (rows, plan.HISTORY), device="cuda")
        once = torch.ones(history.shape, dtype=torch.int32, device="cuda")
        self.counts = torch.zeros((rows, vocab), dtype=torch.int32, device="cuda").scatter_add_(1, history, once)
        self.bias = torch.zeros((rows, vocab), dtype=torch.bfloat16, device="cuda")
        if request[0].bias:
            self.bias[:, :: -(-vocab // plan.BIASES)] = 0.5
        self.repetition, self.frequency = (pool(name, torch.bfloat16) for name in ("repetition", "frequency"))
        self.presence = torch.zeros_like(self.frequency)
        self.one = torch.ones(rows, dtype=torch.int32, device="cuda")

    def random(self):
        return self.seed, self.offsets


def plain(to, rows, vocab):
    shape = gumbel.gumbel_scratch_shape(rows, vocab)
    rest = (to.index, to.temperature, *to.random(), ids(*shape), empty(*shape), to.out)
    return lambda logits: gumbel.gumbel_sample_from_pools(logits, *rest)


def plain_compact(to, rows, vocab):
    rest = (to.index, to.temperature, *to.random(), to.out)
    return lambda logits: gumbel.gumbel_sample_from_pools_compact(logits, *rest)


def min_p_parallel(to, rows, vocab):
    shape = gumbel.gumbel_scratch_shape(rows, vocab)
    scratch = (ids(*shape), empty(*shape), empty(rows))
    rest = (to.index, to.temperature, to.min_p, *to.random(), *scratch, to.out)
    return lambda logits: min_p.gumbel_sample_min_p_from_pools_parallel(logits, *rest)


def min_p_by_row(to, rows, vocab):
    rest = (to.index, to.temperature, to.min_p, *to.random(), to.out)
    return lambda logits: min_p.gumbel_sample_min_p_from_pools(logits, *rest)


def candidates(pad=None, block=topk_topp._TOP_K_TOP_P_BLOCK_SIZE):
    def make(to, rows, vocab):
        padded = pad or to.pad
        width = -(-vocab // block) * padded
        scratch = (ids(rows, width), empty(rows, width))
        rest = (to.index, to.temperature, to.k, to.p, *to.random(), *scratch, to.out)
        more = {"top_k_pad": padded, "block_size": block, "min_p_pool": to.min_p if to.has_min_p else None}
        return lambda logits: topk_topp.gumbel_sample_top_k_top_p_from_pools(logits, *rest, **more)

    return make


def pivots(to, rows, vocab):
    programs = min(torch.cuda.get_device_properties(0).multi_processor_count, rows)
    table = torch.tensor(topk_topp._QRITA_PERCENTILE_TO_STD_TABLE, device="cuda")
    k = to.k.clamp(max=vocab)
    rest = (to.index, to.temperature, k, to.p, *to.random(), empty(programs, vocab), table, to.out)
    return lambda logits: topk_topp.gumbel_sample_top_k_top_p_qrita_from_pools(logits, *rest, num_programs=programs)


def top_p(to, rows, vocab):
    tries = topp._TOP_P_PARALLEL_NUM_ATTEMPTS
    blocks = -(-vocab // topp._TOP_P_PARALLEL_BLOCK_SIZE)
    local = (empty(rows, blocks), empty(rows, blocks), ids(rows, blocks))
    local_tries = (empty(rows, blocks, tries), empty(rows, blocks, tries), ids(rows, blocks, tries))
    row = (empty(rows), empty(rows), ids(rows), empty(rows, tries), ids(rows, tries), ids(rows))
    rest = (to.index, to.temperature, to.p, *to.random(), *local, *local_tries, *row, to.out)
    return lambda logits: topp.gumbel_sample_top_p_parallel_from_pools(logits, *rest)


def any_filters(to, rows, vocab):
    rest = (to.index, to.temperature, to.k, to.p, *to.random(), to.out)
    more = {"min_p_pool": to.min_p if to.has_min_p else None}
    return lambda logits: generic.gumbel_sample_from_pools_generic(logits, *rest, **more)


def edited(draw, logprob=False):
    """The whole path of `triton_full`: edits, the draw, counts, and the drawn token's logprob. It works in the logits' place, so they
    are copied."""

    def make(to, rows, vocab):
        drawn, out = draw(to, rows, vocab), empty(rows)

        def call(logits):
            x = penalties.apply_penalties_logit_bias_inplace(
                logits.clone(), to.index, to.counts, to.bias, to.frequency, to.presence, to.repetition
            )
            tokens = drawn(x)
            penalties.accumulate_counts_inplace(to.counts, to.index, tokens, to.one)
            if logprob:
                logprobs.selected_token_logprobs(logits, tokens, out)
            return tokens

        return call

    return make


def renormalise(to, rows, vocab):
    """The fused renormalisation of top-k and top-p, with its scratch memory."""
    fused.prepare_for_device(torch.cuda.current_device())
    scratch = torch.empty(fused.fused_topk_topp_workspace_size(rows, vocab), dtype=torch.uint8, device="cuda")
    return lambda probs: fused.fused_topk_topp_renorm(probs, to.k, to.p, scratch)


def renorms(rows, vocab):
    return renormalise(Pools(rows, vocab, plan.request("top-k-top-p")), rows, vocab)


def renormalised(to, rows, vocab):
    """The draw of its backend `flashinfer_full`, from logits that are edited already."""
    renormed, flashinfer, offsets = renormalise(to, rows, vocab), tokenspeed_chains.flashinfer, to.offsets.long()

    def call(logits):
        probs = renormed(flashinfer.softmax(logits, temperature=to.temperature))
        return flashinfer.min_p_sampling_from_probs(probs, to.min_p, seed=to.seed, offset=offsets, deterministic=True)

    return call


def way(task, does, draw):
    request = plan.request(task)
    return Way(task, does, lambda rows, vocab: draw(Pools(rows, vocab, request), rows, vocab))


def ways():
    default, least = topk_topp._TOP_K_TOP_P_PAD, 64
    top, nucleus, any_of = (
        "gumbel_sample_top_k_top_p_from_pools",
        "gumbel_sample_top_p_parallel_from_pools",
        "gumbel_sample_from_pools_generic",
    )
    edits = "clone, apply_penalties_logit_bias"
    found = [
        way("plain", "gumbel_sample_from_pools", plain),
        way("min-p", "gumbel_sample_min_p_from_pools_parallel", min_p_parallel),
        way("top-k-top-p", f"{top}, top_k_pad {least}", candidates(least)),
        way("top-p", nucleus, top_p),
        way("top-k-top-p-min-p", f"{top}, top_k_pad {least}, with min-p", candidates(least)),
        way("plain", "gumbel_sample_from_pools_compact", plain_compact),
        way("min-p", "gumbel_sample_min_p_from_pools", min_p_by_row),
        way("top-k-top-p", f"{top}, top_k_pad {default}", candidates(default)),
        way("top-k-top-p", f"{top}, top_k_pad {least}, block_size {BLOCK}", candidates(block=BLOCK)),
        way("top-k-top-p", "gumbel_sample_top_k_top_p_qrita_from_pools", pivots),
        way("top-k-1000", "gumbel_sample_top_k_top_p_qrita_from_pools", pivots),
        way("top-k-1000-top-p", "gumbel_sample_top_k_top_p_qrita_from_pools", pivots),
        way("top-p-95", nucleus, top_p),
        way("top-k-top-p-t1", f"{top}, top_k_pad {least}, block_size {BLOCK}", candidates(block=BLOCK)),
        way("repetition-top-p", f"{edits}, {nucleus}", edited(top_p)),
        way("everything", f"{edits}, {nucleus}, selected_token_logprobs; no bitmask", edited(top_p, logprob=True)),
        way("mixture", f"{edits}, {any_of}", edited(any_filters)),
        way("mixture-0", f"{top}, top_k_pad {least}, block_size {BLOCK}", candidates(block=BLOCK)),
        way("mixture-2", f"{top}, top_k_pad {least}, block_size {BLOCK}", candidates(block=BLOCK)),
        way("mixture-3", "gumbel_sample_from_pools", plain),
        way("mixture-4", "gumbel_sample_min_p_from_pools_parallel", min_p_parallel),
    ]
    found += [way(f"mixture-{index}", nucleus, top_p) for index in (1, 5)]
    found += [way(f"mixture-{index}", f"{edits}, {nucleus}", edited(top_p)) for index in (6, 7)]
    if fused:
        found.append(Way("top-k-top-p-renorm", "fused_topk_topp_renorm", renorms, given="probabilities"))
    if fused and tokenspeed_chains.flashinfer:
        does = "FlashInfer's softmax, fused_topk_topp_renorm, min_p_sampling_from_probs"
        found.append(way("top-k-top-p-min-p", does, renormalised))
    return [*found, *tokenspeed_chains.ways()]
