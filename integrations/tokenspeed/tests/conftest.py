"""TokenSpeed's own modules on a machine without a GPU.

Its kernels' package refuses to be imported there, so names of that package, of its Triton and of its scheduler stand for nothing here: modules
that have whatever is asked for. TokenSpeed's runtime is the real one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from absent import stand_in

# Helpers that the tests of all integrations share.
sys.path.insert(0, str(Path(__file__).parents[2]))
from package_tests import device, pytest_report_header

__all__ = ["device", "pytest_report_header"]

stand_in("tokenspeed_kernel", "tokenspeed_triton", "tokenspeed_scheduler", "viztracer")


@pytest.fixture(scope="session")
def plugin() -> Any:
    """TokenSpeed's record of the plug-in, which it finds and loads itself."""
    from tokenspeed.runtime.plugins import ensure_loaded

    loaded = {found.name: found for found in ensure_loaded()}
    return loaded["gumball"]


@pytest.fixture(scope="session")
def arguments(plugin: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that makes TokenSpeed's arguments of a server of a command line."""
    from gumball_tokenspeed import places
    from tokenspeed.runtime.utils.server_args import prepare_server_args

    places.take_name()
    model = str(tmp_path_factory.mktemp("model"))
    return lambda *given: prepare_server_args(["--model", model, *given])


@pytest.fixture
def served(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes this process one of a server's whose arguments these are; without any, of the backend gumball's."""
    from gumball_tokenspeed.backend import GumballSamplingBackend
    from tokenspeed.runtime.utils import env

    # Other tests made backends with drafts.
    monkeypatch.setattr(GumballSamplingBackend, "drafts", False)

    def make(*given: str) -> Any:
        made = arguments(*(given or ("--sampling-backend", "gumball")), "--enable-output-logprobs")
        # As a scheduler does it, and undone after the test.
        for name in env.global_server_args_dict:
            monkeypatch.setitem(env.global_server_args_dict, name, env.global_server_args_dict[name])
        env.global_server_args_dict_update(made)
        return made

    return make
