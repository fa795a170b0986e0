"""GRPO on text that was sampled with filters: the trainer's ratio with the sampler's kept sets, and without; docs/rollouts.md explains it.

A small transformer learns to answer `a + b =` for a, b below 50, from the reward alone. Each sample is drawn by top-p 0.95 and min-p 0.05, from rows of the trainer's own forward pass
over whole padded sequences: so with kept sets the ratio at the first step is exactly 1, whatever the filters cut. With `--without` the trainer normalises over all tokens, and with
`--cache` samples are decoded with a cache of keys and values, as servers do: its products have other bits. How many ratios are exactly 1 is printed for both ways of decoding.

    python 10_grpo.py [--steps 10] [--without] [--cache]
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

import gumball
import gumball.torch

DIGITS, PAD, PLUS, IS, END, VOCAB = 10, 10, 11, 12, 13, 14
PROMPT, ANSWER, GROUP, PROMPTS = 6, 4, 8, 16
LENGTH, CLIP, ENTROPY, RATE = PROMPT + ANSWER, 0.2, 0.01, 1e-3
# The ways to decode.
WAYS = WHOLE, CACHED = "whole sequences", "a cache"


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

    def last(self, ids: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        """Returns the logits of the next token, [sequences, VOCAB]. ids: the tokens that the cache does not have yet; it gets their keys and values."""
        past = cache[0].shape[-2] if cache else 0
        x = self.embed(ids) + self.place(torch.arange(past, past + ids.shape[1]))
        for number, layer in enumerate(self.layers):
            of = layer.self_attn
            states = functional.linear(layer.norm1(x), of.in_proj_weight, of.in_proj_bias)
            # Queries, keys and values, [3, sequences, heads, tokens, width of a head].
            states = states.unflatten(-1, (3, of.num_heads, -1)).permute(2, 0, 3, 1, 4)
            known = torch.cat([cache[number], states[1:]], -2) if past else states[1:]
            cache[number : number + 1] = [known]
            seen = functional.scaled_dot_product_attention(states[0], known[0], known[1], is_causal=not past)
            x = x + of.out_proj(seen.transpose(1, 2).flatten(2))
            x = x + layer.linear2(functional.gelu(layer.linear1(layer.norm2(x))))
        return self.head(self.norm(x[:, -1]))


def prompts_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts of a step and the sums that they ask for."""
    random = torch.Generator().manual_seed(step)
    a, b = torch.randint(0, 50, (2, PROMPTS), generator=random)
    prompts = torch.stack([a // 10, a % 10, torch.full_like(a, PLUS), b // 10, b % 10, torch.full_like(a, IS)], 1)
    return prompts, a + b


def decode(
    model: Model, prompts: torch.Tensor, step: int, run: int, way: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples a group of answers to each prompt, from whole sequences or with a cache; returns the sequences, the kept set of each answer's token as a bitmask, and the sampler's
    logprobs, [sequences, ANSWER]."""
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
    sets, told, cache, known = [], torch.zeros(rows, ANSWER), list[torch.Tensor](), 0
    for place in range(ANSWER):
        end = PROMPT + place
        with torch.no_grad():
            logits = model(ids)[:, end - 1].contiguous() if way == WHOLE else model.last(ids[:, known:end], cache)
        known = end
        out = pool.step(logits, slots)
        ids[:, end] = torch.from_numpy(out.tokens)
        told[:, place] = torch.from_numpy(out.logprobs)
        lengths, kept = map(torch.from_numpy, out.kept_sets())
        sets.append(gumball.torch.kept_bitmask(lengths, kept, VOCAB))
    return ids, torch.stack(sets, 1), told


def reward_of(ids: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """1 for the sum's two digits and the end, a part of it for each digit that is right."""
    answers, sums = ids[:, PROMPT:], sums.repeat_interleave(GROUP)
    right = torch.stack([answers[:, 0] == sums // 10, answers[:, 1] == sums % 10, answers[:, 2] == END], 1)
    return right.float().mean(1)


def ratios(
    model: Model, decoded: tuple[torch.Tensor, ...], with_sets: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the trainer's probabilities by the sampler's, the entropies, [sequences, ANSWER], and which tokens count: what follows the end was sampled, but says nothing."""
    ids, sets, told = decoded
    logits = model(ids)[:, PROMPT - 1 : LENGTH - 1].contiguous()
    kept = sets if with_sets else None
    found, entropy = gumball.torch.logprobs(logits, ids[:, PROMPT:], kept=kept, entropy=True)
    return (found - told).exp(), entropy, (ids[:, PROMPT:] == END).cumsum(1) <= 1


def train(
    steps: int, with_sets: bool, run: int = 7, way: str = WHOLE
) -> tuple[list[float], list[dict[str, tuple[float, float]]]]:
    """Trains on answers that are decoded in a way; returns each step's reward, and before its first update, for both ways, the share of ratios that are exactly 1 and of those outside 0.9 to 1.1."""
    torch.manual_seed(run)
    model = Model()
    optimiser = torch.optim.AdamW(model.parameters(), RATE)
    rewards: list[float] = []
    shares: list[dict[str, tuple[float, float]]] = []
    for step in range(steps):
        prompts, sums = prompts_of(step)
        decoded = {each: decode(model, prompts, step, run, each) for each in WAYS}
        shares.append({})
        for each in WAYS:
            with torch.no_grad():
                ratio, _, counts = ratios(model, decoded[each], with_sets)
            parts = (ratio == 1)[counts], ((ratio < 0.9) | (ratio > 1.1))[counts]
            shares[step][each] = tuple(part.float().mean().item() for part in parts)
        assert not with_sets or shares[step][WHOLE][0] == 1, "with its sets the trainer says what the sampler said"
        reward = reward_of(decoded[way][0], sums)
        groups = reward.view(PROMPTS, GROUP)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        for _ in range(2):
            ratio, entropy, counts = ratios(model, decoded[way], with_sets)
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
    parser.add_argument("--cache", action="store_true", help="train on what is decoded with a cache")
    given = parser.parse_args()
    rewards, shares = train(given.steps, not given.without, way=CACHED if given.cache else WHOLE)
    print("ratios before the first update: exactly 1, outside 0.9 to 1.1")
    for step in range(0, given.steps, max(given.steps // 10, 1)):
        told = (f"{each} {100 * one:.1f} %, {100 * off:.1f} %" for each, (one, off) in shares[step].items())
        print(f"step {step:4}: reward {rewards[step]:.3f}; {'; '.join(told)}")
    print(f"last ten steps: reward {sum(rewards[-10:]) / len(rewards[-10:]):.3f}")


if __name__ == "__main__":
    main()
