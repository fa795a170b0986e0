"""What is plain data: parameters of a request, its state, logprobs, status bits, and what ranks are made with.

All of it compares by value, prints as it is made, and can be pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import json
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from . import _gumball
from .errors import InvalidTypeError, InvalidValueError

__all__ = [
    "FILTERS",
    "Dry",
    "DynamicTemperature",
    "Logprobs",
    "LogprobsParams",
    "Loops",
    "Watermark",
    "Mirostat",
    "Ranks",
    "SamplingParams",
    "Section",
    "State",
    "Status",
    "Threshold",
    "TokenLogprob",
]


_T = TypeVar("_T")
_KINDS: dict[str, type] = {}


def _parameters(kind: type[_T]) -> type[_T]:
    """Lets a dataclass refuse a name that is not known with the one that was meant, take None as absent, a dict as the part that it describes,
    and a number as the `top_n` of `logprobs`, and keep values: a copy of each list, an array as a list, and an array's number as a number.
    """
    _KINDS[kind.__name__] = kind
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    sequences = [name for name, field in fields.items() if "Sequence" in field.type]
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Any, *values: Any, **named: Any) -> None:
        for name in named.keys() - fields.keys():
            hint = _gumball.name_advice(name, list(fields)) or f"parameters are {', '.join(fields)}"
            raise InvalidTypeError(f"{kind.__name__} has no parameter {_gumball.shown_text(name)}; {hint}")
        made(self, *values, **named)
        given = vars(self)
        for name, value in given.items():
            if value is None:
                default = fields[name].default
                given[name] = None if default is dataclasses.MISSING else default
            elif isinstance(value, dict) and (part := _KINDS.get(fields[name].type.split(" ")[0])):
                given[name] = part(**value)
            elif name == "logit_bias" and isinstance(value, dict):
                # A key of JSON is a text.
                ids = {
                    int(id) if isinstance(id, str) and id.isascii() and id.isdigit() else id: bias
                    for id, bias in value.items()
                }
                given[name] = ids if len(ids) == len(value) else value
            elif name == "logprobs" and isinstance(value, numbers.Integral) and not isinstance(value, bool):
                given[name] = LogprobsParams(top_n=int(value))
            elif hasattr(value, "__next__"):
                given[name] = _bounded(name, value)
            elif getattr(value, "ndim", None) == 0:
                given[name] = _number(value)
        if hasattr(self, "validate"):
            _gumball.check_params(self)
        elif kind.__name__ == "Watermark":
            _gumball.check_key_number(given["key"])
        for name in sequences:
            value = _listed(given[name])
            # Nothing is one value, however it is written.
            given[name] = () if fields[name].default == () and isinstance(value, list) and not value else value
        if hasattr(self, "_complete"):
            self._complete()

    type.__setattr__(kind, "__init__", init)
    return kind


def _bounded(name: str, values: Iterator[Any]) -> list[Any]:
    """What an iterator holds, which can be read once."""
    most = 1 << 24
    read = list(itertools.islice(values, most + 1))
    if len(read) > most:
        raise InvalidValueError(f"{name}'s length is more than {most}, but must be at most {most}")
    return read


def _number(value: Any) -> Any:
    """What an array without dimensions holds; the array, if that cannot be read, for the error that names it."""
    try:
        return value.item()
    except Exception:
        return value


def _listed(value: Any) -> Any:
    """A copy of lists, tuples and dicts, also inside one, in which arrays are lists; other values stay, and so do arrays longer than any list may be."""
    if isinstance(value, list | tuple):
        nested = any(hasattr(one, "tolist") or isinstance(one, list | tuple) for one in value)
        copy: Any = list if isinstance(value, list) else tuple
        return copy(_listed(one) for one in value) if nested else copy(value)
    if isinstance(value, dict):
        return {id: _listed(bias) for id, bias in value.items()}
    if getattr(value, "ndim", None) == 0:
        return _number(value)
    try:
        return value.tolist() if hasattr(value, "tolist") and len(value) <= 1 << 28 else value
    except TypeError:
        return value


# The filters in their default order. `GUMBALL_BLESS=1 cargo test -p gumball-conformance --test generated` writes this list, and the fields of
# the parameters with their lines in docstrings, from the table of parameters in crates/spec/src/params/table.rs.
FILTERS = (
    "top_n_sigma",
    "top_h",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "top_a",
    "p_less",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc",
)


class Status(enum.IntFlag):
    """What a row's data had to say."""

    NAN = 1
    """A logit that bans and bitmask allow was NaN; it counted as -inf."""
    INF = 2
    """A logit that bans and bitmask allow was +inf; it counted as the largest float32."""
    EMPTY = 4
    """No token was above -inf; the token is -1, or None."""
    NO_TREE = 8
    """The parents of the request's drafts, which only a device has read, are no tree; no draft was accepted."""
    NO_ID = 16
    """The row's token, which only a device has read, is no id of the vocabulary."""
    SECTION = 32
    """The token was forced by the end of its request's section."""
    FORBIDDEN = 64
    """Bans or bitmask forbid the token that the end of a section or of a loop forced."""
    LOOP = 128
    """A loop was found at the row, or the token was forced because of one."""
    FORCED = 256
    """The caller forced the token."""
    MARKED = 512
    """The row draws by the words of its request's watermark."""


@_parameters
@dataclasses.dataclass(frozen=True)
class DynamicTemperature:
    """Temperature by the row's entropy: certain rows get `min`, flat ones `max`.

    min: The temperature of a row of entropy 0; in 0..=2^100.
    max: The temperature of a flat row; in `min`..=2^100.
    exponent: The power the normalised entropy is raised to; in (0, 2^16], 1 if left out.
    """

    min: float
    max: float
    exponent: float = 1.0


@_parameters
@dataclasses.dataclass(frozen=True)
class Mirostat:
    """Mirostat v2: keeps the surprise of the drawn tokens near `tau`.

    tau: The surprise aimed at, in bits; in (0, 2^16].
    eta: How fast the limit follows; in 0..=2^16.
    mu: The limit to start from, in bits; twice `tau` if absent.
    """

    tau: float
    eta: float = 0.1
    mu: float | None = None


@_parameters
@dataclasses.dataclass(frozen=True)
class Dry:
    """The DRY repetition penalty: the longer the repeat a token would continue, the larger.

    multiplier: The penalty of a repeat of `allowed_length`; in 0..=2^16, 0 is off.
    base: By how much each further token multiplies it; in 1..=2^16.
    allowed_length: The shortest repeat that is penalised; at least 1.
    breakers: Ids that no repeat reaches across.
    window: How many of the last tokens of the history DRY looks at: a repeat lies whole among them; in 0..2^32, 0 is all.
    """

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    breakers: Sequence[int] = ()
    window: int = 0


@_parameters
@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the text, between ids that open it and ids that close it, such as a model's reasoning.

    open: The ids that open a section, at most 256; without any there is one section alone, which begins where the output does.
    close: The ids that close a section, 1 to 256 of them.
    end: The ids that are forced when the budget is used up, at most 256, in the vocabulary; those of `close` if there are none.
    budget: How many tokens a section may have before its end is forced; in 0..2^32. Left out it is 2^32 - 1, which no section reaches.
    min: How many tokens a section must have before the last id of `close` may complete it; in 0..=section.budget.
    """

    open: Sequence[int] = ()
    close: Sequence[int] = ()
    end: Sequence[int] = ()
    budget: int = 4294967295
    min: int = 0


@_parameters
@dataclasses.dataclass(frozen=True, kw_only=True)
class Loops:
    """When an output is a loop, that is repeats itself, and what ends it.

    min_period: The least period of a loop, in tokens; in 1..=128.
    max_period: The largest period of a loop, in tokens; in `min_period`..=128.
    min_copies: How many copies of its period a loop has at least; in 2..=2^16.
    min_tokens: How many tokens a loop has at least; in 0..2^32. A table or a listing repeats itself as exactly, but seldom for so long.
    every: Loops are looked for where this divides the number of output tokens; in 1..2^32.
    close: Whether a loop in a section ends it, as a used up budget does; outside sections nothing is looked for then.
    end: The ids that are forced where a loop is found, at most 256, in the vocabulary; none beside `close`. Without both the row's status tells of the loop, and nothing is forced.
    """

    min_period: int = 1
    max_period: int = 128
    min_copies: int = 4
    min_tokens: int = 256
    every: int = 16
    close: bool = False
    end: Sequence[int] = ()


@_parameters
@dataclasses.dataclass(frozen=True, kw_only=True)
class Watermark:
    """A watermark: the number of its key, and of which ids a context is made. The key itself is added to the process by `add_watermark_keys`.

    key: The number of a key that was added to the process.
    context: How many ids a context has; in 1..=64.
    scope: The ids of which contexts are made: of the output, or of prompt and output (both). One of "output", "both".
    window: How many rows back a context must not have come; in 0..2^32, 0 is all.
    """

    key: int = 0
    context: int = 4
    scope: str = "output"
    window: int = 8192


@_parameters
@dataclasses.dataclass(frozen=True)
class LogprobsParams:
    """Which logprobs to report with a token.

    mode: The distribution that the logprobs speak of. It is the row as it came at temperature 1 (raw), after penalties and bans (edited), at the temperature (tempered), or after the filters (processed). Of two different modes, ranks and lists follow the first; of the second only the token's logprob is reported. As the second, radius is how far all logits may move before another token is drawn. One of "raw", "edited", "tempered", "processed", "radius", or a list of two.
    top_n: How many of the most likely tokens to list; at most 2^20.
    ids: Ids to report besides; each in the vocabulary.
    """

    mode: str | Sequence[str] = "raw"
    top_n: int = 0
    ids: Sequence[int] = ()


@_parameters
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """A request's parameters: they decide how its tokens are chosen. The default draws from the row as it is.
    Numbers are rounded to float32, and then their range is checked: a min_p of 1.00000001 counts as 1. None is the default. Raises ValueError for
    a value outside its range, TypeError for one of another type, as a bool is for a number, and for a name that is not known. What depends on the vocabulary is checked where the request is admitted, or by `validate`.

    temperature: Divides the logits; 0 is greedy, as is anything below 2^-100; at most 2^100.
    dynamic_temperature: Replaces a `temperature` above 0 by one that follows a row's entropy: certain rows get `min`, flat ones `max`.
    top_k: How many tokens to keep; at least -1, off if 0, -1 or at least the vocabulary.
    top_p: The mass to keep; in 0..=1, 1 is off.
    typical_p: The mass to keep around the entropy; in 0..=1, 1 is off.
    min_p: The least probability, relative to the best token's, that is kept; in 0..=1, 0 is off.
    top_n_sigma: How many standard deviations below the best logit are kept; finite and at least 0, 0 is off. Every logit above -inf counts in the deviation, one at the least finite number or with a bias of -100, too: ban by -inf.
    top_h: The largest share of the entropy of the first 100 tokens that is kept, likeliest first; in 0..=1, 0 is off. 1 keeps up to 100 tokens.
    top_a: The least probability that is kept, as a multiple of the square of the best token's; in 0..=1, 0 is off.
    p_less: Whether tokens less likely than two draws are to be equal are dropped: p-less sampling, which speaks of logits.
    epsilon_cutoff: The least probability that is kept; in 0..=1, 0 is off.
    eta_cutoff: The entropy-dependent form of it; in 0..=1, 0 is off.
    xtc_probability: How often XTC acts; in 0..=1, 0 is off.
    xtc_threshold: The probability from which a token counts as a top choice; in (0, 1].
    xtc_exempt_ids: Ids that XTC never drops: it does nothing in a row in which it would drop one of them; in the vocabulary. Usually the ends of a text and the newline.
    min_keep: How many tokens a filter keeps at least: the first token that it keeps, and the next ones of its given set; in 1..2^32.
    mirostat: Mirostat v2, which stands alone: no filter beside it, and no drafts. `mu` is the limit to start from, in bits; twice `tau` if left out.
    adaptive_target: The probability that adaptive-p keeps the drawn tokens near, on average; in -1..=1, below 0 is off. It acts after all filters, and stands beside neither mirostat, drafts nor logprobs of the mode `processed`.
    adaptive_decay: How much of adaptive-p's mean is kept at each token: it goes back over about 1 / (1 - decay) tokens; in 0..=0.99.
    repetition_penalty: Divides positive and multiplies negative logits of seen tokens; in (0, 2^16], 1 is off.
    repetition_scope: The part of the history whose tokens the repetition penalty counts as seen. One of "prompt", "output", "both".
    frequency_penalty: Subtracted once per occurrence; in -2^16..=2^16, 0 is off.
    presence_penalty: Subtracted once if there is any occurrence; in -2^16..=2^16, 0 is off.
    penalty_scope: The part of the history in which frequency and presence penalty count tokens. One of "prompt", "output", "both".
    penalty_window: How many of the history's last tokens repetition, frequency and presence penalty look at; in 0..2^32, 0 is all tokens. Of these tokens they count the ones in their scope.
    dry: The DRY repetition penalty.
    no_repeat_ngram: Bans every token that would complete an n-gram of this size a second time; 0 is off.
    no_repeat_ngram_scope: The part of the history whose n-grams `no_repeat_ngram` does not repeat. One of "prompt", "output", "both".
    no_repeat_ngram_window: How many of the history's last tokens `no_repeat_ngram` looks at; in 0..2^32, 0 is all tokens. An n-gram counts if it lies whole among these tokens.
    no_repeat_ngram_exempt_ids: Ids that `no_repeat_ngram` never bans; in the vocabulary.
    logit_bias: Added to the logits of ids, each named once and in the vocabulary; finite, or -inf for a ban.
    bias_first: Whether `logit_bias` is added before the penalties, which then act on the sum.
    allowed_ids: If present, all other ids are banned, so that an empty list bans everything; ids in the vocabulary.
    banned_ids: Ids that are never drawn; in the vocabulary.
    bad_words: Sequences that are never completed, each of at least one id.
    min_tokens: How many output tokens must exist before one of `stop_ids` may be drawn; without `stop_ids` it does nothing.
    stop_ids: The ids that end the output; ending it is the caller's part.
    section: A part of the text, such as a model's reasoning, that has a budget of tokens.
    loops: What ends an output that repeats itself without end.
    watermark: Marks the text for the owner of a secret key; absent: by the pool's default, if any; false: not. The race then draws by that key and the last ids, in the place of the seed.
    seed: The seed of all draws; absent: fresh entropy for each request, readable afterwards.
    logprobs: Which logprobs to report; absent: none. In JSON, Python and JavaScript a number n stands for an object whose `top_n` is n.
    order: In which order the filters act. One of "default", "joint", "none", or a list of distinct filters: top_n_sigma, top_h, top_k, typical_p, top_p, min_p, top_a, p_less, epsilon_cutoff, eta_cutoff, xtc.
    temperature_last: Whether the filters see the row at temperature 1, and only the draw is tempered.
    """

    temperature: float = 1.0
    dynamic_temperature: DynamicTemperature | None = None
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    top_h: float = 0.0
    top_a: float = 0.0
    p_less: bool = False
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_exempt_ids: Sequence[int] = ()
    min_keep: int = 1
    mirostat: Mirostat | None = None
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    repetition_penalty: float = 1.0
    repetition_scope: str = "both"
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_scope: str = "output"
    penalty_window: int = 0
    dry: Dry = Dry()
    no_repeat_ngram: int = 0
    no_repeat_ngram_scope: str = "both"
    no_repeat_ngram_window: int = 0
    no_repeat_ngram_exempt_ids: Sequence[int] = ()
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    bias_first: bool = False
    allowed_ids: Sequence[int] | None = None
    banned_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    section: Section | None = None
    loops: Loops | None = None
    watermark: Watermark | Literal[False] | None = None
    seed: int | None = None
    logprobs: LogprobsParams | None = None
    order: str | Sequence[str] = "default"
    temperature_last: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            temperature: float | None = 1.0,
            dynamic_temperature: Mapping[str, Any] | DynamicTemperature | None = None,
            top_k: int | None = 0,
            top_p: float | None = 1.0,
            typical_p: float | None = 1.0,
            min_p: float | None = 0.0,
            top_n_sigma: float | None = 0.0,
            top_h: float | None = 0.0,
            top_a: float | None = 0.0,
            p_less: bool | None = False,
            epsilon_cutoff: float | None = 0.0,
            eta_cutoff: float | None = 0.0,
            xtc_probability: float | None = 0.0,
            xtc_threshold: float | None = 0.1,
            xtc_exempt_ids: Sequence[int] | None = (),
            min_keep: int | None = 1,
            mirostat: Mapping[str, Any] | Mirostat | None = None,
            adaptive_target: float | None = -1.0,
            adaptive_decay: float | None = 0.9,
            repetition_penalty: float | None = 1.0,
            repetition_scope: str | None = "both",
            frequency_penalty: float | None = 0.0,
            presence_penalty: float | None = 0.0,
            penalty_scope: str | None = "output",
            penalty_window: int | None = 0,
            dry: Mapping[str, Any] | Dry | None = Dry(),
            no_repeat_ngram: int | None = 0,
            no_repeat_ngram_scope: str | None = "both",
            no_repeat_ngram_window: int | None = 0,
            no_repeat_ngram_exempt_ids: Sequence[int] | None = (),
            logit_bias: Mapping[str, float] | Mapping[int, float] | Sequence[tuple[int, float]] | None = (),
            bias_first: bool | None = False,
            allowed_ids: Sequence[int] | None = None,
            banned_ids: Sequence[int] | None = (),
            bad_words: Sequence[Sequence[int]] | None = (),
            min_tokens: int | None = 0,
            stop_ids: Sequence[int] | None = (),
            section: Mapping[str, Any] | Section | None = None,
            loops: Mapping[str, Any] | Loops | None = None,
            watermark: Mapping[str, Any] | Watermark | Literal[False] | None = None,
            seed: int | None = None,
            logprobs: Mapping[str, Any] | int | LogprobsParams | None = None,
            order: str | Sequence[str] | None = "default",
            temperature_last: bool | None = False,
        ) -> None: ...

    def validate(self, vocab: int) -> None:
        """Checks every parameter for a vocabulary of `vocab` ids. Raises ValueError for the first outside its range."""
        _gumball.check_params(self, vocab)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some parameters changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_json(cls, text: str) -> SamplingParams:
        """Reads parameters from JSON: the text that the command, C and Rust read and write. Biases come as a dict. Raises ValueError for another text."""
        read = json.loads(_gumball.json_of_json(text))
        read["logit_bias"] = {id: float(bias) for id, bias in read.get("logit_bias", ())} or None
        return cls(**read)

    def to_json(self) -> str:
        """All parameters as JSON, which the command, C, Rust and :meth:`from_json` read."""
        return _gumball.json_of_params(self)

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        set_here = ((field.name, getattr(self, field.name), field.default) for field in fields)
        return (
            f"SamplingParams({', '.join(f'{name}={value!r}' for name, value, default in set_here if value != default)})"
        )


@_parameters
@dataclasses.dataclass(frozen=True)
class State:
    """A sequence in mid-life: what its next token depends on besides the row and the parameters.

    Taken from a sequence and given to `resume`, in this process or on another machine, it goes on with the tokens that would
    have come anyway. position: the number of tokens before the next one, modulo 2^32; left out it is the number of ids; more than
    these where the caller keeps the end of a long history only. draw: the draw index. mu: mirostat's limit, in bits, or the mean of adaptive-p.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    seed: int = 0
    position: int | None = None
    draw: int = 0
    mu: float = 0.0

    def _complete(self) -> None:
        if self.position is None:
            # Ids that are no list get their error where the state is read.
            with contextlib.suppress(TypeError, OverflowError):
                object.__setattr__(self, "position", (len(self.prompt) + len(self.output)) % (1 << 32))


class Threshold(NamedTuple):
    """How drafts are judged that are accepted more often than the distribution warrants: drafts of at least the probability `single`, and others by a
    coin times `acc`; both in 0..=1.
    """

    single: float = 1.0
    acc: float = 1.0


@_parameters
@dataclasses.dataclass(frozen=True)
class Ranks:
    """What a pool over several processes is made with: :class:`gumball.Pool`, whose ``ranks`` it is; :func:`gumball.dist.join` finds addresses out.

    rank: this process' number. addresses: where each rank listens, by rank: "unix:PATH", on one host; or in place of both group: a process group of torch,
    whose ranks are those of the pool, on any hosts. split: how many ids each rank has, one
    number for each; None: evenly. layouts: which of "gather", "swap", "survey" and "replicated" steps may take; "gather" may besides, unless
    it is "replicated" alone. None: the first three.
    ownership: who samples which requests: "blocks", or "modulo" for request % world. layout: forces one for all steps but prefill.
    logit_bytes: those of a logit, 4 or 2, by which layouts are chosen; devices load the kernels of its types at the start. transport: how rows travel: "auto"; "unix", by
    addresses; "torch", by a group; on devices "onesided", or "nccl" where these do not reach each other's memory. layout and transport are otherwise what GUMBALL_DIST_LAYOUT and GUMBALL_DIST_TRANSPORT
    say. communicator: the address of the program's own ncclComm_t with the same ranks on the same devices, as a process group of torch's has one; the pool makes
    its own from it, and rows travel by "nccl": docs/scaling.md says what holds of it until then. timeout: how many seconds the other ranks are waited for: until all are connected, until all have compared what they are made with, and in each
    step.
    """

    rank: int | None = None
    addresses: Sequence[str] | None = None
    group: Any = None
    split: Sequence[int] | None = None
    layouts: Sequence[str] | None = None
    ownership: str = "blocks"
    layout: str | None = None
    logit_bytes: int = 4
    transport: str | None = None
    communicator: int | None = None
    timeout: float = 30.0


class TokenLogprob(NamedTuple):
    """A token with its natural logprob and its rank from 1; -inf and 0 for one that is no member of the mode."""

    id: int
    logprob: float
    rank: int


class Logprobs(NamedTuple):
    """The logprobs of a row: of its token, of the most likely ones, of the ids that the parameters name, and of the token in the second mode (-inf without one)."""

    token: TokenLogprob
    top: list[TokenLogprob]
    ids: list[TokenLogprob]
    second: float
