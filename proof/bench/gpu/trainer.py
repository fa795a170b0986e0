"""What the trainer's function costs on a GPU: `python trainer.py [ROWS VOCAB]`. Prints a table of milliseconds, medians of CUDA events, for bf16 logits.

Beside it stand one read of the logits, a read and a write, TRL's function of selected logprobs with entropy written from its public formula and
compiled, and torch's log_softmax in chunks. Needs torch with CUDA and triton.

`python trainer.py hidden FILE.json [ROWS WIDTH VOCAB]` does the same from bf16 hidden states, forward and both directions, with the peak of memory beside what is
given: `hidden_logprobs` over a `torch.nn.Linear`, Liger's kernels if they are installed, and the compiled formula behind the product. The first rows
are held to float64.
"""

import functools
import json
import os
import statistics
import sys
import time

import torch

import gumball.torch

CHUNK = 256
# Liger's function, as `liger=True` calls it, and how far its logprobs and entropies may be from ours: it keeps logits in f32, which our head rounds to bf16.
LIGER, NEAR = "hidden_logprobs with liger=True", (0.0625, 0.125)


def milliseconds(work, repeats=15, warm=3):
    """The median time of a call, whose first calls compile and fill the caches of the allocator."""
    for _ in range(warm):
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


def from_logits(rows=8192, vocab=151_936):
    torch.manual_seed(0)
    logits = torch.empty(rows, vocab, dtype=torch.bfloat16, device="cuda")
    for part in logits.split(CHUNK):
        part.copy_(torch.randn(part.shape, device="cuda") * 3)
    ids = torch.randint(0, vocab, (rows,), device="cuda")
    many = torch.randint(0, vocab, (rows, 256), device="cuda")
    # Sets of 20 ids a row, and of 2000, with the id itself.
    sets = {}
    for size in (20, 2000):
        kept = torch.cat([torch.randint(0, vocab, (rows, size - 1), device="cuda"), ids[:, None]], 1)
        sets[size] = gumball.torch.kept_bitmask(torch.full((rows,), size, device="cuda"), kept, vocab)
    out, ones = torch.empty_like(logits), torch.ones(rows, device="cuda")
    words = logits.view(torch.int32)

    def read():
        return words.amax()

    def gumballs(ids=ids, **named):
        return gumball.torch.logprobs(logits, ids, **named)

    def backward(kept=None, in_place=False, ids=ids):
        """The operator alone: what autograd runs for a loss by logprobs and entropies."""
        tokens = (ids.reshape(rows, -1), 1.0, None, kept, -100)
        weighed = torch.ops.gumball.logprobs(logits, *tokens, True, False)[2]
        of = torch.ones(tokens[0].shape, device="cuda")
        if in_place:
            return lambda: torch.ops.gumball.logprobs_gradient_(out, *tokens, weighed, of, ones)
        return lambda: torch.ops.gumball.logprobs_gradient(logits, *tokens, weighed, of, ones)

    compiled = torch.compile(formula)

    def compiled_backward():
        leaf = logits.detach().requires_grad_()
        found, entropies = compiled(leaf, ids)
        return lambda: torch.autograd.grad((found, entropies), leaf, (ones, ones), retain_graph=True)

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
    print(torch.cuda.get_device_name(), torch.__version__, f"[{rows}, {vocab}] bf16")


def heads(head, ids):
    """The ways from hidden states to logprobs and entropies, by name; and why one is not there."""
    ways, compiled = {}, torch.compile(formula)
    ways["gumball, chunks of 1024 rows"] = lambda states: gumball.torch.hidden_logprobs(states, head, ids, entropy=True)
    try:
        from liger_kernel.ops import fused_linear_scaled_cross_entropy as liger
    except Exception as error:  # Whatever of it a machine lacks: the rest is measured.
        print(f"Liger is left out: {error}")
    else:

        def by(function, *rest):
            def way(states):
                costs, entropies = function.apply(states, head.weight, ids, 1.0, -100, *rest)
                return -costs, entropies

            return way

        ways[LIGER] = lambda states: gumball.torch.hidden_logprobs(states, head, ids, entropy=True, liger=True)
        try:
            ways["Liger's kernels for Hopper"] = by(liger._load_sm90_function(), 1, True)
        except Exception as error:
            print(f"Liger's kernels for Hopper are left out: {error}")
        ways["Liger in torch, chunks of 512 rows"] = by(liger._FusedLinearPPOFallbackFunction, True)
    ways["compiled formula"] = lambda states: compiled(head(states), ids)
    return ways


def from_hidden(file, rows=8192, width=4096, vocab=151_936, seconds=400):
    # Our function checks ids on the device; Liger's check waits for the host.
    os.environ.setdefault("LIGER_SCALED_CE_SM90_VALIDATE_TARGETS", "0")
    torch.manual_seed(0)
    began = time.monotonic()
    states = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
    head = torch.nn.Linear(width, vocab, bias=False, device="cuda", dtype=torch.bfloat16)
    torch.nn.init.normal_(head.weight, std=3 / width**0.5)
    ids, by = torch.randint(vocab, (rows,), device="cuda"), torch.randn(2, rows, device="cuda")
    leaves = (states, head.weight)
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": [rows, width, vocab],
        "ways": {},
    }

    def both(way):
        answers = way(states)
        grads = tuple(of.to(answer.dtype) for of, answer in zip(by, answers, strict=True))
        return *answers, *torch.autograd.grad(answers, leaves, grads)

    def forward(way):
        with torch.no_grad():
            return way(states)

    first = min(rows, 256)
    exact_states = states[:first].detach().double().requires_grad_()
    logp = (exact_states @ head.weight.detach().double().T).log_softmax(-1)
    exact = logp.gather(-1, ids[:first, None])[:, 0], -(logp.exp() * logp).sum(-1)
    exact += torch.autograd.grad(exact, exact_states, tuple(by[:, :first].double()))
    exact = tuple(value.detach() for value in exact)
    del logp, exact_states
    torch.cuda.empty_cache()
    print("| way | first call, s | forward, ms | peak, GB | forward and backward, ms | peak, GB |")
    answers = {}
    for name, way in heads(head, ids).items():
        if time.monotonic() - began > seconds:
            print(f"| {name} | left out: no time |")
            continue
        try:
            called = time.monotonic()
            found = both(way)
            torch.cuda.synchronize()
            row = {"first_s": time.monotonic() - called}
            kept = answers.setdefault(name, tuple(value.detach().cpu() for value in found))
            row["beside_float64"] = [
                (mine[:first].double() - value.cpu()).abs().max().item() for mine, value in zip(kept, exact)
            ]
            del found
            for what, run in {"forward": forward, "both": both}.items():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                row[f"{what}_ms"] = milliseconds(functools.partial(run, way), 7, 2)
                row[f"{what}_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
        except Exception as error:
            print(f"| {name} | {type(error).__name__}: {str(error)[:300]} |", flush=True)
            continue
        record["ways"][name] = row
        print(
            f"| {name} | {row['first_s']:.1f} | {row['forward_ms']:.2f} | {row['forward_gb']:.2f} |"
            f" {row['both_ms']:.2f} | {row['both_gb']:.2f} |",
            flush=True,
        )
    print("\n| way | beside | logprobs | entropies | gradient of states | of weights | largest gradients |")
    mine, *others = answers.items()
    for name, row in record["ways"].items():
        print(
            f"| {name} | float64, {first} rows |", " | ".join(f"{most:.3g}" for most in row["beside_float64"]), "| | |"
        )
    is_near = True
    for name, values in others:
        most = [(a.float() - b.float()).abs().max().item() for a, b in zip(mine[1], values, strict=True)]
        largest = [value.float().abs().max().item() for value in mine[1][2:]]
        if name in record["ways"]:
            record["ways"][name]["beside_ours"] = most
        if name == LIGER:
            is_near = all(found <= bound for found, bound in zip(most, NEAR))
        print(
            f"| {name} | {mine[0]} |",
            " | ".join(f"{most:.3g}" for most in most),
            "|",
            ", ".join(f"{most:.3g}" for most in largest),
            "|",
        )
    print(record["device"], record["torch"], record["shape"], "bf16")
    with open(file, "w") as out:
        json.dump(record, out, indent=1)
    if not is_near:
        sys.exit(f"{LIGER} differs from ours by more than {NEAR} in logprobs and entropies")


if __name__ == "__main__":
    if sys.argv[1:2] == ["hidden"]:
        from_hidden(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        from_logits(*map(int, sys.argv[1:]))
