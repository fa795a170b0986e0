"""What the trainer's function costs on a GPU: `python trainer.py [ROWS VOCAB]`. Prints a table of milliseconds, medians of CUDA events, for bf16 logits.

Beside it stand one read of the logits, a read and a write, TRL's function of selected logprobs with entropy written from its public formula and
compiled, and torch's log_softmax in chunks. Needs torch with CUDA and triton.
"""

import statistics
import sys

import torch

import gumball.torch

ROWS, VOCAB = (int(number) for number in sys.argv[1:3]) if len(sys.argv) > 2 else (8192, 151_936)
CHUNK = 256


def milliseconds(work, repeats=15):
    """The median time of a call, whose first calls compile and fill the caches of the allocator."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def formula(logits, ids):
    """logsumexp once; the selected logit less it, and the entropy as logsumexp less the mean logit."""
    z = logits.float()
    lse = z.logsumexp(-1)
    p = (z - lse[:, None]).exp()
    return z.gather(-1, ids[:, None])[:, 0] - lse, lse - (p * z).sum(-1)


def in_chunks(logits, ids):
    """torch's log_softmax over CHUNK rows at a time."""
    parts = []
    for start in range(0, len(ids), CHUNK):
        logp = logits[start : start + CHUNK].float().log_softmax(-1)
        selected = logp.gather(-1, ids[start : start + CHUNK, None])[:, 0]
        parts.append((selected, -(logp.exp() * logp).sum(-1)))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def main():
    torch.manual_seed(0)
    logits = torch.empty(ROWS, VOCAB, dtype=torch.bfloat16, device="cuda")
    for part in logits.split(CHUNK):
        part.copy_(torch.randn(part.shape, device="cuda") * 3)
    ids = torch.randint(0, VOCAB, (ROWS,), device="cuda")
    many = torch.randint(0, VOCAB, (ROWS, 256), device="cuda")
    # Sets of 20 ids a row, and of 2000, with the id itself.
    sets = {}
    for size in (20, 2000):
        kept = torch.cat([torch.randint(0, VOCAB, (ROWS, size - 1), device="cuda"), ids[:, None]], 1)
        sets[size] = gumball.torch.kept_bitmask(torch.full((ROWS,), size, device="cuda"), kept, VOCAB)
    out, ones = torch.empty_like(logits), torch.ones(ROWS, device="cuda")
    words = logits.view(torch.int32)

    def read():
        return words.amax()

    def gumballs(ids=ids, **named):
        return gumball.torch.logprobs(logits, ids, **named)

    def backward(kept=None, in_place=False, ids=ids):
        """The operator alone: what autograd runs for a loss by logprobs and entropies."""
        tokens = (ids.reshape(ROWS, -1), 1.0, None, kept, -100)
        weighed = torch.ops.gumball.logprobs(logits, *tokens, True, False)[2]
        of = torch.ones(tokens[0].shape, device="cuda")
        if in_place:
            return lambda: torch.ops.gumball.logprobs_gradient_(out, *tokens, weighed, of, ones)
        return lambda: torch.ops.gumball.logprobs_gradient(logits, *tokens, weighed, of, ones)

    compiled = torch.compile(formula)

    def compiled_backward():
        rows = logits.detach().requires_grad_()
        found, entropies = compiled(rows, ids)
        return lambda: torch.autograd.grad((found, entropies), rows, (ones, ones), retain_graph=True)

    bytes_read = logits.numel() * 2
    for name, work in {
        "read": read,
        "read and write (copy_)": lambda: out.copy_(logits),
        "forward": gumballs,
        "forward, entropy": lambda: gumballs(entropy=True),
        "forward, entropy, 256 ids": lambda: gumballs(many, entropy=True),
        "forward, entropy, sets of 20": lambda: gumballs(entropy=True, kept=sets[20]),
        "forward, entropy, sets of 2000": lambda: gumballs(entropy=True, kept=sets[2000]),
        "backward": backward(),
        "backward, 256 ids": backward(ids=many),
        "backward in place": backward(in_place=True),
        "backward, sets of 20": backward(sets[20]),
        "backward, sets of 2000": backward(sets[2000]),
        "compiled formula, forward, entropy": lambda: compiled(logits, ids),
        "torch in chunks, forward, entropy": lambda: in_chunks(logits, ids),
        "compiled formula, backward": None,
    }.items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            took = milliseconds(work or compiled_backward())
        except torch.OutOfMemoryError:
            print(f"| {name} | out of memory | |", flush=True)
            continue
        peak = (torch.cuda.max_memory_allocated() - before) / bytes_read
        print(
            f"| {name} | {took:.3f} ms | {bytes_read / took / 1e9:.2f} TB/s of one read | {peak:.2f} of the logits' memory |",
            flush=True,
        )
    found, wanted = gumballs(entropy=True), compiled(logits, ids)
    print(
        "largest differences from the formula:",
        *((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)),
    )
    print(torch.cuda.get_device_name(), torch.__version__, f"[{ROWS}, {VOCAB}] bf16")


if __name__ == "__main__":
    main()
