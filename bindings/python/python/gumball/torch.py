"""For torch.compile graphs: a step of a pool, and the operators of :mod:`gumball.operators`; for training, :func:`logprobs`.

::

    pool = Pool(vocab, device="cuda:0", slots=8, rows=8)
    pool.assign(slots)
    draw = gumball.torch.PoolStep(pool)

    @torch.compile(fullgraph=True)
    def decode(hidden):
        return draw(model(hidden))          # the tokens, [rows] int32

    @torch.compile(fullgraph=True)
    def drawn(logits, temperatures, seeds, positions):
        probs = gumball.torch.softmax(logits, temperatures)
        return gumball.torch.sample(probs, kind="probabilities", top_p=0.9, seed=seeds, position=positions)

The functions here are those of :mod:`gumball`, without ``params``, ``stream`` and statuses. They call torch's custom operators ``gumball::..``, each with a fake implementation: functional ones, ones
that write to ``out``, and ones that change their rows in place. The seed and its position are required. Row parameters are numbers or
tensors. Outside compiled code, the functions of :mod:`gumball` do the same with less overhead. Once this module is
imported, compiled code that calls those functions gets the ones here, if torch has ``torch.compiler.substitute_in_graph``.

``gumball::enqueue(Tensor logits, Tensor(a!) tokens, int pool) -> ()`` enqueues one step of the pool's assigned rows
and copies the tokens to `tokens`, both in the order of torch's current stream. The compiler treats it as opaque and
keeps its order, because it writes. Outside compiled code, :meth:`gumball.Pool.enqueue` does the same with less
overhead.
"""

# Without `from __future__ import annotations`: torch 2.4 reads an operator's types, and fails where a type is a string.
import itertools
import weakref

import torch

from ._gumball import Pool, Recorded, Step
from .torch_logprobs import edited, hidden_logprobs, kept_bitmask, logprobs
from .torch_operators import (
    judge,
    mask_logits,
    probabilities,
    radii,
    row_count,
    sample,
    sample_from_pools,
    selected_logprobs,
    softmax,
)

__all__ = [
    "PoolStep",
    "edited",
    "hidden_logprobs",
    "judge",
    "kept_bitmask",
    "logprobs",
    "mask_logits",
    "probabilities",
    "radii",
    "row_count",
    "sample",
    "sample_from_pools",
    "selected_logprobs",
    "softmax",
    "tokens_of",
]

_NUMBERS = itertools.count()
_STEPS: "weakref.WeakValueDictionary[int, PoolStep]" = weakref.WeakValueDictionary()


def tokens_of(pool: Pool) -> torch.Tensor:
    """Returns the tokens of the last step that was enqueued, [rows] int32; on a device without a copy or a wait, and each step overwrites them."""
    if pool.device == "cpu":
        return torch.as_tensor(pool.fetch().tokens)
    return torch.from_dlpack(pool.on_device().outputs("tokens"))


@torch.library.custom_op("gumball::enqueue", mutates_args=("tokens",))
def _enqueue(logits: torch.Tensor, tokens: torch.Tensor, pool: int) -> None:
    step = _STEPS[pool]
    if logits.is_cuda and torch.cuda.is_current_stream_capturing():
        step.recorded = step.pool.on_device().record([Step(logits)])
    else:
        step.pool.enqueue([Step(logits)])
    tokens.copy_(tokens_of(step.pool))


@_enqueue.register_fake
def _(logits: torch.Tensor, tokens: torch.Tensor, pool: int) -> None:
    torch._check(logits.dim() == 2 and tokens.dim() == 1)


class PoolStep(torch.nn.Module):
    """Draws tokens from logits, [rows, vocab] on the pool's device, for the rows that are assigned to the pool.

    Returns the tokens, [rows] int32, in memory of torch. Raises the errors of :meth:`gumball.Pool.enqueue`. A graph of torch holds the kernels of "full";
    :meth:`gumball.OnDevice.before_replay` takes `recorded`, of the last capture.
    """

    recorded: Recorded | None = None

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.number = next(_NUMBERS)
        _STEPS[self.number] = self

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Takes one step."""
        drawn = logits.new_empty((logits.shape[0],), dtype=torch.int32)
        torch.ops.gumball.enqueue(logits, drawn, self.number)
        return drawn
