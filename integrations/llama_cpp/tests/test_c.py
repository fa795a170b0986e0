"""The program in C: a sampler in llama.cpp's chain, a step over its logits, and a pool for several sequences draw the same tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

TEXT, LENGTH = "The sky is blue because", 24
PARAMS = [
    {"seed": 7, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1},
    {"seed": 3, "mirostat": {"tau": 3.0, "eta": 0.2}},
    {"seed": 5, "temperature": 0},
]


@pytest.mark.parametrize("params", PARAMS, ids=["top-p", "mirostat", "greedy"])
def test_the_chain_the_step_and_the_pool_draw_the_same(
    program: Callable[..., list[str]], gguf: Path, params: Any
) -> None:
    ways = [program(gguf, way, json.dumps(params), LENGTH, TEXT)[0] for way in ("chain", "step", "pool:1")]
    assert len(ways[0].split()) == LENGTH
    assert ways[0] == ways[1] == ways[2]


def test_they_draw_what_python_does(program: Callable[..., list[str]], gguf: Path) -> None:
    from gumball_llama_cpp import Llama

    # One that computes the logits of a prompt's last token alone, and the attention in one piece, as the program does.
    llama = Llama(str(gguf), n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False)
    params = {"seed": 7, "temperature": 0.8, "top_p": 0.9, "temperature_last": True}
    (ids, _) = program(gguf, "step", json.dumps(params), LENGTH, TEXT)
    llama.set_seed(7)
    prompt = llama.tokenize(TEXT.encode(), add_bos=False)
    found = list(islice(llama.generate(prompt, temp=0.8, top_p=0.9, top_k=0, min_p=0.0), LENGTH))
    llama.close()
    assert ids == " ".join(map(str, found))


def test_sequences_of_a_pool_have_seeds_of_their_own(program: Callable[..., list[str]], gguf: Path) -> None:
    params = {"seed": 7, "temperature": 1.5}
    rows = program(gguf, "pool:4", json.dumps(params), LENGTH, TEXT)[:4]
    assert len(set(rows)) == 4
    # Their first tokens are drawn from the row from which a sequence alone draws its first token.
    for row, line in enumerate(rows):
        (alone, _) = program(gguf, "step", json.dumps(params | {"seed": 7 + row}), 1, TEXT)
        assert line.split()[0] == alone
