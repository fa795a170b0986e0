"""A step of a pool as an operator of torch, so that it can stand in what torch compiles.

::

    pool = Pool(vocab, device="cuda:0", slots=8, rows=8)
    pool.assign(slots)
    draw = gumball.torch.Step(pool)

    @torch.compile
    def decode(hidden):
        return draw(model(hidden))          # the tokens, [rows] int32

The operator ``gumball::enqueue(Tensor logits, Tensor(a!) tokens, int pool) -> ()`` enqueues one step of what is assigned to
the pool, and copies the tokens to `tokens`; both in the order of torch's current stream. It is opaque to the compiler and
keeps its place, since it writes. Outside of what is compiled, :meth:`gumball.Pool.enqueue` does the same with less ado.
"""

from __future__ import annotations

import itertools
import weakref

import torch

from ._gumball import Pool

__all__ = ["Step", "tokens_of"]

_NUMBERS = itertools.count()
_POOLS: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()


def tokens_of(pool: Pool) -> torch.Tensor:
    """The tokens of a pool's last step where they lie, [rows] int32: no copy, no synchronisation. Each step writes them anew."""
    return torch.as_tensor(pool.tokens) if pool.device == "cpu" else torch.from_dlpack(pool.tokens)


@torch.library.custom_op("gumball::enqueue", mutates_args=("tokens",))
def _enqueue(logits: torch.Tensor, tokens: torch.Tensor, pool: int) -> None:
    taken = _POOLS[pool]
    taken.enqueue(logits)
    tokens.copy_(tokens_of(taken))


@_enqueue.register_fake
def _(logits: torch.Tensor, tokens: torch.Tensor, pool: int) -> None:
    torch._check(logits.dim() == 2 and tokens.dim() == 1)


class Step(torch.nn.Module):
    """Draws with a pool from logits, [rows, vocab] on the pool's device, for the rows that are assigned to it.

    Returns the tokens, [rows] int32, in memory of torch. Raises as :meth:`gumball.Pool.enqueue` does.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.number = next(_NUMBERS)
        _POOLS[self.number] = pool

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Takes one step."""
        drawn = logits.new_empty((logits.shape[0],), dtype=torch.int32)
        torch.ops.gumball.enqueue(logits, drawn, self.number)
        return drawn
