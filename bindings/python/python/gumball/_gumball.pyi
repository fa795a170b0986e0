"""The compiled half of gumball; docstrings are in the classes themselves."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from .operators import JudgedDrafts
from .params import Logprobs, Ranks, SamplingParams, State, Threshold, Watermark

# Anybody's array: numpy's, torch's, CuPy's, or one with __dlpack__.
_Array: TypeAlias = Any
# A list of integers, or an integer array of one dimension in the host's memory.
_Integers: TypeAlias = Sequence[int] | _Array
# A number for all rows, or one for each.
_Number: TypeAlias = float | Sequence[float] | _Array
_Integer: TypeAlias = int | _Integers

class _Filters(TypedDict, total=False):
    temperature: _Number | None
    top_k: _Integer | None
    top_p: _Number | None
    min_p: _Number | None
    order: str | Sequence[str] | None
    params: SamplingParams | None

# Edits a row of logits in its place.
_Hook: TypeAlias = Callable[[NDArray[np.float32]], None]
# A list of integers for each request, or the integers of all of them; an array of one dimension or two.
_IntegerLists: TypeAlias = Sequence[_Integers] | _Integers
# Logits, or what stands in their place.
_Rows: TypeAlias = Probabilities | Hidden | _Array
# A CUDA stream's handle, or an object that holds one (torch's, CuPy's).
_Stream: TypeAlias = int | Any | None
_Drawn: TypeAlias = NDArray[np.int32] | tuple[NDArray[np.int32], NDArray[np.float32]]
_Batch: TypeAlias = Batch | _Integers
_Work: TypeAlias = Step | Verify | Draft | CopyDrafts | Shorten

__all__ = [
    "Batch", "CopyDrafts", "DeviceArray", "DeviceHead", "Draft", "DraftBatch", "Drafts", "EMULATOR", "Emitted",
    "Graph", "Head", "Hidden", "OnDevice", "Outputs", "Plan", "Pool", "Probabilities", "RanksInfo", "Receipt", "Recorded",
    "Sampler", "Scored", "Shorten", "Step", "Verify", "__version__", "add_watermark_keys", "break_off", "check_key_number", "check_params", "command",
    "detect_mark", "marked_parts",
    "json_of_json", "json_of_params",
    "edit_columns", "emulate", "forked", "judge", "logprobs_gradient", "logprobs_of", "mask_logits", "name_advice", "nearest_name", "pack_kept", "packed_sets", "probabilities", "prompt_seed", "radii", "row_count", "sample", "shown_text",
    "sample_from_pools", "sample_seed", "selected_logprobs", "set_patience", "softmax", "verify_receipt",
]  # fmt: skip

__version__: Final[str]
EMULATOR: Final[bool]

def command(
    name: str,
    arguments: Sequence[str],
    version: str,
    package: str,
    archs: Sequence[str],
    packages: Sequence[tuple[str, str | None, str]],
) -> int: ...
def check_params(params: Any, vocab: int | None = None) -> None: ...
def json_of_json(text: str) -> str: ...
def json_of_params(params: Any) -> str: ...
def check_key_number(key: object) -> None: ...
def shown_text(value: object, parameter: str = "") -> str: ...
def name_advice(name: str, known: Sequence[str]) -> str | None: ...
def nearest_name(name: str, known: Sequence[str], peers: bool = False) -> str | None: ...
def prompt_seed(run: int, prompt: int, turn: int = 0) -> int: ...
def sample_seed(seed: int, sample: int) -> int: ...
def add_watermark_keys(text: str) -> int: ...
def detect_mark(
    ids: Sequence[int], prompt: Sequence[int], watermark: Any, keys: Sequence[int] | None, scheme: str
) -> tuple[int, tuple[int, int, float, float]]: ...
def marked_parts(
    ids: Sequence[int], prompt: Sequence[int], watermark: Any, length: int, alpha: float, scheme: str
) -> list[tuple[int, int, tuple[int, int, float, float]]]: ...
def verify_receipt(
    receipt: str,
    logits: Iterable[_Array],
    *,
    masks: Iterable[_Array | None] | None = None,
    tolerance: _Number = 0.0,
) -> list[str]: ...
def emulate(on: bool) -> None: ...
def forked() -> None: ...
def break_off(text: str) -> None: ...
def set_patience(seconds: float) -> None: ...
def row_count(rows: _Array, name: str = "rows") -> int: ...
def softmax(
    logits: _Array,
    temperature: _Number = 1.0,
    out: _Array | None = None,
    *,
    return_statuses: bool = False,
    stream: _Stream = None,
) -> Any: ...
def probabilities(
    rows: _Array,
    *,
    kind: str = "logits",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream = None,
    **filters: Unpack[_Filters],
) -> Any: ...
def mask_logits(
    logits: _Array,
    *,
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream = None,
    **filters: Unpack[_Filters],
) -> Any: ...
def sample(
    rows: _Array,
    indices: _Integers | None = None,
    *,
    kind: str = "logits",
    seed: _Integer | None = None,
    position: _Integer | None = None,
    draw: _Integer | None = None,
    offsets: bool = False,
    zero_for_none: bool = False,
    dtype: str = "int32",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream = None,
    **filters: Unpack[_Filters],
) -> Any: ...
def sample_from_pools(
    rows: _Array,
    slots: _Integers,
    *,
    seed: _Integers,
    position: _Integer | None = None,
    draw: _Integer | None = None,
    rows_per_slot: int = 1,
    high_draws: bool = False,
    zero_for_none: bool = False,
    kind: str = "logits",
    dtype: str = "int32",
    out: _Array | None = None,
    return_statuses: bool = False,
    stream: _Stream = None,
    **filters: Unpack[_Filters],
) -> Any: ...
def radii(
    rows: _Array,
    *,
    seed: _Integer,
    position: _Integer | None = None,
    draw: _Integer | None = None,
    out: _Array | None = None,
    stream: _Stream = None,
    **filters: Unpack[_Filters],
) -> Any: ...
def selected_logprobs(
    rows: _Array,
    tokens: _Integer,
    *,
    kind: str = "logits",
    out: _Array | None = None,
    return_ranks: bool = False,
    return_statuses: bool = False,
    stream: _Stream = None,
) -> Any: ...
def logprobs_of(
    logits: _Array,
    ids: _Array,
    temperature: _Number,
    kept: _Array | None,
    ignored: int,
    entropy: bool,
) -> tuple[Any, Any, Any]: ...
def edit_columns(
    params: SamplingParams,
    ids: Sequence[int],
    prompt_len: int,
    start: int,
    columns: Sequence[int],
    values: _Array,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def pack_kept(sets: _Array) -> Any: ...
def packed_sets(sets: _Array, bitmasks: bool) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
def logprobs_gradient(
    logits: _Array,
    ids: _Array,
    temperature: _Number,
    kept: _Array | None,
    ignored: int,
    weighed: _Array,
    of_logprobs: _Array,
    of_entropies: _Array | None,
    out: _Array,
) -> None: ...
def judge(
    draft_probs: _Array | None,
    draft_token_ids: _Array,
    target_probs: _Array,
    parents: _Array | None = None,
    *,
    rule: str = "rejection",
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    seed: _Integer | None = None,
    position: _Integer | None = None,
    draw: _Integer | None = None,
    offsets: bool = False,
    zero_for_none: bool = False,
    added: tuple[_Array, _Array | None] | None = None,
    dtype: str = "int32",
    stream: _Stream = None,
) -> JudgedDrafts: ...

@final
class Outputs:
    tokens: Final[NDArray[np.int32]]
    statuses: Final[NDArray[np.uint32]]
    logprobs: Final[NDArray[np.float32]]
    ranks: Final[NDArray[np.uint32]]
    temperatures: Final[NDArray[np.float32]]
    mirostat_mu: Final[NDArray[np.float32]]
    second_logprobs: Final[NDArray[np.float32]]
    top_ids: Final[NDArray[np.int32]]
    top_logprobs: Final[NDArray[np.float32]]
    id_logprobs: Final[NDArray[np.float32]]
    id_ranks: Final[NDArray[np.uint32]]
    is_approximate: Final[bool]
    def tolist(self) -> list[int]: ...
    def kept(self, row: int) -> NDArray[np.uint32]: ...
    def kept_sets(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
    accepted: Final[NDArray[np.uint32]]
    def request(self, request: int) -> Emitted: ...
    def emitted(self) -> list[list[int]]: ...
    def __len__(self) -> int: ...

@final
class Emitted:
    tokens: Final[NDArray[np.int32]]
    rows: Final[NDArray[np.uint32]]
    accepted: Final[int]
    places: Final[slice]

@final
class Batch:
    def __new__(
        cls,
        slots: _Integers = (),
        *,
        counts: _Integers | None = None,
        mode: str | Threshold = "coupled",
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        plan: Plan | None = None,
    ) -> Batch: ...
    def __len__(self) -> int: ...

@final
class Probabilities:
    def __new__(cls, rows: _Array) -> Probabilities: ...

@final
class Hidden:
    def __new__(cls, head: Head | DeviceHead, states: _Array) -> Hidden: ...

@final
class Drafts:
    def __new__(
        cls,
        ids: _IntegerLists,
        *,
        parents: _IntegerLists | None = None,
        first_child: _IntegerLists | None = None,
        next_sibling: _IntegerLists | None = None,
        probs: _Array | None = None,
    ) -> Drafts: ...

@final
class Scored:
    def __new__(
        cls, ids: _Integers, *, prompt_len: int | None = None, start: int = 1, chunk_rows: int | None = None
    ) -> Scored: ...

@final
class Step:
    def __new__(cls, rows: _Rows, *, masks: _Array | None = None) -> Step: ...

@final
class Verify:
    def __new__(cls, rows: _Rows, drafts: Drafts | _IntegerLists, *, masks: _Array | None = None) -> Verify: ...

@final
class Draft:
    def __new__(
        cls, batch: DraftBatch, rows: _Rows, paths: _Array | None = None, *, masks: _Array | None = None
    ) -> Draft: ...

@final
class CopyDrafts:
    def __new__(cls, batch: DraftBatch, to: _Array, column: int = 0) -> CopyDrafts: ...

@final
class Shorten:
    def __new__(cls, counts: _Integers) -> Shorten: ...

@final
class DraftBatch:
    def assign(self, batch: _Batch, *, stream: _Stream = None) -> None: ...
    def fetch(self, *, stream: _Stream = None) -> _Drawn: ...
    drafts: Final[DeviceArray]
    probs: Final[DeviceArray]
    def remove(self) -> None: ...

@final
class OnDevice:
    def outputs(self, name: str) -> DeviceArray: ...
    def needed_variant(self) -> str: ...
    def record(self, work: Sequence[_Work], *, variant: str = "full", stream: _Stream = None) -> Recorded: ...
    def before_replay(self, recorded: Recorded | Sequence[Recorded], *, stream: _Stream = None) -> None: ...
    def add_draft_batch(self, rows: int, *, siblings: int = 1, probs: bool = False) -> DraftBatch: ...

@final
class Receipt:
    def __new__(
        cls, params: SamplingParams, vocab: int, *, prompt: _Integers = (), seed: int | None = None, draw: int = 0
    ) -> Receipt: ...
    def push(self, outputs: Outputs, row: int = 0, *, mask: _Array | None = None) -> None: ...
    def push_listed(
        self,
        token: int,
        top: Iterable[tuple[int, float]],
        *,
        radius: float | None = None,
        forced: bool = False,
        mask: _Array | None = None,
    ) -> None: ...
    def to_json(self) -> str: ...

@final
class Plan:
    layout: Final[str]
    requests: Final[list[int]]
    batch: Final[int]

@final
class RanksInfo:
    rank: Final[int]
    world: Final[int]
    ids: Final[tuple[int, int]]
    width: Final[int]
    transport: Final[str]
    warning: Final[str | None]
    timeout: Final[float]

@final
class DeviceArray:
    shape: Final[tuple[int, ...]]
    dtype: Final[str]
    device: Final[str]
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> object: ...
    def __len__(self) -> int: ...

@final
class Graph:
    steps: Final[int]

@final
class Recorded: ...

@final
class Sampler:
    def __new__(
        cls,
        params: SamplingParams,
        vocab: int,
        *,
        prompt: _Integers = (),
        draw: int = 0,
        route: str = "race",
        level: str | None = None,
    ) -> Sampler: ...
    @staticmethod
    def resume(
        params: SamplingParams, vocab: int, state: State, *, route: str = "race", level: str | None = None
    ) -> Sampler: ...
    def sample(
        self, logits: _Array, *, mask: _Array | None = None, forced: int | None = None, hook: _Hook | None = None
    ) -> int | None: ...
    def push(self, id: int) -> None: ...
    def shorten(self, count: int) -> None: ...
    def reset(self, prompt: _Integers = ()) -> None: ...
    def fork(self, draw: int) -> Sampler: ...
    def collect_kept(self, on: bool) -> None: ...
    state: Final[State]
    history: Final[list[int]]
    output: Final[list[int]]
    position: Final[int]
    seed: Final[int]
    vocab: Final[int]
    level: Final[str]
    status: Final[int]
    temperature: Final[float]
    mu: Final[float]
    logprobs: Final[Logprobs | None]
    kept: Final[list[int]]

@final
class Pool:
    def __new__(
        cls,
        vocab: int,
        *,
        device: str | Any = "cpu",
        slots: int = 256,
        rows: int = 256,
        top_n: int = 0,
        ids: int = 0,
        kept: bool = False,
        history_growth: int = 4096,
        keep_histories: bool = False,
        threads: int | None = None,
        level: str | None = None,
        route: str = "race",
        stream: _Stream = None,
        ranks: Ranks | None = None,
        watermark: Watermark | None = None,
        enforce_all: bool = False,
    ) -> Pool: ...
    vocab: Final[int]
    device: Final[str]
    ranks: Final[RanksInfo]
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def admit(self, params: SamplingParams, prompt: _Integers = ()) -> int: ...
    def resume(self, params: SamplingParams, state: State) -> int: ...
    def fork(self, slot: int, draw: int) -> int: ...
    def release(self, slot: int) -> None: ...
    def push(self, slot: int, id: int) -> None: ...
    def shorten(self, slots: _Integers, counts: _Integers) -> None: ...
    def state(self, slot: int) -> State: ...
    def output(self, slot: int) -> list[int]: ...
    def step(self, rows: _Rows, batch: _Batch, *, stream: _Stream = None) -> Outputs: ...
    def verify(
        self, rows: _Rows, batch: _Batch, drafts: Drafts | _IntegerLists, *, stream: _Stream = None
    ) -> Outputs: ...
    @overload
    def draft(
        self,
        rows: _Rows,
        batch: _Batch,
        paths: _IntegerLists | None = None,
        *,
        siblings: int = 1,
        probs: Literal[False] = False,
        stream: _Stream = None,
    ) -> NDArray[np.int32]: ...
    @overload
    def draft(
        self,
        rows: _Rows,
        batch: _Batch,
        paths: _IntegerLists | None = None,
        *,
        siblings: int = 1,
        probs: bool,
        stream: _Stream = None,
    ) -> _Drawn: ...
    def score(
        self,
        rows: _Rows,
        params: SamplingParams,
        ids: Scored | _Integers,
        batch: Batch | None = None,
        *,
        stream: _Stream = None,
    ) -> Outputs: ...
    def assign(self, batch: _Batch, *, stream: _Stream = None) -> None: ...
    def enqueue(self, work: Sequence[_Work], *, stream: _Stream = None) -> None: ...
    def fetch(self, *, stream: _Stream = None) -> Outputs: ...
    def capture(self, work: Sequence[_Work], *, stream: _Stream = None) -> Graph: ...
    def replay(self, graph: Graph, *, stream: _Stream = None) -> None: ...
    def on_device(self) -> OnDevice: ...
    def counts(self) -> dict[str, dict[Any, Any]]: ...
    def plan(
        self,
        slots: _Integers,
        *,
        drafts: int = 0,
        step: str | None = None,
        data_parallel: bool = False,
        captured: int | None = None,
    ) -> Plan: ...
    def close(self) -> None: ...
    def __enter__(self) -> Pool: ...
    def __exit__(self, _kind: object, _error: object, _trace: object) -> None: ...

@final
class Head:
    @staticmethod
    def auto(
        weights: _Array,
        *,
        bias: Sequence[float] | _Array | None = None,
        logit_scale: float = 1.0,
        softcap: float = 0.0,
        level: str | None = None,
        screen: bool = True,
        file: str | PathLike[str] | None = None,
    ) -> Head: ...
    @staticmethod
    def clustered(
        weights: _Array,
        *,
        bias: Sequence[float] | _Array | None = None,
        logit_scale: float = 1.0,
        softcap: float = 0.0,
        level: str | None = None,
        most_rows: int | None = None,
        file: str | PathLike[str] | None = None,
        vocab_maps: Sequence[Sequence[int]] | _Array | None = None,
        centroids: _Array | None = None,
        capacity: int = 16,
        iterations: int = 10,
        progress: Callable[[int, int, int, int], object] | None = None,
        probes: int | None = None,
        special_ids: _Integers = (),
        in_place: bool = False,
    ) -> Head: ...
    vocab: Final[int]
    width: Final[int]
    kind: Final[str]
    dtype: Final[str]
    level: Final[str]
    is_borrowed: Final[bool]
    is_approximate: Final[bool]
    most_rows: Final[int | None]
    screen_bytes: Final[int]
    unscreened: Final[NDArray[np.int64]]
    @property
    def probes(self) -> int: ...
    @probes.setter
    def probes(self, probes: int) -> None: ...
    special_ids: Final[NDArray[np.int64]]
    capacity: Final[int]
    vocab_maps: Final[NDArray[np.int64]]
    centroids: Final[NDArray[np.float32]]
    places: Final[NDArray[np.int64]]
    centroid_bytes: Final[int]
    def logits(self, hidden: _Array) -> NDArray[np.float32]: ...
    def save(self, path: str | PathLike[str], *, name: str = "lm_head.weight") -> None: ...
    def to(self, device: Any, *, rows: int = 256, weights: _Array | None = None, fast: bool = False) -> DeviceHead: ...
    @staticmethod
    def needs_whole_row(pool: Pool, slot: int, *, hooked: bool = False) -> str | None: ...

@final
class DeviceHead:
    def __new__(
        cls,
        weights: _Array,
        *,
        bias: Sequence[float] | _Array | None = None,
        logit_scale: float = 1.0,
        softcap: float = 0.0,
        rows: int = 256,
        fast: bool = False,
        device: Any = None,
    ) -> DeviceHead: ...
    vocab: Final[int]
    width: Final[int]
    rows: Final[int]
    kind: Final[str]
    fast: Final[bool]
    device: Final[str]
    dtype: Final[str]
    is_borrowed: Final[bool]
    is_approximate: Final[bool]
    def counts(self) -> dict[str, int]: ...
