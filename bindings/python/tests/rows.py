"""Rows of logits that the engine's own tests draw from, made here anew: of integers alone, and so the same everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


class Words:
    """A stream of words (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def take(self, count: int) -> NDArray[np.uint64]:
        """The next words."""
        steps = np.arange(1, count + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            x = np.uint64(self.state) + steps * np.uint64(0x9E37_79B9_7F4A_7C15)
            self.state = int(x[-1]) if count else self.state
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        return x ^ (x >> np.uint64(31))

    def bell(self, count: int) -> Rows:
        """Bell-shaped numbers: each the sum of twelve uniform ones."""
        words = self.take(3 * count).reshape(count, 3)
        parts = sum((words >> np.uint64(16 * part)) & np.uint64(0xFFFF) for part in range(4))
        sums = np.asarray(parts, np.uint64).sum(1).astype(np.float32)
        return (sums - np.float32(6 * 65_535)) / np.float32(65_536)


def bell(vocab: int, deviation: float, seed: int) -> Rows:
    """A bell-shaped row."""
    return np.float32(deviation) * Words(seed).bell(vocab)


def model_like(vocab: int, seed: int) -> Rows:
    """A row like a model's: a bell of deviation 2, and twenty peaks raised by 6 to 14."""
    words = Words(seed)
    row = np.float32(2) * words.bell(vocab)
    for _ in range(20):
        place, height = words.take(2)
        fraction = np.float32(int(height) >> 40) * np.float32(2.0**-24)
        row[int(place) % vocab] += np.float32(6) + np.float32(8) * fraction
    return row


def grid(vocab: int, step: float, levels: int, seed: int) -> Rows:
    """A row of few distinct values, so that most cuts fall on ties."""
    return np.float32(step) * (Words(seed).take(vocab) % np.uint64(levels)).astype(np.float32)
