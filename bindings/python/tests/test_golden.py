"""The tokens that the engine pins for rows of a real model, drawn through the package."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gumball import (
    Batch,
    Dry,
    DynamicTemperature,
    Evidence,
    InvalidValueError,
    MarkedPart,
    Mirostat,
    Pool,
    Sampler,
    SamplingParams,
    State,
    Watermark,
    add_watermark_keys,
    detect,
    find_marked,
    prompt_seed,
    sample_seed,
)

CONFORMANCE = Path(os.environ.get("GUMBALL_CONFORMANCE", Path(__file__).parents[3] / "proof/conformance"))
SEED = 0x0067_7562_616C_6C21
PROMPT = [3, 1, 4, 1, 5]
BIAS = {7: 3.0, 8: float("-inf")}
BANS: dict[str, Any] = dict(no_repeat_ngram=2, banned_ids=[2, 300])
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": dict(temperature=0),
    "plain": {},
    "temperature 0.8": dict(temperature=0.8),
    "temperature 3": dict(temperature=3),
    "top_k 50": dict(temperature=0.8, top_k=50),
    "top_p 0.9": dict(temperature=0.8, top_p=0.9),
    "top_k 50 top_p 0.9": dict(temperature=0.8, top_k=50, top_p=0.9),
    "min_p 0.05": dict(temperature=0.8, min_p=0.05),
    "typical_p 0.7": dict(temperature=0.8, typical_p=0.7),
    "top_n_sigma 1.5": dict(temperature=0.8, top_n_sigma=1.5),
    "epsilon_cutoff 0.001": dict(temperature=0.8, epsilon_cutoff=1e-3),
    "eta_cutoff 0.002": dict(temperature=0.8, eta_cutoff=2e-3),
    "xtc 0.5 0.05": dict(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat 4 0.2": dict(temperature=0.8, mirostat=Mirostat(4, 0.2)),
    "dynamic 0.5 1.5": dict(temperature=0.8, dynamic_temperature=DynamicTemperature(0.5, 1.5)),
    "penalties": dict(
        temperature=0.8, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3, logit_bias=BIAS
    ),
    "dry and bans": dict(temperature=0, dry=Dry(multiplier=0.8, allowed_length=1), **BANS),
    "joint": dict(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, order="joint"),
    "min_p then top_k": dict(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, order=["min_p", "top_p", "top_k"]),
    "temperature_last": dict(temperature=1.5, temperature_last=True, top_p=0.8),
}
ROWS = np.fromfile(CONFORMANCE / "rows" / "smollm2.bf16", ml_dtypes.bfloat16).reshape(8, 49_152)
PINNED = json.loads((CONFORMANCE / "golden/smollm2.json").read_text())


def test_parameters_are_read_from_json_and_written_as_every_language_does() -> None:
    cases = json.loads((CONFORMANCE / "golden/params_json.json").read_text())

    def written(text: str) -> str:
        return SamplingParams.from_json(text).to_json()

    assert SamplingParams().to_json() == written("{}") == cases["neutral"]
    for one, other in cases["same"]:
        assert written(one) == written(other) == written(written(one))
    for text, part in cases["written"]:
        assert part in written(text)
    for text, said in cases["refused"]:
        with pytest.raises(InvalidValueError, match=re.escape(said)):
            SamplingParams.from_json(text)


@pytest.mark.parametrize("release", sorted((CONFORMANCE / "releases").iterdir()), ids=lambda folder: folder.name)
def test_parameters_and_states_that_a_release_wrote_are_read(release: Path) -> None:
    read = json.loads((release / "state.json").read_text())
    sampler = Sampler.resume(SamplingParams(**read["params"]), 1000, State(**read["state"]))
    assert (list(sampler.state.output), sampler.state.mu) == (read["state"]["output"], read["state"]["mu"])
    for text in (release / "params.jsonl").read_text().splitlines():
        assert json.loads(SamplingParams.from_json(text).to_json()).items() >= json.loads(text).items()


@pytest.mark.parametrize("name", PARAMS)
def test_a_sampler_draws_the_pinned_tokens(name: str) -> None:
    sampler, tokens = Sampler(SamplingParams(seed=SEED, **PARAMS[name]), ROWS.shape[1], prompt=PROMPT), []
    for row in ROWS:
        # A second sample of the same row, which the sequence does not follow.
        tokens += [sampler.fork(1).sample(row), sampler.sample(row)]
    assert tokens == PINNED[f"smollm2 {name}"] and len(PINNED) == len(PARAMS)


def test_a_pool_draws_the_pinned_tokens_of_all_requests_at_once(device: str) -> None:
    if device == "emulated":
        pytest.skip("left out: takes too long on the emulator")
    pool = Pool(ROWS.shape[1], device=device, slots=len(PARAMS), rows=len(PARAMS))
    slots = [pool.admit(SamplingParams(seed=SEED, **params), PROMPT) for params in PARAMS.values()]
    seen = np.stack([pool.step(row, Batch(slots, row_indices=[0] * len(slots))).tokens for row in ROWS], 1)
    assert seen.tolist() == [PINNED[f"smollm2 {name}"][1::2] for name in PARAMS]


def test_prompts_and_samples_have_the_pinned_seeds() -> None:
    for case in json.loads((CONFORMANCE / "golden/rollout_seeds.json").read_text()):
        seed = prompt_seed(int(case["run"]), int(case["prompt"]), case["turn"])
        assert (seed, sample_seed(seed, case["sample"])) == (int(case["prompt_seed"]), int(case["sample_seed"]))
    assert prompt_seed(7, 41) == prompt_seed(7, 41, 0)


def test_texts_have_the_pinned_evidence_and_marked_parts() -> None:
    cases = json.loads((CONFORMANCE / "golden/marks.json").read_text())
    add_watermark_keys(cases["watermark_keys"])

    def evidence(found: dict[str, Any]) -> Evidence:
        return Evidence(**{name: value for name, value in found.items() if name != "p_value"})

    for case in cases["texts"]:
        mark, ids = Watermark(**case["watermark"]), case["ids"]
        text = {"prompt": case["prompt"], "scheme": case["scheme"]}
        found = detect(ids, mark, keys=case["keys"], **text)
        assert found == evidence(case["evidence"])
        assert math.isclose(found.p_value, case["evidence"]["p_value"], rel_tol=1e-14)
        parts = [MarkedPart(one["start"], one["end"], evidence(one["evidence"])) for one in case["parts"]]
        assert find_marked(ids, mark, length=case["length"], alpha=case["alpha"], **text) == parts


@pytest.mark.parametrize(
    ("name", "value"), [("run", -1), ("prompt", 2**64), ("turn", 2**32), ("sample", -1), ("seed", 2**64)]
)
def test_a_seed_out_of_range_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        if name in ("sample", "seed"):
            sample_seed(**({"seed": 1, "sample": 1} | {name: value}))
        else:
            prompt_seed(**({"run": 1, "prompt": 1, "turn": 1} | {name: value}))
