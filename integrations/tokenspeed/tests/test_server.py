"""The name in TokenSpeed's command line and registry, and the plug-in among TokenSpeed's."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from pathlib import Path
from typing import Any

import gumball_tokenspeed
import pytest
import tokenspeed
from gumball_tokenspeed import __main__ as start
from gumball_tokenspeed import places
from gumball_tokenspeed.backend import GumballSamplingBackend

ROUTES = ["gumball", "greedy", "flashinfer", "flashinfer_full", "triton", "triton_full"]


def test_tokenspeed_loads_the_plug_in_and_says_what_it_brings(plugin: Any) -> None:
    assert plugin.package == "gumball-tokenspeed" and plugin.describe() == "sampling backend=[gumball]"


def test_the_command_line_takes_every_route_by_name_and_makes_it(arguments: Any) -> None:
    from tokenspeed.runtime.sampling import registry

    for name in ROUTES:
        assert arguments("--sampling-backend", name).sampling_backend == name
    made = registry.create_sampling_backend(
        arguments("--sampling-backend", "gumball", "--enable-output-logprobs"),
        max_bs=4,
        max_draft_tokens_per_req=1,
        device="cpu",
        max_req_pool_size=6,
        vocab_size=300,
    )
    assert type(made) is GumballSamplingBackend and made.config.enable_output_logprobs
    assert set(ROUTES) == set(registry._BACKEND_REGISTRY)
    with pytest.raises(SystemExit):
        arguments("--sampling-backend", "gumbal")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--numerics", "rl-bitwise"], "rl-bitwise needs a sampling backend"),
        (
            ["--enable-speculative-sampling", "--speculative-algorithm", "EAGLE3"],
            "--sampling-backend gumball has no draft-prob",
        ),
    ],
)
def test_tokenspeed_refuses_what_it_allows_for_backends_of_its_own(arguments: Any, given: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        arguments("--sampling-backend", "gumball", *given)


def test_a_configuration_that_tokenspeed_lets_through_is_refused_at_start(arguments: Any) -> None:
    from tokenspeed.runtime.sampling.backends.base import SamplingBackendConfig

    asked = arguments("--sampling-backend", "gumball", "--logprob-order", "megatron", "--enable-output-logprobs")
    given = {"max_bs": 1, "max_draft_tokens_per_req": 1, "max_req_pool_size": 1, "vocab_size": 9, "device": "cpu"}
    config = SamplingBackendConfig.from_server_args(asked, **given)
    with pytest.raises(ValueError, match="logprob_order is 'megatron'"):
        GumballSamplingBackend(config)
    with pytest.raises(ValueError, match="enable_speculative_sampling is on"):
        GumballSamplingBackend(dataclasses.replace(config, enable_speculative_sampling=True))


def test_the_backend_has_all_that_tokenspeed_asks_of_one() -> None:
    sources = [path.read_text() for path in (Path(tokenspeed.__file__).parent / "runtime" / "execution").rglob("*.py")]
    asked = {name for text in sources for name in re.findall(r"\bsampling_backend\.([a-z0-9_]+)", text)}
    assert {"sample", "verify", "prepare_step"} <= asked
    assert [name for name in sorted(asked) if not hasattr(GumballSamplingBackend, name)] == []


def test_without_a_place_none_is_taken(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenspeed.runtime.engine.input_processor import InputProcessor
    from tokenspeed.runtime.engine.zmq_msgpack import MsgpackRecvSocket
    from tokenspeed.runtime.sampling import registry

    monkeypatch.delitem(registry._BACKEND_REGISTRY, "gumball")
    monkeypatch.delattr(MsgpackRecvSocket, "_validation_error")
    before = InputProcessor.tokenize_one_request
    with pytest.raises(RuntimeError, match=r"0\.1\.1.*_validation_error.*TOKENSPEED_DISABLE_PLUGINS=gumball"):
        gumball_tokenspeed.register()
    assert "gumball" not in registry._BACKEND_REGISTRY and InputProcessor.tokenize_one_request is before


def test_a_second_registration_changes_nothing(plugin: Any) -> None:
    from tokenspeed.runtime.engine.input_processor import InputProcessor

    before = InputProcessor.tokenize_one_request
    gumball_tokenspeed.register()
    assert InputProcessor.tokenize_one_request is before


@pytest.mark.parametrize("given", [["serve", "model"], ["--model", "model"]])
def test_it_starts_the_command_or_the_engine(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in (
        "tokenspeed.cli",
        "smg_grpc_servicer",
        "smg_grpc_servicer.tokenspeed",
        "smg_grpc_servicer.tokenspeed.__main__",
    ):
        module: Any = types.ModuleType(name)
        module.main = lambda name=name: called.append(name)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(places, "take_name", lambda: called.append("name"))
    monkeypatch.setattr(places, "take_servicer", lambda: called.append("servicer"))
    monkeypatch.setattr(sys, "argv", ["gumball_tokenspeed", *given])
    monkeypatch.delenv("TS_SERVE_ENGINE_MODULE", raising=False)
    start.main()
    engine = ["name", "servicer", "smg_grpc_servicer.tokenspeed.__main__"]
    assert called == (["name", "tokenspeed.cli"] if given[0] == "serve" else engine)


def test_the_command_starts_its_engine_by_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenspeed.cli
    from tokenspeed.cli._proc import engine_argv

    monkeypatch.setattr(tokenspeed.cli, "main", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gumball_tokenspeed", "serve"])
    monkeypatch.setenv("TS_SERVE_ENGINE_MODULE", "")
    monkeypatch.delenv("TS_SERVE_ENGINE_MODULE")
    start.main()
    assert engine_argv([], host="h", port=1)[1:3] == ["-m", "gumball_tokenspeed"]
