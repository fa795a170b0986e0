"""Work on several threads at once: ranks of one process, and calls that must not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def on_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs work(number) on a thread for each number, and returns what came out; what one of them raises is raised here."""
    found: list[Any] = [None] * count
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            found[number] = work(number)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "waits for ever"
    if failed:
        raise failed[0]
    return found
