"""Requests that the engine takes out of a batch and puts back: while their prompt is read, and beside samples of the same request."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams

import gumball
from gumball import Mirostat
from gumball.plugins.states import seed_of
from recorded_model import row_of

OPTIONS: dict[str, Any] = {"num_gpu_blocks_override": 80, "block_size": 32, "seed": 11}
PROMPT, LENGTH = [1, 4093, 338, 264, 1123] * 20, 16


def alone(rows: Any, seed: int, mirostat: Mirostat | None) -> list[int]:
    """What a sampler of Gumball draws from the rows behind its own tokens."""
    params = gumball.SamplingParams(seed=seed, mirostat=mirostat)
    sampler = gumball.Sampler(params, rows.shape[1], prompt=PROMPT)
    while len(sampler.output) < LENGTH:
        sampler.sample(rows[row_of(sampler.history[-1], len(rows))])
    return sampler.output


def test_a_name_is_free_again_when_its_request_was_aborted(engine: Any, recorded: Any) -> None:
    inner = engine.llm_engine
    params = SamplingParams(seed=5, max_tokens=LENGTH, ignore_eos=True, detokenize=False)
    for prompt in (PROMPT[:7], PROMPT[:9]):
        inner.add_request("again", {"prompt_token_ids": prompt}, params)
        for _ in range(3):
            inner.step()
        inner.abort_request(["again"])
    inner.add_request("again", {"prompt_token_ids": PROMPT}, params)
    texts = []
    while inner.has_unfinished_requests():
        texts = [list(out.outputs[0].token_ids) for out in inner.step()] or texts
    assert texts[-1] == alone(recorded, 5, None)


# The prompt has 100 tokens, 64 are read in a step.
@pytest.mark.parametrize("mirostat", [None, Mirostat(3.0, 0.1)])
def test_samples_without_a_seed_keep_theirs_through_resets(
    engine: Any, recorded: Any, mirostat: Mirostat | None
) -> None:
    inner = engine.llm_engine
    extra = None if mirostat is None else {"mirostat_tau": 3.0}
    params = SamplingParams(n=3, max_tokens=LENGTH, ignore_eos=True, detokenize=False, extra_args=extra)
    inner.add_request("asked", {"prompt_token_ids": PROMPT}, params)
    texts: dict[int, list[int]] = {}
    steps = 0
    while inner.has_unfinished_requests():
        for out in inner.step():
            texts |= {one.index: list(one.token_ids) for one in out.outputs}
        steps += 1
        if steps in (1, 2, 5, 9, 14):
            assert inner.reset_prefix_cache(reset_running_requests=True)
    first = seed_of("asked", OPTIONS["seed"])
    wanted = {j: alone(recorded, first + j, mirostat) for j in range(3)}
    assert len({tuple(one) for one in wanted.values()}) == 3 and texts == wanted
