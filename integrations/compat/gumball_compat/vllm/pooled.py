"""vLLM's model runner V2 with a pool's whole step: edits, filters, draws, drafts and logprobs, by the runner's request index.

The sampler keeps vLLM's own states beside it, since other parts of the runner read them. Tokens, logprobs and counts stay on the device, and
histories advance there, so nothing of a step waits. This module needs vLLM.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from gumball import Pool
from gumball.params import SamplingParams

from ..states import admit, mirostat_start
from .heads import AnyHead, over
from .listed import Listed, OnDevice, listed_on_device, merged, named_ids, upload
from .params import BUILT_IN, IDS, MODES, MOST_DEPARTED, TOP_LIMIT, bias_first, params_of

__all__ = ["Sequences", "pooled"]


class _Departed(NamedTuple):
    """A request that left.

    theirs: vLLM's parameters. seed: the pool's. With mirostat, drawn: how many tokens it had; mus: the limits behind one less and behind them,
    [2] on the device.
    """

    theirs: Any
    seed: int
    drawn: int
    mus: torch.Tensor | None


class Sequences:
    """The runner's requests by their index, as sequences of a pool.

    states: the runner's `RequestState`. vocab: the ids of a row of logits. most_drafts: of a request. seed: the engine's; requests without a
    seed of their own draw theirs from it in the order in which they come, so that all ranks of an engine agree.
    """

    def __init__(
        self, states: Any, vocab: int, device: Any, *, most_drafts: int, seed: int, logprobs_mode: str, top_n: int
    ) -> None:
        most, listed = states.max_num_reqs, logprobs_mode in MODES
        self.states, self.most_drafts, self.logprobs_mode = states, most_drafts, logprobs_mode
        self.pool = Pool(
            vocab,
            device=device,
            slots=most,
            rows=most * (1 + most_drafts),
            top_n=min(top_n if top_n >= 0 else TOP_LIMIT, TOP_LIMIT, vocab) if listed else 0,
            ids=IDS if listed else 0,
        )
        self.outputs = OnDevice(self.pool)
        # What makes the logits, if the runner gives hidden states in their place.
        self.head: AnyHead | None = None
        # By the runner's index: the slot, -1 for none; parameters, vLLM's and ours; biases that are added before penalties.
        self.slots = np.full(most, -1, np.int32)
        self.theirs: list[Any] = [None] * most
        self.params: list[SamplingParams | None] = [None] * most
        self.biases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.long_logprobs, self.names_ids = np.zeros(most, bool), np.zeros(most, bool)
        # With mirostat, the number of output tokens, and the limits before and after the last of them.
        self.mirostat = np.zeros(most, bool)
        self._counts = np.zeros(most, np.int64)
        place = device if str(device).startswith("cuda") else None
        self._mus = torch.zeros(2, most, device=place)
        # Of a step without drafts, so that none makes them: how many tokens requests drew, how many drafts were refused, a 0 of int64.
        self.ones, self.zeros = (
            torch.ones(most, dtype=torch.int32, device=place),
            torch.zeros(most, dtype=torch.int32, device=place),
        )
        self.zero = torch.zeros(1, dtype=torch.int64, device=place)
        self._seeds = random.Random(seed)
        self._departed: OrderedDict[str, _Departed] = OrderedDict()

    def add(self, index: int, new: Any) -> None:
        """Admits a request. new: vLLM's `NewRequestData`, where a preempted request has its output tokens after its prompt."""
        self._release(index)
        theirs, ids = new.sampling_params, new.prefill_token_ids
        former = self._departed.pop(new.req_id, None)
        if theirs is None:
            return
        params = params_of(theirs, logprobs_mode=self.logprobs_mode)
        known = former is not None and former.theirs == theirs
        if former is not None and known:
            seed = former.seed
        else:
            seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        prompt, output = ids[: new.prompt_len], ids[new.prompt_len :]
        mu = self._mu(params, former if known else None, len(output))
        if params.mirostat is not None:
            self._mus[0, index], self._mus[1, index] = torch.nan, mu
        slot = admit(self.pool, params, prompt, output, seed, mu)
        self.slots[index], self.theirs[index], self.params[index] = slot, theirs, params.replace(seed=seed)
        self.names_ids[index] = params.logprobs is not None and bool(params.logprobs.ids)
        asks = theirs.logprobs is not None or bool(theirs.logprob_token_ids)
        self.long_logprobs[index] = asks and params.logprobs is None
        self.mirostat[index], self._counts[index] = params.mirostat is not None, len(output)
        if bias_first(theirs):
            biased, values = zip(*theirs.logit_bias.items(), strict=True)
            self.biases[index] = upload(biased, self._mus), upload(values, self._mus, torch.float32)

    def remove(self, name: str) -> None:
        """Ends the sequence of a request that finished or was preempted, and remembers what a request that comes back needs."""
        index = self.states.req_id_to_index.get(name)
        params = None if index is None else self.params[index]
        if index is None or params is None:
            return
        assert params.seed is not None
        mus = self._mus[:, index].clone() if self.mirostat[index] else None
        self._departed[name] = _Departed(self.theirs[index], params.seed, int(self._counts[index]), mus)
        if len(self._departed) > MOST_DEPARTED:
            self._departed.popitem(last=False)
        self._release(index)

    def advanced(self, indices: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Notes mirostat's limits after a step. indices: the runner's, of requests that drew. rows: the line of each in the outputs."""
        some = self.mirostat[indices]
        if some.any():
            indices, rows = indices[some], rows[some]
            self._counts[indices] += 1
            where = upload(indices, self._mus)
            self._mus[0, where] = self._mus[1, where]
            self._mus[1, where] = self.outputs("mirostat_mu")[upload(rows, self._mus)]

    def _mu(self, params: SamplingParams, former: _Departed | None, count: int) -> float:
        """Mirostat's limit after `count` output tokens; the initial limit if that one is not known any more."""
        if former is not None and former.mus is not None and 0 <= former.drawn - count <= 1:
            mu = float(former.mus[1 - (former.drawn - count)])
            if mu == mu:
                return mu
        return mirostat_start(params)

    def _release(self, index: int) -> None:
        if self.slots[index] >= 0:
            self.pool.release(int(self.slots[index]))
        self.slots[index], self.theirs[index], self.params[index] = -1, None, None
        self.biases.pop(index, None)


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
    thinking_budget_state: Any
    get_logprobs_dims: Any

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        """Draws a token of each request, as vLLM's method of this name is asked to."""
        if input_batch.req_ids[0] not in self.req_states.req_id_to_index:
            # A batch without requests, by which vLLM warms up.
            return super().__call__(logits, input_batch)  # type: ignore[misc]
        return self.step(logits, input_batch, None)

    def step(self, logits: torch.Tensor, batch: Any, invalid_drafts: torch.Tensor | None) -> Any:
        """Draws the tokens of a batch: one of each request, or with drafts as many as they are right for, and one."""
        sequences, indices = self.sequences, batch.idx_mapping_np
        pool = sequences.pool
        nans = get_num_nans(logits) if self.compute_nans else None
        edited, touched = self._edited(logits, batch)
        # A request whose prompt is not read to its end draws nothing.
        drawing = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        slots = np.where(drawing, sequences.slots[indices], -1)
        drafts = batch.num_draft_tokens_per_req if len(logits) > batch.num_reqs else None
        lines = None
        if drafts is None:
            over(pool, sequences.head, "enqueue")(edited, slots)
            sequences.advanced(indices[drawing], np.flatnonzero(drawing))
            tokens = torch.maximum(sequences.outputs("tokens")[: len(slots)], sequences.zero).unsqueeze(1)
            count = sequences.ones[: len(slots)]
        else:
            tokens, count, lines = self._verified(edited, batch, slots, drafts, invalid_drafts)
        logprobs = self._logprobs(logits, touched, batch, tokens, lines)
        if not drawing.all():
            count = count * upload(drawing, count, torch.int32)
        if drafts is None:
            rejected = sequences.zeros[: len(slots)]
        else:
            rejected = upload(np.where(drawing, drafts + 1, 0), count, torch.int32) - count
        return SamplerOutput(tokens, logprobs, nans, count, rejected)

    def _verified(
        self,
        logits: torch.Tensor,
        batch: Any,
        slots: NDArray[np.int32],
        counts: NDArray[np.int32],
        invalid: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, [requests, steps + 1] with -1 after the last one, their numbers, and the line of each in the pool's outputs."""
        sequences, starts = self.sequences, batch.cu_num_logits_np[:-1].astype(np.int64)
        mirostat = sequences.mirostat[batch.idx_mapping_np]
        looked_at = np.where(mirostat, 0, counts).astype(np.int64)
        rows = np.concatenate([np.arange(start, start + n + 1) for start, n in zip(starts, looked_at, strict=True)])
        firsts = np.cumsum(looked_at + 1) - looked_at - 1
        behind = np.ones(len(rows), bool)
        behind[firsts] = False
        ids = batch.input_ids[batch.logits_indices]
        if invalid is not None:
            ids = ids.masked_fill(invalid, -1)
        drafts = ids[upload(rows[behind], logits)]
        pool = sequences.pool
        if len(rows) < len(logits):
            logits = logits[upload(rows, logits)]
        pool.assign_drafts(slots, looked_at)
        over(pool, sequences.head, "enqueue_verify")(logits, drafts)
        drawing = slots >= 0
        sequences.advanced(batch.idx_mapping_np[drawing], firsts[drawing])
        steps = torch.arange(1 + int(counts.max()), device=logits.device)
        lines = (upload(firsts, logits).unsqueeze(1) + steps).clamp(max=len(rows) - 1)
        accepted = sequences.outputs("accepted")
        picked = sequences.outputs("tokens")[lines].clamp(min=0).to(torch.int64)
        return torch.where(steps <= accepted.unsqueeze(1), picked, -1), accepted + 1, lines

    def _edited(self, logits: torch.Tensor, batch: Any) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """The logits after what comes before the penalties, the same tensor if that is nothing; and which requests it touches."""
        sequences, indices = self.sequences, batch.idx_mapping_np
        others = self.logits_processors[BUILT_IN:]
        budget = self.thinking_budget_state
        touched = np.full(len(indices), bool(others))
        if sequences.head is not None:
            # Of real requests none needs it; vLLM's warm-up does.
            return logits, touched
        budgeted = False
        if budget.enabled:
            touched |= budget.use_thinking_budget[indices]
            budgeted = bool(budget.use_thinking_budget[indices].any())
        biases = []
        if sequences.biases:
            biases = [(row, sequences.biases[one]) for row, one in enumerate(indices) if one in sequences.biases]
            touched[[row for row, _ in biases]] = True
        if not touched.any():
            return logits, touched
        edited = logits.to(torch.float32, copy=True)
        for row, (ids, values) in biases:
            first, end = batch.cu_num_logits_np[row : row + 2]
            edited[first:end, ids] += values
        if others or budgeted:
            context = LogitsContext(
                expanded_idx_mapping=batch.expanded_idx_mapping,
                idx_mapping=batch.idx_mapping,
                idx_mapping_np=indices,
                expanded_local_pos=batch.expanded_local_pos,
                input_ids=batch.input_ids[batch.logits_indices],
                pos=batch.positions[batch.logits_indices],
                seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
            )
            for processor in others:
                edited = processor.apply(edited, context)
            if budgeted:
                budget.apply(edited, context)
        return edited, touched

    def _logprobs(
        self,
        logits: torch.Tensor,
        touched: NDArray[np.bool_],
        batch: Any,
        tokens: torch.Tensor,
        lines: torch.Tensor | None,
    ) -> Any:
        """The logprobs of a step, a line for each row of logits; None if no request asks for any.

        vLLM's own functions make those of the logits as they came, of requests whose row is another in the pool, and lists longer than the pool's.
        """
        sequences, indices = self.sequences, batch.idx_mapping_np
        dims = self.get_logprobs_dims(indices)
        if dims is None:
            return None
        bounds = batch.cu_num_logits_np.tolist() if lines is not None else None
        flat = tokens.flatten()
        if lines is not None:
            # A request's tokens are at the first of its rows.
            starts = batch.cu_num_logits[:-1].to(torch.int64).unsqueeze(1)
            places = starts + torch.arange(tokens.shape[1], device=tokens.device)
            # A row of the next request may begin after the last token: the -1s go to one more place, which is cut off.
            places = torch.where(tokens >= 0, places, len(logits)).flatten()
            flat = tokens.new_zeros(len(logits) + 1).scatter_(0, places, tokens.flatten().clamp(min=0))[:-1]
        if self.logprobs_mode == "processed_logprobs":
            apart = np.zeros(len(indices), bool)
        else:
            apart = touched | sequences.long_logprobs[indices] | (self.logprobs_mode == "raw_logits")
        repeats = np.diff(batch.cu_num_logits_np)
        theirs = None
        if apart.any():
            theirs = compute_topk_scores(
                logits,
                dims[0],
                flat,
                bounds,
                logprob_token_ids_state=self.logprob_token_ids_state,
                expanded_idx_mapping=batch.expanded_idx_mapping,
                max_per_req_token_ids=dims[1],
                logits_mode=self.logprobs_mode == "raw_logits",
            )
            if apart.all():
                return theirs
        named: list[Sequence[int]] = []
        if sequences.names_ids[indices].any():
            asked = [None if (one := sequences.params[index]) is None else one.logprobs for index in indices]
            named = named_ids(asked, np.repeat(np.arange(len(asked)), repeats))
        source = None
        if lines is not None:
            source = lines.new_zeros(len(logits) + 1).scatter_(0, places, lines.flatten())[:-1]
        width = min(max(dims), TOP_LIMIT)
        made = listed_on_device(sequences.outputs, flat.to(torch.int32), width, named, source)
        if theirs is not None:
            made = merged(Listed(*theirs[:3]), made, upload(np.repeat(~apart, repeats), logits, torch.bool))
        return LogprobsTensors(made.ids.to(torch.int64), made.logprobs, made.ranks, bounds)
