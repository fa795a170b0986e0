"""TokenSpeed's own gateway and gRPC server before the backend, which draws from made-up rows: how a client's request arrives there."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gumball_tokenspeed import places
from gumball_tokenspeed.params import params_of
from test_requests import VOCAB, entered, frontend, state_of
from test_steps import Engine, rows_of
from tokenizers import Tokenizer, models, pre_tokenizers

from gumball import Sampler

SETTING = {"temperature": 0.9, "top_k": 40}
PROMPT, COUNT, PATIENCE_S = "hi", 8, 60.0


def row_of(ids: list[int]) -> torch.Tensor:
    return rows_of(sum((i + 1) * id for i, id in enumerate(ids)), 1)


class Llm:
    """TokenSpeed's engine as its server calls it, for one request at a time."""

    def __init__(self, server_args: Any) -> None:
        self.front, self.engine, self.came = frontend(server_args), Engine(server_args, 1, []), -1
        self.server_args, self.rid_to_state, self.gracefully_exit = server_args, {}, False
        self.context_len, self.max_req_input_len, self.last_receive_tstamp = 100, 90, time.time() + 1e6
        self.model_config = SimpleNamespace(vocab_size=VOCAB, hf_config=None, is_multimodal=False, dtype=None)

    def auto_create_handle_loop(self) -> None:
        pass

    def abort_request(self, name: str) -> None:
        pass

    async def generate_request(self, asked: Any) -> Any:
        asked.normalize_batch_and_arguments()
        state = state_of(await self.front.tokenize_one_request(asked))
        self.came += 1
        self.engine.output_processor.rid_to_state[f"r{self.came}"] = state
        for step in range(COUNT):
            row, here = row_of(state.prompt_input_ids + state.output_ids), [self.came]
            where = ([], here, row, torch.zeros(1, 1, dtype=torch.int64)) if step else (here, [], row)
            # All at pool index 1.
            state.output_ids.append(int(self.engine.step(*where, at=1 - self.came)[0]))
        meta = {"finish_reason": {"type": "length"}, "prompt_tokens": len(state.prompt_input_ids)}
        yield {"output_ids": state.output_ids, "meta_info": meta}


def tokenizer_at(folder: Path) -> Tokenizer:
    """Writes a tokenizer of bytes and returns it."""
    vocab = {byte: id for id, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return made


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def post(address: str, body: dict[str, Any] | None = None) -> Any:
    """Returns what a gateway answers: decoded, or None while there is none, or nothing decodable."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read() or "0")
    except urllib.error.HTTPError as error:
        return json.loads(error.read()) if body else None
    except (OSError, ValueError):
        return None


async def answers(server_args: Any, bodies: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Returns what clients of a server with these arguments get."""
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from smg_grpc_proto.generated.tokenspeed_scheduler_pb2_grpc import add_TokenSpeedSchedulerServicer_to_server
    from smg_grpc_servicer.tokenspeed.servicer import TokenSpeedSchedulerServicer

    server, alive = grpc.aio.server(), health.aio.HealthServicer()
    add_TokenSpeedSchedulerServicer_to_server(TokenSpeedSchedulerServicer(Llm(server_args), server_args, {}), server)
    health_pb2_grpc.add_HealthServicer_to_server(alive, server)
    await alive.set("", health_pb2.HealthCheckResponse.SERVING)
    worker, port = server.add_insecure_port("127.0.0.1:0"), free_port()
    await server.start()
    given = f"--worker-urls grpc://127.0.0.1:{worker} --host 127.0.0.1 --port {port} --prometheus-port {free_port()} --log-level warn"
    command = [
        sys.executable,
        "-m",
        "smg",
        "launch",
        *given.split(),
        "--model-path",
        server_args.model,
        "--policy",
        "passthrough",
    ]
    gateway = subprocess.Popen(command)
    try:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
        ask = {"model": server_args.model, "prompt": PROMPT, "max_tokens": 1}
        while "choices" not in (await asyncio.to_thread(post, f"{address}/v1/completions", ask) or {}):
            assert time.monotonic() < until and gateway.poll() is None, "the gateway does not answer"
            await asyncio.sleep(0.5)
        return [
            await asyncio.to_thread(post, address + path, {"model": server_args.model} | body) for path, body in bodies
        ]
    finally:
        gateway.terminate()
        gateway.wait(PATIENCE_S)
        await server.stop(None)


def test_a_seed_gives_a_servers_client_a_samplers_tokens_and_refusals_reach_it(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("smg")
    servicer = pytest.importorskip("smg_grpc_servicer.tokenspeed.servicer").TokenSpeedSchedulerServicer
    # Undone after the test.
    monkeypatch.setattr(servicer, "_build_generate_req", servicer._build_generate_req)
    places.take_servicer()
    server_args = served()
    tokenizer = tokenizer_at(Path(server_args.model))
    shape = {"text": PROMPT}, {"max_new_tokens": COUNT, **SETTING}
    bodies = [("/generate", shape[0] | {"sampling_params": shape[1] | {"sampling_seed": seed}}) for seed in (7, 7, 8)]
    asked = {"prompt": PROMPT, "max_tokens": COUNT, "seed": 7, **SETTING}
    bodies += [("/v1/completions", asked), ("/v1/completions", asked | {"min_tokens": 2, "stop": ["x"]})]
    *drawn, text, refused = asyncio.run(answers(server_args, bodies))
    wanted = []
    for seed in (7, 8):
        prompt = tokenizer.encode(PROMPT).ids
        alone, ids = Sampler(params_of(entered(server_args, SETTING | {"seed": seed}).sampling_params), VOCAB), []
        for _ in range(COUNT):
            ids.append(alone.sample(row_of(prompt + ids)[0]))
        wanted.append(ids)
    assert [one[0]["output_ids"] for one in drawn] == [wanted[0], wanted[0], wanted[1]]
    assert text["choices"][0]["text"] == drawn[0][0]["text"]
    assert "min_new_tokens is 2 beside stop" in refused["error"]["message"]
