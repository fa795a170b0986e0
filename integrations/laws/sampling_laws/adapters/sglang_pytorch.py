"""SGLang's `Sampler` with its backend `pytorch`, the one for CPUs.

`SamplingBatchInfo` is made as a scheduler's batch has it made; penalties are told tokens as they are emitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt import runtime_context
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams

from ..engine import Drawn, Engine, Floats, Request


@dataclasses.dataclass(eq=False)
class Batch:
    """What `SamplingBatchInfo` reads of a scheduler's batch."""

    reqs: list[SimpleNamespace]
    device: str = "cpu"


class SGLang(Engine):
    name = "SGLang"
    remark = (
        "The class `Sampler` with the backend `pytorch`, the one for CPUs, and a real `SamplingBatchInfo`. Seeds count in its deterministic "
        "mode alone, which needs `sgl_kernel` and so is not tried here, nor are grammars and speculation. The repetition penalty counts output."
    )
    version = version("sglang")
    features = frozenset(
        (
            "batch top_k top_p min_p repetition_penalty frequency_penalty presence_penalty prompt logit_bias "
            "logprobs top_logprobs"
        ).split()
    )
    logprobs = "tempered"
    joint = True

    def __init__(self) -> None:
        context = runtime_context.get_context()
        context.override_server_args(sampling_backend="pytorch", device="cpu").install()
        self.alone = runtime_context.get_parallel().override(tp_group=SimpleNamespace(device_group=None))
        self.alone.__enter__()
        from sglang.srt.layers.sampler import Sampler

        self.sampler = Sampler()

    def start(self, seed: int) -> None:
        torch.manual_seed(seed)

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        params = [self.params(request) for request in requests]
        for each in params:
            each.verify(logits.shape[2])
        plain: dict[str, Any] = {
            "custom_logit_processor": None,
            "return_sampling_mask": False,
            "sampling_logprobs_mode": None,
        }
        batch = Batch([SimpleNamespace(sampling_params=each, **plain) for each in params])
        info = SamplingBatchInfo.from_schedule_batch(batch, logits.shape[2])
        for tokens in zip(*(request.output for request in requests), strict=True):
            info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor(tokens))
        positions = torch.tensor([len(request.prompt) + len(request.output) for request in requests])
        top = [request.logprobs or 0 for request in requests]
        reports = any(request.logprobs is not None for request in requests)
        for number, step in enumerate(logits):
            output = LogitsProcessorOutput(next_token_logits=torch.tensor(step))
            info.apply_logits_bias(output.next_token_logits)
            tokens = self.sampler(output, info, reports, top, [None] * len(top), positions + number)
            info.penalizer_orchestrator.cumulate_output_tokens(tokens.long())
            yield list(_reported(tokens.tolist(), output if reports else None))

    def program(self, row: str, request: Request, draws: int) -> str | None:
        if (
            not row.startswith("[")
            or draws != 1
            or not self.asks_only(request, "temperature", "top_k", "top_p", "min_p")
        ):
            return None
        params = f"temperature={request.temperature}, top_k={request.top_k or -1}, top_p={request.top_p}, min_p={request.min_p}"
        return "\n".join(
            [
                "from types import SimpleNamespace as Made; from torch import inf, nan, tensor; from sglang.srt import runtime_context",
                "from sglang.srt.layers.logits_processor import LogitsProcessorOutput",
                "from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo; "
                "from sglang.srt.sampling.sampling_params import SamplingParams",
                "runtime_context.get_context().override_server_args(sampling_backend='pytorch', device='cpu').install()",
                "alone = runtime_context.get_parallel().override(tp_group=Made(device_group=None)); alone.__enter__()",
                "from sglang.srt.layers.sampler import Sampler",
                "none = dict(custom_logit_processor=None, return_sampling_mask=False, sampling_logprobs_mode=None)",
                f"class Batch: device, reqs = 'cpu', [Made(sampling_params=SamplingParams({params}), **none)]",
                f"row, batch = LogitsProcessorOutput(next_token_logits=tensor([{row}]).float()), "
                f"SamplingBatchInfo.from_schedule_batch(Batch(), {row.count(',') + 1})",
                "print(Sampler()(row, batch, False, [0], [None], tensor([0])).item())",
            ]
        )

    def params(self, request: Request) -> SamplingParams:
        return SamplingParams(
            temperature=request.temperature,
            top_k=request.top_k or -1,
            top_p=request.top_p,
            min_p=request.min_p,
            repetition_penalty=request.repetition_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            logit_bias={str(token): bias for token, bias in request.logit_bias.items()} or None,
            sampling_seed=request.seed,
        )


def _reported(tokens: list[int], output: Any) -> Iterator[Drawn]:
    for row, token in enumerate(tokens):
        if output is None:
            yield Drawn(token)
            continue
        ids, values = output.next_token_top_logprobs_idx, output.next_token_top_logprobs_val
        top = tuple(zip(ids[row].tolist(), values[row].tolist())) if ids else ()
        yield Drawn(token, float(output.next_token_logprobs[row]), top)
