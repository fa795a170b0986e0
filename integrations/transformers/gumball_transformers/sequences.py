"""The rows of a call of transformers' `generate`, as sequences of a pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gumball import Batch, Head, Hidden, Outputs, Pool, prompt_seed
from gumball.errors import RefusedError
from gumball.params import SamplingParams

__all__ = ["MOST_DRAFTS", "Drawn", "Sequences", "Words", "words_of"]

MOST_DRAFTS = 64
"""The most drafts that a pool verifies for a sequence."""


class Drawn(NamedTuple):
    """What came out for some rows.

    tokens: [rows] int64; -1 for a row that takes no part, or has no token above -inf. scores: [rows, vocab] float32 as transformers hands them
        out: the edited logits divided by the temperature, with -inf for what bans and filters drop; at temperature 0 the edited logits, bans
    not among the edits. None unless they are kept. outputs, places: the pool's outputs, and for each row its line there.
    """

    tokens: torch.Tensor
    scores: torch.Tensor | None
    outputs: Outputs
    places: Sequence[int]


class Words(NamedTuple):
    """Where a row takes its random words from."""

    seed: int
    draw: int


def words_of(
    params: SamplingParams,
    seed: int | Sequence[int] | None,
    rows: int,
    rows_per_prompt: int = 1,
    decoding: int = 0,
) -> list[Words]:
    """Returns the seed and the draw index of each row.

    seed: one for all rows, whose draw index is then the number of the row; or one for each prompt, whose draw index is then the number of the row
    among those of its prompt; None for one of torch's default generator. decoding: how many decodings of the same call came before; each has
    seeds of its own, those of `prompt_seed` for that turn. Raises ValueError for a seed that is no whole number or outside its range, and for another number of seeds
    than of prompts.
    """
    if seed is None:
        # So that torch.manual_seed makes runs repeat; torch draws 63 bits at once.
        seed = int(torch.randint(2**63 - 1, ()).item())
    several = not isinstance(seed, str | bytes) and hasattr(seed, "__len__") and np.ndim(seed) > 0
    seeds = [_seed(params, one) for one in (seed if several else [seed])]  # type: ignore[union-attr]
    if decoding:
        seeds = [prompt_seed(one, 0, decoding) for one in seeds]
    if not several:
        return [Words(seeds[0], row) for row in range(rows)]
    if len(seeds) * rows_per_prompt != rows:
        prompts = rows // rows_per_prompt
        raise RefusedError(
            f"seed has length {len(seeds)}, but must have one for each prompt, {prompts}{of_decoding(decoding)}"
        )
    return [Words(seeds[row // rows_per_prompt], row % rows_per_prompt) for row in range(rows)]


def of_decoding(decoding: int) -> str:
    """What an error about rows says of a decoding that is not the first of its call."""
    return (
        f", in decoding {decoding + 1} of the call, which goes on with some of its rows; give one for all"
        if decoding
        else ""
    )


def _seed(params: SamplingParams, seed: Any) -> int:
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise RefusedError(f"seed is {seed!r}, but must be a whole number, or a list with one for each prompt")
    params.replace(seed=int(seed))
    return int(seed)


class Sequences:
    """The sequences of a batch.

    params: of each row, whose seed does not count. prompts: without padding. words: as :func:`words_of` returns them. device: that of the
    logits. keep_scores: whether :class:`Drawn` has scores; the pool is the host's then, whatever device the logits are on, since it draws the same
    there. drafts: whether drafts are going to be verified. pool_device: the pool's device, if it is not that of the logits.

    Raises ValueError for what does not fit the vocabulary.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        words: Sequence[Words],
        *,
        vocab: int,
        device: torch.device,
        keep_scores: bool = False,
        drafts: bool = False,
        pool_device: str | None = None,
    ) -> None:
        self.keep_scores = keep_scores
        if keep_scores or (pool_device is None and device.type not in ("cpu", "cuda")):
            pool_device = "cpu"
        self._on_host = pool_device == "cpu"
        rows = len(prompts)
        self.pool = Pool(
            vocab,
            device=device if pool_device is None else pool_device,
            slots=rows,
            rows=rows * (1 + MOST_DRAFTS) if drafts else rows,
            top_n=max((one.logprobs.top_n for one in params if one.logprobs is not None), default=0),
            ids=max((len(one.logprobs.ids) for one in params if one.logprobs is not None), default=0),
            kept=keep_scores,
        )
        self.slots = []
        for one, prompt, (seed, draw) in zip(params, prompts, words, strict=True):
            slot = self.pool.admit(one.replace(seed=seed), prompt)
            if draw:
                state = dataclasses.replace(self.pool.state(slot), draw=draw)
                self.pool.release(slot)
                slot = self.pool.resume(one.replace(seed=seed), state)
            self.slots.append(slot)

    def step(self, logits: torch.Tensor, takes_part: Sequence[bool], head: Head | None = None) -> Drawn:
        """Draws the token of each row that takes part. logits: [rows, vocab], float32, bfloat16 or float16; with a head its hidden states."""
        slots = [slot if part else -1 for slot, part in zip(self.slots, takes_part, strict=True)]
        hooks, edited = self._hooks(len(slots))
        rows = self._rows(logits)
        outputs = self.pool.step(rows if head is None else Hidden(head, rows), Batch(slots, hooks=hooks))
        tokens = torch.from_numpy(outputs.tokens.astype(np.int64)).to(logits.device)
        return Drawn(tokens, self._scores(outputs, range(len(slots)), edited, logits), outputs, range(len(slots)))

    def verify(self, logits: torch.Tensor, drafts: Sequence[int]) -> Drawn:
        """Draws the tokens of the only row while they equal its drafts, and one more (rule S3). logits: [1 + drafts, vocab]."""
        hooks, edited = self._hooks(1 + len(drafts))
        outputs = self.pool.verify(self._rows(logits), Batch(self.slots, hooks=hooks), [list(drafts)])
        emitted = outputs.emitted()[0]
        places = range(len(emitted))
        tokens = torch.tensor(emitted, dtype=torch.int64, device=logits.device)
        return Drawn(tokens, self._scores(outputs, places, edited, logits), outputs, places)

    def shorten(self, count: int) -> None:
        """Takes the last tokens of the only row back."""
        if count:
            self.pool.shorten(self.slots, [count])

    def draft(self, logits: torch.Tensor, path: Sequence[int]) -> int:
        """Returns the token that the only row would draw from these logits after its history and a path, which changes nothing."""
        return int(np.asarray(self.pool.draft(self._rows(logits), self.slots, [list(path)]))[0, 0])

    def _rows(self, logits: torch.Tensor) -> torch.Tensor:
        rows = logits.detach()
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        return rows.cpu() if self._on_host else rows

    def _hooks(self, rows: int) -> tuple[list[Any] | None, list[NDArray[np.float32] | None]]:
        """Hooks that keep the rows as the edits leave them, and where they are going to be."""
        edited: list[NDArray[np.float32] | None] = [None] * rows
        if not self.keep_scores:
            return None, edited

        def keeper(row: int) -> Any:
            def keep(logits: NDArray[np.float32]) -> None:
                edited[row] = logits.copy()

            return keep

        return [keeper(row) for row in range(rows)], edited

    def _scores(
        self, outputs: Outputs, places: Sequence[int], edited: list[NDArray[np.float32] | None], like: torch.Tensor
    ) -> torch.Tensor | None:
        if not self.keep_scores:
            return None
        scores = np.full((len(places), self.pool.vocab), -np.inf, np.float32)
        for line, place in enumerate(places):
            row, kept = edited[place], outputs.kept(place)
            temperature = outputs.temperatures[place]
            if row is not None and temperature == 0:
                scores[line] = row
            elif row is not None:
                scores[line, kept] = row[kept] / temperature
        return torch.from_numpy(scores).to(like.device)
