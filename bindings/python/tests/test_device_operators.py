"""Operators on a device, which the host emulates here: rows of the host are taken for its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gumball
from conftest import VOCAB
from gumball import Status, _gumball

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not _gumball.EMULATOR, reason="the emulated device is not built in")

TEMPERATURES = [1.0, 0.01, 100.0, 0.7, 0.0, 2.0, 1.3]


@pytest.fixture
def emulated() -> Iterator[None]:
    """What is handed in lies on the device, as far as the package can see."""
    _gumball.emulate(True)
    yield
    _gumball.emulate(False)


def on_host(work: Any) -> Any:
    _gumball.emulate(False)
    try:
        return work()
    finally:
        _gumball.emulate(True)


@pytest.fixture
def logits(batch: np.ndarray) -> Any:
    return torch.from_numpy(batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_softmax_comes_in_every_type_and_stride(emulated: None, logits: Any, dtype: str) -> None:
    rows = logits.to(getattr(torch, dtype))
    column = torch.tensor(TEMPERATURES)
    for given in (0.7, TEMPERATURES, tuple(TEMPERATURES), column, column.reshape(7, 1), column.double()):
        wanted = on_host(lambda: gumball.softmax(rows, given))
        got = gumball.softmax(rows, given)
        assert got.dtype == torch.float32 and torch.equal(got, wanted)
        place = rows.clone()
        assert gumball.softmax(place, given, out=place) is place
        assert torch.equal(place, wanted.to(rows.dtype))
    wide = torch.full((7, VOCAB + 5), 7.0, dtype=rows.dtype)
    wide[:, :VOCAB] = rows
    assert torch.equal(gumball.softmax(wide[:, :VOCAB], column), wanted)
    gumball.softmax(wide[:, :VOCAB], column, out=wide[:, :VOCAB])
    assert torch.equal(wide[:, :VOCAB], place) and (wide[:, VOCAB:] == 7).all()
    assert gumball.softmax(rows[0]).shape == (VOCAB,) and gumball.softmax(rows[:0]).shape == (0, VOCAB)


def test_a_number_in_a_tensor_is_not_looked_at(emulated: None, logits: Any) -> None:
    wanted = gumball.softmax(logits, 0.7)
    for one in (torch.tensor(0.7), torch.full((14,), 0.7)[::2], torch.full((1, 7), 0.7)):
        assert torch.equal(gumball.softmax(logits, one), wanted)
    # Nothing refuses what nobody sees: it counts as the nearest value that is allowed.
    assert torch.equal(gumball.softmax(logits, torch.full((7,), -1.0)), gumball.softmax(logits, 0))


def test_statuses_lie_beside_the_rows(emulated: None, logits: Any) -> None:
    logits[2], logits[4, 5] = -torch.inf, torch.nan
    got, statuses = gumball.softmax(logits, return_statuses=True)
    assert statuses.dtype == torch.int32 and statuses.tolist() == [0, 0, Status.EMPTY, 0, Status.NAN, 0, 0]
    assert (got[2] == 0).all()


def test_arrays_that_are_not_torchs_need_a_place(emulated: None, batch: np.ndarray) -> None:
    with pytest.raises(TypeError, match="out must be given"):
        gumball.softmax(batch)
    out = np.empty_like(batch)
    assert gumball.softmax(batch, 0.7, out) is out
    assert (out == on_host(lambda: gumball.softmax(batch, 0.7))).all()


def test_mistakes_are_named_and_nothing_is_written(emulated: None, logits: Any) -> None:
    before = logits.clone()
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "temperature is -1, but must be 0", lambda: gumball.softmax(logits, -1.0, logits)),
        (ValueError, "temperature is NaN", lambda: gumball.softmax(logits, [np.nan] * 7, logits)),
        (ValueError, "temperature has length 2, but must have one per row, 7", lambda: gumball.softmax(logits, [1, 2])),
        (ValueError, "temperature has length 2", lambda: gumball.softmax(logits, torch.ones(2))),
        (ValueError, "temperature has 3 dimensions", lambda: gumball.softmax(logits, torch.ones(7, 1, 1))),
        (TypeError, "temperature must be a number, not str", lambda: gumball.softmax(logits, "hot")),
        (TypeError, "temperature is of bool", lambda: gumball.softmax(logits, torch.ones(7) > 0)),
        (TypeError, "logits is of float64", lambda: gumball.softmax(logits.double())),
        (TypeError, "out is of int32", lambda: gumball.softmax(logits, out=torch.zeros(7, VOCAB, dtype=torch.int32))),
        (
            ValueError,
            "out.dtype is f16",
            lambda: gumball.softmax(logits, out=torch.zeros(7, VOCAB, dtype=torch.float16)),
        ),
        (ValueError, "out shares memory with logits", lambda: gumball.softmax(logits[:6], out=logits[1:])),
        (ValueError, "out has length 3", lambda: gumball.softmax(logits, out=torch.zeros(3, VOCAB))),
        (ValueError, "out.vocab is 5", lambda: gumball.softmax(logits, out=torch.zeros(7, 5))),
        (ValueError, "side by side", lambda: gumball.softmax(logits[:, ::2])),
        (ValueError, "3 dimensions", lambda: gumball.softmax(logits[None])),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()
    assert torch.equal(logits, before)


def test_a_stream_is_for_a_gpu(batch: np.ndarray) -> None:
    with pytest.raises(ValueError, match="stream is for rows on a GPU, but logits is on cpu"):
        gumball.softmax(batch, stream=0)
    with pytest.raises(TypeError, match="stream must be the handle"):
        gumball.softmax(batch, stream="mine")
    assert gumball.softmax(batch.astype(ml_dtypes.bfloat16)).dtype == np.float32


def test_draws_from_logits_are_the_hosts(emulated: None, logits: Any) -> None:
    ks, ps, seeds = torch.tensor([5, 0, 40, 1, 7, 9, 30]), torch.linspace(0.3, 1, 7), torch.arange(-3, 4)
    lines = torch.tensor([6, 0, 0, 3, 2])
    calls: list[dict[str, Any]] = [
        {"seed": 7},
        {"seed": 2**64 - 1, "temperature": 0.7, "top_k": 5, "draw": 3, "dtype": "int64"},
        {"seed": seeds, "top_k": ks, "top_p": ps, "position": torch.arange(7)},
        {"seed": seeds.tolist()[3:] + [7, 8, 9], "top_k": ks.int(), "min_p": ps.reshape(7, 1) / 9, "order": "joint"},
        {"seed": 5, "temperature": ps.tolist(), "top_p": [0.5] * 7, "top_k": ks.tolist(), "position": list(range(7))},
        {"seed": 3, "indices": lines, "temperature": ps},
        {"seed": 3, "indices": lines.tolist(), "draw": torch.arange(5).int()},
        {"seed": 3, "n": 4, "top_p": ps},
        {"seed": seeds, "n": 3, "params": gumball.SamplingParams(typical_p=0.8)},
        {"seed": torch.tensor([11]), "position": torch.tensor(2), "temperature": 0},
    ]
    for call in calls:
        listed = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        if isinstance(listed["seed"], list):
            listed["seed"] = [seed % 2**64 for seed in listed["seed"]]
            listed["seed"] = listed["seed"][0] if len(listed["seed"]) == 1 else listed["seed"]
        wanted, words = on_host(lambda: gumball.sampling_from_logits(logits, return_statuses=True, **flat(listed)))
        got, statuses = gumball.sampling_from_logits(logits, return_statuses=True, **call)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), call
        assert statuses.shape == words.shape and statuses.tolist() == words.tolist()
    out = torch.empty(7, dtype=torch.int64)
    assert gumball.sampling_from_logits(logits, seed=1, out=out) is out
    assert torch.equal(out.int(), gumball.sampling_from_logits(logits, seed=1))


def test_draws_from_probabilities_are_the_hosts(emulated: None, logits: Any) -> None:
    probs = on_host(lambda: gumball.softmax(logits)).half()
    probs[3], probs[5, 2] = 0, torch.nan
    for more in ({"seed": torch.arange(7), "top_k": torch.arange(7), "top_p": 0.9}, {"seed": 5, "min_p": 0.1, "n": 3}):
        wanted, words = on_host(lambda: gumball.sampling_from_probs(probs, return_statuses=True, **more))
        got, statuses = gumball.sampling_from_probs(probs, return_statuses=True, **more)
        assert torch.equal(got, wanted) and statuses.tolist() == words.tolist(), more


def flat(call: dict[str, Any]) -> dict[str, Any]:
    """Columns [rows, 1] as lists of the host."""
    return {
        key: [one[0] for one in value] if isinstance(value, list) and isinstance(value[0], list) else value
        for key, value in call.items()
    }


@pytest.mark.parametrize("each", [1, 7])
def test_kernels_read_pools(emulated: None, logits: Any, each: int) -> None:
    slots = [3, 0, 2, 2, 1, 4, 0] if each == 1 else [3]
    index = torch.tensor(slots, dtype=torch.int32)
    held: dict[str, Any] = {
        "seed": torch.tensor([5, 6, 7, 2**63 - 1, 9]),
        "temperature": torch.tensor([1.0, 0.0, 0.7, 1.2, 0.5]),
        "top_k": torch.tensor([0, 5, 40, 7, 3], dtype=torch.int32),
        "top_p": torch.tensor([0.9, 1.0, 0.5, 0.99, 0.3]),
        "position": torch.tensor([0, 1 << 32 | 3, 2 << 32 | 2**32 - 2, 3 << 32 | 8, 1]),
        "high_draws": True,
        "rows_per_slot": each,
        "dtype": "int64",
    }
    wanted = on_host(lambda: gumball.sampling_from_pools(logits, slots, **held))
    for given in (index, index.long(), slots):
        got = gumball.sampling_from_pools(logits, given, **held)
        assert got.dtype == torch.int64 and torch.equal(got, wanted)
    index[0] = -1
    none = gumball.sampling_from_pools(logits, index, **held)
    assert (none[:each] == -1).all() and torch.equal(none[each:], wanted[each:])
    with pytest.raises(ValueError, match="positions"):
        gumball.sampling_from_pools(logits, slots, **{**held, "position": 3})


def test_a_line_that_is_none_yields_none(emulated: None, logits: Any) -> None:
    lines = torch.tensor([6, 7, -1, 0])
    got, statuses = gumball.sampling_from_logits(logits, lines, seed=1, return_statuses=True)
    assert got.tolist()[1:3] == [-1, -1] and statuses.tolist() == [0, Status.EMPTY, Status.EMPTY, 0]
    assert (got[[0, 3]] >= 0).all()


def test_chains_are_the_hosts(emulated: None, logits: Any) -> None:
    p = on_host(lambda: gumball.softmax(logits)).repeat(3, 1)[:18]
    target, draft, seeds = p.reshape(6, 3, VOCAB), p.flip(0)[:12].reshape(6, 2, VOCAB), torch.arange(6)
    ids = draft.argmax(2)
    for call in ({"seed": 3}, {"seed": seeds, "position": 5, "draw": seeds.int(), "dtype": "int64"}):
        listed = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        wanted = on_host(lambda: gumball.judge(draft, ids, target, **listed))
        got = gumball.judge(draft, ids, target, **call)
        assert torch.equal(got.tokens, wanted.tokens) and got.tokens.dtype == wanted.tokens.dtype
        for seen, word in zip(got[2:], wanted[2:], strict=True):
            assert seen.dtype == torch.int32 and seen.tolist() == word.tolist()
    none = gumball.judge(draft[:, :0], ids[:, :0], target[:, :1].clone(), seed=3)
    assert none.tokens.shape == (6, 1) and (none.tokens >= 0).all()


def test_offsets_zeros_and_added_counts_are_the_hosts(emulated: None, logits: Any) -> None:
    logits[3] = -torch.inf
    offsets = torch.tensor([5, 1 << 32 | 5, -(1 << 32) + 5, 7 << 32, 0, 1, (1 << 62) + 9])
    draws: dict[str, Any] = {"seed": torch.arange(7), "position": offsets, "offsets": True, "zero_for_none": True}

    def chains() -> list[Any]:
        probs = gumball.softmax(logits[:6])
        q, p = probs[:4].reshape(2, 2, VOCAB), probs.reshape(2, 3, VOCAB)
        added = torch.tensor([10, 20], dtype=torch.int32), torch.tensor([30, 40], dtype=torch.int32)
        keys: dict[str, Any] = {"seed": torch.arange(2), "position": offsets[1:3].clone(), "offsets": True}
        ids = torch.zeros(2, 2, dtype=torch.int32)
        judged = gumball.judge(q, ids, p, zero_for_none=True, added=added, **keys)
        return [judged.tokens, judged.accepted, judged.accepted_alone]

    for got, wanted in zip(
        [gumball.sampling_from_logits(logits, **draws), *chains()],
        on_host(lambda: [gumball.sampling_from_logits(logits, **draws), *chains()]),
        strict=True,
    ):
        assert torch.equal(got, wanted) and (got >= -1).all()


def test_mistakes_of_draws_are_named(emulated: None, logits: Any) -> None:
    draw = gumball.sampling_from_logits
    p = torch.full((2, 3, VOCAB), 1 / VOCAB)
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "top_p has length 2", lambda: draw(logits, seed=1, top_p=[0.5, 0.5])),
        (ValueError, "top_p has length 2", lambda: draw(logits, seed=1, top_p=torch.ones(2))),
        (ValueError, "top_p is -1", lambda: draw(logits, seed=1, top_p=-1.0)),
        (ValueError, "min_p is 2", lambda: draw(logits, seed=1, min_p=[0.1] * 6 + [2.0])),
        (ValueError, "seeds has length 2", lambda: draw(logits, seed=[1, 2])),
        (ValueError, "seeds has length 2", lambda: draw(logits, seed=torch.tensor([1, 2]))),
        (TypeError, "seed is of float32", lambda: draw(logits, seed=torch.ones(7))),
        (ValueError, "row_indices is 7, but must be a row in 0..7", lambda: draw(logits, [7], seed=1)),
        (ValueError, "n conflicts with indices", lambda: draw(logits, [1], n=2, seed=1)),
        (ValueError, "dtype is int8", lambda: draw(logits, seed=1, dtype="int8")),
        (ValueError, "out has length 3", lambda: draw(logits, seed=1, out=torch.zeros(3, dtype=torch.int32))),
        (TypeError, "out is of float32", lambda: draw(logits, seed=1, out=torch.zeros(7))),
        (
            gumball.UnavailableError,
            "edits of ids",
            lambda: draw(logits, seed=1, params=gumball.SamplingParams(banned_ids=[1])),
        ),
        (
            TypeError,
            "target_probs is of float16",
            lambda: gumball.judge(p[:, :2], torch.zeros(2, 2).long(), p.half(), seed=1),
        ),
        (
            TypeError,
            "draft_token_ids is of float32",
            lambda: gumball.judge(p[:, :2], torch.zeros(2, 2), p, seed=1),
        ),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()


def test_written_rows_are_the_hosts(emulated: None, logits: Any) -> None:
    ks, ps = torch.tensor([5, 0, 40, 1, 7, 9, 30]), torch.linspace(0.3, 1, 7)
    calls: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": ps, "top_k": ks, "top_p": ps.reshape(7, 1)},
        {"min_p": [0.1] * 7, "order": "joint", "top_k": ks.int()},
        {"params": gumball.SamplingParams(typical_p=0.8, temperature=0.5)},
    ]
    logits[2], logits[4, 5] = -torch.inf, torch.nan
    for of in (gumball.probabilities, gumball.mask_logits):
        for call in calls:
            wanted, words = on_host(lambda: of(logits, return_statuses=True, **call))
            got, statuses = of(logits, return_statuses=True, **call)
            assert got.dtype == wanted.dtype and torch.equal(got, wanted), call
            assert statuses.tolist() == words.tolist()
        place = logits.bfloat16()
        assert of(place, out=place) is place and torch.equal(place, on_host(lambda: of(logits.bfloat16())).bfloat16())
    assert torch.equal(gumball.top_k_mask_logits(logits, ks), on_host(lambda: gumball.top_k_mask_logits(logits, ks)))
    with pytest.raises(ValueError, match="top_k has length 2"):
        gumball.top_k_mask_logits(logits, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="top_p is -1"):
        gumball.mask_logits(logits, top_p=-1.0)


def test_renormalised_rows_are_the_hosts(emulated: None, logits: Any) -> None:
    probs = (logits.exp() * 3)[:, :VOCAB]
    probs[2], probs[4, 5], probs[5, 1] = 0, torch.nan, -1.0
    ks, ps = torch.tensor([5, 0, 40, 1, 7, 9, 30]), torch.linspace(0.3, 1, 7)
    calls: list[Any] = [
        lambda rows: gumball.top_k_renorm_probs(rows, ks, return_statuses=True),
        lambda rows: gumball.top_p_renorm_probs(rows, ps, return_statuses=True),
        lambda rows: gumball.min_p_renorm_probs(rows, [0.1] * 7, return_statuses=True),
        lambda rows: gumball.top_k_top_p_renorm_probs(rows, 20, 0.8, order="joint", return_statuses=True),
        lambda rows: gumball.probabilities(rows, kind="probabilities", return_statuses=True),
    ]
    for call, rows in zip(calls, [probs, probs.bfloat16(), probs.half(), probs, probs], strict=True):
        wanted, words = on_host(lambda: call(rows))
        got, statuses = call(rows)
        assert got.dtype == wanted.dtype and torch.equal(got, wanted) and statuses.tolist() == words.tolist()
    place = probs.clone()
    assert gumball.top_k_renorm_probs(place, ks, place) is place
    assert torch.equal(place, on_host(lambda: gumball.top_k_renorm_probs(probs, ks)))
    for mistake in (dict(temperature=0.5), dict(temperature=ps)):
        with pytest.raises(ValueError, match="temperature"):
            gumball.probabilities(probs, kind="probabilities", **mistake)


@pytest.mark.parametrize("rule", ["rejection", "block", "threshold"])
def test_trees_are_the_hosts(emulated: None, rule: str) -> None:
    rng = np.random.default_rng(4)
    trees, n, vocab = 6, 4, 300
    p, q = (torch.from_numpy(rng.dirichlet(np.full(vocab, 0.05), (trees, n + 1)).astype(np.float32)) for _ in range(2))
    drafts = p[:, :n].argmax(2).to(torch.int32)
    parents = None if rule == "block" else torch.tensor([[-1, -1, 0, 1]] * trees)
    for drafter in (q, None):

        def judged(drafter: Any = drafter) -> Any:
            return gumball.judge(drafter, drafts, p, parents, rule=rule, threshold_acc=0.5, seed=9)

        wanted, got = on_host(judged), judged()
        assert torch.equal(got.tokens, wanted.tokens)
        assert (got.rows is None) == (parents is None) and (parents is None or torch.equal(got.rows, wanted.rows))
        assert (got.accepted.numpy() == np.asarray(wanted.accepted)).all() and got.accepted.sum() > 0
        assert (got.statuses.numpy() == np.asarray(wanted.statuses)).all()
    if parents is not None:
        cycle = torch.tensor([[1, 0, 0, 1]] * trees)
        got = gumball.judge(None, drafts, p, cycle, rule=rule, seed=9)
        assert (got.accepted == 0).all() and (got.statuses == Status.NO_TREE).all()


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_logprobs_of_tokens_are_the_hosts(emulated: None, logits: Any, kind: str) -> None:
    rows = logits if kind == "logits" else logits.softmax(1)
    rows[4, 7] = torch.nan
    tokens = [5, 0, -1, 899, 7, 7, 31]

    def told(tokens: Any) -> Any:
        return gumball.selected_logprobs(rows, tokens, kind=kind, return_ranks=True, return_statuses=True)

    wanted, one = on_host(lambda: told(tokens)), on_host(lambda: told(5))
    assert wanted[2].tolist() == [0, 0, 0, 0, Status.NAN, 0, 0]
    ids = torch.tensor(tokens)
    for given, host in ((tokens, wanted), (ids, wanted), (ids.int(), wanted), (5, one), (ids[:1], one)):
        found = told(given)
        assert [array.dtype for array in found] == [torch.float32, torch.int32, torch.int32]
        assert torch.equal(found[0], host[0])
        assert all((array.numpy() == words).all() for array, words in zip(found[1:], host[1:]))
    # Nobody refuses what only the device sees: it counts as no token, and the status says so.
    ids[0], ids[1], ids[3] = 900, -2, 1 << 40
    out = torch.zeros(7)
    found = gumball.selected_logprobs(rows, ids, kind=kind, out=out, return_statuses=True)
    assert found[0] is out and torch.equal(out[4:], wanted[0][4:]) and out[:4].isneginf().all()
    assert found[1].tolist() == [Status.NO_ID, Status.NO_ID, 0, Status.NO_ID, Status.NAN, 0, 0]
    with pytest.raises(ValueError, match="tokens has length 3, but must have one for each of 7 rows, or for all"):
        told(ids[:3])
    with pytest.raises(TypeError, match="out is of float64"):
        gumball.selected_logprobs(rows, tokens, kind=kind, out=out.double())
    with pytest.raises(ValueError, match=r"tokens is 900, but must be an id in 0\.\.900, or -1"):
        gumball.selected_logprobs(rows, [900] * 7, kind=kind)
