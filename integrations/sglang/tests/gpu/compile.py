"""Compiles the kernels that SGLang takes for the shapes of `random_model.py`, side by side; it would compile each when it is first taken."""

from __future__ import annotations

from functools import partial

import torch
from sglang.kernels.jit.utils.compile.parallel import parallel_compile
from sglang.kernels.ops.activation.activation import activation_module
from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module
from sglang.kernels.ops.attention.rope import _jit_fused_rope_module
from sglang.kernels.ops.kvcache.kvcache import _jit_kvcache_module
from sglang.kernels.ops.layernorm.norm import _jit_qknorm_module
from sglang.kernels.ops.speculative.tree import _jit_tree_module

kind = torch.bfloat16
parallel_compile(
    [
        partial(_jit_qknorm_module, 128, kind),
        partial(_jit_fused_rope_module, True, 128, kind, kind),
        partial(_jit_kvcache_module, 2048, 2048, 0),
        partial(activation_module, kind),
        partial(_jit_clamp_position_module, torch.int64),
        _jit_tree_module,
    ]
)
