"""vLLM's sampler and rejection sampler over Gumball's operators, with the calls of model runner V2 of releases 0.32 and 0.33.

The rejection sampler is made as vLLM's `RejectionSampler` and called as that; a model's state hands both out::

    def custom_sampler(self, sampler):
        sampler = sampler_of(sampler)
        return sampler, RejectionSampler(sampler, self.vllm_config.speculative_config, self.device)
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.watermarking.gpu_sampler import GPUWatermarkSampler
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput, SamplingMaskTensors
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from gumball import operators
from gumball.plugins.judged import judged
from gumball.plugins.walks import accepted_in_chains, write_at

__all__ = ["RejectionSampler", "draw_by_gumball", "sampler_of"]

# The most bytes of probabilities that are held at once; a request alone may need more.
_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """A batch's rows as [requests, steps + 1]: which rows of logits they are, and which of them there are."""

    index: torch.Tensor
    there: torch.Tensor
    drafts: torch.Tensor


class RejectionSampler:
    """Judges the drafts of a batch, as vLLM's class of this name.

    sampler: vLLM's, which edits and filters the logits. spec_config: its `rejection_sample_method` is "standard" or
    "block". Drafts are judged by:

    * "standard" without draft_logits: equality with what the request would draw (rule S3). The tokens are those of
      decoding without drafts, bit for bit, if that draws with Gumball too. As many drafts are accepted as by a ratio.
    * "standard" or "block" with draft_logits: the ratio of target and drafter (S4). vLLM keys its drafter's noise by the position alone, so
      behind a refused block the same noise drafts again; blocks (S6) let drafts behind the refusal decide how much is accepted, and would
      then draw by another law than the target's. Of the ratio nothing behind the refusal is looked at.
    * "block" without draft_logits: blocks, as drafts without noise are.

    At temperature 0 each accepts the drafts that equal the first of the largest logits. A draw depends on the request's seed
    and on the number of tokens before it, as in a :class:`gumball.Pool`, and not on the batch; it is not vLLM's draw.
    Raises NotImplementedError for other methods and for watermarks.
    """

    def __init__(self, sampler: Any, spec_config: Any, device: Any, *, watermark_key: int | None = None) -> None:
        method = spec_config.rejection_sample_method
        if method not in ("standard", "block"):
            text = f'rejection_sample_method is "{method}", but only "standard" and "block" are implemented'
            raise NotImplementedError(text)
        if watermark_key is not None:
            raise NotImplementedError("gumball_vllm.runner_v2.RejectionSampler draws no watermarks")
        self.sampler = sampler
        self.num_speculative_steps = spec_config.num_speculative_tokens
        self.enable_adaptive_verification = getattr(spec_config, "enable_adaptive_verification", False)
        self.use_block_verification = method == "block"
        self._told = False

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> Any:
        """Judges a batch. Returns vLLM's SamplerOutput.

        logits: [rows, vocab], one row for each request and each of its drafts. input_batch: vLLM's. draft_logits: [states,
        steps, vocab], by request state, before temperature. invalid_drafts: [rows] bool, drafts that are never accepted.

        `sampled_token_ids` is [requests, steps + 1] int64: the accepted drafts, one token more, then -1; a row without
        a token gives 0. `num_sampled` and `num_rejected`, [requests] int32, are 0 for requests that are still in their prompt.
        Raises the errors of :func:`gumball.sample`.
        """
        batch, sampler = input_batch, self.sampler
        nans = get_num_nans(logits) if sampler.compute_nans else None
        drafts, pos = self._drafts(batch)
        processed = sampler.apply_sampling_params(
            logits,
            batch.expanded_idx_mapping,
            batch.idx_mapping,
            batch.idx_mapping_np,
            pos,
            drafts,
            batch.expanded_local_pos,
            batch.seq_lens_cpu_upper_bound.numpy(),
        )
        rows = self._rows(batch, drafts if invalid_drafts is None else drafts.masked_fill(invalid_drafts, -1))
        if draft_logits is None and not self.use_block_verification:
            tokens, count = self._coupled(processed, batch, pos, rows)
        else:
            tokens, count = self._by_probabilities(processed, batch, pos, rows, draft_logits)
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        sampled = torch.where(steps < count.unsqueeze(1), tokens.to(torch.int64), -1)
        logprobs = self._logprobs(logits, processed, batch, rows, sampled)
        masks = None
        if sampler.return_sampling_mask:
            most = int(sampler.sampling_states.top_k.np[batch.idx_mapping_np].max())
            masks = SamplingMaskTensors.from_logits(processed, batch.cu_num_logits, count, most, tokens.shape[1])
        in_prompt = batch.seq_lens[: len(count)] < sampler.req_states.prefill_len.gpu[batch.idx_mapping]
        lengths = batch.cu_num_logits[1:] - batch.cu_num_logits[:-1]
        kept = torch.where(in_prompt, 0, count)
        rejected = torch.where(in_prompt, 0, lengths.to(torch.int32) - kept)
        return SamplerOutput(
            sampled_token_ids=sampled,
            logprobs_tensors=logprobs,
            num_nans=nans,
            num_sampled=kept,
            num_rejected=rejected,
            sampling_mask_tensors=masks,
        )

    def _drafts(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The token and position that each row of logits stands after; -1 for what is no draft yet, within the prompt."""
        tokens, pos = batch.input_ids[batch.logits_indices], batch.positions[batch.logits_indices]
        local = batch.expanded_local_pos
        prompt = self.sampler.req_states.prefill_len.gpu[batch.expanded_idx_mapping]
        return torch.where((local > 0) & (pos - local < prompt), -1, tokens), pos

    def _rows(self, batch: Any, drafts: torch.Tensor) -> _Rows:
        starts, width = batch.cu_num_logits.to(torch.int64), self.num_speculative_steps + 1
        index = starts[:-1].unsqueeze(1) + torch.arange(width, device=starts.device)
        there = index < starts[1:].unsqueeze(1)
        index = index.clamp(max=len(drafts) - 1)
        return _Rows(index, there, torch.where(there, drafts[index], -1))

    def _coupled(
        self, logits: torch.Tensor, batch: Any, pos: torch.Tensor, rows: _Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a token from every row, and accepts the drafts that equal them."""
        picks = _drawn(logits, self.sampler.sampling_states, batch.expanded_idx_mapping, pos)[rows.index]
        accepted = accepted_in_chains(rows.drafts, picks) & rows.there
        return picks, accepted.sum(1, dtype=torch.int32)

    def _by_probabilities(
        self, logits: torch.Tensor, batch: Any, pos: torch.Tensor, rows: _Rows, draft_logits: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Judges drafts by probabilities, of as many requests at once as _MOST_BYTES allow."""
        requests, width = rows.index.shape
        most = max(1, _MOST_BYTES // (2 * 4 * width * logits.shape[1]))
        parts = [
            self._judge(logits, batch, pos, rows, draft_logits, slice(start, min(start + most, requests)))
            for start in range(0, requests, most)
        ]
        tokens, counts = (torch.cat(part) for part in zip(*parts, strict=True))
        return tokens, counts + 1

    def _judge(
        self,
        logits: torch.Tensor,
        batch: Any,
        pos: torch.Tensor,
        rows: _Rows,
        draft_logits: torch.Tensor | None,
        some: slice,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states, index = self.sampler.sampling_states, batch.idx_mapping[some]
        (count, width), vocab = rows.index[some].shape, logits.shape[1]
        temperature = states.temperature.gpu[index].to(torch.float32)
        keys = states.seeds.gpu[index], pos[rows.index[some, 0]].to(torch.int64) + 1
        drafts = rows.drafts[some, 1:].contiguous()
        scale = (temperature != 0).to(torch.float32).repeat_interleave(width)
        target = operators.softmax(logits[rows.index[some].reshape(-1)], scale).view(count, width, vocab)
        if draft_logits is None:
            tokens, _, accepted = judged(None, drafts, target, keys, rule="block")
            return tokens, accepted
        proposed = self._proposed(draft_logits[index, : width - 1], temperature, drafts, vocab)
        if self.use_block_verification and not self._told:
            self._told = True
            logging.getLogger("gumball").warning(
                'rejection_sample_method "block" with a drafter that draws: drafts are judged by "standard", since vLLM drafts with the same '
                "noise again behind a refused block, which would change the tokens' law"
            )
        tokens, _, accepted = judged(proposed, drafts, target, keys)
        return tokens, accepted

    def _proposed(
        self, draft_logits: torch.Tensor, temperature: torch.Tensor, drafts: torch.Tensor, vocab: int
    ) -> torch.Tensor:
        """The probabilities that drafts were drawn from, [requests, steps, vocab] float32; all on the draft at temperature 0."""
        count, steps, width = draft_logits.shape
        flat = draft_logits.reshape(-1, width)[:, :vocab].contiguous()
        probs = operators.softmax(flat, temperature.repeat_interleave(steps)).view(count, steps, -1)
        if width < vocab:
            probs = torch.nn.functional.pad(probs, (0, vocab - width))
        greedy = (temperature == 0).view(-1, 1, 1).to(torch.float32)
        sure = torch.zeros_like(probs).scatter_(2, drafts.long().clamp(min=0).unsqueeze(2), 1.0)
        return torch.lerp(probs, sure, greedy)

    def _logprobs(
        self, logits: torch.Tensor, processed: torch.Tensor, batch: Any, rows: _Rows, sampled: torch.Tensor
    ) -> Any:
        """What vLLM computes of the emitted tokens' rows, if a request asks for it."""
        sampler = self.sampler
        most = sampler.sampling_states.max_num_logprobs(batch.idx_mapping_np)
        if most == NO_LOGPROBS:
            return None
        flat = torch.zeros(len(logits), dtype=sampled.dtype, device=sampled.device)
        write_at(flat, rows.index, sampled >= 0, sampled)
        bounds: Any = None
        if len(logits) != batch.num_reqs:
            adaptive = self.enable_adaptive_verification
            bounds = batch.cu_num_logits.clone() if adaptive else batch.cu_num_logits_np.tolist()
        mode = sampler.logprobs_mode
        given = processed if mode.startswith("processed") else logits
        return compute_topk_scores(given, most, flat, bounds, logits_mode=mode.endswith("_logits"))


def sampler_of(sampler: Any) -> Any:
    """Returns a copy of vLLM's sampler that shares its state and draws its tokens by Gumball.

    vLLM edits and filters the logits and computes logprobs, as before. A draw depends on the request's seed and on the number of tokens
    before it, so a :class:`RejectionSampler` over the returned sampler gives the same tokens with drafts.
    """
    made = copy.copy(sampler)
    draw_by_gumball(made)
    return made


def draw_by_gumball(sampler: Any) -> None:
    """Lets vLLM's sampler itself draw as :func:`sampler_of` says; one that writes vLLM's watermark draws its marked rows as before."""
    kind = type(sampler)
    draws = _MarkedDraws if isinstance(sampler, GPUWatermarkSampler) else _Draws
    sampler.__class__ = type(f"Gumball{kind.__name__}", (draws, kind), {})


class _Draws:
    """The one method of vLLM's sampler that draws."""

    sampling_states: Any

    def _sample_random(
        self,
        processed_logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        # Hints for vLLM's kernels, of which 0.33 has one more.
        *hints: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        processed = apply_top_k_top_p(processed_logits, top_k, top_p)
        return _drawn(processed, self.sampling_states, expanded_idx_mapping, pos), processed


class _MarkedDraws(_Draws):
    """The method that draws, of the sampler that writes vLLM's watermark.

    vLLM's own methods say which rows are marked, and by what token, so that its detector finds the text; Gumball draws all other rows.
    """

    watermarker: Any
    watermarking: Any
    deduplicate_contexts: str
    _get_contexts: Any
    _get_repeated_contexts: Any

    def _sample_random(
        self, processed_logits: torch.Tensor, index: torch.Tensor, indices: Any, pos: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        drawn, processed = super()._sample_random(processed_logits, index, indices, pos, *rest)
        states = self.sampling_states
        if not (self.watermarking.np[indices] & (states.temperature.np[indices] != 0)).any():
            return drawn, processed
        contexts = self._get_contexts(index)
        marks = self.watermarking.gpu[index] & (states.temperature.gpu[index] != 0)
        if self.deduplicate_contexts != "none":
            marks &= ~self._get_repeated_contexts(index, contexts)

        def draw(logits: torch.Tensor) -> torch.Tensor:
            """Chooses each row's key, if there are two; their logits are one row, repeated without memory of its own."""
            return _drawn(logits.contiguous(), states, index, pos)

        marked = self.watermarker.sample(processed, contexts, draw).token_ids
        return torch.where(marks, marked, drawn), processed


def _drawn(logits: torch.Tensor, states: Any, index: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """A token of each row, int64. logits: divided by the temperature; index: each row's request state; pos: the token before."""
    # All that is left of the temperature: whether a request is greedy.
    temperature = (states.temperature.gpu[index] != 0).to(torch.float32)
    drawn = operators.sample(
        logits,
        temperature=temperature,
        seed=states.seeds.gpu[index],
        position=pos.to(torch.int64) + 1,
        draw=0,
        zero_for_none=True,
        dtype="int64",
    )
    return torch.as_tensor(drawn)
