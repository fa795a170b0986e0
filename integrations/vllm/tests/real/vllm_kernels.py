"""vLLM's own rejection kernels on the CPU, by Triton's interpreter, beside our rejection sampler.

Of the package only the files that hold the kernels are loaded, with stand-ins for the modules that ask for a device or for
the rest of vLLM. Random numbers differ, so requests are greedy, or have rows that leave nothing to chance.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from gumball_vllm.runner_v2 import RejectionSampler

SPEC = importlib.util.find_spec("vllm")
assert SPEC is not None and SPEC.submodule_search_locations
FOLDER = Path(SPEC.submodule_search_locations[0])
GPU = FOLDER / "v1" / "worker" / "gpu"


def stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


seen = {"requests": 0}
packages = "vllm vllm.v1 vllm.v1.spec_decode vllm.v1.worker vllm.v1.worker.gpu vllm.v1.worker.gpu.sample"
for name in packages.split():
    stand_in(name, __path__=[])
# The interpreter has none of the device's own functions.
libdevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x), expm1=lambda x: tl.exp(x) - 1.0)
stand_in("vllm.triton_utils", tl=tl, triton=triton, tldevice=libdevice)
stand_in("vllm.v1.spec_decode.fly", compute_fly_entropy=None)
stand_in("vllm.v1.worker.gpu.sample.watermark", philox_gumbel_block_argmax=None)
load(GPU / "sample" / "gumbel.py", "vllm.v1.worker.gpu.sample.gumbel")
theirs = load(
    GPU / "spec_decode" / "rejection_sampler_utils.py", "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
)

torch.manual_seed(1)
REQUESTS, STEPS, VOCAB = 8, 3, 40
for block in (False, True):
    for given in (False, True):
        if block and not given:
            continue
        for greedy in (True, False):
            counts = torch.randint(1, STEPS + 2, (REQUESTS,))
            starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
            rows = int(starts[-1])
            expanded = torch.arange(REQUESTS).repeat_interleave(counts)
            local = torch.cat([torch.arange(int(count)) for count in counts]).int()
            z = torch.randn(rows, VOCAB) * 3
            tokens = torch.randint(0, VOCAB, (rows,))
            right = torch.rand(rows - 1) < 0.7
            tokens[1:] = torch.where(right, z.argmax(1)[:-1], tokens[1:])
            drafter = torch.full((REQUESTS, STEPS, VOCAB), -torch.inf)
            for row in range(rows):
                if local[row] > 0:
                    drafter[expanded[row], local[row] - 1, tokens[row]] = 0.0
            drafter = torch.where(drafter.isneginf().all(2, keepdim=True), 0.0, drafter)
            if not greedy:
                z = torch.where(torch.nn.functional.one_hot(z.argmax(1), VOCAB).bool(), 0.0, -torch.inf)
            temperature, seeds = torch.zeros(REQUESTS) if greedy else torch.ones(REQUESTS), torch.arange(REQUESTS)
            proposed = drafter if given else None
            pos = 10 + local.long()
            drawn, number = theirs.rejection_sample(
                z,
                proposed,
                tokens,
                starts.int(),
                pos,
                torch.arange(REQUESTS),
                expanded,
                local,
                temperature,
                seeds,
                STEPS,
                use_block_verification=block,
            )
            states = SimpleNamespace(
                temperature=SimpleNamespace(gpu=temperature),
                seeds=SimpleNamespace(gpu=seeds),
                max_num_logprobs=lambda index: -1,
            )
            sampler = SimpleNamespace(
                sampling_states=states,
                apply_sampling_params=lambda logits, *_: logits,
                compute_nans=False,
                return_sampling_mask=False,
                req_states=SimpleNamespace(prefill_len=SimpleNamespace(gpu=torch.zeros(REQUESTS))),
            )
            batch = SimpleNamespace(
                input_ids=tokens,
                positions=pos,
                logits_indices=torch.arange(rows),
                idx_mapping=torch.arange(REQUESTS),
                idx_mapping_np=np.arange(REQUESTS),
                expanded_idx_mapping=expanded,
                expanded_local_pos=local,
                cu_num_logits=starts.int(),
                cu_num_logits_np=starts.numpy(),
                seq_lens=10 + counts,
                seq_lens_cpu_upper_bound=10 + counts,
            )
            method = "block" if block else "standard"
            config = SimpleNamespace(num_speculative_tokens=STEPS, rejection_sample_method=method)
            ours = RejectionSampler(sampler, config, "cpu")(z, batch, proposed)
            assert ours.num_sampled.tolist() == number.tolist(), (block, given, greedy)
            for mine, other, count in zip(ours.sampled_token_ids, drawn, number.tolist(), strict=True):
                assert mine[:count].tolist() == other[:count].tolist(), (block, given, greedy)
            seen["requests"] += REQUESTS
print(json.dumps(seen))
