"""What happens when a worker of vLLM starts: Gumball's kernels are made ready before the first request, and it is said how long that took."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger

from .drafting import follow_filters
from .heads import sequences_of_runner

__all__ = ["warmer"]

# Seconds after which kernels were not read, but compiled.
LONG = 2.0


def warmer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of vLLM's `Worker` that warms it up, with our kernels after its own. The method raises our error if the kernels cannot be had."""

    @functools.wraps(original)
    def compile_or_warm_up_model(self: Any) -> Any:
        sequences = sequences_of_runner(self.model_runner, self.vllm_config)
        if sequences is not None:
            follow_filters(self.model_runner, self.vllm_config)
        result = original(self)
        if sequences is not None and get_pp_group().is_last_rank:
            warm_up(sequences, self.vllm_config, self.model_runner.device)
        return result

    return compile_or_warm_up_model


@torch.inference_mode()
def warm_up(sequences: Any, config: Any, device: Any) -> None:
    """Makes the kernels of our requests of a runner; says so if it took long."""
    logger = init_logger("vllm.plugins.gumball")
    model, begin = config.model_config, time.perf_counter()
    logger.info("making Gumball's kernels ready")
    if sequences.head is None:
        dtypes, width = [model.head_dtype], model.get_vocab_size()
        if dtypes[0] != torch.float32 and model.logits_processors:
            # The copy that processors edit.
            dtypes.append(torch.float32)
    else:
        dtypes, width = [model.dtype], model.get_hidden_size()
    for dtype in dtypes:
        sequences.warm_up(torch.zeros(1, width, dtype=dtype, device=device))
    seconds = time.perf_counter() - begin
    if seconds > LONG:
        logger.warning(
            "Gumball's kernels for this GPU took %.1f s to compile, since the installed package does not carry them; they are kept in the user's cache. "
            "A package that carries them, or `gumball kernels` beforehand, saves this time",
            seconds,
        )
