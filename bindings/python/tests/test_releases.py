"""The releases of an engine that a plug-in was tried with: the warning for others."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from gumball.plugins.releases import warn_if_untried


@pytest.mark.parametrize(
    ("release", "tried"),
    [("5.19.0", True), ("5.24.9.dev3", True), ("5.18.4", False), ("5.25.0", False), ("6.0", False), ("unknown", False)],
)
def test_another_release_is_warned_of(monkeypatch: Any, caplog: Any, release: str, tried: bool) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: release)
    assert warn_if_untried("gumball-x", ("x",), "5.19", "5.25") == tried
    said = f"gumball-x was tried with x from 5.19 and below 5.25, but this is {release}: "
    assert [record.message.startswith(said) for record in caplog.records] == [True] * (not tried)


def test_the_first_name_that_is_installed_counts(monkeypatch: Any, caplog: Any) -> None:
    def version(name: str) -> str:
        if name == "x":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not warn_if_untried("gumball-x", ("x", "x-cpu"), "1.0", "2.0") and "with x-cpu from" in caplog.text
    # An engine that runs from its sources has no release.
    assert warn_if_untried("gumball-x", ("x",), "1.0", "2.0")
