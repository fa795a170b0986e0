"""TokenSpeed's Triton kernels: Gumbel races whose parameters and scratch lie in pools that its runtime keeps."""

import importlib.metadata

import torch
from tokenspeed_kernel.ops.sampling.triton import gumbel, min_p, topk_topp, topp

import plan
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("tokenspeed-kernel")


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def ids(*shape):
    return empty(*shape, dtype=torch.int32)


class Pools:
    """What requests ask for, and where their tokens go."""

    def __init__(self, rows):
        def pool(value, dtype=torch.float32):
            return torch.full((rows,), value, dtype=dtype, device="cuda")

        self.index = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.temperature = pool(plan.TEMPERATURE)
        self.k, self.p, self.min_p = pool(plan.TOP_K, torch.int32), pool(plan.TOP_P), pool(plan.MIN_P)
        self.seed = torch.arange(rows, dtype=torch.int64, device="cuda")
        self.offsets = pool(9, torch.int32)
        self.out = ids(rows)

    def random(self):
        return self.seed, self.offsets


def plain(rows, vocab):
    to, shape = Pools(rows), gumbel.gumbel_scratch_shape(rows, vocab)
    rest = (to.index, to.temperature, *to.random(), ids(*shape), empty(*shape), to.out)
    return lambda logits: gumbel.gumbel_sample_from_pools(logits, *rest)


def plain_compact(rows, vocab):
    to = Pools(rows)
    rest = (to.index, to.temperature, *to.random(), to.out)
    return lambda logits: gumbel.gumbel_sample_from_pools_compact(logits, *rest)


def min_p_parallel(rows, vocab):
    to, shape = Pools(rows), gumbel.gumbel_scratch_shape(rows, vocab)
    scratch = (ids(*shape), empty(*shape), empty(rows))
    rest = (to.index, to.temperature, to.min_p, *to.random(), *scratch, to.out)
    return lambda logits: min_p.gumbel_sample_min_p_from_pools_parallel(logits, *rest)


def min_p_by_row(rows, vocab):
    to = Pools(rows)
    rest = (to.index, to.temperature, to.min_p, *to.random(), to.out)
    return lambda logits: min_p.gumbel_sample_min_p_from_pools(logits, *rest)


def candidates(pad, with_min_p=False):
    def make(rows, vocab):
        to = Pools(rows)
        width = -(-vocab // topk_topp._TOP_K_TOP_P_BLOCK_SIZE) * pad
        scratch = (ids(rows, width), empty(rows, width))
        rest = (to.index, to.temperature, to.k, to.p, *to.random(), *scratch, to.out)
        more = {"top_k_pad": pad, "min_p_pool": to.min_p if with_min_p else None}
        return lambda logits: topk_topp.gumbel_sample_top_k_top_p_from_pools(logits, *rest, **more)

    return make


def pivots(rows, vocab):
    to = Pools(rows)
    programs = min(torch.cuda.get_device_properties(0).multi_processor_count, rows)
    table = torch.tensor(topk_topp._QRITA_PERCENTILE_TO_STD_TABLE, device="cuda")
    rest = (to.index, to.temperature, to.k, to.p, *to.random(), empty(programs, vocab), table, to.out)
    return lambda logits: topk_topp.gumbel_sample_top_k_top_p_qrita_from_pools(logits, *rest, num_programs=programs)


def top_p(rows, vocab):
    to, tries = Pools(rows), topp._TOP_P_PARALLEL_NUM_ATTEMPTS
    blocks = -(-vocab // topp._TOP_P_PARALLEL_BLOCK_SIZE)
    local = (empty(rows, blocks), empty(rows, blocks), ids(rows, blocks))
    local_tries = (empty(rows, blocks, tries), empty(rows, blocks, tries), ids(rows, blocks, tries))
    row = (empty(rows), empty(rows), ids(rows), empty(rows, tries), ids(rows, tries), ids(rows))
    rest = (to.index, to.temperature, to.p, *to.random(), *local, *local_tries, *row, to.out)
    return lambda logits: topp.gumbel_sample_top_p_parallel_from_pools(logits, *rest)


def ways():
    default, least = topk_topp._TOP_K_TOP_P_PAD, 64
    top = "gumbel_sample_top_k_top_p_from_pools"
    return [
        Way("plain", "gumbel_sample_from_pools", plain),
        Way("min-p", "gumbel_sample_min_p_from_pools_parallel", min_p_parallel),
        Way("top-k-top-p", f"{top}, top_k_pad {least}", candidates(least)),
        Way("top-p", "gumbel_sample_top_p_parallel_from_pools", top_p),
        Way("top-k-top-p-min-p", f"{top}, top_k_pad {least}, with min-p", candidates(least, with_min_p=True)),
        Way("plain", "gumbel_sample_from_pools_compact", plain_compact),
        Way("min-p", "gumbel_sample_min_p_from_pools", min_p_by_row),
        Way("top-k-top-p", f"{top}, top_k_pad {default}", candidates(default)),
        Way("top-k-top-p", "gumbel_sample_top_k_top_p_qrita_from_pools", pivots),
    ]
