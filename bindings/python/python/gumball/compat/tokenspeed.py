"""A sampling backend for TokenSpeed over a pool, and replacements for its fused top-k and top-p.

::

    from gumball.compat import tokenspeed
    tokenspeed.register()

in the process that makes TokenSpeed's runtime, before it makes its sampling backend by the name "gumball".
TokenSpeed's command line accepts only the names of its own backends. This backend has the methods of TokenSpeed's
`SamplingBackend` and takes its config. Each request is a sequence of a :class:`gumball.Pool`: its parameters are
copied in once. Its draws depend on its seed and on its number of tokens, not on the batch, and penalties count the
generated tokens. Unlike TokenSpeed's own backends it applies every parameter: temperature, top-k, top-p on what top-k
keeps, min-p, penalties, bias, and `min_new_tokens` with `stop_token_ids`.

This module needs torch. TokenSpeed itself is needed by `register`, and by a backend whose ranks must agree on tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .. import operators
from .._gumball import Pool
from ..params import LogprobsParams, SamplingParams

__all__ = [
    "CUDA_GRAPH_VARIANT_DEFAULT",
    "GumballSamplingBackend",
    "SamplingBackendConfig",
    "fused_topk_topp_available",
    "fused_topk_topp_prepare",
    "fused_topk_topp_renorm",
    "fused_topk_topp_workspace_size",
    "register",
]

CUDA_GRAPH_VARIANT_DEFAULT = "default"
FULL = "full"
PADDING = -1

fused_topk_topp_available = True


def fused_topk_topp_renorm(
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """Returns what top-k and then top-p keep of each row of probabilities, scaled to a sum of 1, and 0 elsewhere.

    probs: [rows, vocab] float32. top_ks: [rows] int32; off from the vocabulary up, for example 1 << 30; any smaller k
    is allowed. top_ps: [rows] float32. out: [rows, vocab] float32. workspace and enable_pdl have no effect. Raises
    the errors of :func:`gumball.top_k_top_p_renorm_probs`.
    """
    return operators.top_k_top_p_renorm_probs(probs, top_ks, top_ps, out)


def fused_topk_topp_workspace_size(batch_size: int, vocab_size: int) -> int:
    """Returns the size of the workspace in bytes: 0."""
    return 0


def fused_topk_topp_prepare(device: torch.device | str | int) -> None:
    """Prepares calls within a graph's capture: nothing to do."""


@dataclasses.dataclass
class SamplingBackendConfig:
    """The fields that the backend reads of TokenSpeed's config of the same name, which works as well."""

    max_bs: int = 1
    max_draft_tokens_per_req: int = 1
    max_req_pool_size: int = 0
    vocab_size: int = 0
    device: Any = None
    random_seed: int = 48
    enable_output_logprobs: bool = False
    tp_group: tuple[int, ...] | None = None
    enable_tp_sync: bool = True


def _device(device: Any) -> str:
    wanted = torch.device("cpu" if device is None else device)
    if wanted.type == "cuda" and wanted.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return str(wanted)


def params_of(request: Any, logprobs: bool = False) -> SamplingParams:
    """Converts a request's parameters from TokenSpeed to Gumball.

    As in TokenSpeed, `min_new_tokens` has no effect without `stop_token_ids`. TokenSpeed asks for greedy decoding by a
    `top_k` of 1, which becomes temperature 0: the same token by fewer kernels. Raises ValueError as SamplingParams does.
    """
    stop_ids = sorted(getattr(request, "stop_token_ids", None) or ())
    bias = getattr(request, "logit_bias", None) or {}
    return SamplingParams(
        temperature=0.0 if request.top_k == 1 else request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        repetition_scope="output",
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias={int(token): float(value) for token, value in bias.items()},
        min_tokens=request.min_new_tokens if stop_ids else 0,
        stop_ids=stop_ids,
        seed=None if request.seed is None else request.seed & ((1 << 64) - 1),
        logprobs=LogprobsParams(mode="raw") if logprobs else None,
    )


class GumballSamplingBackend:
    """A sampling backend for TokenSpeed.

    config: TokenSpeed's, or :class:`SamplingBackendConfig`; `vocab_size` and `max_req_pool_size` are required. Raises
    ValueError without them, and the errors of :class:`gumball.Pool`.

    **Drafts.** `verify` draws each position's token as `sample` would, with the drafts before it as output, and
    accepts a draft that equals this token. The tokens therefore equal those of decoding without drafts, bit for bit.
    Their distribution is the target's for any drafter; the drafter's probabilities are not read. The next
    `prepare_step` waits for the accepted lengths.

    **Graphs.** Steps are captured as TokenSpeed does it: `prepare_capture_variant`, a few eager calls, then the capture.
    The variants are those of :meth:`gumball.Pool.variants`; TokenSpeed's "default" is "full". Each serves the requests
    of those before it, too, so a program may capture fewer of them. Before a replay call `prepare_step` and then
    `cuda_graph_replay_variant`. The latter assigns padding to rows beyond the batch, up to the smallest captured batch
    size that holds it, and reserves the replay in the pool.
    """

    _HAS_POOL_STATE = True
    _SUPPORTS_DP_VERIFY = False

    def __init__(self, config: Any) -> None:
        if config.max_req_pool_size <= 0 or config.vocab_size <= 0:
            found = f"max_req_pool_size={config.max_req_pool_size}, vocab_size={config.vocab_size}"
            raise ValueError(f"{type(self).__name__} requires max_req_pool_size > 0 and vocab_size > 0; got {found}")
        self.config = config
        self.most = max(config.max_draft_tokens_per_req, 1)
        self.pool = Pool(
            config.vocab_size,
            device=_device(config.device),
            slots=config.max_req_pool_size + 1,
            rows=config.max_bs,
            keep_histories=self.most > 1,
        )
        place = {"dtype": torch.int32, "device": self.pool.device}
        self._tokens = torch.zeros(config.max_bs * self.most, **place)
        self._lengths = torch.ones(config.max_bs, **place)
        # The request at each of the engine's pool indices; the slot of each request; the number of tokens of each
        # slot.
        self._requests: dict[int, str] = {}
        self._slots: dict[str, int] = {}
        self._emitted: dict[int, int] = {}
        # The slots of the step's rows; the variant that a warm-up or a capture launches; the variants captured for each
        # batch size, and the one whose replay is reserved. Then the rows whose accepted lengths the host does not know yet: their slots, the number of tokens they drew, and the
        # tensor of lengths.
        self._rows: list[int] = []
        self._variants = [variant.name for variant in self.pool.variants()]
        self._variant: str | None = None
        self._captured: dict[int, set[str]] = {}
        self._reserved: str | None = None
        self._verified: tuple[list[int], int, Any] | None = None
        # Views of the pool's outputs on a device, by name and number of rows; their addresses stay.
        self._views: dict[tuple[str, int], Any] = {}
        self._group: Any = None
        if config.enable_tp_sync and config.tp_group is not None and len(config.tp_group) > 1:
            from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

            self._group = process_group_manager.get_process_group("nccl", config.tp_group)

    def configure_dp_sampling(self, runtime: Any) -> None:
        """Does nothing: this backend does not spread rows over ranks."""

    def maybe_broadcast(self, *tensors: torch.Tensor) -> None:
        """Broadcasts tensors from the group's first rank to all ranks."""
        if self._group is not None:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=self.config.tp_group[0], group=self._group)

    def prepare_step(
        self,
        request_ids: list[str],
        request_pool_indices: list[int],
        sampling_params_list: list[Any],
        num_tokens_per_req: int = 1,
    ) -> None:
        """Assigns requests to the next step's rows; admits a request that is new at its pool index.

        If the last step verified drafts, this waits for it. Raises ValueError for lists of unequal length, for an
        index outside the pool, and for parameters outside their range.
        """
        lengths = len(request_ids), len(request_pool_indices), len(sampling_params_list)
        if len(set(lengths)) != 1:
            raise ValueError(f"prepare_step has {lengths} ids, places and params, but must have as many of each")
        self._settle()
        for request, place, params in zip(request_ids, request_pool_indices, sampling_params_list, strict=True):
            if not 0 <= place <= self.config.max_req_pool_size:
                allowed = f"in 0..={self.config.max_req_pool_size}"
                raise ValueError(f"request_pool_indices has {place} for {request}, but must be {allowed}")
            if self._requests.get(place) != request:
                self._reset_slot(place, request, params)
        self._rows = [self._slots[request] for request in request_ids]
        self._variant = self._reserved = None

    def _reset_slot(self, place: int, request: str, params: Any) -> None:
        """Gives a pool index to a request and releases the request that had it."""
        given = params_of(params, self.config.enable_output_logprobs)
        given.validate(self.config.vocab_size)
        if (last := self._requests.pop(place, None)) is not None:
            slot = self._slots.pop(last)
            del self._emitted[slot]
            self.pool.release(slot)
        # A request that moves to another pool index continues its sequence.
        self._requests = {known: other for known, other in self._requests.items() if other != request}
        if request not in self._slots:
            slot = self.pool.admit(given)
            self._slots[request], self._emitted[slot] = slot, 0
        self._requests[place] = request

    def _settle(self) -> None:
        """Truncates the sequences to what the last step accepted of the tokens it drew."""
        if self._verified is None:
            return
        (rows, width, lengths), self._verified = self._verified, None
        for slot, length in zip(rows, lengths.tolist(), strict=True):
            if slot != PADDING:
                self._emitted[slot] += length
                if length < width:
                    self.pool.truncate(slot, self._emitted[slot])

    def prepare_capture(self, bs: int, num_tokens_per_req: int = 1) -> None:
        """Assigns padding to `bs` rows, for a warm-up or a capture of the default variant."""
        self.prepare_capture_variant(bs, num_tokens_per_req, CUDA_GRAPH_VARIANT_DEFAULT)

    def cuda_graph_capture_variants(self, num_tokens_per_req: int) -> tuple[str, ...]:
        """Returns the variants to capture for each batch size. With logprobs, every request needs "edits" at least."""
        first = self._variants.index("edits") if self.config.enable_output_logprobs else 0
        return (CUDA_GRAPH_VARIANT_DEFAULT, *self._variants[first:-1])

    def prepare_capture_variant(self, bs: int, num_tokens_per_req: int, variant: str) -> None:
        """Assigns padding to `bs` rows, for a warm-up or a capture; raises ValueError for an unknown variant."""
        name = FULL if variant == CUDA_GRAPH_VARIANT_DEFAULT else variant
        if name not in self._variants:
            raise ValueError(f"Unsupported CUDA graph variant: {variant}")
        self._settle()
        self._rows = [PADDING] * bs
        self.pool.assign(self._rows)
        self._variant = name
        self._captured.setdefault(bs, set()).add(name)

    def cuda_graph_replay_variant(self, num_tokens_per_req: int) -> str:
        """Returns the smallest captured variant that serves the prepared step, and reserves its replay in the pool.

        Call it once per step, and only before a replay.
        """
        held = [bs for bs in self._captured if bs >= len(self._rows)]
        if self._reserved is None and held:
            bs = min(held)
            self.pool.assign(self._rows + [PADDING] * (bs - len(self._rows)))
            needed = self._variants.index(self.pool.needed_variant())
            captured = [name for name in self._variants[needed:] if name in self._captured[bs]]
            self._reserved = captured[0] if captured else FULL
            self.pool.reserve_replays(num_tokens_per_req, variant=self._reserved)
            self._count(self._rows, num_tokens_per_req, 0)
        return CUDA_GRAPH_VARIANT_DEFAULT if self._reserved in (None, FULL) else self._reserved

    def reset_capture_state(self) -> None:
        """Resets the state after a warm-up: nothing to do, because padding changes no state."""

    def get_packed_output_d2h(
        self, output_tokens: torch.Tensor, output_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns None: tokens and lengths are not adjacent in memory, so one copy cannot fetch both."""
        return None

    def _count(self, rows: list[int], width: int, first: int) -> None:
        """Counts the tokens that a step draws; with drafts, remembers the lengths that _settle reads later."""
        if width > 1:
            self._verified = (rows, width, self._lengths[first : first + len(rows)])
            return
        for slot in rows:
            if slot != PADDING:
                self._emitted[slot] += 1

    def _started(self, logits_output: Any, sampling_info: Any, bs: int, width: int) -> tuple[Any, Any, Any]:
        """Returns a step's masked logits, [bs * width, vocab], and the slices for its tokens and its lengths.

        Assigns the step's rows, except during a capture, which uses the current assignment. If a step has both kinds
        of rows, each kind gets slices of its own.
        """
        if getattr(logits_output, "logits_layout_plan", None) is not None:
            raise NotImplementedError(f"{type(self).__name__} does not spread rows over ranks")
        logits = logits_output.next_token_logits
        if logits.shape[0] != bs * width:
            raise ValueError(f"next_token_logits has {logits.shape[0]} rows, but must have {bs * width}")
        if getattr(sampling_info, "vocab_mask", None) is not None:
            sampling_info.apply_vocab_mask(logits=logits, vocab_mask=sampling_info.vocab_mask)
        first = getattr(sampling_info, "batch_row_offset", 0)
        if not (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            rows = self._rows[first : first + bs]
            rows += [PADDING] * (bs - len(rows))
            self.pool.assign(rows)
            self._count(rows, width, first)
        return logits, self._tokens[first : first + bs * width], self._lengths[first : first + bs]

    def _drawn(self, logits: Any, out: Any, logprobs: Any) -> None:
        """Takes one step of the pool; a row without a token, or of padding, gets token 0."""
        self.pool.enqueue(logits, variant=self._variant)
        torch.clamp(self._output("tokens", out.shape[0]), min=0, out=out)
        if logprobs is not None:
            logprobs.copy_(self._output("logprobs", out.shape[0]))

    def _output(self, name: str, rows: int) -> Any:
        """Returns one of the outputs of the pool's last step, without a copy on a device."""
        if self.pool.device == "cpu":
            return torch.as_tensor(self.pool.outputs_on_device(name))
        if (view := self._views.get((name, rows))) is None:
            view = self._views[name, rows] = torch.from_dlpack(self.pool.outputs_on_device(name))
        return view

    def _logprobs(self, logits_output: Any, shape: tuple[int, ...]) -> Any:
        if not self.config.enable_output_logprobs:
            return None
        made = torch.empty(shape, dtype=torch.float32, device=self.pool.device)
        logits_output.next_token_logprobs = made.view(-1)
        return made

    def sample(self, logits_output: Any, sampling_info: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws the next token of each row. Returns tokens, [rows] int32, and their numbers, 1 each, [rows] int32.

        logits_output: `next_token_logits`, [rows, vocab], are read, and masked in place if sampling_info has a
        `vocab_mask`. If the config enables logprobs, `next_token_logprobs` are set: at temperature 1, after that mask
        and before penalties and bias. The next step overwrites both results. A row without a token, or without a
        request, gets token 0.
        """
        bs = logits_output.next_token_logits.shape[0]
        logits, tokens, lengths = self._started(logits_output, sampling_info, bs, 1)
        self._drawn(logits, tokens, self._logprobs(logits_output, (bs,)))
        self.maybe_broadcast(tokens)
        return tokens, lengths.fill_(1)

    def verify(
        self, logits_output: Any, sampling_info: Any, candidates: torch.Tensor, *, tree: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a token at each position. Returns tokens, [rows * width] int32, and output lengths, [rows] int32.

        candidates: [rows, width]: the last token of each row, then its drafts. logits_output: its
        `next_token_logits`, [rows * width, vocab], are the model's logits after each candidate. A row's output is its
        accepted drafts and one more token: the first of its drawn tokens, as many as its length says. Masks, logprobs
        and rows without a token: as for sample. Raises NotImplementedError for trees, ValueError for more candidates
        than the config allows.
        """
        if tree is not None:
            raise NotImplementedError(f"{type(self).__name__} cannot verify draft trees")
        bs, width = candidates.shape
        if width > self.most:
            raise ValueError(f"candidates has width {width}, but must have at most {self.most}")
        logits, flat, lengths = self._started(logits_output, sampling_info, bs, width)
        logits, tokens = logits.view(bs, width, -1), flat.view(bs, width)
        logprobs = self._logprobs(logits_output, (bs, width))
        for position in range(width):
            # If an earlier draft was rejected, the next prepare_step truncates the token that is drawn here.
            drawn = None if logprobs is None else logprobs[:, position]
            self._drawn(logits[:, position], tokens[:, position], drawn)
        same = (tokens[:, :-1] == candidates[:, 1:]).to(torch.int32)
        torch.sum(torch.cumprod(same, dim=1), dim=1, dtype=torch.int32, out=lengths)
        lengths.add_(1)
        self.maybe_broadcast(tokens, lengths)
        return flat, lengths


def register(name: str = "gumball") -> None:
    """Registers the backend with TokenSpeed under this name. Raises ImportError without TokenSpeed."""
    from tokenspeed.runtime.sampling.registry import register_backend

    register_backend(name, GumballSamplingBackend)
