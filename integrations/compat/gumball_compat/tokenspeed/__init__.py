"""TokenSpeed's sampling operators under their own names, most of which are SGLang's kernels too.

They have the names and arguments of `tokenspeed_kernel.ops.sampling`, release 0.1.4, for programs that call those, and run where the tensors
lie, on the host as well. The sampling backend, which needs none of them, is in the package gumball-tokenspeed. This module needs torch.
"""

from __future__ import annotations

from ..sglang.speculative import chain_speculative_sampling_target_only
from . import chains, draws, penalties, rows
from .chains import *
from .draws import *
from .penalties import *
from .rows import *

__all__ = ["chain_speculative_sampling_target_only"]
__all__ += chains.__all__ + draws.__all__ + penalties.__all__ + rows.__all__
