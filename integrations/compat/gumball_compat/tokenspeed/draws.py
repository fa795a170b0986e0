"""TokenSpeed's draws from logits with parameters that lie in pools by request: `gumbel_sample_from_pools` and its kin.

Each takes the arguments of TokenSpeed's operator of that name, on a GPU or on the host. Row `r` belongs to the request at
`req_pool_indices[r // num_tokens_per_req]`, and is at the position `offsets_pool` has for it, plus
`r % num_tokens_per_req`. The token is the one that a :class:`gumball.Pool` draws for a request with that seed at that
position: a race in one operator, whichever of these names was called. An offset's high 32 bits are the draw index, so
that TokenSpeed's draft stream, whose offsets lie above all positions, is a stream of its own here, too. Kernels read the
pools where they lie: :func:`gumball.sample_from_pools`.

Scratch memory, block sizes, numbers of attempts and tables have no effect. Any top-k is allowed; it is off below 1 and
from the vocabulary up. At temperature 0 the first of the largest logits is drawn. A row without a token gets 0, and so does
one whose index is not in the pools on a GPU. Nothing waits for a device. Raises ValueError for lengths that do not fit, and the
errors of :func:`gumball.sample_from_pools`.
"""

from __future__ import annotations

from typing import Any

import torch

from gumball import operators

__all__ = [
    "gather_and_expand_scalars",
    "gumbel_sample_from_pools",
    "gumbel_sample_from_pools_compact",
    "gumbel_sample_from_pools_generic",
    "gumbel_sample_min_p_from_pools",
    "gumbel_sample_min_p_from_pools_parallel",
    "gumbel_sample_top_k_top_p_from_pools",
    "gumbel_sample_top_k_top_p_qrita_from_pools",
    "gumbel_sample_top_p_parallel_from_pools",
    "gumbel_scratch_shape",
]

_BLOCK = 1024


def check_requests(req_pool_indices: torch.Tensor, rows: int, each: int) -> None:
    """Raises ValueError unless there is an index for each request, of which each has as many rows of logits."""
    if each < 1 or rows % each != 0:
        raise ValueError(f"num_tokens_per_req is {each}, but must be at least 1 and divide the rows of logits, {rows}")
    if req_pool_indices.shape != (rows // each,):
        found = tuple(req_pool_indices.shape)
        raise ValueError(f"req_pool_indices has shape {found}, but must have one element per request, {rows // each}")


def gumbel_scratch_shape(max_rows: int, vocab_size: int) -> tuple[int, int]:
    """Returns the shape of the scratch memory that callers hand in, (max_rows, blocks of 1024 tokens); it is not used.

    Raises ValueError for a negative `max_rows` and a `vocab_size` below 1.
    """
    if max_rows < 0 or vocab_size < 1:
        raise ValueError(f"max_rows is {max_rows} and vocab_size {vocab_size}, but they must be at least 0 and 1")
    return max_rows, -(-vocab_size // _BLOCK)


def gather_and_expand_scalars(
    index: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    n: int = 1,
    enable_pdl: bool | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Returns the parameters of the requests at `index`, each n times: [len(index) * n].

    They come as temperature, top_k, top_p, min_p, seed, offsets; None where a pool was not given. offsets become int64,
    the others keep their type. enable_pdl has no effect.
    """
    pools = (temperature, top_k, top_p, min_p, seed, offsets)
    rows = _repeated(index, n)
    gathered = [None if pool is None else pool.index_select(0, rows) for pool in pools]
    if gathered[5] is not None:
        gathered[5] = gathered[5].to(torch.int64)
    return tuple(gathered)


def _repeated(index: torch.Tensor, n: int) -> torch.Tensor:
    return index if n == 1 else index.unsqueeze(1).expand(-1, n).reshape(-1)


def _drawn(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pools: dict[str, Any],
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    out: torch.Tensor,
    num_tokens_per_req: int,
) -> torch.Tensor:
    """Draws a token for each row; pools: parameters of draws by name."""
    if logits.ndim != 2:
        raise ValueError(f"logits has {logits.ndim} dimensions, but must have 2")
    rows, n = logits.shape[0], num_tokens_per_req
    check_requests(req_pool_indices, rows, n)
    if out.ndim != 1 or out.shape[0] < rows:
        raise ValueError(f"out has shape {tuple(out.shape)}, but must have one element per row, {rows}")
    if rows == 0:
        return out[:0]
    # The low half of an offset is the position, the high half the draw index.
    offsets = offsets_pool.to(torch.int64)
    dtype = "int64" if out.dtype is torch.int64 else "int32"
    drawn: torch.Tensor = operators.sample_from_pools(
        logits,
        req_pool_indices,
        seed=seed_pool,
        position=offsets,
        rows_per_slot=n,
        high_draws=True,
        zero_for_none=True,
        dtype=dtype,
        out=out[:rows],
        **pools,
    )
    return drawn


def gumbel_sample_from_pools(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    local_ids: torch.Tensor,
    local_scores: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from each row of logits, without filters. Returns `out[:rows]`, int32.

    logits: [rows, vocab]. The other arguments, and errors: as this module says.
    """
    pools = {"temperature": temperature_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_from_pools_compact(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    out: torch.Tensor,
    *,
    block_size: int = 2048,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from each row of logits, without filters. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_from_pools_generic(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    top_k_pool: torch.Tensor,
    top_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    out: torch.Tensor,
    *,
    min_p_pool: torch.Tensor | None = None,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from what top-k, then top-p, then min-p keep of each row. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool, "top_k": top_k_pool, "top_p": top_p_pool, "min_p": min_p_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_min_p_from_pools(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    min_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from what min-p keeps of each row. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool, "min_p": min_p_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_min_p_from_pools_parallel(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    min_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    local_ids: torch.Tensor,
    local_scores: torch.Tensor,
    row_max: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from what min-p keeps of each row. Returns `out[:rows]`."""
    pools = (temperature_pool, min_p_pool, seed_pool, offsets_pool)
    return gumbel_sample_min_p_from_pools(logits, req_pool_indices, *pools, out, num_tokens_per_req=num_tokens_per_req)


def gumbel_sample_top_k_top_p_from_pools(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    top_k_pool: torch.Tensor,
    top_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    candidate_ids: torch.Tensor,
    candidate_logits: torch.Tensor,
    out: torch.Tensor,
    *,
    min_p_pool: torch.Tensor | None = None,
    block_size: int = 2048,
    top_k_pad: int = 128,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from what top-k, then top-p, then min-p keep of each row. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool, "top_k": top_k_pool, "top_p": top_p_pool, "min_p": min_p_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_top_k_top_p_qrita_from_pools(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    top_k_pool: torch.Tensor,
    top_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    qrita_buffer: torch.Tensor,
    percentile_to_std_table: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens_per_req: int = 1,
    num_programs: int | None = None,
) -> torch.Tensor:
    """Draws a token from what top-k and then top-p keep of each row. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool, "top_k": top_k_pool, "top_p": top_p_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)


def gumbel_sample_top_p_parallel_from_pools(
    logits: torch.Tensor,
    req_pool_indices: torch.Tensor,
    temperature_pool: torch.Tensor,
    top_p_pool: torch.Tensor,
    seed_pool: torch.Tensor,
    offsets_pool: torch.Tensor,
    local_max: torch.Tensor,
    local_sum: torch.Tensor,
    local_argmax: torch.Tensor,
    local_scores: torch.Tensor,
    local_logits: torch.Tensor,
    local_ids: torch.Tensor,
    row_max: torch.Tensor,
    row_total: torch.Tensor,
    row_argmax: torch.Tensor,
    row_candidate_logits: torch.Tensor,
    row_candidate_ids: torch.Tensor,
    accepted: torch.Tensor,
    out: torch.Tensor,
    *,
    block_size: int = 1024,
    num_attempts: int = 3,
    num_tokens_per_req: int = 1,
) -> torch.Tensor:
    """Draws a token from what top-p keeps of each row. Returns `out[:rows]`."""
    pools = {"temperature": temperature_pool, "top_p": top_p_pool}
    return _drawn(logits, req_pool_indices, pools, seed_pool, offsets_pool, out, num_tokens_per_req)
