"""The rows of a call of transformers' generate as sequences of a pool, on every device; `ci/plugin transformers` tests them behind the real generate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gumball import Dry, Sampler, SamplingParams, State

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gumball.transformers.sequences import Sequences, words_of

VOCAB = 60
ROWS = torch.randn(17, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0, repetition_penalty=1.4),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, no_repeat_ngram=3, min_tokens=4, stop_ids=[2]),
    SamplingParams(temperature=1.5, dry=Dry(1.0), xtc_probability=0.5, banned_ids=[3, 4]),
]


def row(history: list[int]) -> Any:
    return ROWS[(history[-1] * 5 + len(history)) % len(ROWS)]


def there(logits: Any, device: str) -> Any:
    return logits.to(device) if device.startswith("cuda") else logits


def made(device: str, params: SamplingParams, prompts: list[list[int]], seed: Any, **more: Any) -> Sequences:
    words = words_of(params, seed, len(prompts))
    logits = there(ROWS, device)
    chosen = {"vocab": VOCAB, "device": logits.device, "pool_device": device if device == "emulated" else None} | more
    return Sequences([params] * len(prompts), prompts, words, **chosen)


def alone(params: SamplingParams, prompt: list[int], seed: int, draw: int, length: int) -> list[int]:
    state = State(prompt, seed=seed, position=len(prompt), draw=draw)
    sampler = Sampler.resume(params.replace(seed=seed), VOCAB, state)
    for _ in range(length):
        sampler.sample(row(sampler.history))
    return sampler.output


@pytest.mark.parametrize("params", PARAMS)
def test_rows_draw_what_samplers_draw_and_those_that_ended_stand_still(device: str, params: SamplingParams) -> None:
    prompts = [[5], [6, 7], [8, 9, 10]]
    for seed, words in ((7, [(7, 0), (7, 1), (7, 2)]), ([4, 5, 6], [(4, 0), (5, 0), (6, 0)])):
        sequences = made(device, params, prompts, seed)
        texts: list[list[int]] = [[], [], []]
        for step in range(9):
            takes_part = [True, step < 4, step < 7]
            rows = torch.stack([row(prompt + text) for prompt, text in zip(prompts, texts)])
            tokens = sequences.step(there(rows, device), takes_part).tokens.tolist()
            for text, token, part in zip(texts, tokens, takes_part):
                assert (token >= 0) == part
                text += [token] * part
        lengths = (9, 4, 7)
        assert texts == [alone(params, *each) for each in zip(prompts, *zip(*words), lengths)]


@pytest.mark.parametrize("params", PARAMS)
def test_drafts_that_the_row_draws_itself_are_all_kept(device: str, params: SamplingParams) -> None:
    prompt, text = [5, 6], []
    sequences = made(device, params, [prompt], 7, drafts=True)
    while len(text) < 12:
        drafts: list[int] = []
        for _ in range(3):
            drafts.append(sequences.draft(there(row(prompt + text + drafts)[None], device), drafts))
        drafts[2] = (drafts[2] + 1) % VOCAB
        rows = torch.stack([row(prompt + text + drafts[:count]) for count in range(4)])
        emitted = sequences.verify(there(rows, device), drafts).tokens.tolist()
        assert emitted[:2] == drafts[:2] and len(emitted) == 3
        # The last token is taken back, and drawn again.
        sequences.shorten(1)
        text += emitted[:2]
    assert text == alone(params, prompt, 7, 0, len(text))


def test_scores_are_kept_on_the_host_and_change_no_token(device: str) -> None:
    params = SamplingParams(temperature=0.5, top_k=5, banned_ids=[3])
    keeping = made(device, params, [[5]], 7, keep_scores=True)
    assert keeping.pool.device == "cpu"
    drawn = keeping.step(there(row([5])[None], device), [True])
    assert drawn.tokens.tolist() == alone(params, [5], 7, 0, 1)
    assert drawn.scores is not None and int(drawn.scores.isfinite().sum()) == 5
    best = row([5]).index_fill(0, torch.tensor([3]), -float("inf")).topk(5)
    torch.testing.assert_close(drawn.scores.cpu()[0, best.indices], best.values / 0.5)


def test_seeds_are_checked() -> None:
    with pytest.raises(ValueError, match="seed has length 2, but must have one for each prompt, 3"):
        words_of(SamplingParams(), [1, 2], 6, 2)
    with pytest.raises(ValueError, match="seed"):
        words_of(SamplingParams(), -1, 1)
    # Digits are no seeds, one by one.
    for seed in ("7", "12", b"7", ["7"], 7.5, [7.0], True):
        with pytest.raises(ValueError, match="seed is .*, but must be a whole number"):
            words_of(SamplingParams(), seed, 2)
    for seed in ([8, 9], (8, 9), np.array([8, 9]), torch.tensor([8, 9]), range(8, 10)):
        assert words_of(SamplingParams(), seed, 2) == [(8, 0), (9, 0)]
    for seed in (7, np.uint64(7), torch.tensor(7), np.array(7)):
        assert words_of(SamplingParams(), seed, 2) == [(7, 0), (7, 1)]
    assert words_of(SamplingParams(), [8, 9], 4, 2) == [(8, 0), (8, 1), (9, 0), (9, 1)]
