"""Gumball keeps every law: it has all that the laws need."""

from __future__ import annotations

import pytest

from sampling_laws import LAWS, Law, Session
from sampling_laws.run import missing

pytest.importorskip("gumball")

from sampling_laws.adapters.gumball_pool import Gumball  # noqa: E402


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_gumball_keeps_it(law: Law) -> None:
    session = Session(Gumball())
    assert not missing(law, session.engine)
    law.body(session)
