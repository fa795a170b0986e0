"""Kept sets of a step, as vLLM's runners ask for sampling masks (`--return-sampling-mask`); nothing here waits for the device."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import envs
from vllm.outputs import SamplingMask
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput, SamplingMaskLists

from gumball import Outputs
from gumball.plugins.kept import PackedKept, lists_of, packed, picked, unpacked

from .follower import follower_of

__all__ = ["Mask", "Sets", "itself", "with_sets"]


class Sets:
    """The kept sets of a step, with what vLLM's model runners call of its `SamplingMaskTensors`.

    outputs: the pool's on the host, or a copy of its sets on its device. firsts: the first line of each request, whose next
    lines are those of its drafts.
    """

    def __init__(self, outputs: Outputs | PackedKept, firsts: NDArray[np.int64]) -> None:
        self._outputs, self._firsts = outputs, firsts

    def to_cpu_nonblocking(self) -> Sets:
        """Begins to copy them to the host, on the current stream."""
        made = copy.copy(self)
        if isinstance(self._outputs, PackedKept):
            made._outputs = self._outputs.to_host()
        return made

    def tolists(self, num_sampled_tokens: Any) -> SamplingMaskLists:
        """vLLM's lists of them; waits for what is not on the host. num_sampled_tokens: how many tokens each request got, 0 in its prompt.

        A set that is smaller as a bitmask is one, which :class:`Mask` reads, unless vLLM's front end in Rust reads it, which knows lists alone. A row without a token has none.
        """
        counts = np.asarray(num_sampled_tokens, np.int64)
        ends = np.cumsum(counts)
        lines = np.repeat(self._firsts - (ends - counts), counts) + np.arange(counts.sum())
        outputs, bitmasks = self._outputs, not envs.VLLM_USE_RUST_FRONTEND
        if isinstance(outputs, PackedKept):
            lengths, ids = outputs.packed(lines, bitmasks)
        else:
            lengths, ids = packed(picked(outputs.kept_sets(), lines), bitmasks)
        return SamplingMaskLists(ids, np.cumsum([0, *lengths]), [0, *ends.tolist()])


def itself(self: SamplingMaskLists) -> list[SamplingMaskLists]:
    """In the place of `SamplingMaskLists.to_nested_list`: hands :class:`Mask` the arrays, of which it makes lists when asked for."""
    return [self]


class Mask(SamplingMask):
    """In the place of vLLM's `SamplingMask`: the sets of a text, or of what a stream adds to it, as arrays."""

    def __init__(self, chunks: Sequence[SamplingMaskLists]) -> None:
        lengths = [[len(one.token_ids)] if one.offsets is None else np.diff(one.offsets) for one in chunks]
        # Copies: those of a step are parts of the whole batch's.
        self._lengths = np.concatenate(lengths, dtype=np.int64)
        self._ids = np.concatenate([one.token_ids for one in chunks])
        self._lists: list[list[int]] | None = None

    @property
    def token_ids(self) -> list[list[int]]:
        """The ids of each token's set, ascending. vLLM adds those that follow in a stream to these."""
        if self._lists is None:
            self._lists = lists_of(self._lengths, self._ids)
        return self._lists

    def kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How many ids each token's set has, and the ids of all, [tokens] int64 and [ids] int32: what `gumball.torch.logprobs` takes as `kept`, without lists."""
        lengths, ids = unpacked(self._lengths, self._ids)
        if self._lists is not None and len(self._lists) != len(lengths):
            lengths = np.array([len(one) for one in self._lists], np.int64)
            ids = np.fromiter(chain.from_iterable(self._lists), np.int32)
        return torch.from_numpy(lengths), torch.from_numpy(ids)


def with_sets(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of vLLM's `Worker` that ends a step, with the step's sets in what model runner V1 hands out, which knows none."""

    @functools.wraps(original)
    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        output, runner = original(self, grammar_output), self.model_runner
        batch = getattr(runner, "input_batch", None)
        follower = None if batch is None else follower_of(batch.logitsprocs)
        sets = None if follower is None else follower.requests.sets
        if follower is None or sets is None:
            return output
        follower.requests.sets = None
        if isinstance(output, AsyncModelRunnerOutput):
            return _later(output, sets, runner._get_or_create_async_output_copy_stream())
        return _given(output, sets)

    return sample_tokens


def _later(output: Any, sets: Sets, stream: torch.cuda.Stream) -> Any:
    """Lets what model runner V1 hands out while a device computes it bring the sets, too. stream: that on which the runner copies to the host."""
    with torch.cuda.stream(stream):
        # Both, as those of the device must live until they are copied.
        held = sets, sets.to_cpu_nonblocking()
        copied = torch.cuda.Event(blocking=True)
        copied.record()
    original = output.get_output

    def get_output() -> ModelRunnerOutput:
        made = original()
        copied.synchronize()
        return _given(made, held[1])

    output.get_output = get_output
    return output


def _given(output: ModelRunnerOutput, sets: Sets) -> ModelRunnerOutput:
    output.sampling_masks = sets.tolists([len(ids) for ids in output.sampled_token_ids])
    return output
