"""Where a call's random numbers come from: a generator, or a seed and an offset, as Gumball's seed and position.

A draw of Gumball is a function of a seed (64 bits), a position (32 bits) and a draw index. Here the draw index is the
output's number in its batch, as FlashInfer has it, and seed and offset become

* position: the offset's low 32 bits;
* seed: the seed plus the offset's high 32 bits, with their sign, times an odd constant, modulo 2^64.

So no two offsets of one seed share random numbers, however large they grow. A generator of a GPU draws by its seed and the
offset that it has before the call, which then moves on as by FlashInfer's kernels. So calls that move it by different
amounts, from logits and from probabilities, draw the same. A generator of the host has no offset: 64 bits are drawn from
it, for the seed.

Seeds and offsets in tensors are not looked at: what is done to them is done where they lie, on a GPU by the kernels that read
them, and can be captured in a graph.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

__all__ = ["Places", "checked", "get_seed_and_offset"]

# (seed, position): numbers, or tensors of one for each output, or of one for all.
Places = tuple[Any, Any]

_WORDS = (torch.int64, torch.uint64)
_LOW = (1 << 32) - 1
_MASK = (1 << 64) - 1
_SIGN = 1 << 63
# 2^64 over the golden ratio, odd.
_STEP = 0x9E37_79B9_7F4A_7C15
_LOCK = threading.Lock()


def _default_generator(device: Any) -> Any:
    if device is None or device.type == "cuda":
        if not torch.cuda.default_generators:
            torch.cuda.init()
        index = None if device is None else device.index
        return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
    return torch.default_generator


def get_seed_and_offset(
    increment: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> tuple[int, int]:
    """Takes `increment` numbers from a generator, by default the device's: its seed, and its offset before.

    The offset moves on by `increment`, rounded up to a multiple of four. A generator of the host gives a fresh seed,
    and 0.
    """
    generator = _default_generator(device) if generator is None else generator
    if generator.device.type == "cpu":
        return int(torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64, generator=generator)), 0
    step = (increment + 3) // 4 * 4
    with _LOCK:
        if hasattr(generator, "get_offset"):
            seed, before = generator.initial_seed(), generator.get_offset()
            generator.set_offset(before + step)
        else:
            state = generator.get_state()
            seed, before = state.view(torch.int64).tolist()
            state.view(torch.int64)[1] = before + step
            generator.set_state(state)
    return seed, before


def _check(name: str, words: Any, device: Any, outputs: int) -> None:
    if words.device != device:
        raise ValueError(f"{name} tensor must be on {device}")
    if words.dtype not in _WORDS:
        raise ValueError(f"{name} tensor must be int64/uint64")
    if words.ndim != 1:
        raise ValueError(f"{name} tensor must be 1D")
    if words.size(0) not in (1, outputs):
        raise ValueError(f"{name} tensor length must be 1 or {outputs}")


def checked(seed: Any, offset: Any, generator: Any, device: Any, outputs: int, increment: int) -> Places:
    """Seed and position of a call with so many outputs, from whichever of the three the caller gave; of tensors seed and offset
    as they are, for the operators, which do the same to them.

    The generator counts, and moves on by `increment`, unless both seed and offset are given.
    """
    if seed is None or offset is None:
        seed, offset = get_seed_and_offset(increment, generator, device)
    tensors = isinstance(seed, torch.Tensor)
    if tensors != isinstance(offset, torch.Tensor):
        raise ValueError("seed and offset must both be tensors or both be scalars")
    if not tensors:
        high = ((offset & _MASK) ^ _SIGN) - _SIGN >> 32
        return (seed + high * _STEP) & _MASK, offset & _LOW
    _check("seed", seed, device, outputs)
    _check("offset", offset, device, outputs)
    return seed, offset
