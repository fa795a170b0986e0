"""TokenSpeed's places for a sampler: a sampling backend over a pool, and its fused top-k and top-p.

::

    from gumball.compat import tokenspeed
    tokenspeed.register()

in the process that makes TokenSpeed's runtime, before it makes its sampling backend by name: "gumball". TokenSpeed's command line knows
its own backends alone and cannot be told of this one. The backend has the methods of TokenSpeed's `SamplingBackend`, and is handed its config. Each request is a sequence of a
:class:`gumball.Pool`: its parameters go in once, its draws depend on its seed and on how many tokens it has, not on the
batch, and penalties count what it generated. Unlike the backends that come with TokenSpeed it leaves no parameter out:
temperature, top-k, top-p on what top-k keeps, min-p, penalties, bias, `min_new_tokens` with `stop_token_ids`.

Needs torch. TokenSpeed itself is needed by `register`, and where ranks are to agree on tokens.
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
    """What top-k keeps of each row of probabilities, of that what top-p keeps, summing to 1, and 0 elsewhere.

    probs: [rows, vocab] float32. top_ks: [rows] int32; from the vocabulary up, as 1 << 30, off. There is no largest k.
    top_ps: [rows] float32. out: [rows, vocab] float32. workspace and enable_pdl change nothing. Raises as
    :func:`gumball.top_k_top_p_renorm_probs` does.
    """
    return operators.top_k_top_p_renorm_probs(probs, top_ks, top_ps, out)


def fused_topk_topp_workspace_size(batch_size: int, vocab_size: int) -> int:
    """The bytes of a workspace: none are needed."""
    return 0


def fused_topk_topp_prepare(device: torch.device | str | int) -> None:
    """Makes ready for calls within a graph's capture: there is nothing to do."""


@dataclasses.dataclass
class SamplingBackendConfig:
    """What the backend reads of TokenSpeed's config of the same name, which is taken as well."""

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
    """Gumball's parameters of a request, from TokenSpeed's.

    What TokenSpeed leaves undone is left out: a `min_new_tokens` without `stop_token_ids`. Raises ValueError as
    SamplingParams does.
    """
    stop_ids = sorted(getattr(request, "stop_token_ids", None) or ())
    bias = getattr(request, "logit_bias", None) or {}
    return SamplingParams(
        temperature=request.temperature,
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
    """A sampling backend of TokenSpeed's kind.

    config: TokenSpeed's, or :class:`SamplingBackendConfig`; `vocab_size` and `max_req_pool_size` are needed. Raises
    ValueError without them, and as :class:`gumball.Pool` does.

    **Drafts.** `verify` draws each position's token just as `sample` would, with the drafts before it as output, and
    accepts a draft that is equal to it. So tokens are those of decoding without drafts, bit for bit, and their
    distribution is the target's whatever the drafter does; probabilities of the drafter are not read. The next
    `prepare_step` waits for the lengths that were accepted.

    **Graphs.** Steps can be captured as TokenSpeed does: `prepare_capture`, a few eager calls, then the capture. Before
    a replay `prepare_step` and then `cuda_graph_replay_variant`, which is what lets the pool know of the replay, and
    gives rows beyond the batch to nobody, up to the smallest batch size captured that holds it.
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
        # Which request has which place of the engine's, and which slot and how many tokens a request has here.
        self._requests: dict[int, str] = {}
        self._slots: dict[str, int] = {}
        self._emitted: dict[int, int] = {}
        # The slots of the step's rows, the batch sizes captured, whether the replay was announced; and the rows whose accepted
        # lengths are not known here yet, how many tokens they drew, and where the lengths lie.
        self._rows: list[int] = []
        self._captured: set[int] = set()
        self._announced = False
        self._verified: tuple[list[int], int, Any] | None = None
        # Where the pool's outputs lie on a device, by name and rows; they stay there.
        self._views: dict[tuple[str, int], Any] = {}
        self._group: Any = None
        if config.enable_tp_sync and config.tp_group is not None and len(config.tp_group) > 1:
            from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

            self._group = process_group_manager.get_process_group("nccl", config.tp_group)

    def configure_dp_sampling(self, runtime: Any) -> None:
        """Takes note of sampling that is spread over ranks, which this backend leaves to others."""

    def maybe_broadcast(self, *tensors: torch.Tensor) -> None:
        """Gives all ranks of the group its first one's tensors."""
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
        """Says which requests the next step's rows are; a request that is new to its place is admitted.

        Waits for the last step if that verified drafts. Raises ValueError for lists of unequal length, a place outside
        the pool, and parameters outside their range.
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
        self._announced = False

    def _reset_slot(self, place: int, request: str, params: Any) -> None:
        """Gives a place of the engine's to a request; whose it was is gone."""
        given = params_of(params, self.config.enable_output_logprobs)
        given.validate(self.config.vocab_size)
        if (last := self._requests.pop(place, None)) is not None:
            slot = self._slots.pop(last)
            del self._emitted[slot]
            self.pool.release(slot)
        # The same request in another place goes on where it was.
        self._requests = {known: other for known, other in self._requests.items() if other != request}
        if request not in self._slots:
            slot = self.pool.admit(given)
            self._slots[request], self._emitted[slot] = slot, 0
        self._requests[place] = request

    def _settle(self) -> None:
        """Takes back what the last step drew behind the tokens it accepted."""
        if self._verified is None:
            return
        (rows, width, lengths), self._verified = self._verified, None
        for slot, length in zip(rows, lengths.tolist(), strict=True):
            if slot != PADDING:
                self._emitted[slot] += length
                if length < width:
                    self.pool.truncate(slot, self._emitted[slot])

    def prepare_capture(self, bs: int, num_tokens_per_req: int = 1) -> None:
        """Gets ready for `bs` rows of nobody, to warm up or to capture."""
        self._settle()
        self._rows = [PADDING] * bs
        self.pool.assign(self._rows)
        self._captured.add(bs)

    def cuda_graph_capture_variants(self, num_tokens_per_req: int) -> tuple[str, ...]:
        """The graphs to capture for each batch size: one, which serves every request."""
        return (CUDA_GRAPH_VARIANT_DEFAULT,)

    def prepare_capture_variant(self, bs: int, num_tokens_per_req: int, variant: str) -> None:
        """As prepare_capture; ValueError for a variant that there is not."""
        if variant != CUDA_GRAPH_VARIANT_DEFAULT:
            raise ValueError(f"Unsupported CUDA graph variant: {variant}")
        self.prepare_capture(bs, num_tokens_per_req)

    def cuda_graph_replay_variant(self, num_tokens_per_req: int) -> str:
        """The graph to replay for the step that was prepared, which the pool is told of; once a step, and only before a
        replay.
        """
        held = [bs for bs in self._captured if bs >= len(self._rows)]
        if not self._announced and held:
            self._announced = True
            self.pool.assign(self._rows + [PADDING] * (min(held) - len(self._rows)))
            self.pool.reserve_replays(num_tokens_per_req)
            self._count(self._rows, num_tokens_per_req, 0)
        return CUDA_GRAPH_VARIANT_DEFAULT

    def reset_capture_state(self) -> None:
        """Forgets what warming up left behind: rows of nobody leave nothing."""

    def get_packed_output_d2h(
        self, output_tokens: torch.Tensor, output_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Tokens and lengths on the host by one copy; None, as they do not lie side by side."""
        return None

    def _count(self, rows: list[int], width: int, first: int) -> None:
        """Takes note of what a step draws; with drafts, of whom to ask later."""
        if width > 1:
            self._verified = (rows, width, self._lengths[first : first + len(rows)])
            return
        for slot in rows:
            if slot != PADDING:
                self._emitted[slot] += 1

    def _started(self, logits_output: Any, sampling_info: Any, bs: int, width: int) -> tuple[Any, Any, Any]:
        """The logits of a step, [bs * width, vocab], masked, and where its tokens and lengths go.

        Its rows are assigned, unless a capture goes by what is. What one step of both kinds draws lies apart.
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
        """Takes one step of the pool; a row without a token, or of nobody, has token 0."""
        self.pool.enqueue(logits)
        torch.clamp(self._output("tokens", out.shape[0]), min=0, out=out)
        if logprobs is not None:
            logprobs.copy_(self._output("logprobs", out.shape[0]))

    def _output(self, name: str, rows: int) -> Any:
        """What the pool's last step came to, where it lies."""
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
        """The next token of each row, [rows] int32, and that there is one of each, [rows] int32.

        logits_output: its `next_token_logits`, [rows, vocab], are read, and masked in place where sampling_info has a
        `vocab_mask`; its `next_token_logprobs` are set if the config enables them, at temperature 1, after that mask and before
        penalties and bias. The next step overwrites both results. A row without a token, or of no request, has token 0.
        """
        bs = logits_output.next_token_logits.shape[0]
        logits, tokens, lengths = self._started(logits_output, sampling_info, bs, 1)
        self._drawn(logits, tokens, self._logprobs(logits_output, (bs,)))
        self.maybe_broadcast(tokens)
        return tokens, lengths.fill_(1)

    def verify(
        self, logits_output: Any, sampling_info: Any, candidates: torch.Tensor, *, tree: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens drawn at each position, [rows * width] int32, and how many of each row are its output, [rows]
        int32.

        candidates: [rows, width]: the last token of each row, then its drafts. logits_output: its `next_token_logits`,
        [rows * width, vocab], are the model's after each of them. A row's output is its accepted drafts and one token
        more: the first so many of its tokens. The rest as for sample. Raises NotImplementedError for trees, ValueError
        for more candidates than the config says.
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
            # Where a draft was not accepted before, what is drawn here is taken back by the next prepare_step.
            drawn = None if logprobs is None else logprobs[:, position]
            self._drawn(logits[:, position], tokens[:, position], drawn)
        same = (tokens[:, :-1] == candidates[:, 1:]).to(torch.int32)
        torch.sum(torch.cumprod(same, dim=1), dim=1, dtype=torch.int32, out=lengths)
        lengths.add_(1)
        self.maybe_broadcast(tokens, lengths)
        return flat, lengths


def register(name: str = "gumball") -> None:
    """Registers the backend with TokenSpeed, under this name. Raises ImportError without TokenSpeed."""
    from tokenspeed.runtime.sampling.registry import register_backend

    register_backend(name, GumballSamplingBackend)
