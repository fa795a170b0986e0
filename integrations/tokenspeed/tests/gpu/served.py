"""Requests in TokenSpeed's own sampling package on a GPU, without a model: its registry, its executor's rule of a step, and graphs as it captures them."""

from __future__ import annotations

import bisect
import os
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from gumball_tokenspeed import places
from gumball_tokenspeed.requests import told
from tokenspeed.runtime.execution.model_executor import ModelExecutor
from tokenspeed.runtime.execution.output_layout import ForwardOutputLayout
from tokenspeed.runtime.layers.logits_processor import LogitsProcessorOutput
from tokenspeed.runtime.plugins import ensure_loaded
from tokenspeed.runtime.sampling import registry
from tokenspeed.runtime.sampling.sampling_batch_info import SamplingBatchInfo
from tokenspeed.runtime.sampling.sampling_params import SamplingParams
from tokenspeed.runtime.utils import env
from tokenspeed.runtime.utils.server_args import prepare_server_args

VOCAB = int(os.environ.get("VOCAB", "151936"))
PROMPT = [5, 6, 7]


def arguments(*given: str) -> Any:
    """TokenSpeed's arguments of a server of a command line, once its plug-ins are loaded; this process becomes one of that server's."""
    assert "gumball" in {plugin.name for plugin in ensure_loaded()}
    if not getattr(arguments, "named", False):
        places.take_name()
        arguments.named = True  # type: ignore[attr-defined]
    made = prepare_server_args(["--model", tempfile.mkdtemp(), *given])
    env.global_server_args_dict_update(made)
    return made


def request(name: str, params: dict[str, Any], seed: int) -> Any:
    """A scheduler's state of a request, as far as the plug-in reads it."""
    asked = SamplingParams(**{"seed": seed, **params})
    asked.verify(VOCAB)
    return SimpleNamespace(
        name=name,
        sampling_params=asked,
        prompt_input_ids_unpadded=list(PROMPT),
        output_ids=[],
        eos_token_ids=None,
        set_cached_id=lambda: None,
        _eos_token_id_cached=None,
        _additional_stop_token_ids_cached=None,
    )


class Server:
    """A sampling backend by its name in TokenSpeed's registry, and what the executor has around it.

    width: tokens of a request in a step, 1 without drafts. parents: of trees of drafts. logits: [rows * width, VOCAB], what a model would write.
    """

    def __init__(
        self, name: str, rows: int, *, dtype: torch.dtype = torch.float32, width: int = 1, logprobs: bool = True,
        parents: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.rows, self.width = name, rows, width
        given = ["--sampling-backend", name, *(["--enable-output-logprobs"] if logprobs else [])]
        self.args = arguments(*given)
        self.sampling_backend = registry.create_sampling_backend(
            self.args,
            max_bs=rows,
            max_draft_tokens_per_req=width,
            device="cuda",
            max_req_pool_size=2 * rows,
            vocab_size=VOCAB,
            tp_group=(0,),
        )
        self.logits = torch.zeros(rows * width, VOCAB, dtype=dtype, device="cuda")
        self.candidates = torch.zeros(rows, width, dtype=torch.int32, device="cuda")
        self.indices = torch.zeros(rows, dtype=torch.int64, device="cuda")
        self.lengths = torch.zeros(2 * rows + 1, dtype=torch.int32, device="cuda")
        self.tree_spec: Any = None
        if parents is not None:
            above = torch.tensor(parents, dtype=torch.int32, device="cuda").repeat(rows, 1)
            self.tree_spec = SimpleNamespace(parent_buf=above, depth_buf=torch.zeros_like(above))
        self.graphs: dict[tuple[str, int], Any] = {}
        self.sizes: list[int] = []
        self.stream = torch.cuda.Stream()

    def _apply_force_single_token_verify(self, lengths: torch.Tensor, *_: Any) -> torch.Tensor:
        return lengths

    def run(self, extends: int, decodes: int) -> tuple[Any, Any, Any]:
        """One forward's sampling, by the executor's own rule, of rows of prompts and then of rows that decode."""
        count = extends + decodes
        layout = ForwardOutputLayout(extends, extends, decodes, self.width)
        context = SimpleNamespace(num_extends=extends, bs=count, output_layout=layout, decode_input_ids=None)
        output = LogitsProcessorOutput(next_token_logits=self.logits[: extends + decodes * self.width])
        info = SamplingBatchInfo(
            vocab_size=VOCAB,
            req_pool_indices=self.indices[:count],
            valid_cache_lengths=self.lengths,
            device="cuda",
        )
        drafts = self.candidates[:decodes] if decodes else None
        tokens, lengths = ModelExecutor._run_sampling(self, output, info, context, drafts)
        return tokens, lengths, output.next_token_logprobs

    def capture(self, sizes: list[int], without: tuple[str, ...] = ()) -> None:
        """Captures a graph for each size and each of the backend's variants, in the sequence in which TokenSpeed does it.

        without: variants that no step takes.
        """
        self.sizes = sorted(sizes)
        variants = dict.fromkeys(("default", *self.sampling_backend.cuda_graph_capture_variants(self.width)))
        pool: Any = None
        for bs in reversed(self.sizes):
            for variant in (one for one in variants if one not in without):
                with torch.cuda.stream(self.stream):
                    for _ in range(4):
                        torch.cuda.synchronize()
                        self.sampling_backend.prepare_capture_variant(
                            bs=bs, num_tokens_per_req=self.width, variant=variant
                        )
                        self.run(0, bs)
                    torch.cuda.synchronize()
                self.sampling_backend.reset_capture_state()
                torch.cuda.synchronize()
                self.sampling_backend.prepare_capture_variant(bs=bs, num_tokens_per_req=self.width, variant=variant)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                    out = self.run(0, bs)
                torch.cuda.synchronize()
                pool = graph.pool()
                self.graphs[variant, bs] = graph, out

    def prepare(self, requests: list[Any], indices: list[int], parts: list[tuple[int, int, int]]) -> None:
        """The host's work before a forward: requests by rows, the first of them with parts of their prompts."""
        step = SimpleNamespace(request_ids=[one.name for one in requests], num_extends=lambda: len(parts))
        step.extend_prefix_lens, step.input_lengths, step.prefill_lengths = (
            zip(*parts, strict=True) if parts else ((), (), ())
        )
        if self.name == "gumball":
            params = told({one.name: one for one in requests}, step)
        else:
            params = [one.sampling_params for one in requests]
        self.indices[: len(indices)].copy_(torch.tensor(indices, pin_memory=True), non_blocking=True)
        self.sampling_backend.prepare_step(
            request_ids=step.request_ids,
            request_pool_indices=indices,
            sampling_params_list=params,
            num_tokens_per_req=self.width,
        )

    def forward(self, extends: int, decodes: int) -> tuple[Any, Any, Any]:
        """A forward's tokens, numbers of them and logprobs: by a graph where all rows decode, padded to the next captured size."""
        if extends or not self.sizes or decodes > self.sizes[-1]:
            return self.run(extends, decodes)
        bs = self.sizes[bisect.bisect_left(self.sizes, decodes)]
        self.indices[decodes:bs].zero_()
        variant = self.sampling_backend.cuda_graph_replay_variant(self.width)
        graph, (tokens, lengths, logprobs) = self.graphs[variant, bs]
        graph.replay()
        rows = decodes * self.width
        return tokens[:rows], lengths[:decodes], None if logprobs is None else logprobs[:rows]

    def step(
        self, requests: list[Any], indices: list[int], parts: list[tuple[int, int, int]] | None = None
    ) -> list[Any]:
        """Enqueues a whole step, with copies of what came out on their way to the host."""
        parts = parts or []
        self.prepare(requests, indices, parts)
        out = self.forward(len(parts), len(requests) - len(parts))
        return [None if one is None else one.to("cpu", non_blocking=True) for one in out]
