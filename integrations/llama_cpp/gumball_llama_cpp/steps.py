"""A sampler where llama-cpp-python has its sampler chain: it reads the logits where they lie, and makes no candidates."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._internals import LlamaSampler
from numpy.typing import NDArray

from gumball import Sampler, SamplingParams

__all__ = ["Steps"]

_CANDIDATES = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Steps:
    """The tokens of one call. llama: whose logits and tokens they are. processors, grammar: those of the call, or None."""

    def __init__(self, llama: Any, params: SamplingParams, processors: Any, grammar: Any) -> None:
        self.llama, self.params, self.processors = llama, params, processors
        self.vocab = llama._n_vocab
        params.validate(self.vocab)
        self.sampler: Sampler | None = None
        # How many tokens the sampler's history has, and how many of them are its prompt.
        self.known = self.first = 0
        self._row = ctypes.c_float * self.vocab
        self.grammar = None if grammar is None else Grammar(llama._model, grammar, self.vocab)

    def sample(self, ctx: Any, idx: int = -1) -> int:
        """Draws the token behind an output of the last evaluation. idx: its number from the end, below 0.

        Raises RuntimeError if no token has a logit above -inf.
        """
        length = self.llama.n_tokens + idx + 1
        sampler = self._sampler(length)
        address = llama_cpp.llama_get_logits_ith(ctx.ctx, idx)
        row = np.frombuffer(self._row.from_address(ctypes.addressof(address.contents)), np.float32)
        if self.processors is not None:
            row = row.copy()
            for processor in self.processors:
                row[:] = processor(self.llama._input_ids, row)
        mask = None if self.grammar is None else self.grammar.mask()
        token = sampler.sample(row, mask=mask)
        if token is None:
            raise RuntimeError(f"no token is above -inf behind {length} tokens: a processor or the grammar left none")
        self.known += 1
        if self.grammar is not None:
            self.grammar.accept(token)
        return token

    def _sampler(self, length: int) -> Sampler:
        """The sampler, whose history is the first tokens of the context."""
        ids = self.llama.input_ids
        if self.sampler is None:
            self.sampler = Sampler(self.params, self.vocab, prompt=ids[:length].tolist())
            self.known = self.first = length
        elif self.known > length:
            self.sampler.truncate(length - self.first)
            self.known = length
        elif self.known < length:
            for token in ids[self.known : length].tolist():
                self.sampler.push(token)
            self.known = length
        return self.sampler

    def accept(self, token: int) -> None:
        """Does nothing: `sample` appends what it draws."""

    def reset(self) -> None:
        """Begins again with the next sample."""
        self.sampler = None

    def close(self) -> None:
        """Frees the grammar."""
        if self.grammar is not None:
            self.grammar.close()


class Grammar:
    """A grammar of llama.cpp's as a bitmask of the tokens that it allows next."""

    def __init__(self, model: Any, grammar: Any, vocab: int) -> None:
        self.chain = LlamaSampler()
        self.chain.add_grammar(model, grammar)
        self.candidates = np.zeros(vocab, _CANDIDATES)
        self.candidates["id"] = np.arange(vocab)

    def mask(self) -> NDArray[np.uint32]:
        """u32 words, a bit for each token."""
        # A token that is refused comes back with -inf; its own logit does not matter.
        self.candidates["logit"] = 0
        pointer = self.candidates.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(pointer, len(self.candidates), -1, False)
        llama_cpp.llama_sampler_apply(self.chain.sampler, ctypes.byref(array))
        # Grammars mark candidates and leave them where they are.
        allowed = np.packbits(self.candidates["logit"] == 0, bitorder="little")
        return np.pad(allowed, (0, -len(allowed) % 4)).view("<u4").astype(np.uint32)

    def accept(self, token: int) -> None:
        """Goes on behind a token."""
        self.chain.accept(token)

    def close(self) -> None:
        """Frees it."""
        self.chain.close()
