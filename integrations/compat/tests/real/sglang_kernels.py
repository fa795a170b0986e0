"""SGLang's own Triton operators on the CPU, by Triton's interpreter, beside gumball_compat.sglang's.

Of the package only the files that hold the operators are loaded, with stand-ins for the modules that ask for a device. The
kernels compare uniform numbers with probabilities, which Gumball's do not, so chains have rows that leave nothing to chance.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from enum import Enum
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

import gumball_compat.sglang as ours

SPEC = importlib.util.find_spec("sglang")
assert SPEC is not None and SPEC.submodule_search_locations
FOLDER = Path(SPEC.submodule_search_locations[0])
OPERATORS = FOLDER / "kernels" / "ops" / "speculative"


def stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"real_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(requests: int, nodes: int) -> list[torch.Tensor]:
    shapes = (requests * nodes,), (requests, nodes), (requests,)
    return [torch.full(shape, -1, dtype=torch.int32) for shape in shapes]


seen = {"trees": 0, "chains": 0}

for name in ("sglang", "sglang.srt"):
    stand_in(name, __path__=[])
stand_in("sglang.srt.platforms", current_platform=None, __path__=[])
stand_in("sglang.srt.platforms.interface", reject_out_of_tree_path=lambda *_: None, Enum=Enum)
devices = {f"is_{device}": lambda: False for device in ("cpu", "cuda", "hip", "musa", "npu", "xpu")}
stand_in("sglang.srt.utils", **devices)

torch.manual_seed(1)
trees = load(OPERATORS / "spec_tree.py")
for nodes in (1, 2, 7):
    requests = 20
    first, sibling = (torch.full((requests, nodes), -1) for _ in range(2))
    for request in range(requests):
        last: dict[int, int] = {}
        for node in range(1, nodes):
            parent = int(torch.randint(max(0, node - 3), node, ()))
            if parent in last:
                sibling[request, last[parent]] = node
            else:
                first[request, parent] = node
            last[parent] = node
        seen["trees"] += 1
    candidates, picks = torch.randint(0, 2, (requests, nodes)), torch.randint(0, 2, (requests, nodes))
    places = torch.arange(requests * nodes).view(requests, nodes)
    both = [outputs(requests, nodes), outputs(requests, nodes)]
    for verify, made in zip((trees.verify_tree_greedy_triton, ours.verify_tree_greedy), both, strict=True):
        verify(*made, candidates, places, first, sibling, picks)
    assert all(map(torch.equal, *both)), nodes

chains = load(OPERATORS / "reject_sampling.py")
requests, nodes, vocab = 20, 5, 7
for block in (False, True):
    for rows in (nodes - 1, nodes):
        target, drafts = torch.randint(0, vocab, (requests, nodes)), torch.randint(0, vocab, (requests, nodes))
        drafts[:, 1:] = torch.where(torch.rand(requests, nodes - 1) < 0.7, target[:, :-1], drafts[:, 1:])
        probs = torch.nn.functional.one_hot(target, vocab).float()
        proposed = torch.nn.functional.one_hot(drafts.roll(-1, 1), vocab).float()[:, :rows].contiguous()
        # Some drafts have no probability of the drafter's, which SGLang marks so.
        if not block:
            proposed[::3, 1] = 2.0
        coins = torch.rand(requests, nodes), torch.rand(requests)
        places = torch.arange(requests * nodes).view(requests, nodes)
        both = [outputs(requests, nodes), outputs(requests, nodes)]
        for module, made in zip((chains, ours), both, strict=True):
            module.chain_speculative_sampling_triton(
                *made, drafts, places, None, None, *coins, probs, proposed, 1.0, 1.0, True, block_verification=block
            )
        assert all(map(torch.equal, *both)), (block, rows)
        seen["chains"] += requests
print(json.dumps(seen))
