"""Gumball keeps every law: it has all that the laws need. On an emulated device it is tried on the laws that take few draws."""

from __future__ import annotations

import pytest

from sampling_laws import LAWS, Law, Session
from sampling_laws.run import missing

pytest.importorskip("gumball")

from gumball import _gumball  # noqa: E402
from sampling_laws.adapters.gumball_pool import Gumball  # noqa: E402

#: Chapters of laws that take thousands of draws, except a few.
MANY_DRAWS = ("distribution", "filters", "penalties")
FEW = (
    "top-k-of-one",
    "top-p-near-nothing",
    "emitted-tokens-count",
    "penalties-at-minus-infinity",
    "penalties-of-neighbours",
)
MANY = (
    "low-temperatures-on-ties",
    "high-temperatures",
    "minus-infinity-is-never-drawn",
    "masks-are-hard",
    "masks-before-filters",
    "bias-is-added",
    "seeded-draws",
    "steps-of-a-seed",
    "drafts-keep-the-law",
    "drafts-keep-the-law-at-a-temperature",
    "drafts-keep-the-law-behind-filters",
    "drafts-without-probabilities",
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_gumball_keeps_it(law: Law) -> None:
    session = Session(Gumball())
    assert not missing(law, session.engine)
    law.body(session)


@pytest.mark.skipif(not _gumball.EMULATOR, reason="the emulated device is not built in")
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_device_keeps_it(law: Law) -> None:
    if law.name in MANY or law.chapter in MANY_DRAWS and law.name not in FEW:
        pytest.skip("left out: takes too many draws for an emulated device")
    law.body(Session(Gumball(device="emulated")))
