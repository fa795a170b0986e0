"""A small evaluation with a real model: it scores the same with our draw and with torch's.

GUMBALL_TEST_MODEL names the model: a file in GGUF format, or a folder or a name that transformers loads;
`ci/long python` names the one that `gumball generate` fetches. GUMBALL_TEST_SAMPLES: how many answers are drawn to each question (64).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumball import SamplingParams

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Beginnings, and what an answer must begin with.
QUESTIONS = [
    ("The capital of France is", "paris"),
    ("The capital of Japan is", "tokyo"),
    ("The capital of Italy is", "rome"),
    ("The largest planet of the solar system is", "jupiter"),
    ("Water freezes at a temperature of 0 degrees", "c"),
    ("The opposite of hot is", "cold"),
    ("The opposite of up is", "down"),
    ("Monday, Tuesday, Wednesday,", "thursday"),
    ("January, February, March,", "april"),
    ("One, two, three, four,", "five"),
    ("2 + 2 =", "4"),
    ("The first letter of the alphabet is", '"a'),
    ("Bread is made of flour and", "water"),
    ("Bees make", "honey"),
    ("The colour of the sky on a clear day is", "blue"),
    ("A dog has four", "legs"),
]
SAMPLES = int(os.environ.get("GUMBALL_TEST_SAMPLES", "64"))
# The odds that one of the two comparisons rejects equal laws: four in a million.
SIGMAS = 4.75


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    name = os.environ.get("GUMBALL_TEST_MODEL")
    if not name:
        pytest.skip("left out: `ci/long python` names a model by GUMBALL_TEST_MODEL")
    where, options = name, {}
    if Path(name).is_file():
        pytest.importorskip("gguf")
        where, options = str(Path(name).parent), {"gguf_file": Path(name).name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **options).eval()


def answers(loaded: tuple[Any, Any], question: str, draw: Any, **options: Any) -> tuple[list[str], Any]:
    """What is drawn after a question, and the logprobs of the first tokens."""
    tokenizer, model = loaded
    inputs = tokenizer(question, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    keep = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 3}
    out = draw(model, **inputs, **keep, **options)
    new = out.sequences[:, inputs["input_ids"].shape[1] :]
    first = out.logits[0].float().log_softmax(-1).gather(1, new[:, :1]).squeeze(1)
    return [
        text.strip().lower() for text in tokenizer.batch_decode(new, skip_special_tokens=True)
    ], first.double().numpy()


@pytest.mark.slow
def test_an_evaluation_scores_the_same_with_our_draw_and_with_torchs(loaded: tuple[Any, Any]) -> None:
    from gumball.transformers import generate

    def torchs(model: Any, **inputs: Any) -> Any:
        return model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)

    torch.manual_seed(1)
    right, logprobs = np.zeros((2, len(QUESTIONS))), np.zeros((2, len(QUESTIONS), SAMPLES))
    for number, (question, wanted) in enumerate(QUESTIONS):

        def ours(model: Any, seed: int = number, **inputs: Any) -> Any:
            return generate(model, SamplingParams(seed=seed), **inputs)

        for way, draw in enumerate((torchs, ours)):
            texts, logprobs[way, number] = answers(loaded, question, draw, num_return_sequences=SAMPLES)
            right[way, number] = np.mean([text.startswith(wanted) for text in texts])
    shares, means = right.mean(1), logprobs.mean((1, 2))
    # Each question has a law of its own, so that variances are summed over questions.
    pooled = right.mean(0)
    spread = np.sqrt((2 * pooled * (1 - pooled) / SAMPLES).sum()) / len(QUESTIONS)
    wide = np.sqrt((logprobs.var(2).sum(0) / SAMPLES).sum()) / len(QUESTIONS)
    print(f"right: torch {shares[0]:.4f}, gumball {shares[1]:.4f}, one sigma {spread:.4f}")
    print(f"logprob of first tokens: torch {means[0]:.4f}, gumball {means[1]:.4f}, one sigma {wide:.4f}")
    # Less, and a wrong draw would not be seen: the evaluation is neither hopeless nor trivial.
    assert 0.1 < shares[0] < 0.95
    assert abs(shares[0] - shares[1]) < SIGMAS * spread
    assert abs(means[0] - means[1]) < SIGMAS * wide


@pytest.mark.slow
def test_without_chance_the_answers_are_torchs(loaded: tuple[Any, Any]) -> None:
    from gumball.transformers import generate

    for question, _ in QUESTIONS[::3]:
        ours = answers(
            loaded, question, lambda model, **inputs: generate(model, SamplingParams(temperature=0), **inputs)
        )
        torchs = answers(loaded, question, lambda model, **inputs: model.generate(**inputs, do_sample=False))
        assert ours[0] == torchs[0]
