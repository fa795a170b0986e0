"""GRPO on text that was sampled with filters: the trainer's ratio with the sampler's kept sets, and without; docs/rollouts.md explains it.

A small transformer learns to answer `a + b =` for a, b below 50, from the reward alone. Each sample is drawn by top-p 0.95 and min-p 0.05, from rows of the trainer's own forward pass
over whole padded sequences: so with kept sets the ratio at the first step is exactly 1, whatever the filters cut. With `--without` the trainer normalises over all tokens.

    python 10_grpo.py [--steps 10] [--without]
"""

import argparse

import torch
from torch import nn

import gumball
import gumball.torch

DIGITS, PAD, PLUS, IS, END, VOCAB = 10, 10, 11, 12, 13, 14
PROMPT, ANSWER, GROUP, PROMPTS = 6, 4, 8, 16
LENGTH, CLIP, ENTROPY, RATE = PROMPT + ANSWER, 0.2, 0.01, 1e-3


class Model(nn.Module):
    """A transformer of two layers over whole sequences."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits behind each token, [sequences, LENGTH, VOCAB]."""
        x = self.embed(ids) + self.place(torch.arange(LENGTH))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(self.norm(x))


def prompts_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts of a step and the sums that they ask for."""
    random = torch.Generator().manual_seed(step)
    a, b = torch.randint(0, 50, (2, PROMPTS), generator=random)
    prompts = torch.stack([a // 10, a % 10, torch.full_like(a, PLUS), b // 10, b % 10, torch.full_like(a, IS)], 1)
    return prompts, a + b


def decode(
    model: nn.Module, prompts: torch.Tensor, step: int, run: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples a group of answers to each prompt; returns the sequences, the kept set of each answer's token as a bitmask, and the sampler's logprobs, [sequences, ANSWER]."""
    rows = PROMPTS * GROUP
    pool = gumball.Pool(VOCAB, slots=rows, kept=True)
    slots = []
    for row in range(rows):
        # Each sample of a group has the seed of its number in it (N10).
        seed = gumball.sample_seed(gumball.prompt_seed(run, step * PROMPTS + row // GROUP), row % GROUP)
        params = gumball.SamplingParams(
            top_p=0.95, min_p=0.05, seed=seed, logprobs=gumball.LogprobsParams(mode="processed")
        )
        slots.append(pool.admit(params, prompts[row // GROUP].tolist()))
    ids = torch.full((rows, LENGTH), PAD)
    ids[:, :PROMPT] = prompts.repeat_interleave(GROUP, 0)
    sets, told = [], torch.zeros(rows, ANSWER)
    for place in range(ANSWER):
        with torch.no_grad():
            logits = model(ids)[:, PROMPT + place - 1].contiguous()
        out = pool.step(logits, slots)
        ids[:, PROMPT + place] = torch.from_numpy(out.tokens)
        told[:, place] = torch.from_numpy(out.logprobs)
        sets.append(gumball.torch.kept_bitmask(*map(torch.from_numpy, out.kept_sets()), VOCAB))
    return ids, torch.stack(sets, 1), told


def reward_of(ids: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """1 for the sum's two digits and the end, a part of it for each digit that is right."""
    answers, sums = ids[:, PROMPT:], sums.repeat_interleave(GROUP)
    right = torch.stack([answers[:, 0] == sums // 10, answers[:, 1] == sums % 10, answers[:, 2] == END], 1)
    return right.float().mean(1)


def train(steps: int, with_sets: bool, run: int = 7) -> tuple[list[float], list[float]]:
    """Trains; returns each step's reward, and the share of ratios outside 0.9 to 1.1 before its first update."""
    torch.manual_seed(run)
    model = Model()
    optimiser = torch.optim.AdamW(model.parameters(), RATE)
    rewards, shares = [], []
    for step in range(steps):
        prompts, sums = prompts_of(step)
        ids, sets, told = decode(model, prompts, step, run)
        reward = reward_of(ids, sums)
        groups = reward.view(PROMPTS, GROUP)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        # What follows the end was sampled as well, but says nothing.
        counts = (ids[:, PROMPT:] == END).cumsum(1) <= 1
        kept = sets if with_sets else None
        for update in range(2):
            logits = model(ids)[:, PROMPT - 1 : LENGTH - 1].contiguous()
            found, entropy = gumball.torch.logprobs(logits, ids[:, PROMPT:], kept=kept, entropy=True)
            ratio = (found - told).exp()
            if update == 0:
                off = (ratio < 0.9) | (ratio > 1.1)
                shares.append(off[counts].float().mean().item())
                assert not with_sets or bool((ratio == 1).all()), "with its sets the trainer says what the sampler said"
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = -((gain + ENTROPY * entropy) * counts).sum() / counts.sum()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        rewards.append(reward.mean().item())
    return rewards, shares


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO with kept sets")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--without", action="store_true", help="let the trainer normalise over all tokens")
    given = parser.parse_args()
    rewards, shares = train(given.steps, not given.without)
    for step in range(0, given.steps, max(given.steps // 10, 1)):
        print(
            f"step {step:4}: reward {rewards[step]:.3f}, ratios outside 0.9 to 1.1 at first: {100 * shares[step]:.1f} %"
        )
    print(f"last ten steps: reward {sum(rewards[-10:]) / len(rewards[-10:]):.3f}")


if __name__ == "__main__":
    main()
