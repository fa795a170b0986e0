"""Receipts that steps and verifications make, drawn again; the vectors for implementers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, LogprobsParams, Pool, Receipt, SamplingParams, verify_receipt

VOCAB, STEPS = 300, 8
ASKED = LogprobsParams(mode=["edited", "radius"], top_n=4)
ROWS = np.random.default_rng(3).normal(size=(STEPS, VOCAB)).astype(np.float32) * 3
MASK = np.full(10, -2, dtype=np.int32)


def made(params: SamplingParams, mask: Any = None) -> Receipt:
    pool = Pool(VOCAB, slots=1, top_n=4)
    slot, receipt = pool.admit(params, [1, 2, 3]), Receipt(params, VOCAB, prompt=[1, 2, 3])
    for row in ROWS:
        masks = None if mask is None else mask[None]
        receipt.push(pool.step(row[None], Batch([slot], masks=masks)), mask=mask)
    return receipt


def test_rows_of_every_type_and_their_masks_are_drawn_again() -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=2**63 + 5, logprobs=ASKED)
    for mask in (None, MASK):
        text = made(params, mask).to_json()
        masks = None if mask is None else [mask] * STEPS
        assert verify_receipt(text, ROWS, masks=masks) == ["equal"] * STEPS
        assert json.loads(text)["seed"] == str(2**63 + 5)
        assert (
            verify_receipt(text, [row.astype(np.float16) for row in ROWS], masks=masks, tolerance=0.01)
            == ["within"] * STEPS
        )
    assert "digest" in verify_receipt(made(params).to_json(), [row.astype(np.float16) for row in ROWS])
    assert verify_receipt(made(params).to_json(), ROWS, masks=[MASK] * STEPS) == ["mask"] * STEPS


def test_what_an_engine_listed_makes_the_receipt_of_the_step() -> None:
    params = SamplingParams(top_k=9, seed=4, logprobs=LogprobsParams(top_n=4))
    pool = Pool(VOCAB, slots=1, top_n=4)
    slot = pool.admit(params)
    ours, listed = Receipt(params, VOCAB), Receipt(params, VOCAB)
    row = np.where(np.arange(VOCAB) < 3, ROWS[0], -np.inf).astype(np.float32)
    out = pool.step(row[None], Batch([slot], forced=[2]))
    ours.push(out)
    top = [pair for pair in zip(out.top_ids[0].tolist(), out.top_logprobs[0].tolist()) if pair[0] >= 0]
    assert len(top) == 3
    listed.push_listed(2, top, forced=True)
    assert listed.to_json() == ours.to_json() and json.loads(ours.to_json())["forced"] == [0]
    assert verify_receipt(ours.to_json(), [row]) == ["forced"]
    radii = Receipt(params.replace(logprobs=ASKED), VOCAB)
    for wrong, text in (
        ([(-7, -1.0)], "logprobs.top is with -7"),
        ([(1, 2.0)], "with 1 at 2"),
        ([(1, float("nan"))], "with 1 at NaN"),
    ):
        with pytest.raises(ValueError, match=text):
            listed.push_listed(2, wrong)
    with pytest.raises(ValueError, match="radius is None"):
        radii.push_listed(2, top)
    with pytest.raises(ValueError, match="radius is -1"):
        radii.push_listed(2, top, radius=-1)


def test_a_pool_may_list_more_than_the_request_asked_for() -> None:
    params = SamplingParams(seed=4, logprobs=LogprobsParams(top_n=3))
    texts = []
    for most in (3, 8):
        pool, receipt = Pool(VOCAB, slots=1, top_n=most), Receipt(params, VOCAB)
        receipt.push(pool.step(ROWS[:1], [pool.admit(params)]))
        texts.append(receipt.to_json())
    assert texts[0] == texts[1] and verify_receipt(texts[0], ROWS[:1]) == ["equal"]


def test_a_verification_of_drafts_gives_the_receipt_of_its_steps() -> None:
    params = SamplingParams(temperature=0.9, top_k=40, seed=4, logprobs=ASKED)
    steps = made(params).to_json()
    pool = Pool(VOCAB, slots=1, top_n=4)
    slot, receipt = pool.admit(params, [1, 2, 3]), Receipt(params, VOCAB, prompt=[1, 2, 3])
    drafts = json.loads(steps)["output"][: STEPS - 1]
    out = pool.verify(ROWS, [slot], [drafts])
    for place in range(*out.request(0).places.indices(len(out))):
        receipt.push(out, place)
    assert receipt.to_json() == steps


def test_the_vectors_for_implementers_have_their_answers() -> None:
    vectors = json.loads((Path(__file__).parents[3] / "crates/receipt/vectors.json").read_text())
    for vector in vectors:
        text = json.dumps(vector["receipt"], sort_keys=True, separators=(",", ":"))
        rows = np.array(vector["logits"], dtype=np.float32)
        masks = None if vector["mask"] is None else [np.array(vector["mask"], dtype=np.uint32)] * len(rows)
        assert verify_receipt(text, rows, masks=masks, tolerance=vector["tolerance"]) == vector["answers"]


def test_what_is_no_receipt_and_what_gives_none_is_refused() -> None:
    params = SamplingParams(seed=1, logprobs=ASKED)
    with pytest.raises(ValueError, match="seed is None"):
        Receipt(params.replace(seed=None), VOCAB)
    with pytest.raises(ValueError, match="logprobs.top_n is 0"):
        Receipt(SamplingParams(seed=1), VOCAB)
    receipt = made(params)
    with pytest.raises(ValueError, match="logits is 3 rows"):
        verify_receipt(receipt.to_json(), ROWS[:3])
    with pytest.raises(ValueError, match="logits is more than 8 rows"):
        verify_receipt(receipt.to_json(), [*ROWS, ROWS[0]])
    with pytest.raises(ValueError, match="logits has length 9"):
        verify_receipt(receipt.to_json(), [ROWS[0, :9]] * STEPS)
    with pytest.raises(ValueError, match="receipt is"):
        verify_receipt("{}", ROWS)
    with pytest.raises(TypeError, match="receipt"):
        verify_receipt(7, ROWS)  # type: ignore[arg-type]
    pool = Pool(VOCAB, slots=1, top_n=4)
    empty = pool.step(np.full((1, VOCAB), -np.inf, dtype=np.float32), [pool.admit(params)])
    with pytest.raises(ValueError, match="token is -1"):
        receipt.push(empty)
    assert gumball.Receipt is Receipt
