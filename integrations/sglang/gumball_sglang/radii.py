"""Radii of a request's tokens (`return_radii` of `custom_params`), in `meta_info["radii"]` of SGLang's answers: how far the logits may move without another token.

They go beside the tokens in SGLang's own place for a number of each token (`customized_info`), through its streams, too. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.runtime_context import get_exec, get_server_args, get_spec
from sglang.srt.utils.common import async_d2h

from .draws import asking, radii
from .penalties import PENALIZED

__all__ = ["collect", "copy", "leave", "refuse_untold", "told"]

RADII = "radii"


def refuse_untold(manager: Any, request: Any, *_: Any) -> None:
    """Refuses radii of a server that tells none, when the request enters SGLang. Raises ValueError, which its server answers with 400."""
    params = (request.sampling_params or {}).get("custom_params")
    given = params.get("return_radii") if isinstance(params, dict) else None
    if given is None or get_exec().kernel.sampling_backend != "gumball":
        return
    if type(given) is not bool:
        raise ValueError(f"custom_params has return_radii = {given!r}, but it must be true or false")
    for why, name in (
        (get_spec().speculative_algorithm, "--speculative-algorithm, since SGLang judges drafts itself"),
        (get_server_args().enable_watermark, "--enable-watermark, which leaves a marked row one token"),
    ):
        if given and why:
            raise ValueError(f"custom_params has return_radii, which this server does not tell: it has {name}")


def leave(output: Any, logits: torch.Tensor, info: Any, positions: torch.Tensor) -> None:
    """Leaves the radii of a step's requests in SGLang's `LogitsProcessorOutput`, if one asks for them. logits, info, positions: as for :func:`.draws.draw`."""
    found = radii(logits, info, positions)
    if found is not None:
        output.customized_info = (output.customized_info or {}) | {RADII: found}


def copy(result: Any, *_: Any, **__: Any) -> None:
    """Before SGLang's method that copies a step's results to the host: begins to copy the radii."""
    info = None if result.logits_output is None else result.logits_output.customized_info
    if info is not None and RADII in info:
        info[RADII] = async_d2h(info[RADII])


def collect(original: Callable[..., Any], processor: Any, row: int, request: Any, output: Any) -> None:
    """Around the scheduler's method that adds a step's numbers to a request: makes its radius a number of Python, or removes the radii of a request that did not ask."""
    original(processor, row, request, output)
    numbers = request.customized_info
    if numbers is not None and RADII in numbers:
        if asking(request):
            numbers[RADII][-1] = float(numbers[RADII][-1])
        else:
            del numbers[RADII]


def told(original: Callable[..., Any], manager: Any, answer: Any, state: Any, info: Any, index: int, *rest: Any) -> Any:
    """Around the method that puts these numbers into an answer: leaves out ours of a request that did not ask, for which SGLang has None."""
    info = {name: lists for name, lists in info.items() if name not in (RADII, PENALIZED) or None not in lists[index]}
    return original(manager, answer, state, info, index, *rest)
