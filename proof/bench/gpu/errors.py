"""How far softmaxes are off: `python errors.py [DEVICE]`, cuda if it is not named. Prints a table.

Against torch's softmax in float64, over ROWS rows: the largest relative error of a probability above LEAST, and that of a row's sum, added in float64.
Rows are those of the bench, the same for all; a bf16 row is rounded before.
"""

import sys

import torch

import gumball
import plan
from inputs import DTYPES, model

try:
    from engines.flashinfer import sampling as flashinfer
except ImportError:
    flashinfer = None

ROWS, LEAST = 64, 1e-30
VOCABS, TEMPERATURES = (128256, 151936), (plan.TEMPERATURE, 0.01)


def bell(shape, device):
    return torch.empty(shape, device=device).normal_(0, 2, generator=torch.Generator(device).manual_seed(shape[-1]))


LIKES = {"model": lambda shape, device: model((1, *shape), device=device)[0], "bell": bell}


def ways(device):
    """Softmaxes of rows at temperatures, one a row, by name."""
    found = {"ours": gumball.softmax}
    if flashinfer and device == "cuda":
        found["FlashInfer"] = lambda logits, temperature: flashinfer.softmax(logits, temperature=temperature)
    found["torch, f32"] = lambda logits, temperature: torch.softmax(logits.float() / temperature[:, None], -1)
    return found


def errors(probs, logits, temperature):
    """The largest relative errors of a probability and of a row's sum; row by row, so that float64 takes little memory."""
    worst, total = 0.0, 0.0
    for found, row, t in zip(probs, logits, temperature):
        right, found = torch.softmax(row.double() / t.double(), -1), found.double()
        counted = right > LEAST
        worst = max(worst, ((found - right).abs() / right)[counted].max().item())
        total = max(total, abs(found.sum().item() - 1))
    return worst, total


def main(device="cuda"):
    softmaxes = ways(device)
    names = [f"{name}: {what}" for name in softmaxes for what in ("a probability", "the sum")]
    print(f"Largest relative errors over {ROWS} rows, of probabilities above {LEAST:g}.", end="\n\n")
    print(f"| rows | ids | logits | temperature | {' | '.join(names)} |")
    print("| --- | ---: | --- | ---: |" + " ---: |" * len(names), flush=True)
    for like, rows in LIKES.items():
        for vocab in VOCABS:
            whole = rows((ROWS, vocab), device)
            for dtype in ("f32", "bf16"):
                logits = whole.to(DTYPES[dtype])
                for degrees in TEMPERATURES:
                    temperature = torch.full((ROWS,), degrees, device=device)
                    cells = []
                    for call in softmaxes.values():
                        probs = call(logits, temperature)
                        probs = probs if isinstance(probs, torch.Tensor) else torch.from_dlpack(probs)
                        assert probs.dtype == torch.float32, probs.dtype
                        cells += [f"{error:.1e}" for error in errors(probs, logits, temperature)]
                    print(f"| {like} | {vocab} | {dtype} | {degrees} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
