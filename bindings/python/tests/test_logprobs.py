"""The trainer's function: against a pool's steps bit for bit, against float64 and torch within bounds, compiled, checkpointed, in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, LogprobsParams, SamplingParams, _gumball

torch: Any = pytest.importorskip("torch")

import gumball.torch  # noqa: E402

VOCAB, ROWS = 700, 12


def batch(dtype: Any = torch.float32, rows: int = ROWS) -> Any:
    torch.manual_seed(3)
    return (torch.randn(rows, VOCAB) * 3).to(dtype)


def ids_of(rows: int = ROWS, width: int | None = None) -> Any:
    torch.manual_seed(4)
    return torch.randint(0, VOCAB, (rows,) if width is None else (rows, width))


def some_set(rows: int = ROWS) -> Any:
    torch.manual_seed(5)
    return torch.rand(rows, VOCAB) < 0.3


def lists_of(kept: Any) -> Any:
    return kept.sum(-1), kept.nonzero()[:, 1]


def bits_of(kept: Any) -> Any:
    return gumball.torch.kept_bitmask(*lists_of(kept), VOCAB)


def exact(logits: Any, ids: Any, temperature: Any = 1.0, kept: Any = None) -> Any:
    """The formula in float64 with torch's gradient: logprobs and entropies."""
    z = logits.double() / torch.as_tensor(temperature).double().reshape(-1, 1)
    if kept is not None:
        z = z.masked_fill(~kept, -torch.inf)
    logp = torch.log_softmax(z, -1)
    found = logp.gather(-1, ids if ids.dim() == 2 else ids[:, None]).reshape(ids.shape)
    return found, -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0)).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_bit_for_bit_what_a_step_reports(dtype: Any) -> None:
    logits = batch(dtype)
    for mode in ("raw", "tempered", "processed"):
        params = [
            SamplingParams(
                temperature=1.0 if mode == "raw" else 0.5 + i / 8,
                top_p=0.9,
                min_p=0.02 * (i % 2),
                xtc_probability=float(i % 3 == 0),
                seed=i,
                logprobs=LogprobsParams(mode=mode),
            )
            for i in range(ROWS)
        ]
        pool = gumball.Pool(VOCAB, slots=ROWS, kept=True)
        out = pool.step(logits, Batch([pool.admit(one) for one in params]))
        lengths, ids = map(torch.from_numpy, out.kept_sets())
        kept, sets = (lengths, ids) if mode == "processed" else None, ids.split(lengths.tolist())
        temperature = torch.tensor([one.temperature for one in params])
        found = gumball.torch.logprobs(logits, torch.from_numpy(out.tokens), temperature=temperature, kept=kept)
        assert found.numpy().tobytes() == out.logprobs.tobytes(), mode
        # The ratio of trainer to sampler is 1 in a batch of one row, too.
        for row in range(ROWS):
            alone = None if kept is None else (kept[0][row], sets[row])
            token = torch.from_numpy(out.tokens[row : row + 1])
            part = gumball.torch.logprobs(logits[row : row + 1], token, temperature=temperature[row], kept=alone)
            assert torch.equal(part, found[row : row + 1])


@pytest.mark.parametrize("width", [None, 1, 7, 256])
@pytest.mark.parametrize("has_set", [False, True])
def test_values_and_gradients_are_near_those_of_float64(has_set: bool, width: int | None) -> None:
    kept, ids = some_set() if has_set else None, ids_of(width=width)
    if kept is not None:
        kept[torch.arange(ROWS)[:, None], ids.reshape(ROWS, -1)] = True
    temperature = torch.linspace(0.3, 2.0, ROWS)
    mine, theirs = batch().requires_grad_(), batch().requires_grad_()
    named: Any = {} if kept is None else {"kept": lists_of(kept)}
    found = gumball.torch.logprobs(mine, ids, temperature=temperature, entropy=True, **named)
    wanted = exact(theirs, ids, temperature, kept)
    weights = torch.randn(ids.shape)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == torch.float32 and got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=2e-6)
    ((found[0] * weights).sum() + (found[1] * found[1]).sum()).backward()
    ((wanted[0] * weights).sum() + (wanted[1] * wanted[1]).sum()).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_have_the_type_of_the_logits(dtype: Any) -> None:
    narrow, wide = batch(dtype).requires_grad_(), batch(dtype).float().requires_grad_()
    for logits in (narrow, wide):
        found, entropies = gumball.torch.logprobs(logits, ids_of(), entropy=True)
        (found.sum() - entropies.sum()).backward()
    assert narrow.grad.dtype == dtype and torch.equal(narrow.grad, wide.grad.to(dtype)), "rounded once"


def test_what_is_outside_ignored_greedy_or_no_id_has_no_gradient_and_never_nan() -> None:
    logits = batch()
    logits[1], logits[2, 5] = -torch.inf, torch.nan
    logits.requires_grad_()
    kept = torch.ones(ROWS, VOCAB, dtype=torch.bool)
    kept[3, 9], kept[4] = False, False
    ids = torch.tensor([7, 7, 5, 9, 7, -100, -1, 7, 7, 7, 7, 7])
    temperature = torch.ones(ROWS)
    temperature[7] = 0
    found, entropies = gumball.torch.logprobs(logits, ids, temperature=temperature, kept=bits_of(kept), entropy=True)
    assert (found[[1, 2, 3, 6]] == -torch.inf).all() and (found[[4, 5, 7]] == 0).all()
    assert (entropies[[1, 4, 5, 7]] == 0).all() and (found[[0, 8, 9, 10, 11]] < 0).all()
    found.sum().backward(retain_graph=True)
    assert (logits.grad[1:8] == 0).all() and (logits.grad[8:].abs().sum(-1) > 0).all()
    logits.grad = None
    entropies.sum().backward()
    assert not logits.grad.isnan().any() and (logits.grad[[1, 4, 5, 7]] == 0).all() and (logits.grad[3] != 0).any()


@pytest.mark.parametrize("ignored", [-100, -7])
def test_rows_whose_set_holds_nothing_are_ignored_in_every_form_and_leave_a_masked_loss_finite(ignored: int) -> None:
    kept, ids = some_set(), ids_of(width=3)
    kept[torch.arange(ROWS)[:, None], ids] = True
    recorded = torch.arange(ROWS) % 3 > 0
    kept[~recorded] = False
    temperature = torch.tensor([0.0, 0.7, 1.0]).repeat_interleave(ROWS // 3)
    head = torch.nn.Linear(8, VOCAB)
    hidden = torch.randn(ROWS, 8)
    named: Any = {"temperature": temperature, "entropy": True, "ignore_index": ignored}
    rows = batch()
    wanted = gumball.torch.logprobs(rows, ids.masked_fill(~recorded[:, None], ignored), kept=bits_of(kept), **named)
    assert (wanted[0][~recorded] == 0).all() and (wanted[1][~recorded] == 0).all() and wanted[0].isfinite().all()
    lengths, flat = lists_of(kept)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    for sets in (bits_of(kept), (lengths, flat), (offsets, flat), (offsets.int(), flat.int())):
        logits = rows.clone().requires_grad_()
        found = gumball.torch.logprobs(logits, ids, kept=sets, **named)
        assert all(map(torch.equal, found, wanted))
        assert all(map(torch.equal, gumball.torch.logprobs(logits, ids.short(), kept=sets, **named), wanted))
        *_, best, of_best = gumball.torch.logprobs(logits, ids, kept=sets, top=2, **named)
        assert (best[~recorded] == ignored).all() and (of_best[~recorded] == 0).all()
        (found[0] * recorded[:, None] + found[1][:, None]).sum().backward()
        assert logits.grad.isfinite().all() and (logits.grad[~recorded] == 0).all()
        states = gumball.torch.hidden_logprobs(hidden, head, ids, chunk=5, kept=sets, **named)
        assert all(map(torch.equal, states, gumball.torch.logprobs(head(hidden), ids, kept=sets, **named)))


def test_sets_are_bitmasks_or_lists_in_any_order_with_ids_that_come_twice() -> None:
    kept = some_set()
    kept[0], kept[1], kept[2, :] = False, True, torch.arange(VOCAB) == VOCAB - 1
    lengths, ids = lists_of(kept)
    wanted = np.zeros((ROWS, -(-VOCAB // 32) * 32), bool)
    wanted[:, :VOCAB] = kept.numpy()
    words = np.packbits(wanted, axis=1, bitorder="little").view(np.int32)
    assert (gumball.torch.kept_bitmask(lengths, ids, VOCAB).numpy() == words).all()
    turned = [part.flip(0).repeat(2) for part in ids.split(lengths.tolist())]
    assert (gumball.torch.kept_bitmask(lengths * 2, torch.cat(turned).int(), VOCAB).numpy() == words).all()


def loss_of(logits: Any, ids: Any, kept: Any) -> Any:
    found, entropies = gumball.torch.logprobs(logits * 1.5, ids, temperature=0.8, kept=kept, entropy=True)
    return found.exp().sum() - 0.1 * entropies.sum()


def test_compiled_checkpointed_chunked_and_in_place_are_the_same() -> None:
    from torch.utils.checkpoint import checkpoint

    ids, kept = ids_of(), bits_of(some_set())

    def gradient(run: Any) -> tuple[Any, Any]:
        logits = batch().requires_grad_()
        loss = run(logits)
        loss.backward()
        return loss.detach(), logits.grad

    def in_place(logits: Any) -> Any:
        named: Any = dict(temperature=0.8, kept=kept, entropy=True, in_place=True)
        found, entropies = gumball.torch.logprobs(logits * 1.5, ids, **named)
        return found.exp().sum() - 0.1 * entropies.sum()

    def chunks(logits: Any) -> Any:
        parts = [slice(0, 1), slice(1, 5), slice(5, ROWS)]
        return sum(loss_of(logits[part], ids[part], kept[part]) for part in parts)

    plain = gradient(lambda logits: loss_of(logits, ids, kept))
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    for run in (
        lambda logits: compiled(logits, ids, kept),
        lambda logits: checkpoint(loss_of, logits, ids, kept, use_reentrant=False),
        in_place,
    ):
        for got, want in zip(gradient(run), plain, strict=True):
            assert torch.equal(got, want)
    assert torch.equal(gradient(chunks)[1], plain[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_device_has_the_hosts_bits(dtype: Any, in_place: bool) -> None:
    if not _gumball.EMULATOR:
        pytest.skip("no emulator")
    ids, kept, temperature = ids_of(width=3), bits_of(some_set()), torch.linspace(0, 2, ROWS)
    ids[1] = torch.tensor([-1, -100, VOCAB - 1])

    def answers() -> list[Any]:
        logits = batch(dtype).requires_grad_()
        named: Any = dict(temperature=temperature, kept=kept, entropy=True, in_place=in_place)
        found, entropies = gumball.torch.logprobs(logits * 1, ids, **named)
        (found.clamp(min=-1e30).sum() + entropies.sum()).backward()
        return [found, entropies, logits.grad]

    wanted = answers()
    _gumball.emulate(True)
    try:
        for got, want in zip(answers(), wanted, strict=True):
            assert torch.equal(got, want)
        # A GPU reports no error for ids outside the vocabulary: their logprob is -inf.
        assert (gumball.torch.logprobs(batch(), ids_of() + VOCAB) == -torch.inf).all()
    finally:
        _gumball.emulate(False)


@pytest.mark.parametrize("has_set", [False, True])
def test_the_most_likely_of_a_set_are_those_of_a_step_and_have_gradients(has_set: bool) -> None:
    # Many ties, and a row with fewer members than are asked for.
    logits, kept = batch().round(), some_set()
    kept[3] = torch.arange(VOCAB) < 2
    named: Any = {"kept": bits_of(kept)} if has_set else {}
    ids = ids_of()
    ids[5] = -100
    rows = logits.clone().requires_grad_()
    plain, _, best, found = gumball.torch.logprobs(rows, ids, entropy=True, top=9, temperature=0.7, **named)
    pool = gumball.Pool(VOCAB, slots=ROWS, top_n=9)
    params = SamplingParams(temperature=0.7, seed=1, logprobs=LogprobsParams(mode="tempered", top_n=9))
    masked = logits.masked_fill(~kept, -torch.inf) if has_set else logits
    out = pool.step(masked, Batch([pool.admit(params) for _ in range(ROWS)]))
    others = torch.arange(ROWS) != 5
    assert (best.numpy()[others] == out.top_ids[others]).all()
    assert found.detach().numpy()[others].tobytes() == out.top_logprobs[others].tobytes()
    assert (best[5] == -100).all() and (found[5] == 0).all() and plain[5] == 0
    assert torch.equal(plain, gumball.torch.logprobs(rows, ids, temperature=0.7, **named))
    found[others][:, :2].sum().backward()
    assert (rows.grad[others].abs().sum(-1) > 0).all() and (rows.grad[5] == 0).all()
    with pytest.raises(ValueError, match="top is 2000"):
        gumball.torch.logprobs(rows, ids, top=2000)


def test_shapes_of_sequences_and_what_torch_says_of_the_operators() -> None:
    logits = batch().reshape(3, 4, VOCAB)
    ids, kept = ids_of().reshape(3, 4), bits_of(some_set())
    flat = gumball.torch.logprobs(logits.reshape(ROWS, VOCAB), ids.reshape(-1), kept=kept)
    found, entropies = gumball.torch.logprobs(logits, ids, kept=kept.reshape(3, 4, -1), entropy=True)
    assert torch.equal(found, flat.reshape(3, 4)) and entropies.shape == (3, 4)
    whole = gumball.torch.logprobs(logits, ids)
    assert torch.equal(gumball.torch.logprobs(logits[:, :-1], ids[:, :-1]), whole[:, :-1])
    assert gumball.torch.logprobs(logits[0, 0], ids[0, 0]).shape == ()
    several = gumball.torch.logprobs(logits, ids[..., None].expand(3, 4, 5))
    assert torch.equal(several, whole[..., None].expand(3, 4, 5))
    rows, named = batch().requires_grad_(), torch.ops.gumball
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    weighed = named.logprobs(rows, ids.reshape(-1, 1), 1.0, None, kept, -100, True, False)[2].detach()
    tokens = (ids.reshape(-1, 1), 1.0, None, kept, -100)
    plain = rows.detach()
    for operator, arguments in (
        (named.logprobs, (rows, *tokens, True, False)),
        (named.logprobs_gradient, (plain, *tokens, weighed, torch.ones(ROWS, 1), torch.ones(ROWS))),
        (named.logprobs_gradient_, (plain.clone(), *tokens, weighed, torch.ones(ROWS, 1), None)),
        (named.kept_bitmask, (*lists_of(some_set()), VOCAB)),
        (named.top_ids, (plain, kept, 3)),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=tests)


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_hidden_states_by_chunks_give_what_their_logits_give(chunk: int) -> None:
    torch.manual_seed(6)
    head, hidden = torch.nn.Linear(16, VOCAB, dtype=torch.float64), torch.randn(3, 4, 16, dtype=torch.float64)
    kept, ids = bits_of(some_set()), ids_of(width=2).reshape(3, 4, 2)
    temperature = torch.linspace(0.5, 1.5, ROWS).reshape(3, 4)

    def gradients(run: Any) -> list[Any]:
        states = hidden.clone().requires_grad_()
        head.zero_grad()
        named: Any = dict(temperature=temperature, entropy=True)
        found, entropies = run(states, named)
        (found.clamp(min=-30).sum() + entropies.sum()).backward()
        return [found, entropies, states.grad, head.weight.grad.clone(), head.bias.grad.clone()]

    def product(states: Any) -> Any:
        return head(states).float()

    whole = gradients(lambda states, named: gumball.torch.logprobs(product(states), ids, kept=kept, **named))
    for sets in (kept, lists_of(some_set())):
        parts = gradients(
            lambda states, named, sets=sets: gumball.torch.hidden_logprobs(
                states, product, ids, chunk=chunk, kept=sets, **named
            )
        )
        for got, want in zip(parts, whole, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert gumball.torch.hidden_logprobs(hidden, product, ids, chunk=chunk).shape == (3, 4, 2)
        assert gumball.torch.hidden_logprobs(hidden[:0], product, ids[:0]).shape == (0, 4, 2)
    with pytest.raises(ValueError, match="chunk is 0"):
        gumball.torch.hidden_logprobs(hidden, product, ids, chunk=0)


def test_logits_that_backward_wrote_over_are_not_used_again() -> None:
    scaled = batch().requires_grad_() * 2
    squares = (scaled * scaled).sum()
    loss = squares + gumball.torch.logprobs(scaled, ids_of(), in_place=True).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_mistakes_are_named() -> None:
    logits, ids = batch(), ids_of()
    lengths, kept = lists_of(some_set())
    call = gumball.torch.logprobs
    for run, kind, text in (
        (
            lambda: call(logits, ids[:5]),
            ValueError,
            r"ids has shape \[5\], but must have that of logits's rows, \[12\]",
        ),
        (lambda: call(logits, ids + VOCAB), ValueError, "ids is"),
        (lambda: call(logits, ids.float()), TypeError, "ids"),
        (lambda: call(logits.double(), ids), TypeError, "logits"),
        (lambda: call(logits, ids, temperature=-1), ValueError, "temperature is -1"),
        (lambda: call(logits, ids, temperature=torch.full((ROWS,), torch.nan)), ValueError, "temperature is NaN"),
        (
            lambda: call(logits, ids, temperature=torch.tensor([1.0, 2.0])),
            ValueError,
            r"temperature has shape \[2\], but must expand to that of the rows, \[12\]",
        ),
        (lambda: call(logits, ids, kept=(lengths + 1, kept)), ValueError, "kept has"),
        (
            lambda: call(logits, ids, kept=(torch.tensor([-1, 1]), kept[:0])),
            ValueError,
            "kept has a row of length -1, but must have lengths of at least 0",
        ),
        (lambda: call(logits, ids, kept=(torch.arange(1, ROWS + 2), kept)), ValueError, "kept has offsets from 1 on"),
        (
            lambda: gumball.torch.kept_bitmask(torch.tensor([0, 2, 3]), kept[:3], VOCAB),
            ValueError,
            r"sum to 5, but must have as many; of offsets, as these seem to be, \.diff\(\) has the lengths",
        ),
        (lambda: call(logits, ids.float(), kept=bits_of(some_set())), TypeError, "ids"),
        (lambda: call(logits, ids, kept=[[1], [2], [3]]), TypeError, r"kept is a list of 3, .* \(lengths, ids\)"),
        (lambda: call(logits, ids, kept=[lengths, kept]), TypeError, "kept is a list of 2, but must be a bitmask"),
        (lambda: call(logits, ids, kept=([1], kept)), TypeError, r"kept\[0\] must be a tensor, not list"),
        (lambda: gumball.torch.kept_bitmask(lengths, [1], VOCAB), TypeError, "ids must be a tensor, not list"),
        (lambda: call(logits, ids, kept=(lengths, kept + VOCAB)), ValueError, "kept holds an id outside"),
        (lambda: call(logits, ids, kept=bits_of(some_set())[:5]), ValueError, "kept has length 5"),
        (lambda: call(logits, ids, kept=some_set()), TypeError, "int32"),
        (lambda: call(logits, ids.tolist()), TypeError, "ids must be a tensor, not list"),
        (lambda: call(logits, ids[:, None].expand(ROWS, 1025)), ValueError, r"ids.shape\[-1\] is 1025"),
    ):
        with pytest.raises(kind, match=text):
            run()


def test_edited_rows_are_those_that_a_step_edits() -> None:
    logits = batch(torch.bfloat16).requires_grad_()
    prompt = [3, 9, 3, 40]
    params = SamplingParams(
        seed=5,
        temperature=0.8,
        top_p=0.9,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        dry=gumball.Dry(0.7, allowed_length=1),
        logit_bias={9: 2.5, 500: -1.0, 600: float("-inf")},
        bad_words=[[3, 4]],
        logprobs=LogprobsParams(mode="processed"),
    )
    sampler = gumball.Sampler(params, VOCAB, prompt=prompt)
    sampler.collect_kept(True)
    sets, told = [], []
    for row in logits.detach():
        sampler.sample(row)
        sets.append(torch.tensor(sampler.kept))
        told.append(sampler.logprobs.token.logprob)
    kept, ids = (torch.tensor([len(one) for one in sets]), torch.cat(sets)), [*prompt, *sampler.output]
    edited = gumball.torch.edited(logits, params, ids, prompt_len=4)
    asked: Any = {"temperature": 0.8, "kept": kept}
    assert gumball.torch.logprobs(edited, torch.tensor(sampler.output), **asked).tolist() == told
    # In pieces, and from a tensor of ids, the same.
    pieces = [
        gumball.torch.edited(logits[at : at + 5], params, torch.tensor(ids), prompt_len=4, start=4 + at)
        for at in range(0, ROWS, 5)
    ]
    assert torch.equal(torch.cat(pieces), edited)
    # The derivative is the repetition penalty's.
    edited.backward(torch.ones_like(edited))
    slopes = torch.ones(ROWS, VOCAB)
    for row in range(ROWS):
        seen = torch.tensor(sorted(set(ids[: 4 + row])))
        slopes[row, seen] = torch.where(logits[row, seen] > 0, 1 / torch.tensor(1.3), torch.tensor(1.3))
    torch.testing.assert_close(logits.grad, slopes.bfloat16())
    with pytest.raises(ValueError, match="logits has 1 dimensions, but must have two"):
        gumball.torch.edited(logits[0], params, ids, prompt_len=4)
    with pytest.raises(TypeError, match="params must be SamplingParams, not dict"):
        gumball.torch.edited(logits, {}, ids, prompt_len=4)
    with pytest.raises(ValueError, match="ids has length 16, but must have those before 12 rows from place 6 on"):
        gumball.torch.edited(logits, params, ids, prompt_len=4, start=6)
    with pytest.raises(ValueError, match="repetition_penalty is -1"):
        gumball.torch.edited(logits, params.replace(repetition_penalty=-1), ids, prompt_len=4)
    plain = gumball.torch.edited(logits, SamplingParams(), [], prompt_len=0)
    assert torch.equal(plain, logits.float())
