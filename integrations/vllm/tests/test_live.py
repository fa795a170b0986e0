"""The real model: where a request's text differs among others, the engine's own logits differed first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_model import PROMPTS
from vllm import LLM, SamplingParams

from conftest import closing

# One request in so many is run alone as well. With more of them, and longer texts, it takes minutes.
STEP, LENGTH = (1, 64) if os.environ.get("GUMBALL_VLLM_COUNTS") else (8, 24)


@pytest.fixture(scope="module")
def live(model: Any) -> Iterator[Any]:
    yield from closing(LLM(str(model), dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=32))


def test_each_difference_of_text_follows_one_of_logits(live: Any, monkeypatch: Any) -> None:
    from gumball_vllm import samplers

    rows: dict[tuple[int, int], bytes] = {}
    draw = samplers.draw

    def watched(requests: Any, logits: Any, **named: Any) -> Any:
        for row, request in enumerate(requests.rows):
            rows[request.seed, len(request.output)] = hashlib.sha256(logits[row].numpy().tobytes()).digest()
        return draw(requests, logits, **named)

    monkeypatch.setattr(samplers, "draw", watched)

    def generate(wanted: list[int]) -> tuple[list[list[int]], dict[tuple[int, int], bytes]]:
        rows.clear()
        params = [
            SamplingParams(seed=i, temperature=0.9, top_p=0.95, max_tokens=LENGTH, ignore_eos=True) for i in wanted
        ]
        outs = live.generate([PROMPTS[i % len(PROMPTS)] for i in wanted], params, use_tqdm=False)
        return [list(out.outputs[0].token_ids) for out in outs], dict(rows)

    batched, among = generate(list(range(32)))
    counts = {"rows": 0, "rows that differ": 0, "texts": 0, "texts that differ": 0}
    for i in range(0, 32, STEP):
        (line,), alone = generate([i])
        counts["texts"] += 1
        for j, (token, other) in enumerate(zip(line, batched[i], strict=True)):
            same = alone[i, j] == among[i, j]
            counts["rows"] += 1
            counts["rows that differ"] += not same
            if token != other:
                counts["texts that differ"] += 1
                assert not same, f"request {i} draws another token at {j} from the same logits"
                break
    print(json.dumps(counts))
    if "GUMBALL_VLLM_COUNTS" in os.environ:
        Path(os.environ["GUMBALL_VLLM_COUNTS"]).write_text(json.dumps(counts))
    assert counts["texts"] == 32 // STEP < counts["rows"]
