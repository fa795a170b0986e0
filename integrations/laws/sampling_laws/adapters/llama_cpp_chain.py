"""llama.cpp through llama-cpp-python: a sampler chain for each request, in the order of llama.cpp's own programs.

The chain: bias, penalties, top-k, top-p, min-p, temperature, and the draw. Penalties count the whole history, prompt included.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import llama_cpp as api
import numpy as np

from ..engine import Drawn, Engine, Floats, Request

DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaCpp(Engine):
    name = "llama.cpp"
    remark = (
        "A chain of bias, penalties, top-k, top-p, min-p, temperature and `dist`, the order of its own programs; masks are biases of "
        "-inf, and penalties do not tell prompt from output. Seeds have 32 bits."
    )
    version = f"(llama-cpp-python {version('llama-cpp-python')})"
    features = frozenset(
        (
            "batch seed top_k top_p min_p repetition_penalty repetition_of_prompt frequency_penalty "
            "presence_penalty logit_bias mask logprobs"
        ).split()
    )
    logprobs = "processed"
    temperature_last = True
    seed_bits = 32

    def start(self, seed: int) -> None:
        self.started = seed << 16

    def chain(self, vocab: int, request: Request) -> Any:
        """A new chain, which the caller frees."""
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        bias = dict(request.logit_bias)
        if request.allowed is not None:
            bias |= {token: -math.inf for token in range(vocab) if token not in request.allowed}
        if bias:
            array = (api.llama_logit_bias * len(bias))(*(api.llama_logit_bias(*each) for each in bias.items()))
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_logit_bias(vocab, len(bias), array))
        penalties = (request.repetition_penalty, request.frequency_penalty, request.presence_penalty)
        # As many tokens as a history of the laws may have.
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_penalties(vocab, 64, *penalties))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(request.top_k))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_p(request.top_p, 0))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_min_p(request.min_p, 0))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(request.temperature))
        self.started += 1
        seed = self.started if request.seed is None else request.seed
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(seed))
        for token in (*request.prompt, *request.output):
            api.llama_sampler_accept(chain, token)
        return chain

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        vocab = logits.shape[2]
        chains = [self.chain(vocab, request) for request in requests]
        data = np.empty(vocab, DATA)
        pointer = data.ctypes.data_as(api.llama_token_data_p)
        found = []
        for step in logits:
            found.append([self.draw(chain, row, data, pointer) for chain, row in zip(chains, step)])
        for chain in chains:
            api.llama_sampler_free(chain)
        return found

    def draw(self, chain: Any, row: Floats, data: Any, pointer: Any) -> Drawn:
        data["id"], data["logit"], data["p"] = np.arange(row.size), row, 0
        candidates = api.llama_token_data_array(pointer, row.size, -1, False)
        api.llama_sampler_apply(chain, ctypes.byref(candidates))
        if candidates.selected < 0:
            return Drawn(-1)
        chosen = candidates.data[candidates.selected]
        api.llama_sampler_accept(chain, chosen.id)
        return Drawn(chosen.id, math.log(chosen.p) if chosen.p > 0 else -math.inf)
