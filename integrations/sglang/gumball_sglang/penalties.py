"""What SGLang's penalties counted before each token of a request with a sampling mask (`meta_info["output_token_penalized"]`), by which a trainer repeats them.

SGLang's scheduler counts a token of each request before a step. With overlap scheduling the last token is not there yet, and the scheduler counts the one that it knows: the token before,
the prompt's last one, or in another batch one twice. So an answer tells what was counted.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_exec

from gumball import SamplingParams

__all__ = ["PENALIZED", "begin", "collect", "count", "penalties_of"]

PENALIZED = "output_token_penalized"

_COUNTED = "gumball_counted"

_NAMES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


def penalties_of(params: dict[str, Any]) -> SamplingParams:
    """Returns Gumball's parameters with the penalties that a request's SGLang parameters give, which count the output; all others are the defaults."""
    given = {name: params[name] for name in _NAMES if params.get(name) is not None}
    return SamplingParams(repetition_scope="output", **given)


def begin(result: Any, kind: Any, batch: Any, vocab_size: int) -> None:
    """Behind SGLang's method that makes a batch's sampling information, whose penalties have counted nothing: of a new request, or of one that was retracted."""
    if get_exec().kernel.sampling_backend != "gumball":
        return
    for request in batch.reqs:
        if not request.return_sampling_mask:
            continue
        given = {name: getattr(request.sampling_params, name) for name in _NAMES}
        if penalties_of(given) != penalties_of({}):
            counted = request.__dict__.setdefault(_COUNTED, [])
            # A step of a retracted request may have been counted whose token SGLang dropped.
            del counted[len(request.output_ids) :]
            counted.append(-1)


def count(batch: Any) -> None:
    """Before the scheduler's method that counts a token of each request, whose choice of the token this repeats."""
    for request in batch.reqs:
        if hasattr(request, _COUNTED):
            last = request.output_ids[-1] if len(request.output_ids) else request.origin_input_ids[-1]
            getattr(request, _COUNTED).append(last)


def collect(result: Any, processor: Any, row: int, request: Any, output: Any) -> None:
    """Behind the scheduler's method that adds a step's numbers to a request, whose newest token is in its output: adds what was counted before this token."""
    # With overlap scheduling the next step has been counted, too.
    counted = getattr(request, _COUNTED, [])[len(request.output_ids) - 1 :][:1]
    if counted:
        request.customized_info = request.customized_info or {}
        request.customized_info.setdefault(PENALIZED, []).extend(counted)
