"""transformers: `generate` of a model whose forward pass hands out the given logits, so that the real loop and its processors run.

Requests of one call have the same parameters there, so each set of equal requests is a call of its own. Draws come from torch's
global generator; a request has no seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation.utils import _speculative_sampling
from transformers.modeling_outputs import CausalLMOutput

from ..engine import Drawn, Engine, Floats, Request
from ..session import NotApplicable


class Given(PreTrainedModel, GenerationMixin):
    """A model that reads its logits off a list, a step's rows at each call."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(PretrainedConfig(vocab_size=logits.shape[2], is_decoder=True, num_hidden_layers=1))
        self.steps = iter(logits)
        self.place = torch.nn.Parameter(torch.zeros(1))

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=next(self.steps)[:, None, :])


class Transformers(Engine):
    name = "transformers"
    remark = (
        "`generate` of a model that hands out given logits, with `prefix_allowed_tokens_fn` for masks and `sequence_bias` for biases; "
        "requests have no seeds. Of assisted decoding the function is tried that judges drafts with probabilities."
    )
    version = transformers.__version__
    features = frozenset(
        "top_k top_p min_p repetition_penalty repetition_of_prompt logit_bias mask logprobs batch verify".split()
    )
    logprobs = "processed"

    def start(self, seed: int) -> None:
        torch.manual_seed(seed)

    def config(self, request: Request, steps: int) -> GenerationConfig:
        """The request as `generate` takes it; options that are left out are off."""
        is_greedy = request.temperature == 0
        bias = {(token,): float(bias) for token, bias in request.logit_bias.items()}
        return GenerationConfig(
            do_sample=not is_greedy,
            temperature=None if is_greedy else request.temperature,
            top_k=None if is_greedy else request.top_k,
            top_p=None if is_greedy or request.top_p == 1 else request.top_p,
            min_p=None if is_greedy or request.min_p == 0 else request.min_p,
            repetition_penalty=None if request.repetition_penalty == 1 else request.repetition_penalty,
            sequence_bias=bias or None,
            max_new_tokens=steps,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=request.logprobs is not None,
        )

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request), []).append(number)
        found = [[Drawn(-1)] * len(requests) for _ in logits]
        for numbers in groups.values():
            request = requests[numbers[0]]
            for number, drawn in zip(numbers, self.generate(torch.tensor(logits[:, numbers]), request)):
                for step, each in zip(found, drawn):
                    step[number] = each
        return found

    def program(self, row: str, request: Request, draws: int) -> str | None:
        if not row.startswith("[") or not self.asks_only(request, "temperature", "top_k", "top_p", "min_p"):
            return None
        greedy = request.temperature == 0
        said = {} if greedy else {name: getattr(request, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        settings = "".join(f", {name}={value}" for name, value in said.items() if value or name == "top_k")
        return "\n".join(
            [
                "import torch, transformers; from torch import inf, nan",
                "from transformers.modeling_outputs import CausalLMOutput",
                "class Given(transformers.PreTrainedModel, transformers.GenerationMixin):",
                "    config_class, main_input_name = transformers.PretrainedConfig, 'input_ids'",
                "    device, dtype = torch.device('cpu'), torch.float32",
                "    def prepare_inputs_for_generation(self, input_ids, **_): return {'input_ids': input_ids}",
                f"    def forward(self, input_ids, **_): return CausalLMOutput(logits=torch.tensor([[{row}]]).float().repeat({draws}, 1, 1))",
                f"made, prompt = Given(transformers.PretrainedConfig(is_decoder=True)), torch.zeros({draws}, 1, dtype=int)",
                f"out = made.generate(prompt, do_sample={not greedy}{settings}, max_new_tokens=1, use_cache=False)[:, 1]",
                "print(out.item())" if draws == 1 else "print(out.bincount())",
            ]
        )

    def generate(self, logits: torch.Tensor, request: Request) -> list[list[Drawn]]:
        steps, rows, _ = logits.shape
        prompt = torch.tensor([[*request.prompt, *request.output] or [0]] * rows)
        model = Given(logits)
        allowed = None if request.allowed is None else lambda *_: list(request.allowed or ())
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=self.config(request, steps),
            prefix_allowed_tokens_fn=allowed,
        )
        tokens = out.sequences[:, prompt.shape[1] :].tolist()
        if request.logprobs is None:
            return [[Drawn(token) for token in row] for row in tokens]
        values = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).tolist()
        return [[Drawn(*drawn) for drawn in zip(*row)] for row in zip(tokens, values)]

    def verify(
        self, target: Floats, drafts: Sequence[Sequence[int]], probs: Floats | None, requests: Sequence[Request]
    ) -> Sequence[Sequence[int]]:
        """Judges drafts as assisted decoding does where it draws: processed logits go into its speculative sampling."""
        request = requests[0]
        if request.temperature == 0 or probs is None:
            raise NotApplicable(
                "only the function for drafts with probabilities is tried, which is not for greedy decoding"
            )
        config = self.config(dataclasses.replace(request), 1)
        model = Given(torch.tensor(target))
        config._pad_token_tensor = config._eos_token_tensor = None
        processors = model._get_logits_processor(config, input_ids_seq_length=1)
        found = []
        for rows, ids, laws in zip(torch.tensor(target), drafts, torch.tensor(probs).log()):
            prompt = torch.tensor([[0, *ids]])
            processed = torch.stack(
                [processors(prompt[:, : 1 + n], row[None].clone()) for n, row in enumerate(rows)], dim=1
            )
            emitted, _ = _speculative_sampling(prompt, laws[None], len(ids), processed)
            found.append(emitted[0].tolist())
        return found
