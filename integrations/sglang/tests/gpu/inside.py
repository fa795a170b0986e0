"""What `check.py` and `times.py` run inside SGLang's processes: a plug-in of SGLang, by the entry point `sglang.srt.plugins`.

GUMBALL_WATCH names a folder. What is noted goes there: `steps`, a line for each step of the scheduler; while a file `note` is there, the rows of
batches of one request, as `rows`; while a file `busy` is there, how long a call of the sampler behind a busy device takes, as `waits`.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_model import spread_weights

FOLDER = Path(os.environ.get("GUMBALL_WATCH", "/nonexistent"))
BUSY_CYCLES = 100_000_000
"""How long the device is kept busy: 50 ms of a GPU of 2 GHz."""


def register() -> None:
    """Gives the model random weights, lets a deterministic engine keep its sampling backend, and notes what is asked for."""
    if not FOLDER.is_dir():
        return
    from gumball_sglang import sampler as ours
    from sglang.srt.arg_groups import attention_hook
    from sglang.srt.layers import sampler as theirs
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.initialize_dummy_weights", _weights, HookType.REPLACE)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", _stepped, HookType.BEFORE)
    attention_hook._deterministic_sampling_backend = _as_asked
    ours.draw = _noted(ours.draw)
    for kind in (ours.Sampler, theirs.Sampler):
        kind.forward = _timed(kind.forward)
    if os.environ.get("GUMBALL_EAGLE") == "1":
        from sglang.srt.speculative import eagle_utils, eagle_worker_common, ngram_worker

        from gumball_compat.sglang import eagle_sample

        for module in (eagle_utils, eagle_worker_common, ngram_worker):
            module.eagle_sample = eagle_sample


def _weights(model: Any, *_: Any, **__: Any) -> None:
    spread_weights(model)


def _as_asked(view: Any) -> dict[str, Any]:
    return {}


def _append(name: str, data: bytes) -> None:
    with (FOLDER / name).open("ab") as file:
        file.write(data)


def _stepped(scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
    kind = "decode" if batch.forward_mode.is_decode() else "other"
    _append("steps", f"{time.perf_counter()} {len(batch.reqs)} {kind}\n".encode())


def _noted(draw: Any) -> Any:
    def drawn(logits: Any, info: Any, positions: Any) -> Any:
        if len(logits) == 1 and (FOLDER / "note").exists():
            _append("rows", np.int64(positions[0].item()).tobytes() + logits[0].float().cpu().numpy().tobytes())
        return draw(logits, info, positions)

    return drawn


def _timed(forward: Any) -> Any:
    def timed(sampler: Any, logits_output: Any, info: Any, return_logprob: bool, *rest: Any, **named: Any) -> Any:
        if not (FOLDER / "busy").exists() or torch.cuda.is_current_stream_capturing():
            return forward(sampler, logits_output, info, return_logprob, *rest, **named)
        torch.cuda._sleep(BUSY_CYCLES)
        torch.cuda.set_sync_debug_mode("warn")
        begin = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = forward(sampler, logits_output, info, return_logprob, *rest, **named)
        took = 1e3 * (time.perf_counter() - begin)
        torch.cuda.set_sync_debug_mode("default")
        places = sorted(
            {f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)}
        )
        who = type(sampler).__module__
        _append("waits", f"{took:.2f} {len(info)} {int(return_logprob)} {who} {','.join(places)}\n".encode())
        return out

    return timed
