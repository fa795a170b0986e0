"""llama-cpp-python's `Llama` with another sampler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator
from typing import Any

import llama_cpp

from gumball_compat.llama_cpp import params_of, with_section

from .steps import Steps

__all__ = ["Llama"]

if not hasattr(llama_cpp.Llama, "_init_sampler"):
    raise ImportError(
        f"llama-cpp-python {llama_cpp.__version__} makes its sampler elsewhere than in Llama._init_sampler; install 0.3.36"
    )

# What `_init_sampler` has if a caller leaves it out.
_DEFAULTS = {
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "temp": 0.80,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "mirostat_mode": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
}


class Llama(llama_cpp.Llama):
    """llama-cpp-python's `Llama`, whose tokens Gumball draws from the logits where llama.cpp has them.

    Its arguments, calls and answers are the same. A seed has 64 bits; -1 and 0xFFFFFFFF ask for another one each time, as in llama.cpp.
    """

    _ours: dict[str, Any] = {}

    @contextlib.contextmanager
    def gumball(self, **ours: Any) -> Iterator[Llama]:
        """While it lasts, calls have these parameters besides, under the names of `gumball_compat.llama_cpp.OUR_NAMES`.

        `reasoning_budget`, `reasoning_budget_message`, `reasoning_budget_start_tag` ("<think>") and `reasoning_budget_end_tag` ("</think>") are llama.cpp's
        names of a section.

        What counts is where a call is made: a stream, or the tokens of `generate`, may be read afterwards.

        Raises RefusedError, a ValueError, for a name that is none of them, and for a value outside its range.
        """
        ours = with_section(ours, lambda text: self.tokenize(text.encode(), add_bos=False, special=True))
        params_of(_DEFAULTS, seed=0, ours=ours)
        before, self._ours = self._ours, self._ours | ours
        try:
            yield self
        finally:
            self._ours = before

    @functools.wraps(llama_cpp.Llama.generate)
    def generate(self, *arguments: Any, **named: Any) -> Generator[int, Any, None]:
        return self._with_ours_of_now(super().generate(*arguments, **named))

    @functools.wraps(llama_cpp.Llama.create_completion)
    def create_completion(self, *arguments: Any, **named: Any) -> Any:
        made = super().create_completion(*arguments, **named)
        return self._with_ours_of_now(made) if isinstance(made, Iterator) else made

    @functools.wraps(llama_cpp.Llama.create_chat_completion)
    def create_chat_completion(self, *arguments: Any, **named: Any) -> Any:
        made = super().create_chat_completion(*arguments, **named)
        return self._with_ours_of_now(made) if isinstance(made, Iterator) else made

    def _with_ours_of_now(self, items: Any) -> Generator[Any, Any, None]:
        """Items of an iterator that runs with the parameters that hold now, not with those that hold when the items are read."""
        ours = self._ours

        def steps() -> Generator[Any, Any, None]:
            sent = None
            try:
                while True:
                    before, self._ours = self._ours, ours
                    try:
                        item = next(items) if sent is None else items.send(sent)
                    except StopIteration:
                        return
                    finally:
                        self._ours = before
                    sent = yield item
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()

        return steps()

    def _init_sampler(self, *, logits_processor: Any = None, grammar: Any = None, **theirs: Any) -> Steps:
        theirs["last_n_tokens_size"] = self.last_n_tokens_size
        params = params_of(_DEFAULTS | theirs, seed=self._seed, ours=self._ours)
        return Steps(self, params, logits_processor, grammar)
