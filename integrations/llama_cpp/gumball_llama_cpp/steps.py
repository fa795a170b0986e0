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
    """The tokens of one call. llama: whose logits and tokens they are. processors, grammar: the call's, or None."""

    def __init__(self, llama: Any, params: SamplingParams, processors: Any, grammar: Any) -> None:
        self.llama, self.params, self.processors = llama, params, processors
        self.vocab = llama._n_vocab
        params.validate(self.vocab)
        self.sampler: Sampler | None = None
        # How many tokens the sampler's history has, and how many of them are its prompt; the history is the beginning of `seen`.
        self.known = self.first = 0
        self.seen = np.zeros(len(llama.input_ids) + 1, llama.input_ids.dtype)
        # Where in the history tokens were drawn that the grammar has accepted.
        self.accepted: list[int] = []
        self._row = ctypes.c_float * self.vocab
        self.grammar = None if grammar is None else Grammar(llama._model, grammar, self.vocab)

    def sample(self, ctx: Any, idx: int = -1) -> int:
        """Draws the token after an output of the last evaluation. idx: its number from the end, below 0.

        Raises RuntimeError if no token has a logit above -inf.
        """
        length = self.llama.n_tokens + idx + 1
        sampler = self._sampler(length)
        address = llama_cpp.llama_get_logits_ith(ctx.ctx, idx)
        row = np.frombuffer(self._row.from_address(ctypes.addressof(address.contents)), np.float32)
        if self.processors is not None:
            row = row.copy()
            for processor in self.processors:
                row[:] = processor(self.llama.input_ids[:length], row)
        mask = None if self.grammar is None else self.grammar.mask()
        token = sampler.sample(row, mask=mask)
        if token is None:
            raise RuntimeError(f"no token is above -inf behind {length} tokens: a processor or the grammar left none")
        self.seen[self.known] = token
        if self.grammar is not None:
            self.grammar.accept(token)
            self.accepted.append(self.known)
        self.known += 1
        return token

    def _sampler(self, length: int) -> Sampler:
        """The sampler, whose history is made the first tokens of the context.

        It begins again, with these as its prompt, where they do not begin with the prompt that it has. Behind that prompt it goes back to the
        first token that is another, and takes the rest as pushed tokens.
        """
        ids = self.llama.input_ids[:length]
        both = min(self.known, length)
        others = np.flatnonzero(self.seen[:both] != ids[:both])
        same = int(others[0]) if len(others) else both
        if self.sampler is None or same < self.first:
            self.sampler = Sampler(self.params, self.vocab, prompt=ids.tolist())
            self._take_back(0)
            self.seen[:length] = ids
            same = self.first = length
        elif same < self.known:
            self.sampler.shorten(self.known - same)
            self._take_back(same)
        for token in ids[same:].tolist():
            self.sampler.push(token)
        self.seen[same:length] = ids[same:]
        self.known = length
        return self.sampler

    def _take_back(self, length: int) -> None:
        """Makes the grammar stand where it stood after the first tokens of the history."""
        kept = [place for place in self.accepted if place < length]
        if self.grammar is None or len(kept) == len(self.accepted):
            return
        self.grammar.reset()
        for place in kept:
            self.grammar.accept(int(self.seen[place]))
        self.accepted = kept

    def accept(self, token: int) -> None:
        """Does nothing: `sample` appends what it draws."""

    def reset(self) -> None:
        """Begins again with the next sample."""
        self.sampler = None
        self._take_back(0)

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
        """Goes on after a token."""
        self.chain.accept(token)

    def reset(self) -> None:
        """Goes back to its beginning."""
        self.chain.reset()

    def close(self) -> None:
        """Frees it."""
        self.chain.close()
