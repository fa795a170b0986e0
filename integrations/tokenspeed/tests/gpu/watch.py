"""A plug-in of TokenSpeed for `engine.py`: writes the logits that Gumball's backend draws from to a file of each request, in $GUMBALL_WATCH.

The copy is part of the steps, so that a graph takes it too; it is read when the next step is prepared. With $GUMBALL_NCCL_ALONE no engine makes
TensorRT's buffers for sums over GPUs, which take NVLink multicast where they can.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Called by TokenSpeed in each of its processes; nothing without $GUMBALL_WATCH and $GUMBALL_NCCL_ALONE."""
    if "GUMBALL_NCCL_ALONE" in os.environ:
        from tokenspeed.runtime.distributed.comm_backend.trtllm_allreduce import TrtllmAllReduceBackend

        TrtllmAllReduceBackend.configure_group = lambda *_, **__: False  # type: ignore[method-assign]
    folder = os.environ.get("GUMBALL_WATCH")
    if folder is None:
        return
    import torch
    from gumball_tokenspeed.backend import GumballSamplingBackend

    make, prepare, step = (
        GumballSamplingBackend.__init__,
        GumballSamplingBackend.prepare_step,
        GumballSamplingBackend._step,
    )

    def made(self: Any, config: Any) -> None:
        make(self, config)
        self.watched = torch.zeros(config.max_bs, config.vocab_size, dtype=torch.bfloat16, device=self.pool.device)
        self.watched_ids: list[str | None] = []

    def prepared(
        self: Any,
        request_ids: list[str],
        request_pool_indices: list[int],
        sampling_params_list: list[Any],
        num_tokens_per_req: int = 1,
    ) -> None:
        torch.cuda.synchronize()
        for row, name in enumerate(self.watched_ids):
            if name is not None:
                with Path(folder, name).open("ab") as file:
                    file.write(self.watched[row].view(torch.int16).cpu().numpy().tobytes())
        drawn = zip(request_ids, sampling_params_list, strict=True)
        self.watched_ids = [None if params is None else name for name, params in drawn]
        prepare(self, request_ids, request_pool_indices, sampling_params_list, num_tokens_per_req)

    def stepped(self: Any, logits_output: Any, sampling_info: Any, bs: int) -> Any:
        first = getattr(sampling_info, "batch_row_offset", 0)
        logits = logits_output.next_token_logits
        assert logits.dtype is torch.bfloat16, f"logits in {logits.dtype}"
        self.watched[first : first + bs].copy_(logits[:, : self.watched.shape[1]])
        return step(self, logits_output, sampling_info, bs)

    GumballSamplingBackend.__init__ = made  # type: ignore[method-assign]
    GumballSamplingBackend.prepare_step = prepared  # type: ignore[method-assign]
    GumballSamplingBackend._step = stepped  # type: ignore[method-assign]
