"""TokenSpeed's sampling backends `triton` and `triton_full` as its runner calls them: for each step from the host, parameters and slots
looked at, then the kernels; and in graphs their verification of drafts, which draws from every row and then compares tokens."""

import functools
import importlib.metadata
from types import SimpleNamespace

import torch
from tokenspeed.runtime.sampling.backends.base import SamplingBackendConfig
from tokenspeed.runtime.sampling.backends.triton import TritonSamplingBackend
from tokenspeed.runtime.sampling.backends.triton_full import TritonFullSamplingBackend
from tokenspeed.runtime.sampling.sampling_batch_info import SamplingBatchInfo
from tokenspeed.runtime.sampling.sampling_params import SamplingParams
from tokenspeed.runtime.sampling.tree_verify import TreeVerifyBatch

import drafts
import plan
from engines.judged import of_nodes
from measure import Way

TRITON = True


def version():
    return importlib.metadata.version("tokenspeed")


class Requests:
    """A backend, and requests whose parameters it holds: the parameters of a task in turn."""

    def __init__(self, backend, task, rows, vocab, nodes=1):
        config = SamplingBackendConfig(
            enable_speculative_sampling=False,
            sampling_stream="per-request",
            logprob_order="torch",
            max_bs=rows,
            max_draft_tokens_per_req=nodes,
            max_req_pool_size=rows,
            vocab_size=vocab,
            device="cuda",
            enable_tp_sync=False,
        )
        self.backend, self.nodes = backend(config), nodes
        request = plan.request(task)
        self.asked = [of(request[row % len(request)], row) for row in range(rows)]
        self.names, self.slots = [str(row) for row in range(rows)], list(range(1, rows + 1))
        self.info = SamplingBatchInfo(
            vocab_size=vocab,
            req_pool_indices=torch.tensor(self.slots, device="cuda"),
            valid_cache_lengths=torch.full((rows + 1,), 9, dtype=torch.int32, device="cuda"),
        )

    def prepare(self):
        self.backend.prepare_step(self.names, self.slots, self.asked, num_tokens_per_req=self.nodes)


def of(params, seed):
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k or -1,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition,
        frequency_penalty=params.frequency,
        seed=seed,
    )


def step(task, rows, vocab):
    requests = Requests(TritonSamplingBackend, task, rows, vocab)

    def call(logits):
        requests.prepare()
        return requests.backend.sample(SimpleNamespace(next_token_logits=logits), requests.info)[0]

    return call


def verification(backend, task, rows, vocab):
    """One call of `verify`. A backend with penalties works in the logits' place, so they are copied."""
    _, judged = drafts.split(task)
    requests = Requests(backend, task, rows, vocab, judged.nodes)
    requests.prepare()
    full = backend is TritonFullSamplingBackend
    if full:
        history = torch.randint(vocab, (rows * plan.HISTORY,), dtype=torch.int32, device="cuda")
        slots = of_nodes(requests.slots, torch.int32).repeat_interleave(plan.HISTORY)
        requests.backend._accumulate_counts(slots, history, torch.ones_like(history))
    candidates = of_nodes(judged.tokens(rows, vocab), torch.int32)
    tree = None
    if judged.is_tree:
        tree = TreeVerifyBatch(
            parents=of_nodes([judged.parents()] * rows, torch.int32),
            depths=of_nodes([judged.depths()] * rows, torch.int32),
        )

    def call(logits):
        logits = logits.clone() if full else logits
        given = SimpleNamespace(next_token_logits=logits)
        return requests.backend.verify(given, requests.info, candidates, tree=tree)[0]

    return call


def verifications():
    """Its backend with penalties judges no trees."""
    for task in plan.VERIFICATIONS:
        name, judged = drafts.split(task)
        full = name == "mixture"
        if not (full and judged.is_tree):
            backend = TritonFullSamplingBackend if full else TritonSamplingBackend
            does = f"{'clone, ' if full else ''}{backend.__name__}.verify"
            yield Way(task, does, functools.partial(verification, backend, task))


def ways():
    does = "TritonSamplingBackend.prepare_step, sample"
    return [*(Way(task, does, functools.partial(step, task)) for task in plan.WHOLE_CALLS), *verifications()]
