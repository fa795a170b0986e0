"""A request's parameters: what TokenSpeed's `SamplingParams` says, in Gumball's words, or why it cannot be had."""

from __future__ import annotations

from typing import Any

from gumball.errors import RefusedError
from gumball.flat import refuse_near_misses, refuse_outside
from gumball.params import LogprobsParams, SamplingParams
from gumball.plugins.marks import SERVER, SERVER_NAMES, server_params

__all__ = ["KNOWN", "RETURN_KEPT", "RETURN_RADII", "known_of", "params_of"]

KNOWN = "__known__"
"""The key of `custom_params` under which the engine's two lists of a request come: its prompt, and the tokens that it has so far."""


RETURN_KEPT = "return_kept"
"""The key of `custom_params` by which a client asks for kept sets."""

RETURN_RADII = "return_radii"
"""The key by which it asks for radii."""


def params_of(request: Any, logprobs: bool = False, vocab: int | None = None) -> SamplingParams:
    """Converts a request's parameters from TokenSpeed to Gumball.

    As in TokenSpeed, `min_new_tokens` has no effect without `stop_token_ids`. TokenSpeed asks for greedy decoding by a
    `top_k` of 1, which becomes temperature 0: the same token by fewer kernels. `custom_params` has parameters of Gumball alone, by
    their flat names, whose ids are checked if there is a vocab. Logprobs of a request with `return_kept` are over its sets. Raises ValueError as SamplingParams does, and RefusedError for another name there.
    """
    stop_ids = sorted(getattr(request, "stop_token_ids", None) or ())
    bias = getattr(request, "logit_bias", None) or {}
    custom = getattr(request, "custom_params", None) or {}
    radii = bool(custom.get(RETURN_RADII))
    # Over the sets, as a trainer computes them.
    mode = "processed" if custom.get(RETURN_KEPT) else "raw"
    chosen: dict[str, Any] = {
        "temperature": 0.0 if request.top_k == 1 else request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "repetition_scope": "output",
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "logit_bias": {int(token): float(value) for token, value in bias.items()},
        "min_tokens": request.min_new_tokens if stop_ids else 0,
        "stop_ids": stop_ids,
        "seed": None if request.seed is None else request.seed & ((1 << 64) - 1),
        "logprobs": LogprobsParams(mode=[mode, "radius"] if radii else mode) if logprobs or radii else None,
    }
    own = _own(request)
    chosen |= server_params(own, "custom_params")
    if vocab is not None:
        refuse_outside(own, vocab, "custom_params")
    return SamplingParams(**chosen)


def _own(request: Any) -> dict[str, Any]:
    """Returns a request's `custom_params`, without what no client put there."""
    custom = getattr(request, "custom_params", None) or {}
    given = {name: value for name, value in custom.items() if name not in _INNER and value is not None}
    for name in given:
        if hasattr(request, name):
            raise RefusedError(f"custom_params has {name!r}, which is TokenSpeed's own; give it beside, not in there")
    others = {name: value for name, value in given.items() if name not in SERVER_NAMES}
    refuse_near_misses(others, "custom_params", peers=True)
    for name in others:
        raise RefusedError(
            f"custom_params has {name!r}, but takes only {', '.join([*SERVER_NAMES, RETURN_KEPT, RETURN_RADII])}"
        )
    return given


# What is none of the sampler's parameters; the second is TokenSpeed's.
_INNER = {KNOWN, "__req__", RETURN_KEPT, RETURN_RADII}


def known_of(request: Any) -> tuple[list[int], list[int]]:
    """Returns what a request begins with: its prompt, if it has parameters of Gumball alone or a server's mark, which may look at it, and the tokens that it has."""
    given = getattr(request, "custom_params", None) or {}
    prompt, output = given.get(KNOWN, ((), ()))
    return list(prompt if SERVER is not None or given.keys() - _INNER else ()), list(output)
