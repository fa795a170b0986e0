"""The draw of SGLang's batch by Gumball's operators, and a seed for each request.

SGLang's sampler is handed logits that the engine has edited, and a batch's tensors of parameters. It has the requests' own seeds only where the whole server is
deterministic; `Seeds` keeps them beside each batch, so that each request has one.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.runtime_context import get_exec

from gumball import operators
from gumball.plugins.states import seed_of

__all__ = ["Seeds", "asking", "draw", "filters", "logprobs", "radii", "seed_sample"]

_NAME, _ASKING = "gumball_seeds", "gumball_asking"


class Seeds:
    """The seeds of a batch's requests, and which ask for radii, in the batch's own turn, through everything that happens to it.

    The methods are called behind those of SGLang's `SamplingBatchInfo` that they name, with its result first. Seeds are int64, [rows], and lie
    where the batch's other tensors do: a step must not wait for a copy behind the forward pass.
    """

    @staticmethod
    def from_schedule_batch(result: Any, kind: Any, batch: Any, vocab_size: int) -> Any:
        """Gives a new batch its requests' seeds: their own, or one made of the request's id, which all ranks know."""
        like = result.temperatures
        seeds = torch.tensor([_seed(request) for request in batch.reqs], dtype=torch.int64, pin_memory=like.is_cuda)
        setattr(result, _NAME, seeds.to(like.device, non_blocking=True))
        setattr(result, _ASKING, [asking(request) for request in batch.reqs])
        return result

    @staticmethod
    def filter_batch(result: Any, info: Any, keep_indices: Any, keep_indices_device: Any) -> None:
        """Keeps the seeds of the requests that stay."""
        setattr(info, _NAME, getattr(info, _NAME)[keep_indices_device])
        setattr(info, _ASKING, [getattr(info, _ASKING)[i] for i in keep_indices])

    @staticmethod
    def merge_batch(result: Any, info: Any, other: Any) -> None:
        """Puts the seeds of another batch after these."""
        setattr(info, _NAME, torch.cat([getattr(info, _NAME), getattr(other, _NAME)]))
        setattr(info, _ASKING, getattr(info, _ASKING) + getattr(other, _ASKING))

    @staticmethod
    def copy_for_forward(result: Any, info: Any) -> Any:
        """Hands the seeds to the copy that a step works with."""
        setattr(result, _NAME, getattr(info, _NAME))
        setattr(result, _ASKING, getattr(info, _ASKING))
        return result


def asking(request: Any) -> bool:
    """Whether a request asks for radii."""
    params = request.sampling_params.custom_params
    return isinstance(params, dict) and params.get("return_radii") is True


def _seed(request: Any) -> int:
    given = request.sampling_params.sampling_seed
    return _signed(seed_of(str(request.rid)) if given is None else int(given))


def _signed(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def seed_sample(manager: Any, request: Any) -> None:
    """Before SGLang's method that sends a request to the scheduler: sample j of its `n`, which SGLang copies with its seed, has that seed + j."""
    params = request.sampling_params
    if params.sampling_seed is not None and get_exec().kernel.sampling_backend == "gumball":
        request.sampling_params = copy.copy(params)
        # All copies share these, and are made when they are sent.
        params.sampling_seed = _signed(params.sampling_seed + 1)


def filters(info: Any) -> dict[str, Any]:
    """The temperatures and filters of a batch, as operators take them. info: SGLang's `SamplingBatchInfo`."""
    return {
        "temperature": info.temperatures.view(-1),
        "top_k": info.top_ks if info.need_top_k_sampling else None,
        "top_p": info.top_ps if info.need_top_p_sampling else None,
        "min_p": info.min_ps if info.need_min_p_sampling else None,
        "order": "joint",
    }


def draw(logits: torch.Tensor, info: Any, positions: torch.Tensor) -> torch.Tensor:
    """Returns the next token of each row, [rows] int64.

    logits: [rows, vocab], edited by the engine, before the temperature; they stay as they are. info: SGLang's `SamplingBatchInfo` with seeds. positions: [rows],
    that of the token before; the draw is at the next one. Each filter sees the whole row (SGLang's joint order). A row without a token gives 0.
    """
    seeds = getattr(info, _NAME, None)
    if seeds is None or len(seeds) != len(logits):
        found = "none" if seeds is None else len(seeds)
        raise RuntimeError(
            f"a batch of {len(logits)} rows has {found} seeds; SGLang's SamplingBatchInfo was made or changed in a way that gumball-sglang does not know"
        )
    tokens = operators.sample(
        logits,
        **filters(info),
        seed=seeds,
        position=positions.to(torch.int64) + 1,
        draw=0,
        dtype="int64",
    )
    return tokens.clamp(min=0)


def radii(logits: torch.Tensor, info: Any, positions: torch.Tensor) -> torch.Tensor | None:
    """Returns the radius of each row (L7) for the token of :func:`draw`, [rows] float32, NaN for a request that does not ask; None if none asks.

    The arguments are those of `draw`. What SGLang takes for greedy, a top-k of 1, has the radius of temperature 0.
    """
    those: list[bool] = getattr(info, _ASKING)
    if not any(those):
        return None
    rows = torch.tensor([i for i, asks in enumerate(those) if asks], pin_memory=logits.is_cuda)
    rows = rows.to(logits.device, non_blocking=True)
    chosen = {name: value[rows] if isinstance(value, torch.Tensor) else value for name, value in filters(info).items()}
    chosen["temperature"] = chosen["temperature"].masked_fill(info.top_ks[rows] == 1, 0.0)
    keys = {"seed": getattr(info, _NAME)[rows], "position": positions[rows].to(torch.int64) + 1, "draw": 0}
    found = logits.new_full((len(logits),), torch.nan, dtype=torch.float32)
    found[rows] = operators.radii(logits[rows], **chosen, **keys)
    return found


def logprobs(logits: torch.Tensor, info: Any, original: bool) -> torch.Tensor:
    """The rows from which SGLang lists logprobs: at the temperature, unless all requests are greedy or `original` is asked for."""
    if info.is_all_greedy or original:
        return torch.log_softmax(logits, dim=-1)
    return torch.log_softmax(logits / info.temperatures, dim=-1)
