"""vLLM's Triton kernels, in the order of its GPU sampler: a copy of the logits, since what follows works in place, then
penalties, temperature, min-p, top-k with top-p, a Gumbel race, and the drawn token's logprob and rank. Without a filter the race
divides by the temperature itself. Its biases and bitmasks are not among them. Verifications of draft chains in the order of its rejection
sampler: the same, with ratio tests in place of the race."""

import functools
import importlib.metadata
from types import SimpleNamespace

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.min_p import apply_min_p
from vllm.v1.worker.gpu.sample.penalties import apply_penalties

try:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample
except ImportError:
    rejection_sample = None

import drafts
import plan
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("vllm")


def divides(request):
    """Whether its sampler launches the division: not where every temperature is 0 or 1."""
    return any(params.temperature not in (0, 1) for params in request)


def filters(request):
    return any(params.top_k or params.top_p < 1 or params.min_p for params in request)


class Columns:
    """What requests ask for that take a task's parameters in turn, with a row for each of the tokens [rows][nodes]; one, if they have no
    drafts."""

    def __init__(self, rows, vocab, request, tokens=None):
        def column(name, dtype=torch.float32):
            return torch.tensor(plan.column(request, name, rows), dtype=dtype, device="cuda")

        def some(name, off):
            return any(value != off for value in plan.column(request, name, rows))

        nodes = len(tokens[0]) if tokens else 1
        self.tokens = torch.tensor(tokens or [[0]] * rows, dtype=torch.int32, device="cuda").view(-1)
        self.requests = torch.arange(rows, dtype=torch.int32, device="cuda")
        # Of each row its request, and how many drafts come before it.
        self.index = self.requests.repeat_interleave(nodes)
        self.places = torch.arange(nodes, dtype=torch.int32, device="cuda").repeat(rows)
        self.seeds = torch.arange(rows, dtype=torch.int64, device="cuda")
        self.positions = 9 + self.places.long()
        self.temperature = column("temperature")
        self.min_p = column("min_p") if some("min_p", 0) else None
        self.k = column("top_k", torch.int32) if some("top_k", 0) else None
        if self.k is not None:
            self.k = torch.where(self.k == 0, vocab, self.k).repeat_interleave(nodes)
        self.p = column("top_p").repeat_interleave(nodes) if some("top_p", 1) else None
        self.top_p_alone = any(params.top_p < 1 and not params.top_k for params in request)
        self.filtered = filters(request)
        self.penalised = any(params.penalised() for params in request)
        if self.penalised:
            self.penalties(rows, vocab, column)

    def penalties(self, rows, vocab, column):
        words = -(-vocab // 32)
        prompt = torch.zeros((rows, words), dtype=torch.int32, device="cuda")
        history = torch.randint(vocab, (rows, plan.HISTORY), device="cuda")
        once = torch.ones(history.shape, dtype=torch.int32, device="cuda")
        counts = torch.zeros((rows, vocab), dtype=torch.int32, device="cuda").scatter_add_(1, history, once)
        rates = (column("repetition"), column("frequency"), torch.zeros(rows, device="cuda"))
        self.rest = (self.index, self.tokens, self.places, *rates, prompt, counts)

    def applied(self, logits, divided):
        """What the race and the ratio tests take; `divided`: whether by the temperature."""
        x = logits
        if divided or self.filtered or self.penalised:
            x = torch.empty_like(logits).copy_(logits)
        if self.penalised:
            apply_penalties(x, *self.rest)
        if divided:
            apply_temperature(x, self.index, self.temperature)
        if self.min_p is not None:
            apply_min_p(x, self.index, self.min_p)
        if self.k is not None or self.p is not None:
            x = apply_top_k_top_p_triton(x, self.k, self.p, has_topp_only_rows=self.top_p_alone)
        return x


def sampler(rows, vocab, request, sets=False):
    """A step; with `sets`, besides its tokens what `--return-sampling-mask` leaves on the device."""
    to, logprob = Columns(rows, vocab, request), request[0].logprob
    if sets:
        from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors

        ones, starts = torch.ones_like(to.requests), torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        most = max(params.top_k or vocab for params in request)

    def call(logits):
        x = to.applied(logits, to.filtered and divides(request))
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
        return (tokens, SamplingMaskTensors.from_logits(x, starts, ones, most)) if sets else tokens

    return call


def marked(rows, vocab, request, history, key):
    """A step whose tokens are marked, after ids that were generated, [rows, count] int32: its sampler, given what its runner keeps."""
    from vllm.v1.watermarking.gpu_sampler import GPUWatermarkSampler
    from vllm.v1.watermarking.gumbel import GumbelWatermarker

    def both(values):
        return SimpleNamespace(np=values.cpu().numpy(), gpu=values)

    to, step = Columns(rows, vocab, request), GPUWatermarkSampler.__new__(GPUWatermarkSampler)
    step.watermarker = GumbelWatermarker(key)
    step.deduplicate_contexts, step.deduplicate_contexts_max_history = "single_turn", 8192
    step.watermarking = both(torch.ones(rows, dtype=torch.bool, device="cuda"))
    step.use_fp64_gumbel = False
    step.sampling_states = SimpleNamespace(
        temperature=both(to.temperature), seeds=both(to.seeds), any_greedy=lambda _: False
    )
    lengths = torch.full((rows,), history.shape[1], dtype=torch.int32, device="cuda")
    step.req_states = SimpleNamespace(
        all_token_ids=both(history), prompt_len=both(torch.zeros_like(lengths)), total_len=both(lengths)
    )
    numbers = to.requests.cpu().numpy()

    def call(logits):
        x = torch.empty_like(logits).copy_(logits) if to.filtered else logits
        return step._sample_random(x, to.requests, numbers, to.positions, to.k, to.p, to.top_p_alone, False)[0]

    return call


def verification(task, rows, vocab):
    """Ratio tests with drafts that their drafter is sure of, which it takes without probabilities."""
    _, judged = drafts.split(task)
    request = plan.request(task)
    to = Columns(rows, vocab, request, judged.tokens(rows, vocab))
    ends = torch.arange(0, (rows + 1) * judged.nodes, judged.nodes, dtype=torch.int32, device="cuda")

    def call(logits):
        x = to.applied(logits, divides(request))
        given = (to.tokens, ends, to.positions, to.requests, to.index, to.places, to.temperature, to.seeds)
        return rejection_sample(x, None, *given, judged.count)[0]

    return call


def verifications():
    for task in plan.VERIFICATIONS if rejection_sample else ():
        name, judged = drafts.split(task)
        if not judged.is_tree:
            does = ", ".join([*calls_of(plan.request(task)), "rejection_sample"])
            yield Way(task, does, functools.partial(verification, task))


def masked(rows, vocab):
    k = torch.full((rows,), plan.TOP_K, dtype=torch.int32, device="cuda")
    return lambda logits: apply_top_k_top_p_triton(torch.empty_like(logits).copy_(logits), k, None)


def calls_of(request):
    """The names of the kernels before the last one, after the copy that they work in."""
    names = {
        "apply_penalties": any(params.penalised() for params in request),
        "apply_temperature": divides(request),
        "apply_min_p": any(params.min_p for params in request),
        "apply_top_k_top_p_triton": any(params.top_k or params.top_p < 1 for params in request),
    }
    calls = [name for name, takes in names.items() if takes]
    return ["copy", *calls] if calls else []


def steps(task):
    """The way of a task, named after the kernels that it takes."""
    request = plan.request(task)
    calls = calls_of(request) if filters(request) or any(params.penalised() for params in request) else []
    if not calls:
        greedy = all(params.temperature == 0 for params in request)
        does = "gumbel_sample at temperature 0" if greedy else "gumbel_sample, temperature inside"
    else:
        does = ", ".join([*calls, "gumbel_sample"])
    if request[0].logprob:
        does += ", compute_topk_scores; no bias, no bitmask"
    return Way(task, does, lambda rows, vocab: sampler(rows, vocab, request))


def ways():
    tasks = [task for task in plan.REQUESTS if not task.startswith(("probs-", "softmax")) and task != "joint"]
    return [*map(steps, tasks), *verifications(), Way("top-k-mask", "copy, apply_top_k_top_p_triton", masked)]
