"""A sampling backend for TokenSpeed over a pool, and its sampling operators under their own names.

::

    from gumball_compat import tokenspeed
    tokenspeed.register()

in the process that makes TokenSpeed's runtime, before it makes its sampling backend by the name "gumball". For a server the plug-in
gumball-tokenspeed does that, lets the command line take the name, and checks requests. This backend has the methods of TokenSpeed's
`SamplingBackend` and takes its config. Each request is a sequence of a :class:`gumball.Pool`: its parameters are
copied in once. Its draws depend on its seed and on its number of tokens, not on the batch, and penalties count the
generated tokens. Unlike TokenSpeed's own backends it applies every parameter: temperature, top-k, top-p on what top-k
keeps, min-p, penalties, bias, `min_new_tokens` with `stop_token_ids`, and Gumball's own in `custom_params`; and it verifies chains and trees of drafts with all of them.

The operators have the names and arguments of `tokenspeed_kernel.ops.sampling`, release 0.1.4, for programs that call those;
the backend needs none of them. They run where the tensors lie, on the host as well.

This module needs torch. TokenSpeed itself is needed by `register`, and by a backend whose ranks must agree on tokens.
"""

from __future__ import annotations

from ..sglang.speculative import chain_speculative_sampling_target_only
from . import chains, draws, penalties, requests, rows
from .backend import CUDA_GRAPH_VARIANT_DEFAULT, GumballSamplingBackend
from .chains import *
from .draws import *
from .penalties import *
from .requests import *
from .rows import *

__all__ = [
    "CUDA_GRAPH_VARIANT_DEFAULT",
    "GumballSamplingBackend",
    "chain_speculative_sampling_target_only",
    "register",
]
__all__ += chains.__all__ + draws.__all__ + penalties.__all__ + requests.__all__ + rows.__all__


def register(name: str = "gumball") -> None:
    """Registers the backend with TokenSpeed under this name. Raises ImportError without TokenSpeed."""
    from tokenspeed.runtime.sampling.registry import register_backend

    register_backend(name, GumballSamplingBackend)
