"""vLLM's Triton kernels, in the order of its GPU sampler: a copy of the logits, since what follows works in place, then
penalties, temperature, min-p, top-k with top-p, a Gumbel race, and the drawn token's logprob and rank. Without a filter the race
divides by the temperature itself. Its biases and bitmasks are not among them."""

import importlib.metadata

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.min_p import apply_min_p
from vllm.v1.worker.gpu.sample.penalties import apply_penalties

import plan
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("vllm")


class Columns:
    """What rows ask for that take a request's parameters in turn."""

    def __init__(self, rows, vocab, request):
        def column(name, dtype=torch.float32):
            return torch.tensor(plan.column(request, name, rows), dtype=dtype, device="cuda")

        def some(name, off):
            return any(value != off for value in plan.column(request, name, rows))

        self.index = torch.arange(rows, dtype=torch.int32, device="cuda")
        self.seeds = torch.arange(rows, dtype=torch.int64, device="cuda")
        self.positions = torch.full((rows,), 9, dtype=torch.int64, device="cuda")
        self.temperature = column("temperature")
        self.min_p = column("min_p") if some("min_p", 0) else None
        self.k = column("top_k", torch.int32) if some("top_k", 0) else None
        if self.k is not None:
            self.k = torch.where(self.k == 0, vocab, self.k)
        self.p = column("top_p") if some("top_p", 1) else None
        self.top_p_alone = any(params.top_p < 1 and not params.top_k for params in request)
        self.filtered = any(x is not None for x in (self.min_p, self.k, self.p))
        self.penalised = any(params.penalised() for params in request)
        if self.penalised:
            self.penalties(rows, vocab, column)

    def penalties(self, rows, vocab, column):
        words = -(-vocab // 32)
        prompt = torch.zeros((rows, words), dtype=torch.int32, device="cuda")
        history = torch.randint(vocab, (rows, plan.HISTORY), device="cuda")
        once = torch.ones(history.shape, dtype=torch.int32, device="cuda")
        counts = torch.zeros((rows, vocab), dtype=torch.int32, device="cuda").scatter_add_(1, history, once)
        zeros = torch.zeros(rows, dtype=torch.int32, device="cuda")
        rates = (column("repetition"), column("frequency"), torch.zeros(rows, device="cuda"))
        self.rest = (self.index, zeros, zeros, *rates, prompt, counts)


def sampler(rows, vocab, request):
    to, logprob = Columns(rows, vocab, request), request[0].logprob

    def call(logits):
        x = logits
        if to.filtered or to.penalised:
            x = torch.empty_like(logits).copy_(logits)
        if to.penalised:
            apply_penalties(x, *to.rest)
        if to.filtered:
            apply_temperature(x, to.index, to.temperature)
        if to.min_p is not None:
            apply_min_p(x, to.index, to.min_p)
        if to.k is not None or to.p is not None:
            x = apply_top_k_top_p_triton(x, to.k, to.p, has_topp_only_rows=to.top_p_alone)
        tokens = gumbel_sample(
            x,
            to.index,
            to.temperature,
            to.seeds,
            to.positions,
            apply_temperature=not to.filtered,
            is_drafting=False,
        )
        if logprob:
            compute_topk_scores(logits, 0, tokens)
        return tokens

    return call


def masked(rows, vocab):
    k = torch.full((rows,), plan.TOP_K, dtype=torch.int32, device="cuda")
    return lambda logits: apply_top_k_top_p_triton(torch.empty_like(logits).copy_(logits), k, None)


def steps(task):
    """The way of a task, named after the kernels that it takes."""
    request = plan.request(task)
    filters = {
        "apply_penalties": any(params.penalised() for params in request),
        "apply_temperature": any(params.top_k or params.top_p < 1 or params.min_p for params in request),
        "apply_min_p": any(params.min_p for params in request),
        "apply_top_k_top_p_triton": any(params.top_k or params.top_p < 1 for params in request),
    }
    calls = [name for name, takes in filters.items() if takes]
    if not calls:
        greedy = all(params.temperature == 0 for params in request)
        does = "gumbel_sample at temperature 0" if greedy else "gumbel_sample, temperature inside"
    else:
        does = ", ".join(["copy", *calls, "gumbel_sample"])
    if request[0].logprob:
        does += ", compute_topk_scores; no bias, no bitmask"
    return Way(task, does, lambda rows, vocab: sampler(rows, vocab, request))


def ways():
    tasks = [task for task in plan.REQUESTS if not task.startswith(("probs-", "softmax")) and task != "joint"]
    return [*map(steps, tasks), Way("top-k-mask", "copy, apply_top_k_top_p_triton", masked)]
