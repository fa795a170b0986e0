"""SGLang's `eagle_sample`, of release 0.5.23, over Gumball's operators."""

from __future__ import annotations

from typing import Any

import torch

from gumball import operators
from gumball.plugins.errors import refuse_unless
from gumball.plugins.walks import in_link_order

from .speculative import judge_chains_at, judge_in_order, verify_tree_greedy

__all__ = ["eagle_sample"]


def eagle_sample(
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
    *,
    watermark_state: Any = None,
    watermark_full_mask: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Judges the drafts of a batch against the target's logits. Takes SGLang's objects; may be put in the place of its function.

    Returns what SGLang's does: the emitted tokens by node, [requests * nodes] int32; their number for each request, the last token
    included, [requests] int32; and the accepted nodes, [requests, longest path] int32, -1 behind them. Penalties, bias and the
    grammar's mask are applied to `logits_output.next_token_logits` in their place, as there.

    Greedy batches accept the drafts that equal the target's largest logits. Others are judged by SGLang's two
    thresholds (rule S7), or, where it is set to use rejection sampling, by the drafter's probabilities (S4; S6 with its
    block verification), on the target's probabilities after temperature, top-k and then top-p. A request with a
    `sampling_seed` has this seed at the position of its length, so that equal requests get equal tokens on every
    machine and in any batch; without one, seeds come from torch's generator. A tree whose links lead backwards accepts no draft
    in a sampled batch; SGLang builds none.

    SGLang's settings are read by its `get_spec`. Raises RefusedError for a uno_target_max_top_k, NotImplementedError for watermarks and
    simulated acceptance, and the errors of :func:`gumball.judge`.
    """
    remedy = "leave SGLang's own eagle_sample in place for its uno drafts"
    refuse_unless(None, {"uno_target_max_top_k": uno_target_max_top_k}, remedy)
    device, info = batch.device, batch.sampling_info
    if batch.forward_mode.is_idle():
        empty = torch.empty(0, dtype=torch.int32, device=device)
        return empty, empty.clone(), empty.clone()
    if watermark_state is not None and info.has_watermark_candidates:
        raise NotImplementedError("gumball_compat.sglang.eagle_sample draws no watermarks")
    requests, nodes = len(batch.seq_lens), verify_input.draft_token_num
    logits = logits_output.next_token_logits
    _edit(logits, info, nodes, grammar_mask)

    candidates = verify_input.draft_token.reshape(requests, nodes)
    predict = torch.zeros(requests * nodes, dtype=torch.int32, device=device)
    accept_index = torch.full((requests, verify_input.max_tree_depth), -1, dtype=torch.int32, device=device)
    accepted = torch.zeros(requests, dtype=torch.int32, device=device)
    outputs = predict, accept_index, accepted
    places = verify_input.retrieve_index
    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    spec = _settings()
    if info.is_all_greedy:
        picks = operators.sample(logits, temperature=0.0, seed=0, position=0, draw=0, dtype="int64")
        verify_tree_greedy(*outputs, candidates, places, *links, picks)
    else:
        probs = _probabilities(logits, info, nodes).view(requests, nodes, -1)
        keys = _keys(info, batch.seq_lens, device)
        if spec.speculative_use_rejection_sampling:
            block = bool(spec.speculative_use_block_verification)
            judge_chains_at(outputs, candidates, places, probs, verify_input.draft_probs, keys, 1.0, block=block)
        else:
            order, parents = in_link_order(*links, accept_index.shape[1] - 1)
            numbers = torch.arange(nodes, device=device).expand_as(order)
            # The rows of probabilities are not copied, so the nodes keep their numbers.
            parents = torch.where((order == numbers).all(1, keepdim=True), parents, -1)
            thresholds = spec.speculative_accept_threshold_single, spec.speculative_accept_threshold_acc
            judge_in_order(outputs, candidates, places, numbers, parents, probs, keys, thresholds)
    _agree(outputs)
    return predict, accepted + 1, accept_index


def _settings() -> Any:
    """SGLang's settings of speculation."""
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import spec_utils

    if getattr(spec_utils, "SIMULATE_ACC_LEN", 0) > 0:
        raise NotImplementedError("gumball_compat.sglang.eagle_sample simulates no acceptance")
    return get_spec()


def _edit(logits: torch.Tensor, info: Any, nodes: int, grammar_mask: Any) -> None:
    """Applies what a request brings to the logits of all its nodes, in their place."""

    def of_nodes(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(nodes, dim=0)

    if info.acc_additive_penalties is not None:
        logits.add_(of_nodes(info.acc_additive_penalties))
    if info.acc_scaling_penalties is not None:
        scales = of_nodes(info.acc_scaling_penalties)
        logits.copy_(torch.where(logits > 0, logits / scales, logits * scales))
    if info.logit_bias is not None:
        logits.add_(of_nodes(info.logit_bias))
    if grammar_mask is not None:
        grammar_mask.apply(logits)


def _probabilities(logits: torch.Tensor, info: Any, nodes: int) -> torch.Tensor:
    """The target's probabilities at all nodes, after temperature, top-k, top-p: float32."""

    def of_nodes(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return values.reshape(-1).to(dtype).repeat_interleave(nodes)

    filters = {
        "temperature": of_nodes(info.temperatures, torch.float32),
        "top_k": of_nodes(info.top_ks, torch.int32) if info.need_top_k_sampling else None,
        "top_p": of_nodes(info.top_ps, torch.float32) if info.need_top_p_sampling else None,
    }
    probs: torch.Tensor = operators.probabilities(logits, **filters)
    return probs


def _keys(info: Any, lengths: torch.Tensor, device: Any) -> tuple[torch.Tensor, torch.Tensor | int]:
    """The seed and position of each request."""
    if info.sampling_seed is not None:
        return info.sampling_seed.to(torch.int64), lengths.to(torch.int64)
    bounds = torch.iinfo(torch.int64)
    return torch.randint(bounds.min, bounds.max, (len(lengths),), dtype=torch.int64, device=device), 0


def _agree(outputs: tuple[torch.Tensor, ...]) -> None:
    """Gives all ranks of a tensor-parallel group what the first one has; their logits may differ in the last bits."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    group = parallel.attn_tp_group if is_dp_attention_enabled() else parallel.tp_group
    if group.world_size > 1:
        for output in outputs:
            group.broadcast(output, src=0)
