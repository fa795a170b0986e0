"""A model's score with each of several samplers: `python model_score.py MODEL [--questions 600] [--temperature 0.8] [--out FILE.json]`, on the CPU.

MODEL: a folder that transformers loads (`python integrations/real_model.py FOLDER` makes one). Each question is a sum, a sequence or a comparison of small numbers
after four solved ones, and an answer is right if its first line is the number. All samplers answer the same questions with the same seeds, from the same logits
of the prompt, so that differences are paired: a sampler's share of right answers less torch's, with the interval that holds the true difference in 95 of 100 runs.
"""

import argparse
import copy
import json
import random
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gumball

NEW_TOKENS = 5
BATCH = 50


def question(numbers: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    kind = numbers.randrange(3)
    a, b = numbers.randrange(1, 40), numbers.randrange(1, 10)
    if kind == 0:
        return f"{a} + {b} =", str(a + b)
    if kind == 1:
        return f"{a}, {a + b}, {a + 2 * b}, {a + 3 * b},", str(a + 4 * b)
    c = numbers.choice([a - b, a + b]) if a > b else a + b
    return f"the larger of {a} and {c} is", str(max(a, c))


def prompts(count: int, seed: int = 7) -> list[tuple[str, str]]:
    numbers = random.Random(seed)
    asked = []
    for _ in range(count):
        solved = "".join(f"{text} {answer}\n" for text, answer in (question(numbers) for _ in range(4)))
        text, answer = question(numbers)
        asked.append((solved + text, answer))
    return asked


def by_torch(logits: torch.Tensor, temperature: float, seeds: list[int], position: int) -> torch.Tensor:
    """torch's division, softmax and multinomial."""
    return multinomial((logits / temperature).softmax(-1), seeds, position)


def by_softmax(logits: torch.Tensor, temperature: float, seeds: list[int], position: int) -> torch.Tensor:
    """Gumball's softmax under a temperature, and torch's multinomial."""
    return multinomial(gumball.softmax(logits, temperature), seeds, position)


def by_gumball(logits: torch.Tensor, temperature: float, seeds: list[int], position: int) -> torch.Tensor:
    """Gumball's draw from logits."""
    drawn = gumball.sample(logits, temperature=temperature, seed=seeds, position=[position] * len(seeds))
    return torch.as_tensor(np.asarray(drawn), dtype=torch.long)


def multinomial(probs: torch.Tensor, seeds: list[int], position: int) -> torch.Tensor:
    """A draw from each row by a generator of its own."""
    rows = (
        row.multinomial(1, generator=torch.Generator().manual_seed(seed * 1000 + position))
        for row, seed in zip(probs, seeds)
    )
    return torch.cat(list(rows))


SAMPLERS = {"torch": by_torch, "Gumball's softmax": by_softmax, "Gumball": by_gumball}


@torch.inference_mode()
def answers(model, tokenizer, texts, seeds, temperature):
    """The texts that each sampler writes after prompts of equal length."""
    ids = torch.tensor(texts)
    begun = model(ids, use_cache=True)
    written = {}
    for name, draw in SAMPLERS.items():
        cache, logits = copy.deepcopy(begun.past_key_values), begun.logits[:, -1].float()
        tokens = []
        for position in range(NEW_TOKENS):
            tokens.append(draw(logits.contiguous(), temperature, seeds, position))
            if position + 1 < NEW_TOKENS:
                logits = model(tokens[-1][:, None], past_key_values=cache, use_cache=True).logits[:, -1].float()
        written[name] = tokenizer.batch_decode(torch.stack(tokens, 1))
    return written


def interval(values: np.ndarray) -> tuple[float, float]:
    """The mean in percent, and half of the interval around it."""
    return 100 * float(values.mean()), 196 * float(values.std(ddof=1)) / len(values) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument(
        "--out", type=Path, help="takes, for each sampler, a digit for each question: 1 if its answer is right"
    )
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    asked = [
        (tokenizer(text).input_ids, answer, seed) for seed, (text, answer) in enumerate(prompts(options.questions))
    ]
    right: dict[str, list[bool]] = {name: [] for name in SAMPLERS}
    by_length: dict[int, list] = {}
    for one in asked:
        by_length.setdefault(len(one[0]), []).append(one)
    for same in by_length.values():
        for start in range(0, len(same), BATCH):
            part = same[start : start + BATCH]
            texts, wanted, seeds = ([one[place] for one in part] for place in range(3))
            for name, written in answers(model, tokenizer, texts, seeds, options.temperature).items():
                lines = [text.split("\n")[0].strip() for text in written]
                right[name] += [line == answer for line, answer in zip(lines, wanted)]
    print(f"{options.questions} questions, T {options.temperature}")
    print("| sampler | right, % | less torch's, paired |\n| --- | ---: | ---: |")
    base = np.array(right["torch"], float)
    for name, values in right.items():
        share, within = interval(np.array(values, float))
        less, around = interval(np.array(values, float) - base)
        difference = "" if name == "torch" else f"{less:+.1f} ± {around:.1f}"
        print(f"| {name} | {share:.1f} ± {within:.1f} | {difference} |", flush=True)
    if options.out:
        found = {name: "".join(str(int(one)) for one in values) for name, values in right.items()}
        asked_of = {"model": Path(options.model).name, "temperature": options.temperature, "torch": torch.__version__}
        options.out.write_text(json.dumps(asked_of | {"right": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
