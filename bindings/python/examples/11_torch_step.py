"""A step in 200 lines of torch, bit-equal: penalties, biases, temperature, top-k, top-p, min-p and the draw, as the rules of docs/semantics.md say.

    python 11_torch_step.py

It uses nothing of Gumball but the names of the parameters, and reads no other ones. Each token of the last lines is that of a pool.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from gumball import Pool, SamplingParams

LOG2: tuple[float, ...] = (1.44269502, -0.721347392, 0.480909109, -0.360699952, 0.287947953, -0.239030987, 0.215552017)
LOG2 += (-0.206686974, 0.125518844)
EXP2 = (1, 0.693147182, 0.240226477, 0.0555035956, 0.00961850025, 0.00133909716, 0.000153290152)
LARGEST, INF, LOW = torch.finfo(torch.float32).max, math.inf, 2**32 - 1


def f32(x: float | list[float]) -> Tensor:
    return torch.tensor(x, dtype=torch.float32)


# Numbers


def rounded_sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b of float64, rounded once to float32: an inexact sum is made odd in float64, and then rounds as the exact one would."""
    total = a + b
    lost = (a - (total - (total - a))) + (b - (total - a))
    odd = torch.nextafter(total, torch.copysign(torch.full_like(total, INF), lost))
    return torch.where((lost != 0) & (total.view(torch.int64) % 2 == 0), odd, total).float()


def polynomial(f: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """By Horner's scheme, each step a fused multiply-add: the product of two numbers of float32 is exact in float64."""
    value = f32(coefficients[-1]).expand_as(f)
    for c in reversed(coefficients[:-1]):
        value = rounded_sum(value.double() * f.double(), f32(c).double())
    return value


def log2(x: Tensor) -> Tensor:
    """N1, of a positive number or 0."""
    m, e = torch.frexp(x)  # m is in [0.5, 1).
    high = (m.view(torch.int32) & 0x7FFFFF) > 0x3504F3
    f = torch.where(high, m, m * 2) - 1
    e = torch.where(high, e, e - 1).double()
    return torch.where(x > 0, rounded_sum(polynomial(f, LOG2).double() * f.double(), e), -INF)


def exp2(d: Tensor) -> Tensor:
    """N2, of a number that is not positive."""
    n = d.clamp(min=-126).round()
    power = polynomial(d.clamp(min=-126) - n, EXP2)
    power = (power.view(torch.int32) + (n.int() << 23)).view(torch.float32)
    return torch.where(d < -126, 0, power)


# Edits


def edited(z: Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> Tensor:
    """E1, E2: z after penalties and biases. -inf stays, and no other logit becomes infinite."""

    def finite(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(old == -INF, old, new.clamp(-LARGEST, LARGEST))

    def counts(scope: str) -> Tensor:
        ids = {"prompt": prompt, "output": output, "both": prompt + output}[scope]
        return torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=len(z)).float()

    r, frequency, presence = f32([params.repetition_penalty, params.frequency_penalty, params.presence_penalty])
    seen, count = counts(params.repetition_scope) > 0, counts(params.penalty_scope)
    z = torch.where(seen, finite(torch.where(z > 0, z / r, z * r), z), z)
    z = torch.where(count > 0, finite(z - frequency * count, z), z)
    z = torch.where(count > 0, finite(z - presence, z), z)
    for i, bias in dict(params.logit_bias).items():
        z[i] = -INF if bias == -INF else finite(z[i] + f32(bias), z[i])
    return z + 0.0


# Filters


def scale(temperature: float) -> Tensor:
    """N6: log2(e) / T."""
    return torch.tensor(0x3FB8AA3B, dtype=torch.int32).view(torch.float32) / f32(temperature)


def masses(z: Tensor, ids: Tensor, s: Tensor) -> Tensor:
    """M3, M4: the mass of each prefix of a given set, which is all of `ids`, in the order of tokens."""
    tile, by_tile = torch.sort(ids // 256, stable=True)
    start = torch.searchsorted(tile, tile)  # Where the tile begins that a token lies in: with its largest logit.
    logits = z[ids[by_tile]]
    best = logits[start]
    q = (exp2((logits - best) * s).double() * 2.0**28).round().long()
    m, e = torch.frexp(exp2((best - z[ids[0]]) * s))
    factor, shift = (m.double() * 2.0**24).long(), (8 + 1 - e).clamp(max=63)
    total = q.cumsum(0)
    held = total - (total - q)[start]  # What the tile holds of the prefix, this token too.
    added = ((held * factor) >> shift) - (((held - q) * factor) >> shift)
    return torch.empty_like(added).scatter_(0, by_tile, added).cumsum(0)


def kept(z: Tensor, params: SamplingParams, s: Tensor) -> Tensor:
    """The ids that top-k, top-p and min-p leave, in the order of tokens: larger logits first, of equal ones the smaller id."""
    ids = torch.sort(z, descending=True, stable=True)[1]
    ids = ids[: int((z > -INF).sum())]
    if params.top_k > 0:
        ids = ids[: params.top_k]
    if params.top_p < 1:  # F1
        mass = masses(z, ids, s)
        reached = math.ceil(math.ceil(Fraction(f32(params.top_p).item()) * 2**32) * Fraction(mass[-1].item(), 2**32))
        ids = ids[: int((mass < reached).sum()) + 1]
    if params.min_p > 0:  # F2
        bar = log2(f32([params.min_p]))
        ids = ids[((z[ids] - z[ids[0]]) * s >= bar) | (torch.arange(len(ids)) == 0)]
    return ids


# The draw


def philox(index: Tensor, tag: int, seed: int, position: int, draw: int) -> list[Tensor]:
    """N8. Products wrap around, as their 64 bits do."""
    x = [index, *(torch.full_like(index, word) for word in (position, tag, draw))]
    for i in range(10):
        low, high = (seed + i * 0x9E3779B9) & LOW, ((seed >> 32) + i * 0xBB67AE85) & LOW
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [((b >> 32) & LOW) ^ x[1] ^ low, b & LOW, ((a >> 32) & LOW) ^ x[3] ^ high, a & LOW]
    return x


def exponential(early: Tensor, word: Tensor, complement: Tensor, bits: int) -> Tensor:
    """N3, N4: of a rounded word, and of that of its complement."""
    v = word * 2.0**-bits
    return torch.where(early, v * polynomial(-v, LOG2), -log2(complement * 2.0**-bits))


def arrivals(vocab: int, seed: int, position: int, draw: int) -> Tensor:
    """D1: when each token arrives."""

    def rounded(high: Tensor, low: Tensor) -> Tensor:
        return rounded_sum(high.double() * 2.0**32, low.double()).clamp(min=1)

    tiles, ids = torch.arange(-(-vocab // 256)), torch.arange(vocab)
    w0, w1, w2, _ = philox(tiles, 1, seed, position, draw)
    early = (w0 < 0x4AFB0CCC) | ((w0 == 0x4AFB0CCC) & (w1 < 0x06219B7C))
    first = (exponential(early, rounded(w0, w1), rounded(w0 ^ LOW, w1 ^ LOW), 64) / 256)[ids // 256]
    r = torch.stack(philox(torch.arange(-(-vocab // 4)), 0, seed, position, draw), 1).ravel()[:vocab]
    later = exponential(r < 0x4AFB0CCD, (2 * r + 1).float(), (2 * (r ^ LOW) + 1).float(), 33)
    return torch.where(ids % 256 == w2[ids // 256] >> 24, first, first + later)


def step(row: Tensor, params: SamplingParams, prompt: list[int], output: list[int], draw: int = 0) -> int:
    """The next token of a request; -1 if the row has none."""
    z = torch.where(row.isnan(), -INF, row.float().clamp(max=LARGEST)) + 0.0  # N7
    z = edited(z, params, prompt, output)
    if z.max() == -INF:
        return -1
    if params.temperature < 2.0**-100:  # F10
        return int(torch.sort(z, descending=True, stable=True)[1][0])
    s = scale(params.temperature)
    ids = kept(z, params, s)
    y = (z[ids] - z[ids[0]]) * s
    score = y - log2(arrivals(len(z), params.seed or 0, (len(prompt) + len(output)) % 2**32, draw))[ids]
    return int(ids[score == score.max()].min())


# Beside a pool

random = torch.Generator().manual_seed(1)
count = 0
for vocab, steps in ((1000, 10), (32_000, 3), (600, 10)):
    bias = {3: 2.5, 7: -INF, 9: -1.0}
    requests = [
        SamplingParams(temperature=0, frequency_penalty=0.3),
        SamplingParams(temperature=0.8, seed=7, logit_bias=bias),
        SamplingParams(temperature=0.7, seed=2**63 + 1, top_p=0.9, repetition_penalty=1.3),
        SamplingParams(temperature=1.3, seed=9, top_k=40, top_p=0.95, min_p=0.05, presence_penalty=0.5),
        SamplingParams(
            temperature=1.5, seed=10, top_k=300, frequency_penalty=0.4, penalty_scope="both", logit_bias=bias
        ),
        SamplingParams(temperature=2, seed=11, top_p=0.99, repetition_penalty=0.8, repetition_scope="output"),
    ]
    pool, prompt = Pool(vocab, slots=len(requests)), [5, 3, 5]
    slots = [pool.admit(params, prompt) for params in requests]
    outputs = [list[int]() for _ in requests]
    for _ in range(steps):
        rows = torch.randn(len(requests), vocab, generator=random) * 3
        rows[:, ::3], rows[:, 1] = rows[:, ::3].round(), math.nan  # Ties, and what is no number.
        tokens = pool.step(rows, slots).tokens.tolist()
        assert tokens == [step(*of) for of in zip(rows, requests, [prompt] * len(requests), outputs)]
        for output, token in zip(outputs, tokens):
            output.append(token)
            count += 1
print(f"{count} tokens, each that of the pool")
