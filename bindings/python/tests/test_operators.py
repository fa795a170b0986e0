"""Operators: every type, stride and form of a parameter, the same from numpy, from torch, on the emulated device, as custom operators and compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from float64 import softmax64
from gumball import Probabilities, Sampler, SamplingParams, Status, _gumball
from operator_calls import calls, more_calls, of_numpy, of_torch, same

VOCAB = 900
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
NONE = -1


@pytest.fixture
def probs(batch: np.ndarray) -> np.ndarray:
    return softmax64(batch).astype(np.float32)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def emulated() -> Iterator[None]:
    """What is handed in lies on the device, as far as the package can see."""
    if not _gumball.EMULATOR:
        pytest.skip("no emulator")
    _gumball.emulate(True)
    yield
    _gumball.emulate(False)


def on_host(work: Callable[[], Any]) -> Any:
    _gumball.emulate(False)
    try:
        return work()
    finally:
        _gumball.emulate(True)


ZEROS = np.zeros((7, VOCAB), np.float32)
NAMES, MORE = list(calls(gumball, ZEROS, of_numpy)), list(more_calls(ZEROS, of_numpy))


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_tensors_and_a_device_come_to_what_numpys_arrays_come_to(name: str, batch: np.ndarray, torch: Any) -> None:
    def found(put: Callable[..., Any]) -> Any:
        return (calls(gumball, batch, put) | more_calls(batch, put))[name]()

    wanted = found(of_numpy)
    assert same(found(of_torch), wanted)
    if _gumball.EMULATOR:
        _gumball.emulate(True)
        try:
            seen = found(of_torch)
        finally:
            _gumball.emulate(False)
        assert same(seen, wanted)
        assert isinstance(seen[0], torch.Tensor)


@pytest.mark.parametrize("name", NAMES)
def test_custom_operators_are_the_packages_functions_and_the_compiler_takes_them_whole(
    name: str, batch: np.ndarray, torch: Any
) -> None:
    import gumball.torch as ops

    wanted, seen = (torch.as_tensor(calls(of, batch, of_torch)[name]()) for of in (gumball, ops))
    if "logprobs" in name and wanted.dtype == torch.uint32:
        wanted = wanted.to(torch.int32)
    assert seen.dtype == wanted.dtype and torch.equal(seen, wanted)
    # Compiled code may call the package's functions too; torch 2.4 cannot put operators in their place.
    for of in (ops, gumball) if hasattr(torch.compiler, "substitute_in_graph") else (ops,):
        torch.compiler.reset()
        compiled = torch.compile(calls(of, batch, of_torch)[name], backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(), wanted)


def test_every_function_of_operators_is_compiled_and_has_a_call_here(torch: Any) -> None:
    import gumball.torch as ops

    functions = {name for name in gumball.operators.__all__ if not isinstance(getattr(gumball, name), type)}
    assert {name.split()[0].strip(",") for name in NAMES} == functions
    assert functions <= set(ops.__all__) and all(getattr(ops, name) is not getattr(gumball, name) for name in functions)


def test_schemas_and_fakes_are_right_and_mistakes_are_told(batch: np.ndarray, torch: Any) -> None:
    import gumball.torch as ops

    logits = torch.from_numpy(batch)
    probs, none = gumball.softmax(logits), [None] * 8
    column, seeds, tests = torch.ones(7), torch.arange(7), ("test_schema", "test_faketensor")
    keys, named = [None, seeds, 0, None, None, None, True, False], torch.ops.gumball
    chains = (probs[:4].reshape(2, 2, VOCAB), torch.zeros(2, 2, dtype=torch.int64), probs[:6].reshape(2, 3, VOCAB))
    columns, chain_keys = [None, column, *none[:6], ""], [3, None, 0, None, None, None, False, True]
    for operator, arguments in [
        (named.write_rows, (logits.half(), "softmax", "logits", *columns)),
        (named.write_rows_out, (logits, torch.empty_like(logits), "softmax", "logits", 0.5, *none[:7], "")),
        (named.write_rows_, (logits.clone(), "softmax", "logits", *columns)),
        (named.write_rows, (probs.half(), "probabilities", "probabilities", *none, "")),
        (named.sample, (probs, "probabilities", None, "int64", *keys, *none, "")),
        (
            named.sample_from_pools,
            (probs, seeds, 1, False, "probabilities", "int64", *keys[:6], False, True, *none, ""),
        ),
        (named.radii, (logits, *keys, *none, "")),
        (named.selected_logprobs, (logits, 5, None, "logits", True)),
        (named.selected_logprobs, (probs, None, seeds, "probabilities", False)),
        (named.judge, (*chains, None, "rejection", 1.0, 1.0, "int32", *chain_keys)),
        (named.judge, (None, *chains[1:], chains[1] - 1, "threshold", 0.5, 0.5, "int64", *chain_keys)),
    ]:
        torch.library.opcheck(operator.default, arguments, test_utils=tests)
    ids = torch.zeros(1, 2, dtype=torch.int32)
    for call, kind, text in (
        (
            lambda: ops.softmax(logits, [1.0] * 7),
            TypeError,
            "temperature must be a number or a tensor in what is compiled, not list",
        ),
        (lambda: ops.softmax(logits, -1.0), ValueError, "temperature is -1"),
        (lambda: ops.sample(logits), TypeError, "seed"),
        (lambda: ops.sample_from_pools(logits, [0], seed=seeds, position=0), TypeError, "slots must be a tensor"),
        (lambda: ops.selected_logprobs(logits, [0] * 7), TypeError, "tokens must be a number or a tensor"),
        (lambda: ops.row_count(logits[None]), ValueError, "rows has 3 dimensions"),
        (
            lambda: ops.judge(None, ids, logits[None, :3], seed=1, position=0, added=(ids[0], None)),
            TypeError,
            "added is not taken in compiled code",
        ),
    ):
        with pytest.raises(kind, match=text):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_type_and_stride_and_places_for_results(batch: np.ndarray, dtype: Any, torch: Any) -> None:
    logits, heat = batch.astype(dtype), [1.0, 0.01, 100.0, 0.7, 0.5, 2.0, 1.3]
    got = gumball.softmax(logits, heat)
    assert got.dtype == np.float32 and gumball.mask_logits(logits, top_k=3).dtype == dtype
    np.testing.assert_allclose(got, softmax64(logits, heat), rtol=1e-5, atol=1e-5)
    for column in (
        tuple(heat),
        np.array(heat),
        np.array(heat).reshape(-1, 1),
        torch.tensor(heat),
        memoryview(np.array(heat)),
    ):
        assert (gumball.softmax(logits, column) == got).all()
    place = logits.copy()
    assert gumball.softmax(place, heat, out=place) is place and (place == got.astype(dtype)).all()
    wide = np.full((14, VOCAB + 5), 7, dtype)
    inside = wide[::2, 3 : VOCAB + 3]
    inside[:] = logits
    assert (gumball.softmax(inside, heat) == got).all()
    gumball.softmax(inside, heat, out=inside)
    assert (inside == place).all()
    inside[:] = 7
    assert (wide == 7).all()
    for one, row in zip(heat, range(7)):
        assert (gumball.softmax(logits[row], one) == got[row]).all()
    assert gumball.softmax(logits[:0]).shape == (0, VOCAB) and gumball.sample(got[:0]).shape == (0,)
    count = gumball.operators.row_count
    assert (count(logits), count(logits[0]), count(logits[:0]), count(logits[::2, :5])) == (7, 1, 0, 4)


def test_packed_sets_are_ids_or_their_bitmask_where_that_is_shorter(torch: Any, emulated: None) -> None:
    sets = np.array([[0, 0, 0, 0], [1 << 31 | 1, 0, 6, 0], [0, 7, 8, 1], [0, 0, 0, 0], [0, 0, 0, 1 << 31]], np.uint32)
    wanted = [0, 4, 5, 0, 1, 0, 31, 65, 66, 0, 7, 8, 1, 127]
    for found in (_gumball.pack_kept(torch.from_numpy(sets)), on_host(lambda: _gumball.pack_kept(sets))):
        assert found.shape == (5, 5) and found.reshape(-1)[: len(wanted)].tolist() == wanted
    assert _gumball.pack_kept(torch.from_numpy(sets[:0])).shape == (0, 5)
    for wrong, text in (
        (sets[:, :3], "sets.width is 12 bytes, but must be a multiple of 16 bytes"),
        (sets.ravel()[1:17].reshape(4, 4), "sets.address is .* bytes, but must be a multiple of 16 bytes"),
        (sets.astype(np.float32), "sets is of float32, but must be of int32 or uint32 words"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            _gumball.pack_kept(torch.from_numpy(wrong))


def test_a_seed_needs_a_position_and_without_both_each_call_draws_by_fresh_entropy(torch: Any) -> None:
    import gumball.torch as ops

    flat = torch.full((7, VOCAB), 1 / VOCAB)
    given: dict[str, tuple[Any, ...]] = {
        "sample": (flat,),
        "sample_from_pools": (flat, torch.arange(7)),
        "radii": (flat,),
        "judge": (None, torch.full((7, 1), NONE), flat[:, None].repeat(1, 2, 1)),
    }
    takes = {name: inspect.signature(getattr(gumball, name)).parameters for name in gumball.operators.__all__}
    assert {name for name, parameters in takes.items() if "seed" in parameters} == set(given)
    seeds, text = torch.arange(7), r"^position is absent, but must be given with a seed, as in seed=7, position=step,"
    for name, arrays in given.items():

        def drawn(of: Any = gumball, name: str = name, arrays: Any = arrays, **keys: Any) -> Any:
            found = getattr(of, name)(*arrays, **keys)
            return (found[0] if name == "judge" else found).tolist()

        for of in (gumball, ops):
            with pytest.raises(gumball.errors.InvalidValueError, match=text):
                drawn(of, seed=seeds)
            assert drawn(of, seed=seeds, position=3) == drawn(seed=seeds, position=3)
        with pytest.raises(TypeError, match="seed"):
            drawn(ops, position=3)
        if takes[name]["seed"].default is None:
            # Seven equal tokens of 900 equally likely ones come with a probability of 1e-20.
            assert drawn() != drawn() and drawn(position=3) != drawn(position=3)
            assert drawn(position=[3 << 32] * 7, offsets=True) != drawn(position=[3 << 32] * 7, offsets=True)


def test_draws_are_those_of_samplers(batch: np.ndarray, probs: np.ndarray) -> None:
    lines, seeds, top_k = np.array([2, 0, 2, 6, 1] * 4), list(range(5, 25)), [5, 0, 40, 1, 7, 9, 30]
    keys: dict[str, Any] = dict(seed=seeds, position=3, draw=2, dtype="int64")
    drawn = gumball.sample(probs, lines, kind="probabilities", top_k=top_k, top_p=0.9, **keys)
    for line, seed, token in zip(lines, seeds, drawn, strict=True):
        params = SamplingParams(top_k=top_k[line], top_p=0.9, seed=seed)
        assert Sampler(params, VOCAB, prompt=[1, 2, 3], draw=2).sample(Probabilities(probs[line])) == token
    greedy = gumball.sample(batch, temperature=0)
    assert (greedy == batch.argmax(1)).all() and (drawn.dtype, greedy.dtype) == (np.int64, np.int32)
    # The high word of an offset moves the seed.
    offsets, step = np.array([5, 1 << 32 | 5, -(1 << 32) + 5, 7 << 32, 0, 1, (1 << 62) + 9]), 0x9E3779B97F4A7C15
    moved = [(40 + (int(offset) >> 32) * step) % 2**64 for offset in offsets]
    wanted = gumball.sample(batch, seed=moved, position=[int(offset) % 2**32 for offset in offsets])
    assert (gumball.sample(batch, seed=40, position=offsets, offsets=True) == wanted).all()


def test_a_seed_is_the_same_number_in_every_form(batch: np.ndarray) -> None:
    seeds = [13001826125807872521, 5, 2**63, 2**64 - 1, 0, 2**63 - 1, 7]
    wanted = gumball.sample(batch, seed=seeds, position=3).tolist()
    for form in (
        tuple(seeds),
        np.array(seeds, np.uint64),
        np.array(seeds, np.uint64).view(np.int64),
        np.array(seeds, np.uint64)[:, None],
    ):
        assert gumball.sample(batch, seed=form, position=3).tolist() == wanted
        assert gumball.sample(batch, seed=form, position=[3] * 7, offsets=True).tolist() == wanted
    for one in seeds:
        forms = (one, [one], np.uint64(one), np.array(one, np.uint64), np.array([one], np.uint64))
        assert len({tuple(gumball.sample(batch[:1], seed=form, position=3)) for form in forms}) == 1
    for name in ("seed", "position"):
        given = {"seed": [1] * 7, "position": [3] * 7, "offsets": True} | {name: [1 << 40, -5, 1, 1, 1, 1, 1]}
        with pytest.raises(ValueError, match=f"{name} is -5, but must be in 0..2"):
            gumball.sample(batch, **given)


def test_judged_drafts_come_back_with_their_counts_rows_and_statuses(probs: np.ndarray) -> None:
    p = np.tile(probs[:3], (7, 1, 1))
    drafts = p[:, :2].argmax(2)
    # A drafter that was surer than the target is wrong now and then.
    q = np.eye(VOCAB, dtype=np.float32)[drafts]
    got = gumball.judge(q, drafts.astype(np.int32), p, seed=list(range(7)), position=0)
    assert (got.tokens.shape, got.tokens.dtype, got.accepted.dtype, got.rows) == ((7, 3), np.int32, np.uint32, None)
    assert ((got.tokens != NONE).sum(1) == got.accepted + 1).all() and (got.accepted_alone >= got.accepted).all()
    more = gumball.judge(
        np.concatenate([q, np.full_like(p[:, :1], np.nan)], 1), drafts, p, seed=list(range(7)), position=0
    )
    assert (more.tokens == got.tokens).all(), "a row more, which nobody reads"
    tree = gumball.judge(None, drafts, p, np.full((7, 2), -1), seed=1, position=0, dtype="int64")
    assert (tree.tokens.dtype, tree.rows.dtype, tree.accepted_alone) == (np.int64, np.int32, None)
    # Counts are added to the caller's.
    added = np.full(7, 10, np.int32), np.full(7, 30, np.int32)
    sums = gumball.judge(q, drafts, p, seed=list(range(7)), position=0, added=added)
    assert sums.accepted is added[0] and sums.accepted_alone is added[1] and sums.statuses is None
    assert (added[0] == got.accepted + 10).all() and (added[1] == got.accepted_alone + 30).all()
    none, ids = np.zeros((1, 3, VOCAB), np.float32), np.array([[5, 6]], np.int32)
    for zeros, token in ((False, NONE), (True, 0)):
        got = gumball.judge(none[:, :2], ids, none, seed=1, position=0, zero_for_none=zeros)
        assert got.tokens.tolist() == [[token, NONE, NONE]] and got.statuses.tolist() == [Status.EMPTY]


def test_radii_are_those_of_requests(batch: np.ndarray) -> None:
    batch[2] = -np.inf
    asked = gumball.LogprobsParams(mode=["raw", "radius"])
    columns: dict[str, Any] = {"temperature": [0.7, 0, 1, 1.3, 0.7, 0, 1], "top_k": [0, 9, 40, 1, 900, 0, 5]}
    for filters in ({}, columns, columns | {"top_p": [0.9, 1, 0.5, 0.9, 1, 0.3, 0.9], "min_p": 0.02}):
        for order in ("joint", None, ["min_p", "top_k", "top_p"]):
            for rows in (batch, batch.astype(np.float16)):
                wanted = []
                for i, row in enumerate(rows):
                    own = {name: one if isinstance(one, float) else one[i] for name, one in filters.items()}
                    order_of = {} if order is None else {"order": order}
                    sampler = Sampler(SamplingParams(seed=i, logprobs=asked, **own, **order_of), VOCAB, prompt=[0] * 3)
                    sampler.sample(row)
                    assert sampler.logprobs is not None
                    wanted.append(sampler.logprobs.second)
                found = gumball.radii(rows, seed=list(range(7)), position=3, draw=0, order=order, **filters)
                assert found.dtype == np.float32 and found.tolist() == wanted
                assert wanted[2] == -np.inf and max(wanted) > 0
    assert gumball.radii(batch[:0], seed=1, position=0).shape == (0,)
    for given in (
        {"params": SamplingParams(typical_p=0.9)},
        {"params": SamplingParams(top_p=0.9, min_keep=2)},
    ):
        with pytest.raises(ValueError, match="radii .*L7 names the parameters of which one is known"):
            gumball.radii(batch, seed=1, position=0, **given)
        assert (gumball.radii(batch, seed=1, position=0, temperature=0, **given)[:2] > 0).all()


def test_logprobs_of_tokens_come_with_ranks_and_statuses(batch: np.ndarray) -> None:
    batch[2, 5] = np.nan
    for rows, ids in (
        (batch, np.array([3, 4, 5, -1, 899, 7, 7])),
        (batch.astype(ml_dtypes.bfloat16), [3, 4, 5, -1, 899, 7, 7]),
    ):
        found = gumball.selected_logprobs(rows, ids, return_ranks=True, return_statuses=True)
        assert [array.dtype for array in found] == [np.float32, np.uint32, np.uint32]
        assert found[0][3] == -np.inf and found[1][3] == 0 and found[2][2] == Status.NAN and found[0][4] < 0
    assert gumball.selected_logprobs(batch[0], [3]).shape == (1,) and gumball.selected_logprobs(
        batch[:0], []
    ).shape == (0,)


def test_a_device_does_not_look_at_what_lies_there(emulated: None, batch: np.ndarray, torch: Any) -> None:
    logits = torch.from_numpy(batch)
    wanted = gumball.softmax(logits, 0.7)
    for one in (
        torch.tensor(0.7),
        torch.full((14,), 0.7)[::2],
        torch.full((1, 7), 0.7),
        torch.full((7,), 0.7).double(),
    ):
        assert torch.equal(gumball.softmax(logits, one), gumball.softmax(logits, one.float())), "strided, converted"
    assert torch.equal(gumball.softmax(logits, torch.tensor(0.7)), wanted)
    # It counts as the nearest value that is allowed, or as no token.
    assert torch.equal(gumball.softmax(logits, torch.full((7,), -1.0)), gumball.softmax(logits, 0))
    lines = torch.tensor([6, 7, -1, 0])
    got, statuses = gumball.sample(logits, lines, seed=1, position=0, return_statuses=True)
    assert got.tolist()[1:3] == [NONE, NONE] and statuses.tolist() == [0, Status.EMPTY, Status.EMPTY, 0]
    slots = torch.tensor([-1] + [0] * 6)
    assert gumball.sample_from_pools(logits, slots, seed=torch.arange(3), position=0).tolist()[0] == NONE
    found = gumball.selected_logprobs(logits, torch.tensor([900, -2, 1 << 40, 3, 3, 3, 3]), return_statuses=True)
    assert found[1].tolist() == [Status.NO_ID] * 3 + [0] * 4 and found[1].dtype == torch.int32
    cycle = gumball.judge(
        None, torch.zeros(1, 2).long(), wanted[None, :3].clone(), torch.tensor([[1, 0]]), seed=9, position=0
    )
    assert cycle.accepted.tolist() == [0] and cycle.statuses.tolist() == [Status.NO_TREE]
    # Arrays that are not torch's need a place.
    with pytest.raises(TypeError, match="out must be given"):
        gumball.softmax(batch)
    out = np.empty_like(batch)
    assert gumball.softmax(batch, 0.7, out) is out and (out == wanted.numpy()).all()
    for call, kind, text in (
        (lambda: gumball.softmax(logits, torch.ones(2)), ValueError, "temperature has length 2"),
        (lambda: gumball.softmax(logits, torch.ones(7, 1, 1)), ValueError, "temperature has 3 dimensions"),
        (lambda: gumball.softmax(logits, torch.ones(7) > 0), TypeError, "temperature is of bool"),
        (lambda: gumball.softmax(logits, out=logits.half()), ValueError, "out.dtype is f16"),
        (lambda: gumball.sample(logits, seed=torch.ones(7), position=0), TypeError, "seed is of float32"),
        (
            lambda: gumball.sample(logits, seed=1, position=0, params=SamplingParams(banned_ids=[1])),
            gumball.UnavailableError,
            "edits of ids",
        ),
        (
            lambda: gumball.sample_from_pools(logits, [0] * 7, seed=torch.arange(3), position=3, high_draws=True),
            ValueError,
            "position is",
        ),
        (
            lambda: gumball.judge(None, torch.zeros(2, 2), wanted[:6].reshape(2, 3, -1), seed=1, position=0),
            TypeError,
            "draft_token_ids is of float32",
        ),
        (
            lambda: gumball.selected_logprobs(logits, [900] * 7),
            ValueError,
            r"tokens is 900, but must be an id in 0\.\.900, or -1",
        ),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert on_host(lambda: gumball.softmax(logits, 0.7)).equal(wanted)
