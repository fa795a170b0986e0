"""Times torch on the processor, one thread: the operators that inference code chains.

A bf16 row is widened by torch in the call, since its probabilities want f32; greedy needs no widening.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "python"))
from engine_protocol import Skip, serve

torch.set_num_threads(1)
torch.set_grad_enabled(False)
torch.manual_seed(0)


def greedy(row, parameters):
    return torch.argmax(row)


def plain(row, parameters):
    probs = torch.softmax(row.float() / parameters["temperature"], -1)
    return torch.multinomial(probs, 1)


def min_p(row, parameters):
    probs = torch.softmax(row.float() / parameters["temperature"], -1)
    probs[probs < probs.max() * parameters["min_p"]] = 0.0
    return torch.multinomial(probs, 1)


def within_top_p(probs, top_p):
    """Zeroes sorted probabilities that begin at `top_p` of the mass or after it."""
    before = torch.cumsum(probs, -1) - probs
    return probs.masked_fill_(before >= top_p, 0.0)


def top_k_top_p(row, parameters):
    logits, ids = torch.topk(row, parameters["top_k"])
    probs = torch.softmax(logits.float() / parameters["temperature"], -1)
    return ids[torch.multinomial(within_top_p(probs, parameters["top_p"]), 1)]


def top_p(row, parameters):
    logits, ids = torch.sort(row, descending=True)
    probs = torch.softmax(logits.float() / parameters["temperature"], -1)
    return ids[torch.multinomial(within_top_p(probs, parameters["top_p"]), 1)]


TASKS = {
    "greedy": (greedy, "argmax"),
    "plain": (plain, "softmax, multinomial"),
    "min-p": (min_p, "softmax, mask, multinomial"),
    "top-k-top-p": (top_k_top_p, "topk, softmax, cumsum, multinomial"),
    "top-p": (top_p, "sort, softmax, cumsum, multinomial"),
}


def prepare(definition, parameters, rows):
    if definition["task"] not in TASKS:
        raise Skip("has no single way to do everything")
    task, does = TASKS[definition["task"]]
    tensors = torch.from_numpy(rows)
    if definition["dtype"] == "bf16":
        tensors = tensors.view(torch.bfloat16)
    tensors = list(tensors)
    return does, lambda row: task(tensors[row], parameters).item()


serve("torch", f"torch {torch.__version__}", prepare)
