"""Engines that start at once, and are timed one after the other where they share a GPU: what `in_turn` of ci/lib/gpu-engine starts."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import TextIO

_held: list[TextIO] = []


def wait_for_turn() -> None:
    """Returns when all engines have started and no other on this GPU is being timed. The turn lasts until this process ends."""
    if "TURNS" not in os.environ:
        return
    folder = Path(os.environ["TURNS"])
    (folder / f"ready-{os.environ['TURN']}").touch()
    while len(list(folder.glob("ready-*"))) < int(os.environ["TURNS_OF"]):
        time.sleep(0.2)
    _held.append((folder / f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}").open("w"))
    fcntl.flock(_held[0], fcntl.LOCK_EX)
