"""vLLM's model runner V2 with a pool's whole step: edits, filters, draws, drafts and logprobs, by the runner's request index.

The sampler keeps vLLM's own states beside it, since other parts of the runner read them. Tokens, logprobs and counts stay on the device, and
histories advance there, so nothing of a step waits. This module needs vLLM.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput

import gumball
from gumball import Step, Verify
from gumball.params import SamplingParams
from gumball.plugins.states import admit, mu_start, seed_of, steered_by

from .batches import Batch, Chains
from .head_choice import AnyHead, rows_of
from .kept import Sets
from .listed import Apart, Lists, OnDevice, pool_of, upload, warm_up
from .params import BUILT_IN, MOST_DEPARTED, TOP_LIMIT, asks_for_radii, params_of

__all__ = ["Sequences", "pooled"]


class _Departed(NamedTuple):
    """A request that left.

    theirs: vLLM's parameters. With mirostat or adaptive-p, drawn: how many tokens it had; mus: the limits or means behind one less and behind them,
    [2] on the device.
    """

    theirs: Any
    drawn: int
    mus: torch.Tensor | None


class _Tensors(NamedTuple):
    """What a step need not make anew, on the device.

    Of a step without drafts: how many tokens requests drew, how many drafts were refused, a 0 of int64. With mirostat or adaptive-p, by the runner's index: the
    limits or means before and after the last output token.
    """

    ones: torch.Tensor
    zeros: torch.Tensor
    zero: torch.Tensor
    mus: torch.Tensor


class Sequences:
    """The runner's requests by their index, as sequences of a pool.

    states: the runner's `RequestState`. vocab: the ids of a row of logits. most_drafts: of a request. seed: the engine's, of which and of its
    name a request without one has its seed. kept: whether steps tell kept sets.
    reasoning: the engine's `ReasoningConfig`.
    """

    def __init__(
        self,
        states: Any,
        vocab: int,
        device: Any,
        *,
        most_drafts: int,
        seed: int,
        logprobs_mode: str,
        top_n: int,
        kept: bool = False,
        reasoning: Any = None,
    ) -> None:
        most = states.max_num_reqs
        self.states, self.most_drafts, self.logprobs_mode = states, most_drafts, logprobs_mode
        self.kept, self.reasoning = kept, reasoning
        self.pool = pool_of(vocab, device, most, most * (1 + most_drafts), logprobs_mode, top_n, kept)
        self.outputs = OnDevice(self.pool)
        # The batch of the last step, if the next one may be the same; and what the pool's next step is assigned to, if that is known.
        self.batch: _Batch | None = None
        self.assigned: _Batch | Chains | None = None
        # The head that makes the logits, if the runner gives hidden states in their place.
        self.head: AnyHead | None = None
        # By the runner's index: the slot, -1 for none; the seed; vLLM's parameters; how many logprobs it asks for, the ids that it names, and whether it asks for radii.
        self.slots = np.full(most, -1, np.int32)
        self.seeds, self.theirs = [0] * most, list[Any]([None] * most)
        self.listed, self.names = np.zeros(most, np.int32), np.full(most, None, object)
        self.long_logprobs, self.radii = np.zeros(most, bool), np.zeros(most, bool)
        # With mirostat or adaptive-p, the number of output tokens.
        self.steered = np.zeros(most, bool)
        self._counts = np.zeros(most, np.int64)
        self._place = device if str(device).startswith("cuda") else None
        self._engine_seed = seed
        self._departed: OrderedDict[str, _Departed] = OrderedDict()

    @functools.cached_property
    def tensors(self) -> _Tensors:
        """Made in the first step: what vLLM makes while it loads the model lies in memory that `sleep` of level 2 throws away."""
        most, place = self.states.max_num_reqs, self._place
        return _Tensors(
            torch.ones(most, dtype=torch.int32, device=place),
            torch.zeros(most, dtype=torch.int32, device=place),
            torch.zeros(1, dtype=torch.int64, device=place),
            torch.zeros(2, most, device=place),
        )

    def warm_up(self, row: torch.Tensor) -> None:
        """Makes the kernels of every request that may come. row: one of those that the runner gives, logits or hidden states."""
        warm_up(self.outputs, row, self.head, drafts=self.most_drafts > 0, kept=self.kept)
        self.batch = self.assigned = None

    def add(self, index: int, new: Any) -> None:
        """Admits a request. new: vLLM's `NewRequestData`, where a preempted request has its output tokens after its prompt."""
        self._release(index)
        theirs, ids = new.sampling_params, new.prefill_token_ids
        former = self._departed.pop(new.req_id, None)
        if theirs is None:
            return
        params = params_of(theirs, logprobs_mode=self.logprobs_mode, reasoning=self.reasoning)
        known = former is not None and former.theirs == theirs
        seed = seed_of(new.req_id, self._engine_seed) if params.seed is None else params.seed
        prompt, output = ids[: new.prompt_len], ids[new.prompt_len :]
        mu = self._mu(params, former if known else None, len(output))
        steered = steered_by(params) is not None
        if steered:
            self.tensors.mus[0, index], self.tensors.mus[1, index] = torch.nan, mu
        slot = admit(self.pool, params, prompt, output, seed, mu)
        self.slots[index], self.seeds[index], self.theirs[index] = slot, seed, theirs
        listed = params.logprobs
        self.listed[index], self.names[index] = (0, ()) if listed is None else (listed.top_n, listed.ids or ())
        asks = theirs.logprobs is not None or bool(theirs.logprob_token_ids)
        self.long_logprobs[index], self.radii[index] = asks and listed is None, asks_for_radii(params)
        self.steered[index], self._counts[index] = steered, len(output)

    def remove(self, name: str) -> None:
        """Ends the sequence of a request that finished or was preempted, and remembers what a request that comes back needs."""
        index = self.states.req_id_to_index.get(name)
        if index is None or self.slots[index] < 0:
            return
        mus = self.tensors.mus[:, index].clone() if self.steered[index] else None
        self._departed[name] = _Departed(self.theirs[index], int(self._counts[index]), mus)
        if len(self._departed) > MOST_DEPARTED:
            self._departed.popitem(last=False)
        self._release(index)

    def advanced(self, indices: NDArray[np.int64], lines: NDArray[np.int64], rows: int) -> None:
        """Notes mirostat's limits and adaptive-p's means after a step. indices: the runner's, of requests with either that drew. lines: of each of the `rows` outputs."""
        self._counts[indices] += 1
        mus = self.tensors.mus
        where = upload(indices, mus)
        mus[0, where] = mus[1, where]
        mus[1, where] = self.outputs("mirostat_mu", rows)[upload(lines, mus)]

    def _mu(self, params: SamplingParams, former: _Departed | None, count: int) -> float:
        """Mirostat's limit, or the mean of adaptive-p, after `count` output tokens; that before the first if it is not known any more."""
        if former is not None and former.mus is not None and 0 <= former.drawn - count <= 1:
            mu = float(former.mus[1 - (former.drawn - count)])
            if mu == mu:
                return mu
        return mu_start(params)

    def _release(self, index: int) -> None:
        if self.slots[index] >= 0:
            self.pool.release(int(self.slots[index]))
        self.batch = None
        self.slots[index], self.theirs[index] = -1, None


class _Batch(Batch):
    """A batch while it has the same requests and all of their prompts are read to the end.

    indices: the runner's; key: their bytes. drawing: whose prompt is read to its end; the others draw nothing. slots: the pool's, -1 for those. edits:
    whether logits are edited before their penalties. dims: what vLLM says of the logprobs that are asked for; None for none.
    apart: the requests whose logprobs vLLM's own functions make, of the logits as they came, since their row is another in the pool, or their
    lists are longer than the pool's.
    """

    def __init__(self, sampler: _Pooled, batch: Any) -> None:
        sequences, indices = sampler.sequences, np.array(batch.idx_mapping_np)
        self.indices, self.key = indices, indices.tobytes()
        self.drawing = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        self.all_draw = bool(self.drawing.all())
        self.slots = np.where(self.drawing, sequences.slots[indices], -1)
        self.owners, self.steered = np.arange(len(indices)), sequences.steered[indices]
        self.limited = np.flatnonzero(self.steered & self.drawing)
        tensors = sequences.tensors
        self.ones, self.zeros = tensors.ones[: len(indices)], tensors.zeros[: len(indices)]
        if not self.all_draw:
            self.ones = upload(self.drawing, self.ones, torch.int32)
        # By processors of the user's, beside which a head is refused.
        self.edits = len(sampler.logits_processors) > BUILT_IN
        self.dims, mode = sampler.get_logprobs_dims(indices), sampler.logprobs_mode
        self.apart = sequences.long_logprobs[indices] | (self.edits or mode == "raw_logits")
        if mode == "processed_logprobs":
            self.apart = np.zeros(len(indices), bool)
        self.any_apart = bool(self.apart.any())
        self._listing = sequences.listed[indices], sequences.names[indices], sequences.radii[indices]

    def listing(self) -> tuple[NDArray[np.int32], Any, NDArray[np.bool_]]:
        """The logprobs and radii that the requests ask for."""
        counts, names, radii = self._listing
        return counts, names if any(names) else None, radii


def pooled(sampler: Any, sequences: Sequences) -> tuple[Any, Any]:
    """Returns vLLM's sampler and, for an engine with drafts, a rejection sampler that draw by a pool; they share the given sampler's state."""
    kind = type(sampler)
    made = copy.copy(sampler)
    made.__class__ = type(f"Gumball{kind.__name__}", (_Pooled, kind), {})
    made.sequences = sequences
    return made, RejectionSampler(made) if sequences.most_drafts else None


class RejectionSampler:
    """Accepts drafts while they equal what the request draws (rule S3), so that no draft changes a text.

    What the drafter thought of them does not enter.
    """

    # The runner reads it of every rejection sampler.
    enable_adaptive_verification = False

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> Any:
        """Judges the drafts of a batch, as vLLM's method of this name is asked to."""
        return self.sampler.step(logits, input_batch, invalid_drafts)


class _Pooled:
    """What takes the place of methods of vLLM's sampler."""

    sequences: Sequences
    compute_nans: bool
    logprobs_mode: str
    logits_processors: list[Any]
    logprob_token_ids_state: Any
    req_states: Any
    get_logprobs_dims: Any
    sampling_states: Any

    def add_request(self, index: int, theirs: Any) -> None:
        """Tells vLLM's states of a request without the edits that the pool makes, whose lists may be longer there than vLLM's kernels take.

        Its seed is the pool's there, so that :func:`.drafting.drafted` draws by it.
        """
        theirs = copy.copy(theirs)
        theirs.allowed_token_ids = theirs.logit_bias = theirs._bad_words_token_ids = None
        theirs.thinking_token_budget, theirs.min_tokens = None, 0
        super().add_request(index, theirs)  # type: ignore[misc]
        if self.sequences.slots[index] >= 0:
            self.sampling_states.seeds.np[index] = np.uint64(self.sequences.seeds[index]).astype(np.int64)

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        """Draws a token of each request, as vLLM's method of this name is asked to."""
        if input_batch.req_ids[0] not in self.req_states.req_id_to_index:
            # A batch without requests, by which vLLM warms up.
            return super().__call__(logits, input_batch)  # type: ignore[misc]
        return self.step(logits, input_batch, None)

    def step(self, logits: torch.Tensor, batch: Any, invalid_drafts: torch.Tensor | None) -> Any:
        """Draws the tokens of a batch: one of each request, or with drafts as many as they are right for, and one."""
        sequences, rows, chains = self.sequences, len(logits), None
        nans = get_num_nans(logits) if self.compute_nans else None
        known = sequences.batch
        if known is None or known.key != batch.idx_mapping_np.tobytes():
            known = _Batch(self, batch)
            # The next step may read more of a prompt.
            sequences.batch = known if known.all_draw else None
        edited = self._edited(logits, batch, known)
        if rows == batch.num_reqs:
            if sequences.assigned is not known:
                sequences.pool.assign(known.slots)
                sequences.assigned = known
            sequences.pool.enqueue([Step(rows_of(edited, sequences.head))])
            tokens = torch.maximum(sequences.outputs.column(rows), sequences.tensors.zero)
            count, rejected, lines = known.ones, known.zeros, known.limited
        else:
            chains = known.chains(batch.num_draft_tokens_per_req, logits)
            tokens, accepted = self._verified(edited, batch, known, chains, invalid_drafts)
            count = (accepted + 1) * known.ones
            rejected = chains.rows_each * known.ones - count
            rows, lines = len(chains.rows), chains.firsts[known.limited]
        sets = None
        if sequences.kept:
            sets = Sets(sequences.outputs.kept(rows), known.owners if chains is None else chains.firsts)
        if len(lines):
            sequences.advanced(known.indices[known.limited], lines, rows)
        logprobs = None if known.dims is None else self._logprobs(logits, batch, known, chains, tokens)
        return SamplerOutput(tokens, logprobs, nans, count, rejected, sampling_mask_tensors=sets)

    def _verified(
        self, logits: torch.Tensor, batch: Any, known: _Batch, chains: Chains, invalid: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, [requests, steps + 1] with -1 after the last one, and how many drafts were accepted."""
        sequences = self.sequences
        ids = batch.input_ids[batch.logits_indices]
        if invalid is not None:
            ids = ids.masked_fill(invalid, -1)
        if sequences.assigned is not chains:
            sequences.pool.assign(gumball.Batch(known.slots, counts=chains.looked_at))
            sequences.assigned = chains
        rows = rows_of(chains.chosen(logits), sequences.head)
        sequences.pool.enqueue([Verify(rows, ids[chains.draft_rows])])
        return chains.emitted(sequences.outputs, sequences.tensors.zero)

    def _edited(self, logits: torch.Tensor, batch: Any, known: _Batch) -> torch.Tensor:
        """The logits after what comes before the penalties; the same tensor if that is nothing."""
        if not known.edits:
            return logits
        edited = logits.to(torch.float32, copy=True)
        context = LogitsContext(
            expanded_idx_mapping=batch.expanded_idx_mapping,
            idx_mapping=batch.idx_mapping,
            idx_mapping_np=known.indices,
            expanded_local_pos=batch.expanded_local_pos,
            input_ids=batch.input_ids[batch.logits_indices],
            pos=batch.positions[batch.logits_indices],
            seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
        )
        for processor in self.logits_processors[BUILT_IN:]:
            edited = processor.apply(edited, context)
        return edited

    def _logprobs(
        self, logits: torch.Tensor, batch: Any, known: _Batch, chains: Chains | None, tokens: torch.Tensor
    ) -> Lists:
        """The logprobs of a step, a line for each row of logits that was looked at."""
        assert known.dims is not None
        asked = known.asked(min(max(known.dims), TOP_LIMIT))
        owners, bounds = (known.owners, None) if chains is None else (chains.owners, chains.firsts.tolist())
        copied = self.sequences.outputs.copied(len(owners), asked)
        lists = Lists(copied, asked, owners, bounds=bounds)
        if known.any_apart:
            flat, rows = tokens.flatten(), known.owners
            if chains is not None:
                # A request's tokens are at the first of its rows.
                places = batch.cu_num_logits[:-1].to(torch.int64).unsqueeze(1)
                places = places + torch.arange(tokens.shape[1], device=tokens.device)
                # A row of the next request may begin after the last token: the -1s go to one more place, which is cut off.
                places = torch.where(tokens >= 0, places, len(logits)).flatten()
                flat = tokens.new_zeros(len(logits) + 1).scatter_(0, places, flat.clamp(min=0))[:-1]
                rows = chains.rows
            theirs = compute_topk_scores(
                logits,
                known.dims[0],
                flat,
                None,
                logprob_token_ids_state=self.logprob_token_ids_state,
                expanded_idx_mapping=batch.expanded_idx_mapping,
                max_per_req_token_ids=known.dims[1],
                logits_mode=self.logprobs_mode == "raw_logits",
            )
            lists.apart = [Apart(theirs, np.where(known.apart[owners], rows, -1))]
        return lists
