"""vLLM's OpenAI server with the plug-in: streaming, batches, logprobs, grammars, our parameters, drafts, refusals, and the way back."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import SETTINGS
from gumball.plugins.states import seed_of

DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'


class Server:
    """A server of vLLM in a process of its own, with the real model."""

    def __init__(self, model: Path, log: Path, *options: str, **variables: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = (
            os.environ | SETTINGS | {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | variables
        )
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--served-model-name", "m"]
        command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "32"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *options]
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        end = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
                time.sleep(1)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def open(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps({"model": "m", "temperature": 0.9, "seed": 7, "max_tokens": 16} | body).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/{path}", data, {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(asked, timeout=300)

    def complete(self, prompt: str, **body: Any) -> Any:
        with self.open("completions", {"prompt": prompt} | body) as answer:
            return json.load(answer)["choices"][0]

    def refusal(self, **body: Any) -> str:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.complete("The", **body)
        assert refused.value.code == 400
        return refused.value.read().decode()


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: Any) -> Iterator[Server]:
    made = Server(model, tmp_path_factory.mktemp("server") / "log")
    yield made
    made.close()


PROMPT = "The sky is blue because"


def test_it_says_that_gumball_draws(server: Server) -> None:
    assert re.search(r"tokens are drawn by Gumball \d", server.log.read_text())


def test_a_seed_repeats_a_text_and_a_stream_is_that_text(server: Server) -> None:
    text = server.complete(PROMPT)["text"]
    assert text == server.complete(PROMPT)["text"] != server.complete(PROMPT, seed=8)["text"]
    with server.open("completions", {"prompt": PROMPT, "stream": True}) as answer:
        lines = [line.decode()[6:].strip() for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == "[DONE]" and len(lines) > 8
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == text


def test_without_a_seed_texts_differ(server: Server) -> None:
    assert len({server.complete(PROMPT, seed=None)["text"] for _ in range(4)}) > 1


def test_the_id_of_an_answer_tells_the_seed_of_a_request_without_one(server: Server) -> None:
    asked = {"prompt": ["One", "The"], "seed": None, "n": 2}
    with server.open("completions", asked) as answer:
        made = json.load(answer)
    for i, prompt in enumerate(asked["prompt"]):
        seed = seed_of(f"{made['id']}-{i}")
        for choice in made["choices"][2 * i : 2 * i + 2]:
            assert choice["text"] == server.complete(prompt, seed=seed + choice["index"] % 2)["text"]
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    with server.open("chat/completions", chat | {"seed": None}) as answer:
        made = json.load(answer)
    with server.open("chat/completions", chat | {"seed": seed_of(made["id"])}) as answer:
        assert json.load(answer)["choices"][0]["message"] == made["choices"][0]["message"]


def test_many_at_once_are_answered(server: Server) -> None:
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0}, {"logprobs": 3}, {"vllm_xargs": {"mirostat_tau": 3.0}}]
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda i: server.complete(PROMPT, seed=i, **kinds[i % 4]), range(32)))
    assert all(answer["text"] for answer in answers) and len({answer["text"] for answer in answers}) > 8
    greedy = {answer["text"] for answer in answers[1::4]}
    assert len(greedy) == 1


def test_logprobs_are_those_of_a_distribution(server: Server) -> None:
    found = server.complete(PROMPT, logprobs=5, echo=False)["logprobs"]
    assert len(found["token_logprobs"]) == 16
    for one, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert one <= 0 and max(top.values()) >= one and len(top) in (5, 6)
    with server.open(
        "chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2}
    ) as answer:
        listed = json.load(answer)["choices"][0]["logprobs"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in listed)
    with server.open("completions", {"prompt": PROMPT, "prompt_logprobs": 1}) as answer:
        prompt = json.load(answer)["choices"][0]["prompt_logprobs"]
    assert prompt[0] is None and all(len(one) in (1, 2) for one in prompt[1:])


def test_grammars_hold(server: Server) -> None:
    choice = server.complete("Is water wet?", structured_outputs={"choice": ["yes", "no"]})
    assert choice["text"] in ("yes", "no")
    number = server.complete("A number:", structured_outputs={"regex": "[0-9]{3}-[0-9]{2}"}, temperature=1.5)
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", number["text"])
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    text = server.complete("Ada's age as JSON:", structured_outputs={"json": schema}, max_tokens=60, temperature=0)[
        "text"
    ]
    assert isinstance(json.loads(text)["age"], int)
    # So do those whose logprobs name fewer tokens than are listed.
    listed = server.complete("Is water wet?", structured_outputs={"choice": ["yes", "no"]}, logprobs=5)
    assert listed["text"] in ("yes", "no")


def test_our_parameters_act_and_others_are_let_pass(server: Server) -> None:
    plain = server.complete(PROMPT)["text"]
    assert (
        server.complete(PROMPT, vllm_xargs={"top_n_sigma": 0.01})["text"]
        == server.complete(PROMPT, temperature=0)["text"]
    )
    assert server.complete(PROMPT, vllm_xargs={"somebody_elses": 1})["text"] == plain


def test_what_cannot_be_carried_is_refused_and_the_server_goes_on(server: Server) -> None:
    assert "do you mean 'xtc_threshold'" in server.refusal(vllm_xargs={"xtc_treshold": 0.1})
    assert "typical_p" in server.refusal(vllm_xargs={"typical_p": -1})
    assert "'top_p', which is a parameter of vLLM's own" in server.refusal(vllm_xargs={"top_p": 0.5})
    assert "'xtc_probability', which is not read there; give it in vllm_xargs" in server.refusal(xtc_probability=0.5)
    assert "'extra_args', which is not read there" in server.refusal(extra_args={"xtc_probability": 0.5})
    assert server.complete(PROMPT)["text"]


def test_drafts_are_verified_and_texts_stay(model: Path, server: Server, tmp_path: Path) -> None:
    repeating = "one two three four one two three four one two three four one two"
    drafting = Server(model, tmp_path / "log", "--speculative-config", DRAFTS)
    try:
        # What drafts change in the engine's own logits is rarely enough to change a token; greedy texts of a clear continuation have none.
        wanted = server.complete(repeating, temperature=0, max_tokens=24)["text"]
        assert drafting.complete(repeating, temperature=0, max_tokens=24)["text"] == wanted
        assert drafting.complete(repeating, logprobs=2)["text"]
        choice = drafting.complete("Is water wet?", structured_outputs={"choice": ["yes yes yes", "no no no"]})
        assert choice["text"] in ("yes yes yes", "no no no")
        with urllib.request.urlopen(f"http://127.0.0.1:{drafting.port}/metrics", timeout=30) as answer:
            counted = re.search(
                r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} (\S+)$", answer.read().decode(), re.M
            )
        assert counted is not None and float(counted[1]) > 0
    finally:
        drafting.close()


CAPITALS = "France Paris, Italy Rome, Spain Madrid, Germany Berlin, England London, Russia Moscow, Japan Tokyo, China Beijing, Egypt Cairo"
CAPITALS += (
    ", Greece Athens, Poland Warsaw, Austria Vienna, Hungary Budapest, Norway Oslo, Sweden Stockholm, Finland Helsinki"
)
CAPITALS += ", Denmark Copenhagen, Ireland Dublin, Portugal Lisbon, Turkey Ankara, Iran Tehran, Iraq Baghdad, India Delhi, Thailand Bangkok"
CAPITALS += ", Vietnam Hanoi, Kenya Nairobi, Peru Lima, Chile Santiago, Cuba Havana, Canada Ottawa, Australia Canberra, Ukraine Kyiv"
QUESTIONS = [(f"The capital of {one.split()[0]} is", one.split()[1]) for one in CAPITALS.split(", ")]
QUESTIONS += [(f"1 + 1 = 2\n2 + 5 = 7\n{a} + {b} =", str(a + b)) for a in range(1, 9) for b in (1, 2, 4, 5)]
SEEDS = 4


def score(of: Server) -> float:
    """Which share of 64 questions the model answers right."""

    def is_right(asked: tuple[int, tuple[str, str]]) -> bool:
        seed, (question, answer) = asked
        text = of.complete(question, temperature=0.7, top_p=0.9, max_tokens=6, seed=seed)["text"]
        return re.search(rf"\b{answer}\b", text.split("\n")[0]) is not None

    with ThreadPoolExecutor(32) as threads:
        right = list(threads.map(is_right, enumerate(QUESTIONS * SEEDS)))
    return sum(right) / len(right)


def test_the_model_scores_alike_and_the_switch_brings_vllms_own_sampler_back(
    model: Path, server: Server, tmp_path: Path
) -> None:
    theirs = Server(model, tmp_path / "log", GUMBALL_VLLM="0")
    try:
        assert theirs.complete(PROMPT)["text"] and "Gumball" not in theirs.log.read_text()
        # They do not know our names, and say nothing.
        assert theirs.complete(PROMPT, vllm_xargs={"typical_p": -1})["text"]
        with_gumball, with_vllm = score(server), score(theirs)
        print(
            f"{len(QUESTIONS)} questions, {SEEDS} seeds: {with_gumball:.3f} with Gumball, {with_vllm:.3f} with vLLM's sampler"
        )
        # Four times what two such shares differ by if both samplers draw by one law.
        both = (with_gumball + with_vllm) / 2
        assert abs(with_gumball - with_vllm) <= 4 * (2 * both * (1 - both) / (len(QUESTIONS) * SEEDS)) ** 0.5
    finally:
        theirs.close()


def adapter(folder: Path, model: Path) -> Path:
    """A LoRA adapter of random weights that change a text."""
    import torch
    from safetensors.torch import save_file

    generator, weights = torch.Generator().manual_seed(1), {}
    for layer in range(30):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(8, 576, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(576, 8, generator=generator) * 0.03
    save_file(weights, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["o_proj"], "bias": "none"}
    described |= {"task_type": "CAUSAL_LM", "base_model_name_or_path": str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def test_an_adapters_tokens_are_drawn_as_the_models_are(model: Path, tmp_path: Path) -> None:
    options = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"a={adapter(tmp_path, model)}"]
    both = Server(model, tmp_path / "log", *options)
    try:
        # One after the other: vLLM 0.32 on a CPU gives all requests of a batch the adapter of one, with its own sampler too.
        texts = [both.complete(PROMPT, model=name)["text"] for name in ("m", "a", "m", "a")]
        assert texts[:2] == texts[2:] and texts[0] != texts[1]
        greedy = both.complete(PROMPT, model="a", temperature=0)["text"]
        assert both.complete(PROMPT, model="a", vllm_xargs={"top_n_sigma": 0.01})["text"] == greedy
    finally:
        both.close()


def test_a_model_that_draws_nothing_is_served(model: Path, tmp_path: Path) -> None:
    embedding = Server(model, tmp_path / "log", "--runner", "pooling", "--convert", "embed")
    try:
        with embedding.open("embeddings", {"input": PROMPT}) as answer:
            assert len(json.load(answer)["data"][0]["embedding"]) == 576
    finally:
        embedding.close()
