"""The sampling backend: TokenSpeed's calls, made to a pool."""

from __future__ import annotations

from typing import Any

import torch
from tokenspeed.runtime.sampling.backends.base import CUDA_GRAPH_VARIANT_DEFAULT, SpeculativeSamplingPools

from gumball import Batch, Drafts, Pool, Recorded, Shorten, Step, Verify
from gumball.plugins.errors import CallerError
from gumball.plugins.kept import Guess
from gumball.plugins.states import admit, seed_of
from gumball.torch import kept_bitmask

from . import kept, ranks
from .params import known_of, params_of
from .ranks import PADDING, Watch, padded

__all__ = ["GumballSamplingBackend"]

FULL = "full"

# Bitmasks of a device are of whole tiles of ids.
TILE = 256


def _device(device: Any) -> str:
    wanted = torch.device("cpu" if device is None else device)
    if wanted.type == "cuda" and wanted.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return str(wanted)


class GumballSamplingBackend:
    """A sampling backend for TokenSpeed over a pool.

    Each request is a sequence of a :class:`gumball.Pool`: its parameters are copied in once. Its draws depend on its seed and on its number of
    tokens, not on the batch, and penalties count the generated tokens. Unlike TokenSpeed's own backends it applies every parameter.

    config: TokenSpeed's; `vocab_size` and `max_req_pool_size` are required. Raises
    ValueError without them, for what TokenSpeed's own backends alone have (`enable_speculative_sampling`, logprobs with the
    `logprob_order` "megatron"), and the errors of :class:`gumball.Pool`.

    **Drafts.** `verify` is one piece of the pool's work, for which a device is not waited for. A draft is accepted if it equals the token that `sample` would draw there, with the drafts before it as output. The
    tokens therefore equal those of decoding without drafts, bit for bit, for chains and trees, and for any drafter; the
    drafter's probabilities are not read.

    **Tokens that TokenSpeed does not keep.** It keeps one token of a request that it takes over from elsewhere or
    back, for which it has no drafts yet. So after the first step of a request that was not in the step before,
    `prepare_step` compares what was accepted with what TokenSpeed's cache lengths have grown by, and takes the rest away
    again. On a device the lengths are compared there, and nothing waits. Who keeps fewer tokens at another time says so by `shorten`.

    **Graphs.** Steps are captured as TokenSpeed does it: `prepare_capture_variant`, a few eager calls, then the capture.
    The variants are those of :meth:`gumball.Pool.variants`; TokenSpeed's "default" is "full". Each serves the requests
    of those before it, too, so a program may capture fewer of them. Before a replay call `prepare_step` and then
    `cuda_graph_replay_variant`. The latter assigns padding to rows beyond the batch, up to the smallest captured batch
    size that holds it, and announces the replay to the pool.

    **Ranks.** Under TokenSpeed's `--dp-sampling` each rank of the tensor-parallel group verifies a part of the requests, of which TokenSpeed
    hands it the whole rows. `configure_dp_sampling` then makes the pool one over these ranks, with the layout "replicated" of
    :class:`gumball.Pool`: on GPUs of one host, which write what came out into each other's memory, without a wait for the host.
    Steps of smaller batches go the same way. All ranks have the same tokens and states, so nothing is broadcast.

    **Seeds.** A request without a seed takes one from the config's `random_seed` and its id, the same on all ranks.
    """

    _HAS_POOL_STATE = True
    _SUPPORTS_DP_VERIFY = True
    supports_tree_verify = True
    drafts = False
    """Whether the backend that this process made last verifies drafts."""

    def __init__(self, config: Any) -> None:
        if config.max_req_pool_size <= 0 or config.vocab_size <= 0:
            found = f"max_req_pool_size={config.max_req_pool_size}, vocab_size={config.vocab_size}"
            raise ValueError(f"{type(self).__name__} requires max_req_pool_size > 0 and vocab_size > 0; got {found}")
        if getattr(config, "enable_speculative_sampling", False):
            raise ValueError(
                "enable_speculative_sampling is on, but drafts are judged without the drafter's probabilities"
            )
        if config.enable_output_logprobs and getattr(config, "logprob_order", "torch") != "torch":
            raise ValueError(f"logprob_order is {config.logprob_order!r}, but must be 'torch' where there are logprobs")
        self.config = config
        self.most = max(config.max_draft_tokens_per_req, 1)
        type(self).drafts = self.most > 1
        self.pool: Any = Pool(
            config.vocab_size,
            device=_device(config.device),
            slots=config.max_req_pool_size + 1,
            rows=config.max_bs * self.most,
            keep_histories=self.most > 1,
            kept=kept.is_on(),
        )
        place = {"dtype": torch.int32, "device": self.pool.device}
        self._tokens = torch.zeros(config.max_bs * self.most, **place)
        self._lengths = torch.ones(config.max_bs, **place)
        self._path = torch.full((config.max_bs * self.most,), -1, **place)
        # What graphs read on a device: the drafts, and their parents.
        self._drafts = torch.zeros(config.max_bs * self.most, **place)
        self._parents = torch.zeros(config.max_bs * self.most, **place)
        # The kept sets of the tokens, as bitmasks, and their radii, if the server tells them.
        width = -(-config.vocab_size // TILE) * TILE // 32
        tokens = config.max_bs * self.most
        self._extras = kept.Extras(
            torch.zeros(tokens, width, **place) if kept.is_on() else None,
            torch.zeros(tokens, dtype=torch.float32, device=self.pool.device) if kept.is_on(kept.RADII) else None,
        )
        self._guess = Guess()
        places = config.max_req_pool_size + 1
        self._pools = SpeculativeSamplingPools(
            torch.ones(places, dtype=torch.float32, device=self.pool.device),
            torch.ones(places, **place),
            torch.zeros(places, dtype=torch.int64, device=self.pool.device),
        )
        # The request at each of the engine's pool indices; the slot of each request; the requests of the last step.
        self._requests: dict[int, str] = {}
        self._slots: dict[str, int] = {}
        self._present: set[str] = set()
        # The arguments of the last `prepare_step`, and the slots of its rows.
        self._prepared: list[Any] = []
        self._prepared_rows: list[int] = []
        # What a failed exchange is found by; None without ranks.
        self._watch: Watch | None = None
        # The slots of the step's rows; those that are assigned, with padding to a multiple of the ranks, how many tokens each
        # has, and their plan; the variant that a warm-up or a capture launches; what was recorded for each batch size, number
        # of tokens and variant; and the variant whose replay is announced.
        self._rows: list[int] = []
        self._assigned: list[int] = []
        self._width = 1
        self._plan: Any = None
        self._variants = [FULL] if self._on_host() else list(self.pool.counts()["variants"])
        self._variant: str | None = None
        self._captured: dict[tuple[int, int], dict[str, Recorded]] = {}
        self._reserved: str | None = None
        # The engine's cache lengths by pool index, and what they were before the last verification of each row; the rows
        # whose growth prepare_step compares, with their requests and pool indices.
        self._cache_lengths: torch.Tensor | None = None
        self._before = torch.zeros(config.max_bs, **place)
        self._returned: dict[int, tuple[str, int]] = {}
        # Views of the pool's outputs on a device, by name, rows and requests; their addresses stay.
        self._views: dict[tuple[str, int, int], Any] = {}
        self._group: Any = None
        self._topology: Any = None
        if config.enable_tp_sync and config.tp_group is not None and len(config.tp_group) > 1:
            from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

            self._group = process_group_manager.get_device_process_group(config.tp_group)

    def configure_dp_sampling(self, runtime: Any) -> None:
        """Spreads the requests over the ranks of a tensor-parallel group, once all its ranks have come; nothing unless runtime.enabled.

        runtime: TokenSpeed's DpSamplingRuntimeConfig. Call it before the first request. Raises RuntimeError for one that is incomplete or of
        another group than the config's, for more requests or candidates than the config allows, and behind a request; and the errors of
        :class:`gumball.Pool`.
        """
        if not runtime.enabled:
            return
        topology, config = runtime.topology, self.config
        if topology is None or runtime.max_bucket_bs is None or runtime.vocab_size is None:
            raise RuntimeError(
                "configure_dp_sampling needs a topology, max_bucket_bs and vocab_size where it is enabled"
            )
        if config.tp_group is None or tuple(topology.tp_group or ()) != tuple(config.tp_group):
            raise RuntimeError(f"tp_group is {topology.tp_group}, but must be that of the config, {config.tp_group}")
        world = len(config.tp_group)
        most_bs = config.max_bs + -config.max_bs % world
        limits = (
            ("tp_size", topology.tp_size, world, world),
            ("max_bucket_bs", runtime.max_bucket_bs, 1, most_bs),
            ("num_tokens_per_req", runtime.num_tokens_per_req, 1, self.most),
            ("vocab_size", runtime.vocab_size, config.vocab_size, float("inf")),
        )
        for name, value, least, most in limits:
            if not least <= value <= most:
                raise RuntimeError(f"{name} is {value}, but must be in {least}..={most}")
        if self._slots:
            raise RuntimeError(f"configure_dp_sampling comes behind {len(self._slots)} requests, but must come before")
        options = {"layouts": ["replicated"], "layout": "replicated", "slots": config.max_req_pool_size + 1}
        options["kept"] = kept.is_on()
        if not self._on_host():
            options |= {"rows": most_bs * self.most, "keep_histories": self.most > 1, "device": self.pool.device}
        pool = ranks.join_ranks(topology, config.vocab_size, **options)
        if (pool.ranks.rank, pool.ranks.world) != (topology.tp_rank, world):
            found = f"{topology.tp_rank} of {world}"
            raise RuntimeError(
                f"tp_rank is {found}, but must be that of the process group, {pool.ranks.rank} of {pool.ranks.world}"
            )
        self.pool, self._watch, self._group, self._topology = pool, Watch(pool), None, topology
        self._views.clear()

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

        num_tokens_per_req: the step's width, 1 without drafts. Parameters that are None say that nobody keeps the request's token of this step,
        as before the end of its prompt: its row is padding. Raises a ValueError, which is an AssertionError as well, for
        lists of unequal length, for an index outside the pool, and for parameters outside their range. Over ranks it raises a
        :class:`gumball.dist.DistError` if an exchange of the steps before has failed, as with a rank that ended.
        """
        if self._watch is not None:
            self._watch.refuse_lost(self._assigned, self._width)
        given: list[list[Any]] = [request_ids, request_pool_indices, sampling_params_list]
        is_known = given == self._prepared
        lengths = len(request_ids), len(request_pool_indices), len(sampling_params_list)
        if not is_known and len(set(lengths)) != 1:
            raise CallerError(f"prepare_step has {lengths} ids, places and params, but must have as many of each")
        self._settle()
        if not is_known:
            self._prepared = []
            self._prepared_rows = self._prepare(list(zip(*given, strict=True)), num_tokens_per_req)
            self._prepared = [list(one) for one in given]
        self._rows = self._prepared_rows
        self._variant = self._reserved = None

    def _prepare(self, rows: list[tuple[str, int, Any]], width: int) -> list[int]:
        """Returns the slots of requests of which some were not in the step before, or at another row. rows: each with its pool index and parameters."""
        for request, place, params in rows:
            if self._requests.get(place) == request:
                continue
            if not 0 <= place <= self.config.max_req_pool_size:
                allowed = f"in 0..={self.config.max_req_pool_size}"
                raise CallerError(f"request_pool_indices has {place} for {request}, but must be {allowed}")
            if params is not None:
                self._reset_slot(place, request, params)
        if width > 1:
            self._returned = {
                row: (request, place)
                for row, (request, place, params) in enumerate(rows)
                if params is not None and request not in self._present
            }
        self._present = {request for request, _, params in rows if params is not None}
        return [PADDING if params is None else self._slots[request] for request, _, params in rows]

    def _reset_slot(self, place: int, request: str, params: Any) -> None:
        """Gives a pool index to a request and releases the request that had it."""
        try:
            given = params_of(params, self.config.enable_output_logprobs)
            given.validate(self.config.vocab_size)
        except ValueError as error:
            raise CallerError(str(error)) from error
        if (last := self._requests.pop(place, None)) is not None:
            self.pool.release(self._slots.pop(last))
        # A request that moves to another pool index continues its sequence.
        self._requests = {known: other for known, other in self._requests.items() if other != request}
        seed = seed_of(request, self.config.random_seed) if given.seed is None else given.seed
        if request not in self._slots:
            self._slots[request] = admit(self.pool, given, *known_of(params), seed)
        self._requests[place] = request
        # By a kernel: an element that is assigned is copied, for which the host waits.
        self._pools.temperature[place].fill_(float(params.temperature))
        self._pools.top_k[place].fill_(int(params.top_k))
        self._pools.seed[place].fill_(seed - (1 << 64) if seed >> 63 else seed)

    def _settle(self) -> None:
        """Takes away what the engine did not keep of the last verification's tokens, of requests that came back to it."""
        returned, self._returned = self._returned, {}
        held = {row: pair for row, pair in returned.items() if pair[0] in self._slots}
        if self._cache_lengths is None or not held:
            return
        rows = self._on_device(list(held))
        kept = self._cache_lengths[self._on_device([place for _, place in held.values()])] - self._before[rows]
        drawn = self._lengths[rows]
        # Anything else is no growth by this step: the place has another request by now.
        surplus = torch.where((kept > 0) & (kept < drawn), drawn - kept, 0)
        self.shorten([request for request, _ in held.values()], surplus)

    def shorten(self, request_ids: list[str], counts: list[int] | torch.Tensor) -> None:
        """Takes away the last `counts[i]` tokens of `request_ids[i]`, as if they had never been drawn.

        For a caller who keeps fewer tokens than were accepted. On a device it waits for nothing; counts may be a tensor of int32 or
        int64 there, and a count that is negative or more than the request's tokens takes nothing away. On the host such a count is a
        ValueError. Raises KeyError for a request that is not known. The next step assigns rows anew, as after prepare_step.
        """
        slots = [self._slots[request] for request in request_ids]
        if self._on_host():
            self.pool.shorten(slots, counts.tolist() if isinstance(counts, torch.Tensor) else counts)
        elif slots:
            self._assign(slots, 1)
            if self._watch is not None:
                # Padding keeps its tokens.
                counts = padded(torch.as_tensor(counts, device=self._before.device), len(self._assigned))
            self.pool.enqueue([Shorten(counts)])

    def _on_device(self, numbers: list[int]) -> torch.Tensor:
        """Returns indices on the pool's device. A GPU copies them from page-locked memory, for which nothing waits."""
        place = self._before.device
        if place.type != "cuda":
            return torch.tensor(numbers, device=place)
        return torch.tensor(numbers, pin_memory=True).to(place, non_blocking=True)

    def speculative_sampling_pools(self) -> SpeculativeSamplingPools:
        """Returns the temperature, top-k and seed of each request by pool index, for drafters that draw their drafts.

        `prepare_step` writes them when it admits a request. They are views: the addresses stay. A draft is accepted more
        often if it is drawn by the request's own race (:meth:`gumball.Pool.draft`) or is the drafter's first token.
        """
        return self._pools

    def prepare_capture(self, bs: int, num_tokens_per_req: int = 1) -> None:
        """Assigns padding to `bs` rows, for a warm-up or a capture of the default variant."""
        self.prepare_capture_variant(bs, num_tokens_per_req, CUDA_GRAPH_VARIANT_DEFAULT)

    def cuda_graph_capture_variants(self, num_tokens_per_req: int) -> tuple[str, ...]:
        """Returns the variants to capture for each batch size. With logprobs, every request needs "edits" at least."""
        first = self._variants.index("edits") if self.config.enable_output_logprobs and FULL != self._variants[0] else 0
        return (CUDA_GRAPH_VARIANT_DEFAULT, *self._variants[first:-1])

    def prepare_capture_variant(self, bs: int, num_tokens_per_req: int, variant: str) -> None:
        """Assigns padding to `bs` rows, for a warm-up or a capture; raises ValueError for an unknown variant."""
        name = FULL if variant == CUDA_GRAPH_VARIANT_DEFAULT else variant
        if name not in self._variants:
            raise ValueError(f"Unsupported CUDA graph variant: {variant}")
        self._settle()
        self._rows = [PADDING] * bs
        self._assign(self._rows, num_tokens_per_req)
        self._variant = name

    def cuda_graph_replay_variant(self, num_tokens_per_req: int) -> str:
        """Returns the smallest captured variant that serves the prepared step, and announces its replay to the pool.

        Call it once per step, and only before a replay.
        """
        held = [bs for bs, width in self._captured if width == num_tokens_per_req and bs >= len(self._rows)]
        if self._reserved is None and held:
            bs = min(held)
            self._assign(self._rows + [PADDING] * (bs - len(self._rows)), num_tokens_per_req)
            there = self.pool.on_device()
            recorded, needed = self._captured[bs, num_tokens_per_req], self._variants.index(there.needed_variant())
            self._reserved = next((name for name in self._variants[needed:] if name in recorded), FULL)
            there.before_replay(recorded[self._reserved])
        return CUDA_GRAPH_VARIANT_DEFAULT if self._reserved in (None, FULL) else self._reserved

    def reset_capture_state(self) -> None:
        """Resets the state after a warm-up: nothing to do, because padding changes no state."""

    def get_packed_output_d2h(
        self, output_tokens: torch.Tensor, output_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Copies tokens and lengths to the host, without a wait, with the tokens' kept sets and radii; None without these, as one copy cannot fetch all."""
        return None if not self._extras else kept.fetched(output_tokens, output_lengths, self._extras, self._guess)

    def _on_host(self) -> bool:
        return str(self.pool.device) == "cpu"

    def _assign(self, rows: list[int], width: int) -> None:
        """Assigns a step's rows, with their drafts if it has any."""
        self._assigned, self._width = rows, width
        if self._watch is not None:
            self._assigned = rows + [PADDING] * (-len(rows) % self.pool.ranks.world)
            self._plan = self.pool.plan(self._assigned, drafts=width - 1, step="verify" if width > 1 else "decode")
        counts = None if width == 1 else [width - 1] * len(self._assigned)
        self.pool.assign(Batch(self._assigned, counts=counts, plan=self._plan))

    def _started(self, logits_output: Any, sampling_info: Any, bs: int, width: int) -> tuple[Any, int]:
        """Returns a step's masked logits, those of this rank's requests alone, and the first of its requests.

        Assigns the step's rows, except during a capture, which uses the current assignment. If a step has both kinds
        of rows, each kind is a step here.
        """
        logits, mask = logits_output.next_token_logits, getattr(sampling_info, "vocab_mask", None)
        row_count, plan = bs * width, getattr(logits_output, "logits_layout_plan", None)
        if plan is not None:
            own = self._check_layout_plan(plan, bs, width)
            row_count = (own.stop - own.start) * width
            mask = None if mask is None else self._own_mask(mask.view(bs, width, -1), own)
        if logits.shape[0] != row_count:
            raise ValueError(f"next_token_logits has {logits.shape[0]} rows, but must have {row_count}")
        if mask is not None:
            sampling_info.apply_vocab_mask(logits=logits, vocab_mask=mask)
        first = getattr(sampling_info, "batch_row_offset", 0)
        rows = self._rows[first : first + bs]
        rows += [PADDING] * (bs - len(rows))
        if not (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._assign(rows, width)
        if self._watch is not None:
            # Heads of ranks may be padded, and all ranks may have all rows.
            logits, count = logits[:, : self.config.vocab_size], len(self._assigned) // self.pool.ranks.world * width
            if len(logits) != count:
                logits = padded(logits[self.pool.ranks.rank * count :][:count], count)
        return logits, first

    def _check_layout_plan(self, plan: Any, bs: int, width: int) -> slice:
        """Checks TokenSpeed's plan of a verification over ranks, and returns this rank's requests."""
        if self._watch is None:
            raise RuntimeError(
                "logits_layout_plan is given, but configure_dp_sampling has spread no requests over ranks"
            )
        world, rank = self.pool.ranks.world, self.pool.ranks.rank
        found = plan.effective_bs, plan.bucket_bs, plan.tp_size, plan.num_tokens_per_req
        wanted = bs, bs + -bs % world, world, width
        if found != wanted:
            names = "effective_bs, bucket_bs, tp_size, num_tokens_per_req"
            raise RuntimeError(f"logits_layout_plan has {names} {found}, but must have {wanted}")
        count = plan.bucket_bs // world
        return slice(rank * count, (rank + 1) * count)

    def _own_mask(self, mask: torch.Tensor, own: slice) -> torch.Tensor:
        """Returns the bitmasks of this rank's requests; padding may have any token."""
        return padded(mask, max(own.stop, len(mask)), -1)[own].reshape(-1, mask.shape[-1])

    def _step(self, logits_output: Any, sampling_info: Any, bs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a step of the pool; a row without a token, or of padding, gets token 0."""
        logits, first = self._started(logits_output, sampling_info, bs, 1)
        self._returned = {row: pair for row, pair in self._returned.items() if not first <= row < first + bs}
        self._enqueue(Step(logits), 1)
        tokens, lengths = self._tokens[first : first + bs], self._lengths[first : first + bs]
        torch.clamp(self._output("tokens", bs, bs), min=0, out=tokens)
        self._write_logprobs(logits_output, bs, bs)
        self._write_extras(first, bs, bs)
        return tokens, lengths.fill_(1)

    def _enqueue(self, work: Step | Verify, width: int) -> None:
        """Enqueues work; on a device that of a warm-up or a capture is recorded."""
        if self._variant is None or self._on_host():
            self.pool.enqueue([work])
        else:
            recorded = self.pool.on_device().record([work], variant=self._variant)
            self._captured.setdefault((len(self._rows), width), {})[self._variant] = recorded

    def _write_extras(self, first: int, rows: int, requests: int) -> None:
        """Writes the kept sets and the radii of the pool's last step beside its tokens."""
        sets, radii = self._extras
        if radii is not None:
            radii[first : first + rows].copy_(self._output("second_logprobs", rows, requests))
        if sets is not None:
            to = sets[first : first + rows]
            if self._on_host():
                lengths, ids = map(torch.from_numpy, self.pool.fetch().kept_sets())
                to.copy_(kept_bitmask(lengths, ids, 32 * to.shape[1])[:rows])
            else:
                own = self._output("kept", rows, requests)
                if self._watch is not None:
                    # A rank has the sets of its own requests, first.
                    count = len(self._assigned) // self.pool.ranks.world * self._width
                    own = ranks.gather_rows(self._topology, own[:count])[:rows]
                to.copy_(own)

    def _output(self, name: str, rows: int, requests: int) -> Any:
        """Returns one of the outputs of the pool's last step, without a copy on a device."""
        count = requests if name == "accepted" else rows
        if self._on_host():
            out = self.pool.fetch()
            if name != "rows":
                return torch.from_numpy(getattr(out, name).view("float32" if name.endswith("logprobs") else "int32"))[
                    :count
                ]
            places = torch.full((len(out),), -1, dtype=torch.int32)
            for request in range(requests):
                emitted = out.request(request)
                places[emitted.places][: len(emitted.rows)] = torch.from_numpy(emitted.rows.view("int32"))
            return places[:count]
        key = name, rows, requests
        if (view := self._views.get(key)) is None:
            view = torch.from_dlpack(self.pool.on_device().outputs(name))
            view = view.view(torch.int32) if view.dtype is torch.uint32 else view
            # Over ranks there may be padding after the batch.
            self._views[key] = view = view[:count]
        return view

    def _write_logprobs(self, logits_output: Any, rows: int, requests: int) -> None:
        if self.config.enable_output_logprobs:
            logits_output.next_token_logprobs = self._output("logprobs", rows, requests).clone()

    def sample(self, logits_output: Any, sampling_info: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws the next token of each row. Returns tokens, [rows] int32, and their numbers, 1 each, [rows] int32.

        logits_output: `next_token_logits`, [rows, vocab], are read, and masked in place if sampling_info has a
        `vocab_mask`. If the config enables logprobs, `next_token_logprobs` are set: at temperature 1, after that mask
        and before penalties and bias. The next step overwrites both results. A row without a token, or without a
        request, gets token 0.
        """
        tokens, lengths = self._step(logits_output, sampling_info, logits_output.next_token_logits.shape[0])
        self.maybe_broadcast(tokens)
        return tokens, lengths

    def verify(
        self, logits_output: Any, sampling_info: Any, candidates: torch.Tensor, *, tree: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accepts drafts and draws a token more. Returns tokens, [rows * width] int32, and output lengths, [rows] int32.

        candidates: [rows, width]: the last token of each row, then its drafts. tree: their `parents`, [rows, width]
        int32, numbers of candidates before, -1 for the first; None for chains. logits_output: its `next_token_logits`,
        [rows * width, vocab], are the model's logits after each candidate. A row's output is its accepted drafts and one
        more token: the first of its tokens, as many as its length says; 0 behind these. Logprobs are those of the
        tokens, in the same places. Masks and rows without a token: as for sample. The results are valid until the next step.

        Raises ValueError for more candidates than the config allows, and on the host for parents that are no tree; on
        a device such a row accepts no draft.
        """
        bs, width = candidates.shape
        if width > self.most:
            raise ValueError(f"candidates has width {width}, but must have at most {self.most}")
        if width == 1:
            tokens, lengths = self._step(logits_output, sampling_info, bs)
            if tree is not None:
                self._path[:bs] = 0
            self.maybe_broadcast(tokens)
            return tokens, lengths
        logits, first = self._started(logits_output, sampling_info, bs, width)
        if (cached := getattr(sampling_info, "valid_cache_lengths", None)) is not None:
            self._cache_lengths = cached
            self._before[first : first + bs] = cached[sampling_info.req_pool_indices[:bs]]
        tokens = self._tokens[first : first + bs * width]
        lengths = self._lengths[first : first + bs]
        path = self._path[: bs * width].view(bs, width)
        self._verify(logits, candidates, None if tree is None else tree.parents, path)
        torch.clamp(self._output("tokens", bs * width, bs), min=0, out=tokens)
        torch.add(self._output("accepted", bs * width, bs), 1, out=lengths)
        self._write_logprobs(logits_output, bs * width, bs)
        self._write_extras(first, bs * width, bs)
        self.maybe_broadcast(tokens, lengths, self._path[: bs * width])
        return tokens, lengths

    def _verify(self, logits: torch.Tensor, candidates: torch.Tensor, parents: Any, path: torch.Tensor) -> None:
        """Verifies the drafts of the assigned requests. path: that of trees is written there."""
        bs, width = candidates.shape
        count, requests = bs * (width - 1), len(self._assigned)
        drafts = self._drafts[:count].view(bs, width - 1)
        drafts.copy_(candidates[:, 1:])
        above = None
        if parents is not None:
            # Node 0 is the last token; the pool numbers drafts from 0, and the last token is -1.
            above = self._parents[:count].view(bs, width - 1)
            torch.sub(parents[:, 1:], 1, out=above)
            above = padded(above, requests, -1)
        self._enqueue(Verify(logits, Drafts(padded(drafts, requests), parents=above)), width)
        if parents is not None:
            # Of places without a token the row is 2^32 - 1, which is -1 here.
            places = self._output("rows", bs * width, bs).view(bs, width)
            bases = torch.arange(0, bs * width, width, dtype=torch.int32, device=path.device).unsqueeze(1)
            torch.sub(places, bases, out=path)
            path.masked_fill_(places < 0, -1)

    def accepted_path(self, bs: int, num_nodes: int) -> torch.Tensor:
        """Returns the path of the last verification of trees, [bs, num_nodes] int32: 0, then the accepted candidates by
        number, then -1. Of padding all are -1. The next verification of trees overwrites it.
        """
        return self._path[: bs * num_nodes].view(bs, num_nodes)
