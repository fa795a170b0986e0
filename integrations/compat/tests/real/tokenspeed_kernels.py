"""TokenSpeed's own Triton operators on the CPU, by Triton's interpreter, beside gumball_compat.tokenspeed's.

The package refuses to be imported without a GPU, so its operators are imported alone, with stand-ins for the modules that
ask for a device.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

from gumball_compat import tokenspeed

SPEC = importlib.util.find_spec("tokenspeed_kernel")
assert SPEC is not None and SPEC.origin is not None
FOLDER = Path(SPEC.origin).parent / "ops" / "sampling" / "triton"
PACKAGE = "tokenspeed_kernel.ops.sampling.triton"


def stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


WHERE = ("penalties", "probability", "logprobs", "verify", "tree_verify")
REQUESTS, NODES, VOCAB = 30, 9, 300


def outputs() -> list[torch.Tensor]:
    shapes = (REQUESTS * NODES,), (REQUESTS, NODES), (REQUESTS,)
    return [torch.full(shape, fill, dtype=torch.int32) for shape, fill in zip(shapes, (99, -1, 99), strict=True)]


def compare() -> dict[str, int]:
    """Compares the operators; returns how many of each kind."""
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in WHERE}
    seen = {"verified": 0, "counts": 0, "logprobs": 0, "min_p": 0, "penalties": 0}

    torch.manual_seed(1)
    candidates, target = (torch.randint(0, 2, (REQUESTS, NODES), dtype=torch.int32) for _ in range(2))
    target[::2] = 1
    candidates[::6] = 1
    target = target.view(-1)
    both = [outputs(), outputs()]
    for module, (predicts, index, count) in zip((modules["verify"], tokenspeed), both, strict=True):
        module.verify_chain_target_sampled(predicts, index, count, candidates, target)
    assert all(map(torch.equal, *both))
    seen["verified"] += 1
    for parents in (
        torch.arange(-1, NODES - 1, dtype=torch.int32).repeat(REQUESTS, 1),
        torch.tensor([[-1, *(int(torch.randint(0, i, ())) for i in range(1, NODES))] for _ in range(REQUESTS)]).int(),
    ):
        both = [outputs(), outputs()]
        for module, (predicts, index, count) in zip((modules["tree_verify"], tokenspeed), both, strict=True):
            module.verify_tree(predicts, count, index, candidates, parents.contiguous(), target)
        assert all(map(torch.equal, *both))
        seen["verified"] += 1

    counts = [torch.zeros((5, VOCAB), dtype=torch.int32) for _ in range(2)]
    places, tokens, weights = (torch.randint(0, 5, (400,), dtype=torch.int32) for _ in range(3))
    tokens = tokens * 70 - 30
    for module, held in zip((modules["penalties"], tokenspeed), counts, strict=True):
        module.accumulate_counts_inplace(held, places, tokens, weights)
    assert torch.equal(*counts)
    seen["counts"] += 1

    logits, bias = torch.randn(6, VOCAB) * 3, torch.randn(5, VOCAB)
    scales = (
        torch.tensor([0.0, 0.5, 1.0, 0.25, 2.0]),
        torch.tensor([0.0, 1.0, 0.5, 2.0, 0.25]),
        torch.arange(1.0, 6.0) / 2,
    )
    edited = [logits.clone(), logits.clone()]
    index = torch.tensor([4, 0, 2], dtype=torch.int32)
    for module, rows in zip((modules["penalties"], tokenspeed), edited, strict=True):
        module.apply_penalties_logit_bias_inplace(rows, index, counts[0], bias, *scales, num_tokens_per_req=2)
    torch.testing.assert_close(*edited, rtol=1e-6, atol=1e-6)
    seen["penalties"] += 1

    chosen = torch.randint(0, VOCAB, (6,))
    found = [module.selected_token_logprobs(logits, chosen) for module in (modules["logprobs"], tokenspeed)]
    torch.testing.assert_close(*found, rtol=0, atol=2e-6)
    seen["logprobs"] += 1

    probs, least = logits.softmax(1), torch.tensor([0.0, 0.01, 0.1, 0.3, 0.5, 1.0])
    found = [module.min_p_renorm_prob(probs, least) for module in (modules["probability"], tokenspeed)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    seen["min_p"] += 1
    return seen


# Copies of the operators' files, in which what they demand of a device is true of any.
with tempfile.TemporaryDirectory() as folder:
    for path in FOLDER.glob("*.py"):
        Path(folder, path.name).write_text(path.read_text().replace('device.type != "cuda"', "device.type is None"))
    for name in ("tokenspeed_kernel", "tokenspeed_kernel.ops", "tokenspeed_kernel.ops.sampling"):
        stand_in(name, __path__=[])
    stand_in(PACKAGE, __path__=[folder])
    stand_in("tokenspeed_kernel._triton", tl=tl, triton=triton)
    stand_in("tokenspeed_kernel.platform", pdl_enabled=lambda: False)
    print(json.dumps(compare()))
