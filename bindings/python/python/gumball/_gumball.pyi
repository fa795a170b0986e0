"""The compiled half of gumball; docstrings are in the classes themselves."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray

from .errors import BrokenError, CorruptError, DisagreeError, DistError, LateError, LostError, UnavailableError
from .params import Logprobs, SamplingParams, State, Variant

# Anybody's array: numpy's, torch's, CuPy's, or one with __dlpack__, __cuda_array_interface__ or __array_interface__.
_Array: TypeAlias = Any
# A list of integers, or an integer array of one dimension in the host's memory.
_Integers: TypeAlias = Sequence[int] | _Array
# Edits a row of logits in its place.
_Hook: TypeAlias = Callable[[NDArray[np.float32]], None]
# A CUDA stream's handle, or an object that holds one (torch's, CuPy's).
_Stream: TypeAlias = int | Any

__all__ = [
    "BrokenError",
    "CorruptError",
    "DeviceArray",
    "DeviceHead",
    "DisagreeError",
    "DistError",
    "DistGraph",
    "DistPlan",
    "DistPool",
    "DraftBatch",
    "LateError",
    "LostError",
    "UnavailableError",
    "forked",
    "Graph",
    "GraphBuilder",
    "Head",
    "break_off",
    "emulate",
    "judge",
    "row_count",
    "sample_from_pools",
    "sample_rows",
    "write_rows",
    "Outputs",
    "check_params",
    "nearest_name",
    "ranges",
    "command",
    "Pool",
    "Sampler",
    "set_patience",
    "token_logprobs",
    "Verification",
    "__version__",
    "EMULATOR",
]

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
def nearest_name(name: str, known: Sequence[str]) -> str | None: ...
def ranges() -> list[tuple[str, float, float, bool, str]]: ...
def emulate(on: bool) -> None: ...
def forked() -> None: ...
def break_off(text: str) -> None: ...
def set_patience(seconds: float) -> None: ...
def row_count(rows: _Array, name: str) -> int: ...
def write_rows(
    operator: str,
    rows: _Array,
    name: str,
    out: _Array | None,
    dtype: str | None,
    kind: str,
    return_statuses: bool,
    stream: _Stream | None,
    **filters: Any,
) -> Any: ...
def sample_rows(
    rows: _Array,
    name: str,
    out: _Array | None,
    kind: str,
    indices: _Integers | None,
    n: int | None,
    seed: int | _Integers,
    position: int | _Integers,
    draw: int | _Integers | None,
    dtype: str,
    return_statuses: bool,
    stream: _Stream | None,
    offsets: bool = False,
    zero_for_none: bool = False,
    **filters: Any,
) -> Any: ...
def sample_from_pools(
    rows: _Array,
    name: str,
    out: _Array | None,
    kind: str,
    slots: _Integers,
    rows_per_slot: int,
    seed: _Integers,
    position: int | _Integers,
    draw: int | _Integers | None,
    high_draws: bool,
    dtype: str,
    return_statuses: bool,
    stream: _Stream | None,
    zero_for_none: bool = False,
    **filters: Any,
) -> Any: ...
def token_logprobs(
    rows: _Array,
    name: str,
    tokens: _Integers,
    out: _Array | None,
    kind: str,
    return_ranks: bool,
    return_statuses: bool,
    stream: _Stream | None,
) -> Any: ...
def judge(
    draft_probs: _Array | None,
    draft_token_ids: _Integers,
    target_probs: _Array,
    parents: _Integers | None,
    shape: tuple[int, int, int, int],
    rule: str,
    thresholds: tuple[float, float],
    seed: int | _Integers,
    position: int | _Integers,
    draw: int | _Integers | None,
    dtype: str,
    stream: _Stream | None,
    added: tuple[_Array, _Array | None] | None = None,
    offsets: bool = False,
    zero_for_none: bool = False,
) -> tuple[Any, Any | None, Any, Any | None, Any | None]: ...

@final
class Outputs:
    @property
    def tokens(self) -> NDArray[np.int32]: ...
    @property
    def statuses(self) -> NDArray[np.uint32]: ...
    @property
    def logprobs(self) -> NDArray[np.float32]: ...
    @property
    def ranks(self) -> NDArray[np.uint32]: ...
    @property
    def temperatures(self) -> NDArray[np.float32]: ...
    @property
    def mirostat_mu(self) -> NDArray[np.float32]: ...
    @property
    def top_ids(self) -> NDArray[np.int32]: ...
    @property
    def top_logprobs(self) -> NDArray[np.float32]: ...
    @property
    def id_logprobs(self) -> NDArray[np.float32]: ...
    @property
    def id_ranks(self) -> NDArray[np.uint32]: ...
    @property
    def is_approximate(self) -> bool: ...
    def tolist(self) -> list[int]: ...
    def token(self, row: int) -> int | None: ...
    def kept(self, row: int) -> NDArray[np.uint32]: ...
    def __len__(self) -> int: ...

@final
class Verification:
    @property
    def outputs(self) -> Outputs: ...
    @property
    def accepted(self) -> NDArray[np.uint32]: ...
    def tokens(self, request: int) -> NDArray[np.int32]: ...
    def rows(self, request: int) -> NDArray[np.uint32]: ...
    def places(self, request: int) -> slice: ...
    def tolist(self) -> list[list[int]]: ...
    def __len__(self) -> int: ...

@final
class DraftBatch:
    def assign(
        self,
        slots: _Integers,
        counts: _Integers | None = None,
        *,
        mode: str = "coupled",
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def enqueue(
        self,
        logits: _Array,
        paths: _Array | None = None,
        *,
        masks: _Array | None = None,
        kind: str = "logits",
        variant: str | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def copy(self, to: _Array, column: int = 0, *, stream: _Stream | None = None) -> None: ...
    def fetch(
        self, *, stream: _Stream | None = None
    ) -> NDArray[np.int32] | tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    @property
    def drafts(self) -> DeviceArray: ...
    @property
    def probs(self) -> DeviceArray: ...
    def free(self) -> None: ...

@final
class DistGraph:
    @property
    def steps(self) -> int: ...

@final
class DistPlan:
    @property
    def layout(self) -> str: ...
    @property
    def requests(self) -> list[int]: ...
    @property
    def batch(self) -> int: ...

@final
class DistPool:
    def __new__(
        cls,
        vocab: int,
        *,
        rank: int | None = None,
        addresses: Sequence[str] | None = None,
        group: Any = None,
        split: _Integers | None = None,
        slots: int = 256,
        top_n: int = 0,
        ids: int = 0,
        kept: bool = False,
        threads: int | None = None,
        level: str | None = None,
        route: str = "race",
        layouts: Sequence[str] = ("gather", "swap", "survey"),
        ownership: str = "blocks",
        layout: str | None = None,
        swap_min_requests: int | None = None,
        survey_min_vocab: int | None = None,
        survey_min_rows: int | None = None,
        transport: str | None = None,
        timeout: float = 30.0,
        device: Any = "cpu",
        rows: int = 256,
        history_growth: int = 4096,
        keep_histories: bool = False,
        stream: _Stream | None = None,
    ) -> DistPool: ...
    @property
    def vocab(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def ids(self) -> tuple[int, int]: ...
    @property
    def width(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    def close(self) -> None: ...
    def __enter__(self) -> DistPool: ...
    def __exit__(self, _kind: object, _error: object, _trace: object) -> None: ...
    def served(self) -> dict[tuple[str, int], int]: ...
    def traffic(self, *, reset: bool = False) -> dict[str, tuple[int, int, int]]: ...
    def admit(self, params: SamplingParams, prompt: _Integers = ()) -> int: ...
    def resume(self, params: SamplingParams, state: State) -> int: ...
    def fork(self, slot: int, draw: int) -> int: ...
    def release(self, slot: int) -> None: ...
    def truncate(self, slot: int, output_len: int) -> None: ...
    def push(self, slot: int, id: int) -> None: ...
    def shorten(self, slots: _Integers, counts: _Integers) -> None: ...
    def state(self, slot: int) -> State: ...
    def history(self, slot: int) -> list[int]: ...
    def output(self, slot: int) -> list[int]: ...
    def plan(
        self,
        slots: _Integers,
        *,
        drafts: int = 0,
        step: str | None = None,
        data_parallel: bool = False,
        captured: int | None = None,
    ) -> DistPlan: ...
    def assign(
        self,
        slots: _Integers,
        *,
        plan: DistPlan | None = None,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
    ) -> None: ...
    def enqueue(self, logits: _Array, *, kind: str = "logits") -> None: ...
    def capture(self, logits: _Array | Sequence[_Array], *, kind: str = "logits") -> DistGraph: ...
    def replay(self, graph: DistGraph) -> None: ...
    def fetch(self) -> Outputs: ...
    def assign_drafts(
        self,
        slots: _Integers,
        counts: _Integers,
        *,
        plan: DistPlan | None = None,
        mode: str = "coupled",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
    ) -> None: ...
    def enqueue_verify(
        self,
        logits: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        kind: str = "logits",
    ) -> None: ...
    def capture_verify(
        self,
        logits: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        kind: str = "logits",
    ) -> DistGraph: ...
    def fetch_verification(self) -> Verification: ...
    def reserve_replays(self, steps: int = 1) -> None: ...
    def enqueue_shorten(self, counts: _Array) -> None: ...
    def outputs_on_device(self, name: str) -> DeviceArray: ...
    def step(
        self,
        logits: _Array,
        slots: _Integers,
        *,
        plan: DistPlan | None = None,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
    ) -> Outputs: ...
    def verify(
        self,
        logits: _Array,
        slots: _Integers,
        drafts: Sequence[_Integers] | _Array,
        *,
        plan: DistPlan | None = None,
        parents: Sequence[_Integers] | _Array | None = None,
        first_child: Sequence[_Integers] | _Array | None = None,
        next_sibling: Sequence[_Integers] | _Array | None = None,
        draft_probs: _Array | None = None,
        mode: str = "coupled",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
    ) -> Verification: ...

@final
class GraphBuilder:
    def step(self, logits: _Array, *, masks: _Array | None = None, kind: str = "logits") -> GraphBuilder: ...
    def step_hidden(self, head: DeviceHead, hidden: _Array, *, masks: _Array | None = None) -> GraphBuilder: ...
    def verify_hidden(
        self,
        head: DeviceHead,
        hidden: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        masks: _Array | None = None,
    ) -> GraphBuilder: ...
    def verify(
        self,
        logits: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        masks: _Array | None = None,
        kind: str = "logits",
    ) -> GraphBuilder: ...
    def draft(
        self,
        batch: DraftBatch,
        logits: _Array,
        paths: _Array | None = None,
        *,
        masks: _Array | None = None,
        kind: str = "logits",
    ) -> GraphBuilder: ...
    def copy_drafts(self, batch: DraftBatch, to: _Array, column: int = 0) -> GraphBuilder: ...
    def shorten(self, counts: _Array) -> GraphBuilder: ...
    def capture(self) -> Graph: ...

@final
class DeviceArray:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __len__(self) -> int: ...

@final
class Graph:
    @property
    def steps(self) -> int: ...

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
        params: SamplingParams,
        vocab: int,
        state: State,
        *,
        route: str = "race",
        level: str | None = None,
    ) -> Sampler: ...
    def sample(
        self,
        logits: _Array,
        *,
        mask: _Array | None = None,
        forced: int | None = None,
        hook: _Hook | None = None,
    ) -> int | None: ...
    def sample_probabilities(
        self, probabilities: _Array, *, mask: _Array | None = None, forced: int | None = None
    ) -> int | None: ...
    def sample_n(self, logits: _Array, n: int) -> list[int | None]: ...
    def push(self, id: int) -> None: ...
    def truncate(self, output_len: int) -> None: ...
    def reset(self, prompt: _Integers = ()) -> None: ...
    def fork(self, draw: int) -> Sampler: ...
    def keep_ids(self, on: bool) -> None: ...
    @property
    def state(self) -> State: ...
    @property
    def history(self) -> list[int]: ...
    @property
    def output(self) -> list[int]: ...
    @property
    def position(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def level(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def mu(self) -> float: ...
    @property
    def logprobs(self) -> Logprobs | None: ...
    @property
    def kept(self) -> list[int]: ...

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
        stream: _Stream | None = None,
    ) -> Pool: ...
    @property
    def vocab(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def tokens(self) -> DeviceArray | NDArray[np.int32]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def admit(self, params: SamplingParams, prompt: _Integers = ()) -> int: ...
    def resume(self, params: SamplingParams, state: State) -> int: ...
    def fork(self, slot: int, draw: int) -> int: ...
    def release(self, slot: int) -> None: ...
    def truncate(self, slot: int, output_len: int) -> None: ...
    def push(self, slot: int, id: int) -> None: ...
    def state(self, slot: int) -> State: ...
    def history(self, slot: int) -> list[int]: ...
    def output(self, slot: int) -> list[int]: ...
    def position(self, slot: int) -> int: ...
    def seed(self, slot: int) -> int: ...
    def step(
        self,
        logits: _Array,
        slots: _Integers | None = None,
        *,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> Outputs: ...
    def enqueue(
        self,
        logits: _Array,
        slots: _Integers | None = None,
        *,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        kind: str = "logits",
        variant: str | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def assign(
        self,
        slots: _Integers,
        *,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def verify(
        self,
        logits: _Array,
        slots: _Integers,
        drafts: Sequence[_Integers] | _Array,
        *,
        parents: Sequence[_Integers] | _Array | None = None,
        first_child: Sequence[_Integers] | _Array | None = None,
        next_sibling: Sequence[_Integers] | _Array | None = None,
        draft_probs: _Array | None = None,
        mode: str = "coupled",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> Verification: ...
    @overload
    def draft(
        self,
        logits: _Array,
        slots: _Integers,
        *,
        paths: Sequence[_Integers] | _Array | None = None,
        siblings: int = 1,
        mode: str = "coupled",
        probs: Literal[False] = False,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> NDArray[np.int32]: ...
    @overload
    def draft(
        self,
        logits: _Array,
        slots: _Integers,
        *,
        paths: Sequence[_Integers] | _Array | None = None,
        siblings: int = 1,
        mode: str = "coupled",
        probs: Literal[True],
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        hooks: Sequence[_Hook | None] | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    def draft_batch(self, rows: int, *, siblings: int = 1, probs: bool = False) -> DraftBatch: ...
    def shorten(self, slots: _Integers, counts: _Integers) -> None: ...
    def enqueue_shorten(self, counts: list[int] | _Array, *, stream: _Stream | None = None) -> None: ...
    def assign_drafts(
        self,
        slots: _Integers,
        counts: _Integers,
        *,
        mode: str = "coupled",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        row_indices: _Integers | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def enqueue_verify(
        self,
        logits: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        masks: _Array | None = None,
        kind: str = "logits",
        variant: str | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def capture_verify(
        self,
        logits: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        masks: _Array | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> Graph: ...
    def fetch_verification(self, *, stream: _Stream | None = None) -> Verification: ...
    def fetch(self, *, stream: _Stream | None = None) -> Outputs: ...
    def variants(self) -> list[Variant]: ...
    def needed_variant(self) -> str: ...
    def reserve_replays(self, steps: int = 1, *, variant: str = "full", stream: _Stream | None = None) -> None: ...
    def capture(
        self,
        logits: _Array | Sequence[_Array],
        *,
        masks: _Array | Sequence[_Array] | None = None,
        kind: str = "logits",
        stream: _Stream | None = None,
    ) -> Graph: ...
    def graph_builder(self, *, stream: _Stream | None = None) -> GraphBuilder: ...
    def replay(self, graph: Graph, *, stream: _Stream | None = None) -> None: ...
    def outputs_on_device(self, name: str) -> DeviceArray | NDArray[Any]: ...
    def score(
        self,
        logits: _Array,
        params: SamplingParams,
        ids: _Integers,
        *,
        prompt_len: int | None = None,
        start: int = 1,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> Outputs: ...
    def step_hidden(
        self,
        head: Head | DeviceHead,
        hidden: _Array,
        slots: _Integers,
        *,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> Outputs: ...
    def enqueue_hidden(
        self,
        head: DeviceHead,
        hidden: _Array,
        slots: _Integers | None = None,
        *,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def enqueue_verify_hidden(
        self,
        head: DeviceHead,
        hidden: _Array,
        drafts: _Array,
        *,
        parents: _Array | None = None,
        first_child: _Array | None = None,
        next_sibling: _Array | None = None,
        draft_probs: _Array | None = None,
        masks: _Array | None = None,
        stream: _Stream | None = None,
    ) -> None: ...
    def capture_hidden(
        self,
        head: DeviceHead,
        hidden: _Array | Sequence[_Array],
        *,
        masks: _Array | Sequence[_Array] | None = None,
        stream: _Stream | None = None,
    ) -> Graph: ...
    def verify_hidden(
        self,
        head: Head,
        hidden: _Array,
        slots: _Integers,
        drafts: Sequence[_Integers] | _Array,
        *,
        parents: Sequence[_Integers] | _Array | None = None,
        first_child: Sequence[_Integers] | _Array | None = None,
        next_sibling: Sequence[_Integers] | _Array | None = None,
        draft_probs: _Array | None = None,
        mode: str = "coupled",
        threshold_single: float = 1.0,
        threshold_acc: float = 1.0,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> Verification: ...
    @overload
    def draft_hidden(
        self,
        head: Head,
        hidden: _Array,
        slots: _Integers,
        *,
        paths: Sequence[_Integers] | _Array | None = None,
        siblings: int = 1,
        mode: str = "coupled",
        probs: Literal[False] = False,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> NDArray[np.int32]: ...
    @overload
    def draft_hidden(
        self,
        head: Head,
        hidden: _Array,
        slots: _Integers,
        *,
        paths: Sequence[_Integers] | _Array | None = None,
        siblings: int = 1,
        mode: str = "coupled",
        probs: Literal[True],
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        forced: Sequence[int | None] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    def score_hidden(
        self,
        head: Head,
        hidden: _Array,
        params: SamplingParams,
        ids: _Integers,
        *,
        prompt_len: int | None = None,
        start: int = 1,
        chunk_rows: int = 64,
        masks: _Array | None = None,
        mask_present: Sequence[bool] | _Array | None = None,
        hooks: Sequence[_Hook | None] | None = None,
    ) -> Outputs: ...
    def needs_whole_row(self, slot: int, *, hooked: bool = False) -> str | None: ...
    def head_counts(self) -> dict[str, int]: ...

@final
class Head:
    def __new__(
        cls,
        weights: _Array,
        *,
        kind: str = "exact",
        bias: Sequence[float] | _Array | None = None,
        logit_scale: float = 1.0,
        softcap: float = 0.0,
        level: str | None = None,
        most_rows: int | None = None,
        file: str | PathLike[str] | None = None,
        clusters: Sequence[Sequence[int]] | _Array | None = None,
        centroids: _Array | None = None,
        capacity: int = 16,
        iterations: int = 10,
        progress: Callable[[int, int, int, int], object] | None = None,
        probes: int | None = None,
        special_ids: Sequence[int] | _Array = (),
        in_place: bool = False,
    ) -> Head: ...
    @property
    def vocab(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def level(self) -> str: ...
    @property
    def is_borrowed(self) -> bool: ...
    @property
    def is_approximate(self) -> bool: ...
    @property
    def most_rows(self) -> int | None: ...
    @property
    def screen_bytes(self) -> int: ...
    @property
    def unscreened(self) -> NDArray[np.int64]: ...
    @property
    def probes(self) -> int: ...
    @probes.setter
    def probes(self, probes: int) -> None: ...
    @property
    def special_ids(self) -> NDArray[np.int64]: ...
    @property
    def capacity(self) -> int: ...
    @property
    def cluster_ids(self) -> NDArray[np.int64]: ...
    @property
    def centroids(self) -> NDArray[np.float32]: ...
    @property
    def places(self) -> NDArray[np.int64]: ...
    @property
    def centroid_bytes(self) -> int: ...
    def logits(self, hidden: _Array) -> NDArray[np.float32]: ...
    def save(self, path: str | PathLike[str], *, name: str = "lm_head.weight") -> None: ...
    def to(self, device: Any, *, rows: int = 256, weights: _Array | None = None) -> DeviceHead: ...
    @staticmethod
    def replace(model: Any, **arguments: Any) -> Any: ...

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
    @property
    def vocab(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def is_borrowed(self) -> bool: ...
    @property
    def is_approximate(self) -> bool: ...
    def counts(self) -> dict[str, int]: ...
