"""What an engine's author writes: an adapter. It turns the requests of the laws into calls of a sampler."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: The features that an adapter may name in `features`, and the promise of each.
FEATURES = {
    "batch": "several requests in one call of the sampler",
    "seed": "a request's draws are those of its seed",
    "resume": "a seeded request that is admitted again, with its output, goes on as if it had not been interrupted",
    "top_k": "keeps the k most probable tokens",
    "top_p": "keeps the fewest most probable tokens whose probabilities sum to p or more",
    "min_p": "keeps the tokens that are at least min_p times as probable as the most probable one",
    "repetition_penalty": "divides positive and multiplies negative logits of the tokens of the output",
    "repetition_of_prompt": "the repetition penalty counts the prompt too",
    "frequency_penalty": "is subtracted for each occurrence in the output",
    "presence_penalty": "is subtracted once for a token that occurs in the output",
    "prompt": "frequency and presence penalty leave the prompt alone",
    "logit_bias": "is added to logits",
    "mask": "allows some ids and forbids all others",
    "logprobs": "reports the logprob of the token",
    "top_logprobs": "reports the most probable tokens with their logprobs",
    "verify": "judges drafts so that the emitted tokens have the target's law",
    "drafts_without_probs": "does so for drafts without probabilities, such as n-gram look-up's",
    "coupled": "judges drafts so that a seeded request emits the tokens that it emits without drafts",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of one request. The default draws from the row as it is."""

    temperature: float = 1.0
    """Divides logits; 0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """In 0..2^64, or of as many bits as the engine's seeds have; None: the engine's own choice."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed: tuple[int, ...] | None = None
    """The ids of a grammar's mask; None: all."""
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    """Tokens that were emitted before the first row of the call."""
    logprobs: int | None = None
    """How many of the most probable tokens are reported besides the token; None: no logprobs."""

    def __post_init__(self) -> None:
        # A field that is given as an array compares and hashes as a tuple does.
        for name in ("prompt", "output", "allowed"):
            ids = getattr(self, name)
            object.__setattr__(self, name, None if ids is None else tuple(map(int, ids)))

    def __repr__(self) -> str:
        default = Request()
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        said = (f"{name}={value!r}" for name, value in fields if value != getattr(default, name))
        return f"Request({', '.join(said)})"


class Drawn(NamedTuple):
    """A token with its reported logprobs."""

    token: int
    """-1 where the engine says that no token may be drawn."""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens with their logprobs, in the engine's order."""


class Engine:
    """A sampler, with the one call that the laws make. Adapters inherit from it."""

    name = "an engine"
    version = ""
    remark = ""
    """What of the engine runs, for readers of the table."""
    features: frozenset[str] = frozenset()
    """Names of `FEATURES`. A law that needs another one is not applied."""
    logprobs = "raw"
    """What reported logprobs speak of: "raw", the row as it came, "tempered", the row after edits at its temperature, or "processed", the
    law that the token is drawn from."""
    joint = False
    """Whether top-p counts the mass of the whole row beside top-k, instead of the mass that top-k leaves."""
    temperature_last = False
    """Whether filters see the row at temperature 1."""
    most_temperature = 1e30
    """The highest temperature that it takes."""
    seed_bits = 64
    """How many bits a seed has."""
    most_rows = 500
    """How many rows the laws hand over in one call, where they want many draws."""

    def start(self, seed: int) -> None:
        """Seeds what the engine draws requests without seeds from, so that a run can be repeated. Optional."""

    def sample(self, logits: Floats, requests: Sequence[Request]) -> Iterable[Sequence[int | Drawn]]:
        """Decodes: emits a token for each request from each of its rows, one after the other.

        logits: [steps, requests, vocab]. Returns a list for each step, with a token for each request. The emitted tokens are the
        requests' output from then on. An engine that refuses a row raises an exception or returns -1 for it.
        """
        raise NotImplementedError

    def program(self, row: str, request: Request, draws: int) -> str | None:
        """A program of the engine's own package alone, of at most ten lines: it prints the token that a request draws from a row, or how often
        each one comes in `draws`. None where the request asks for more than the program knows. Optional.

        row: numbers as Python writes a list, with inf and nan.
        """
        return None

    def asks_only(self, request: Request, *names: str) -> bool:
        """Whether a request has the defaults everywhere except in the fields that are named."""
        default = Request()
        return all(vars(request)[name] == value or name in names for name, value in vars(default).items())

    def verify(
        self, target: Floats, drafts: Sequence[Sequence[int]], probs: Floats | None, requests: Sequence[Request]
    ) -> Sequence[Sequence[int]]:
        """Judges n drafts of each request, and returns the tokens that are emitted: the accepted drafts and one more.

        target: [requests, n + 1, vocab], logits of the target model behind the history and behind each draft. probs: [requests,
        n, vocab], the probabilities that the drafts were drawn from, or None.
        """
        raise NotImplementedError


#: The adapters of this package by name.
ENGINES = {
    "gumball": "sampling_laws.adapters.gumball_pool:Gumball",
    "transformers": "sampling_laws.adapters.transformers_generate:Transformers",
    "llama.cpp": "sampling_laws.adapters.llama_cpp_chain:LlamaCpp",
    "vllm": "sampling_laws.adapters.vllm_v1:Vllm",
    "sglang": "sampling_laws.adapters.sglang_pytorch:SGLang",
}


def engine(name: str) -> Engine:
    """Makes the engine of a name in `ENGINES`, or of "module:class", an adapter elsewhere."""
    module, _, kind = ENGINES.get(name, name).partition(":")
    made: Any = getattr(importlib.import_module(module), kind)()
    unknown = made.features - FEATURES.keys()
    if not isinstance(made, Engine) or unknown:
        raise TypeError(
            f"{name} is no Engine" if not unknown else f"features has {sorted(unknown)}, known are {sorted(FEATURES)}"
        )
    return made
