"""Tokens a second of vLLM's OpenAI server by sampling parameters and requests at once: `server.py OUT SHAPE BATCHES SECONDS [SETTING..]`.

Environment and SECONDS are as for times.py. Each request is a prompt of 32 ids and LENGTH tokens; the rate is of the whole batch, from the first
request sent to the last answer read, the better of two after one that is not counted.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from in_turn import wait_for_turn
from shapes import folder, prompt, spread_weights

PORT, LENGTH = 8321 + int(os.environ.get("TURN", 0)), 128
KP = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "kp_seed": KP | {"seed": 1},
    "kp_pen": KP | {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "kp_lp5": KP | {"logprobs": 5},
}


class Weights:
    """What the server's workers can be told to do, by name."""

    def spread(self) -> None:
        spread_weights(self)


def asked(path: str, body: dict[str, Any] | None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    text = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    read = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {read[:300]!r}")
    return json.loads(read) if read else None


def started(model: str, most: int) -> subprocess.Popen[bytes]:
    options = f"--load-format dummy --dtype bfloat16 --max-model-len 2048 --max-num-seqs {most} --max-logprobs 20 --port {PORT}"
    options += f" --kv-cache-memory-bytes {6 * 2**30} --max-num-batched-tokens 4096 --gpu-memory-utilization 0.1 --no-enable-prefix-caching --worker-extension-cls server.Weights"
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options.split()]
    return subprocess.Popen(program, env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"}, stdout=sys.stderr)


def wait_for(server: subprocess.Popen[bytes]) -> None:
    """Waits until a server answers, and lets its workers make their weights."""
    while server.poll() is None:
        try:
            asked("/health", None)
            break
        except OSError:
            time.sleep(0.5)
    asked("/collective_rpc", {"method": "spread"})


def rate(model: str, batch: int, what: dict[str, Any]) -> float:
    bodies = []
    for place in range(batch):
        one = what | ({"seed": 1000 + place} if "seed" in what else {})
        ids = prompt(1000 * batch + place, 32)["prompt_token_ids"]
        bodies.append({"model": model, "prompt": ids, "max_tokens": LENGTH, "ignore_eos": True} | one)
    with ThreadPoolExecutor(batch) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(lambda body: asked("/v1/completions", body), bodies))
        seconds = time.perf_counter() - begin
    return sum(answer["usage"]["completion_tokens"] for answer in answers) / seconds


def main() -> None:
    out, shape, sizes, most, *settings = sys.argv[1:]
    begin = time.perf_counter()
    model, found = folder(shape), {}
    batches = [int(one) for one in sizes.split(",")]
    server = started(model, max(batches))
    try:
        wait_for(server)
        print("START", round(time.perf_counter() - begin, 1), flush=True)
        rate(model, min(8, max(batches)), SETTINGS["kp_seed"])
        wait_for_turn()
        print("TURN", round(time.perf_counter() - begin, 1), flush=True)
        begin = time.perf_counter()
        for batch in batches:
            for name in settings or SETTINGS:
                if time.perf_counter() - begin > float(most):
                    print("OUT OF TIME", name, batch, flush=True)
                    return
                rates = [rate(model, batch, SETTINGS[name]) for _ in range(3)]
                found[f"{name}/{batch}"] = max(rates[1:])
                print(
                    f"RATE {name}/{batch:<4} {max(rates[1:]):8.0f} tokens/s", [round(one) for one in rates], flush=True
                )
                Path(out).write_text(json.dumps(found, indent=1))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
