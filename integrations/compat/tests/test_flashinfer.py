"""FlashInfer's sampling under its own names: checks, generators, seeds, results, and programs that import it by its name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from float64 import softmax64
from gumball import _gumball

torch = pytest.importorskip("torch")

from gumball_compat import flashinfer
from gumball_compat.flashinfer import sampling

VOCAB = 900
# Calls that draw: the function, what follows the rows, and how far a generator moves for `outputs` of `vocab`.
SAMPLERS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("sampling_from_logits", (), {}, lambda outputs, vocab: outputs * vocab),
    ("sampling_from_probs", (), {}, lambda outputs, vocab: outputs),
    ("top_k_sampling_from_probs", (40,), {}, lambda outputs, vocab: outputs * 32),
    ("top_p_sampling_from_probs", (0.8,), {}, lambda outputs, vocab: outputs * 32),
    ("min_p_sampling_from_probs", (0.05,), {}, lambda outputs, vocab: outputs),
    ("top_k_top_p_sampling_from_logits", (40, 0.8), {}, lambda outputs, vocab: outputs * 32),
    ("top_k_top_p_sampling_from_probs", (40, 0.8), {}, lambda outputs, vocab: outputs * 32),
    (
        "top_k_top_p_sampling_from_probs",
        (40, 0.8),
        {"filter_apply_order": "joint"},
        lambda outputs, vocab: outputs * 32,
    ),
]


class Generator:
    """A generator of a GPU, as far as its state goes."""

    device = torch.device("cuda", 0)

    def __init__(self, seed: int = 5, offset: int = 8) -> None:
        self.words = [seed, offset]

    def get_state(self) -> Any:
        return torch.tensor(self.words, dtype=torch.int64).view(torch.uint8)

    def set_state(self, state: Any) -> None:
        self.words = state.view(torch.int64).tolist()


class NewerGenerator(Generator):
    """A generator with the methods of newer torch."""

    def initial_seed(self) -> int:
        return self.words[0]

    def get_offset(self) -> int:
        return self.words[1]

    def set_offset(self, offset: int) -> None:
        assert offset % 4 == 0
        self.words[1] = offset


@pytest.fixture
def logits(batch: np.ndarray) -> Any:
    return torch.from_numpy(batch)


@pytest.fixture
def probs(batch: np.ndarray) -> Any:
    return torch.from_numpy(softmax64(batch).astype(np.float32))


def rows_for(name: str, logits: Any, probs: Any) -> Any:
    return logits if name.endswith("logits") else probs


def words(*values: int, dtype: Any = torch.int64) -> Any:
    return torch.tensor(values, dtype=torch.int64).view(dtype)


def test_the_package_itself_has_what_flashinfers_has() -> None:
    inside = set(sampling.__all__) - {"get_seed_and_offset", "top_p_renorm_prob", "top_k_renorm_prob"}
    assert set(flashinfer.__all__) == inside | {"sampling", "logits_processor"}
    assert sampling.top_p_renorm_prob is sampling.top_p_renorm_probs is flashinfer.top_p_renorm_probs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_calls_are_gumballs_over_rows_of_every_type(dtype: Any, logits: Any, probs: Any) -> None:
    logits, probs = logits.to(dtype), probs.to(dtype)
    read, held = (rows.float() if dtype is torch.float64 else rows for rows in (logits, probs))
    top_k, top_p = torch.tensor([1, 5, 40, 900, 1000, 7, 2]), torch.linspace(0.2, 1, 7)
    pairs = [
        (sampling.softmax(logits), gumball.softmax(read)),
        (sampling.softmax(logits, 2), gumball.softmax(read, 2)),
        (sampling.softmax(logits, top_p.double()), gumball.softmax(read, top_p)),
        (
            sampling.top_p_renorm_probs(probs, top_p),
            gumball.probabilities(probs.float(), kind="probabilities", top_p=top_p),
        ),
    ]
    if dtype is not torch.float64:
        pairs += [
            (
                sampling.top_k_renorm_probs(probs, top_k),
                gumball.probabilities(probs, kind="probabilities", top_k=top_k),
            ),
            (sampling.top_k_mask_logits(logits, top_k.int()), gumball.mask_logits(logits, top_k=top_k)),
        ]
    for name, given, more, _ in SAMPLERS:
        filters = dict(
            zip((one for one in ("top_k", "top_p", "min_p") if one in name), given),
            order=more.get("filter_apply_order"),
        )
        kind = "logits" if name.endswith("logits") else "probabilities"
        wanted = gumball.sample(rows_for(name, read, held), kind=kind, **filters, seed=17, position=9)
        pairs.append(
            (getattr(sampling, name)(rows_for(name, logits, probs), *given, seed=17, offset=9, **more), wanted)
        )
    for got, wanted in pairs:
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)
    assert flashinfer.softmax(logits[:0]).shape == (0, VOCAB)


@pytest.mark.parametrize(("name", "given", "more", "increment"), SAMPLERS)
@pytest.mark.parametrize("kind", [Generator, NewerGenerator])
def test_a_generator_moves_on_as_by_flashinfer(
    name: str, given: Any, more: Any, increment: Any, kind: Any, logits: Any, probs: Any
) -> None:
    generator, rows = kind(), rows_for(name, logits, probs)
    sample = getattr(sampling, name)
    first = sample(rows, *given, generator=generator, **more)
    step = -(-increment(7, VOCAB) // 4) * 4
    assert generator.words == [5, 8 + step] and first.dtype == torch.int32
    assert (sample(rows, *given, generator=kind(), **more) == first).all()
    # A call draws by the state before it, and so does one with what is taken of the generator.
    assert (sample(rows, *given, seed=5, offset=8, **more) == first).all()
    taken = kind()
    seed, offset = sampling.get_seed_and_offset(increment(7, VOCAB), taken)
    assert (sample(rows, *given, seed=seed, offset=offset, **more) == first).all() and taken.words == generator.words
    assert (sample(rows, *given, generator=generator, **more) != first).any()
    lines = torch.zeros(30, dtype=torch.int64)
    many = sample(rows, *given, indices=lines, generator=generator, **more)
    assert many.dtype == torch.int64 and many.shape == (30,) and many.unique().numel() > 1
    assert generator.words == [5, 8 + 2 * step + -(-increment(30, VOCAB) // 4) * 4]


def test_seed_and_offset_of_generators() -> None:
    generator = Generator(7, 4)
    assert sampling.get_seed_and_offset(5, generator) == (7, 4) and generator.words == [7, 12]
    host = [torch.Generator().manual_seed(3) for _ in range(2)]
    first = sampling.get_seed_and_offset(5, host[0], torch.device("cpu"))
    assert first == sampling.get_seed_and_offset(9, host[1]) != sampling.get_seed_and_offset(9, host[1])
    torch.manual_seed(3)
    assert sampling.get_seed_and_offset(1, None, torch.device("cpu")) == first


@pytest.mark.parametrize(("name", "given", "more", "increment"), SAMPLERS)
def test_seeds_and_offsets_reproduce_draws(
    name: str, given: Any, more: Any, increment: Any, logits: Any, probs: Any
) -> None:
    rows, sample = rows_for(name, logits, probs), getattr(sampling, name)
    lines = torch.arange(7, dtype=torch.int32).repeat(20)
    drawn = [sample(rows, *given, indices=lines, seed=17, offset=offset, **more) for offset in (1 << 40, 1 << 40, 3, 4)]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any() and (drawn[2] != drawn[3]).any()
    for dtype in (torch.int64, torch.uint64):
        same = sample(
            rows, *given, indices=lines, seed=words(17, dtype=dtype), offset=words(1 << 40, dtype=dtype), **more
        )
        assert (same == drawn[0]).all()
    seeds, offsets = torch.full((140,), 17), torch.full((140,), 3)
    assert (sample(rows, *given, indices=lines, seed=seeds, offset=offsets, **more) == drawn[2]).all()
    offsets[5] = 4
    mixed = sample(rows, *given, indices=lines, seed=words(17), offset=offsets, **more)
    assert (mixed == drawn[2]).sum() >= 139 and mixed[5] == drawn[3][5]


def test_a_bound_of_top_k_acts_where_it_does_in_flashinfer() -> None:
    top_k, keys = torch.tensor([3, -1, 900, 0]), {"seed": 1, "offset": 2}
    for vocab, most, order, bound in (
        (65536, 8, "top_k_first", [3, 8, 8, 8]),
        (65536, 8, "joint", [3, -1, 900, 0]),
        (65535, 8, "top_k_first", [3, -1, 900, 0]),
        (65536, 257, "top_k_first", [3, -1, 900, 0]),
        (65536, None, "top_k_first", [3, -1, 900, 0]),
        (65536, 0, "top_k_first", [3, -1, 900, 0]),
    ):
        logits = torch.linspace(0, 1, 4 * vocab).view(4, vocab)
        for sample, rows in (
            (sampling.top_k_top_p_sampling_from_logits, logits),
            (sampling.top_k_top_p_sampling_from_probs, logits.softmax(1)),
        ):
            named = {"filter_apply_order": order, **keys}
            found = sample(rows, top_k, 0.9, top_k_max=most, **named)
            assert torch.equal(found, sample(rows, torch.tensor(bound), 0.9, **named))
            assert torch.equal(sample(rows, 5, 0.9, top_k_max=most, **named), sample(rows, 5, 0.9, **named))


def test_large_offsets_share_no_numbers(probs: Any) -> None:
    lines = torch.zeros(200, dtype=torch.int32)
    places = [0, 1 << 32, 1 << 33, 1 << 62, 1 << 63, -1, (1 << 64) - 1]
    drawn = [tuple(sampling.sampling_from_probs(probs, lines, seed=1, offset=at).tolist()) for at in places]
    assert len(set(drawn)) == len(places) - 1 and drawn[-1] == drawn[-2]
    for at, tokens in zip(places[:-1], drawn, strict=False):
        signed = at - (1 << 64) if at >= 1 << 63 else at
        assert tuple(sampling.sampling_from_probs(probs, lines, seed=words(1), offset=words(signed)).tolist()) == tokens


def test_rows_without_a_token_have_token_0_and_are_not_valid(probs: Any) -> None:
    probs[1], probs[3] = 0, torch.nan
    probs[4, 5] = torch.nan
    for name, given, more, _ in SAMPLERS:
        if name.endswith("logits"):
            continue
        samples, valid = getattr(sampling, name)(probs, *given, seed=1, offset=2, return_valid=True, **more)
        assert valid.dtype == torch.bool and valid.tolist() == [True, False, True, False, True, True, True]
        assert samples[1] == samples[3] == 0 and ((samples >= 0) & (samples < VOCAB)).all()
        assert (getattr(sampling, name)(probs, *given, seed=1, offset=2, **more) == samples).all()
    logits = torch.full((2, VOCAB), -torch.inf)
    assert sampling.sampling_from_logits(logits).tolist() == [0, 0]


def test_nan_is_looked_for_where_asked(logits: Any, probs: Any) -> None:
    logits[2, 3] = probs[2, 3] = torch.nan
    for name, given, more, _ in SAMPLERS:
        rows, sample = rows_for(name, logits, probs), getattr(sampling, name)
        text = "logits" if name == "sampling_from_logits" else "probs"
        with pytest.raises(ValueError, match=f"Input {text} contains NaN."):
            sample(rows, *given, check_nan=True, **more)
        assert (sample(rows, *given, **more) < VOCAB).all()
        sample(rows[3:], *given, check_nan=True, **more)


def test_chains_are_counted_in_the_callers_tensors(probs: Any) -> None:
    chains, drafts = 7, 3
    target = probs.unsqueeze(1).repeat(1, drafts + 1, 1)
    draft = target[:, :drafts].contiguous()
    ids = sampling.sampling_from_probs(probs, torch.arange(7).repeat_interleave(drafts)).view(chains, drafts)
    generator = Generator()
    tokens, accepted, emitted = sampling.chain_speculative_sampling(draft, ids, target, generator=generator)
    assert generator.words == [5, 8 + -(-chains * (drafts + 2) // 4) * 4]
    assert tokens.dtype == accepted.dtype == emitted.dtype == torch.int32
    assert (tokens[:, :drafts] == ids).all() and (accepted == drafts).all() and (emitted == drafts).all()
    kept = [torch.full((chains,), 10, dtype=torch.int32), torch.full((chains,), 20)]
    other = target.flip(2).contiguous()
    tokens, accepted, emitted = sampling.chain_speculative_sampling(draft, ids, other, *kept, seed=1, offset=2)
    assert accepted is kept[0] and emitted is kept[1]
    assert ((tokens != -1).sum(1) == emitted - 20 + 1).all() and (accepted - 10 >= emitted - 20).all()
    again = sampling.chain_speculative_sampling(draft, ids, other, seed=words(1), offset=words(2))
    assert (again[0] == tokens).all() and (again[1] == accepted - 10).all()
    target[2] = 0
    tokens, _, emitted = sampling.chain_speculative_sampling(draft, ids, target, seed=1, offset=2)
    assert tokens[2].tolist() == [0, -1, -1, -1] and emitted[2] == 0


@contextmanager
def emulated() -> Iterator[None]:
    """Rows of the host are taken for a device's meanwhile."""
    _gumball.emulate(True)
    try:
        yield
    finally:
        _gumball.emulate(False)


@pytest.mark.skipif(not _gumball.EMULATOR, reason="the emulated device is not built in")
def test_on_a_device_calls_are_the_hosts(logits: Any, probs: Any) -> None:
    top_k, top_p = torch.arange(1, 8), torch.linspace(0.2, 1, 7)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    draft, target = probs[:6].view(2, 3, VOCAB), probs[[0, 1, 2, 3, 4, 5, 6, 0]].view(2, 4, VOCAB).clone()
    target[1, 0], lines = 0, torch.tensor([3, 3, 0, 6, 1])
    keys = {"seed": words(*range(5)), "offset": words(-1)}
    calls: list[Any] = [
        lambda: sampling.sampling_from_probs(probs, seed=-3, offset=1 << 40),
        lambda: sampling.top_k_sampling_from_probs(probs, top_k, lines, generator=Generator()),
        lambda: sampling.top_k_top_p_sampling_from_logits(logits, top_k, top_p, lines, "joint", **keys),
        lambda: sampling.softmax(logits, top_p.double()),
        lambda: sampling.top_k_renorm_probs(probs, top_k),
        lambda: sampling.top_p_renorm_probs(probs.half(), top_p),
        lambda: sampling.top_k_mask_logits(logits.bfloat16(), top_k.int()),
        lambda: torch.stack(sampling.chain_speculative_sampling(draft, ids, target, seed=1, offset=1 << 35)[1:]),
        lambda: sampling.chain_speculative_sampling(draft, ids, target, seed=words(1), offset=words(2, 3))[0],
        lambda: sampling.chain_speculative_sampling(draft, ids, target, words(5, 6), words(7, 8), seed=1, offset=2)[1],
    ]
    for call in calls:
        wanted = call()
        with emulated():
            got = call()
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)


def test_torch_compiles_calls_whole(logits: Any, probs: Any) -> None:
    seed, offset, lines = words(5), words(7), torch.tensor([0, 2, 1, 1])
    top_k, top_p = torch.arange(3, 10), torch.linspace(0.2, 1, 7)
    chains = (
        probs[:6].view(2, 3, VOCAB),
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
        probs[[0, 1, 2, 3, 4, 5, 6, 0]].view(2, 4, VOCAB),
    )
    places = {"seed": seed, "offset": offset}
    calls: list[Any] = [
        lambda: sampling.softmax(logits, top_p),
        lambda: sampling.sampling_from_logits(logits, lines, **places),
        lambda: sampling.sampling_from_probs(probs, seed=5, offset=1 << 40),
        lambda: sampling.min_p_sampling_from_probs(probs, top_p, **places, return_valid=True),
        lambda: sampling.top_k_top_p_sampling_from_logits(logits, top_k, 0.9, filter_apply_order="joint", **places),
        lambda: sampling.top_k_top_p_sampling_from_probs(probs, 5, top_p, seed=seed.expand(7), offset=offset),
        lambda: sampling.top_p_renorm_probs(sampling.top_k_renorm_probs(probs, top_k), 0.9),
        lambda: sampling.top_k_mask_logits(logits, 5),
        lambda: sampling.chain_speculative_sampling(*chains, **places),
    ]
    for call in calls:
        torch._dynamo.reset()
        seen, wanted = torch.compile(call, backend="aot_eager", fullgraph=True)(), call()
        if isinstance(wanted, tuple):
            assert all(map(torch.equal, seen, wanted))
        else:
            assert torch.equal(seen, wanted)


def test_mistakes_read_as_flashinfers_do(logits: Any, probs: Any) -> None:
    sample, seven = sampling.sampling_from_probs, words(*range(7))
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (
            ValueError,
            "temperature tensor must be 1D with one value",
            lambda: sampling.softmax(logits, torch.ones(7, 1)),
        ),
        (ValueError, r"must equal logits.size\(0\) \(7\), got 6", lambda: sampling.softmax(logits, torch.ones(6))),
        (ValueError, "on the same device", lambda: sampling.softmax(logits, torch.ones(7, device="meta"))),
        (ValueError, "must have dtype float16", lambda: sampling.softmax(logits, torch.ones(7, dtype=torch.int32))),
        (TypeError, "temperature must be None, a real scalar", lambda: sampling.softmax(logits, True)),
        (TypeError, "temperature must be None, a real scalar", lambda: sampling.softmax(logits, "hot")),
        (ValueError, "both be tensors or both be scalars", lambda: sample(probs, seed=1, offset=words(1))),
        (ValueError, "seed tensor must be on cpu", lambda: sample(probs, seed=seven.to("meta"), offset=seven)),
        (ValueError, "seed tensor must be int64/uint64", lambda: sample(probs, seed=seven.int(), offset=seven)),
        (ValueError, "offset tensor must be 1D", lambda: sample(probs, seed=seven, offset=seven.view(7, 1))),
        (ValueError, "offset tensor length must be 1 or 7", lambda: sample(probs, seed=seven, offset=seven[:3])),
        (ValueError, "0-dimensional", lambda: sampling.top_k_renorm_probs(probs, torch.tensor(3))),
        (ValueError, "got a 2D tensor", lambda: sampling.top_p_renorm_probs(probs, torch.ones(7, 1))),
        (
            ValueError,
            "expected length 7 .* got length 6",
            lambda: sampling.top_k_mask_logits(logits, torch.ones(6).int()),
        ),
        (AssertionError, "Unsupported dtype torch.float64", lambda: sampling.top_k_renorm_probs(probs.double(), 3)),
        (TypeError, "Unsupported dtype torch.float64", lambda: sampling.top_k_mask_logits(logits.double(), 3)),
        (ValueError, "probs must be a 2D tensor", lambda: sample(probs[0])),
        (ValueError, "min_p is 2", lambda: sampling.min_p_sampling_from_probs(probs, 2.0)),
    ]
    for order in (sampling.top_k_top_p_sampling_from_logits, sampling.top_k_top_p_sampling_from_probs):
        mistakes.append(
            (
                ValueError,
                "Invalid filter_apply_order: k",
                lambda order=order: order(probs, 3, 0.5, filter_apply_order="k"),
            )
        )
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()


def test_a_program_that_imports_flashinfer_runs_behind_the_lines_of_the_page(tmp_path: Any) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text()
    [lines] = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "sys.modules" in text]
    program = """
import flashinfer, flashinfer.sampling, gumball_compat.flashinfer as ours
from flashinfer.sampling import top_k_renorm_prob
from flashinfer.logits_processor import LogitsPipe, Sample, TensorType
from flashinfer.logits_processor.operators import ProbsSampleOp
import torch
assert flashinfer.sampling is ours.sampling and flashinfer.logits_processor is ours.logits_processor
assert flashinfer.softmax is ours.softmax and flashinfer.__version__.startswith("0.7")
pipe = LogitsPipe([Sample()], input_type=TensorType.PROBS)
assert isinstance(pipe.compiled_ops[0], ProbsSampleOp) and pipe(torch.eye(3)).tolist() == [0, 1, 2]
for missing in ("from flashinfer import norm", "import flashinfer.decode"):
    try:
        exec(missing)
    except ImportError as error:
        assert "flashinfer" in str(error)
    else:
        raise AssertionError(missing)
"""
    (tmp_path / "program.py").write_text(lines + program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
