"""TokenSpeed's sampling backend `triton` as its runner calls it for each step: parameters and slots looked at, then the kernels."""

import functools
import importlib.metadata
from types import SimpleNamespace

import torch
from tokenspeed.runtime.sampling.backends.base import SamplingBackendConfig
from tokenspeed.runtime.sampling.backends.triton import TritonSamplingBackend
from tokenspeed.runtime.sampling.sampling_batch_info import SamplingBatchInfo
from tokenspeed.runtime.sampling.sampling_params import SamplingParams

import plan
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("tokenspeed")


def step(task, rows, vocab):
    backend = TritonSamplingBackend(
        SamplingBackendConfig(
            enable_speculative_sampling=False,
            sampling_stream="per-request",
            logprob_order="torch",
            max_bs=rows,
            max_req_pool_size=rows,
            vocab_size=vocab,
            device="cuda",
            enable_tp_sync=False,
        )
    )
    asked = [
        SamplingParams(temperature=params.temperature, top_k=params.top_k or -1, top_p=params.top_p, seed=row)
        for row, params in ((row, plan.request(task)[0]) for row in range(rows))
    ]
    names, slots = [str(row) for row in range(rows)], list(range(1, rows + 1))
    info = SamplingBatchInfo(
        vocab_size=vocab,
        req_pool_indices=torch.tensor(slots, device="cuda"),
        valid_cache_lengths=torch.full((rows + 1,), 9, dtype=torch.int32, device="cuda"),
    )

    def call(logits):
        backend.prepare_step(names, slots, asked)
        return backend.sample(SimpleNamespace(next_token_logits=logits), info)[0]

    return call


def ways():
    does = "TritonSamplingBackend.prepare_step, sample"
    return [Way(task, does, functools.partial(step, task)) for task in plan.WHOLE_CALLS]
