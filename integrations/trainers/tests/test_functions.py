"""TRL's and verl's own functions beside ours: the same numbers and gradients without sets, the sampler's with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import gumball
from gumball import LogprobsParams, SamplingParams

torch: Any = pytest.importorskip("torch")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import trl_functions  # noqa: E402
import verl_functions  # noqa: E402
from signatures import assert_takes, recorded  # noqa: E402

VOCAB, ROWS, PLACES = 700, 4, 6
CLOSE: dict[str, float] = {"rtol": 2e-5, "atol": 2e-6}


def batch() -> tuple[Any, Any]:
    torch.manual_seed(3)
    return torch.randn(ROWS, PLACES, VOCAB) * 3, torch.randint(0, VOCAB, (ROWS, PLACES))


def sampled(logits: Any, **more: Any) -> tuple[Any, Any, Any]:
    """What a pool draws of rows, keeps and reports."""
    pool = gumball.Pool(VOCAB, slots=logits.shape[0], kept=True)
    params = SamplingParams(top_p=0.9, min_p=0.02, logprobs=LogprobsParams(mode="processed"), **more)
    out = pool.step(logits.detach(), [pool.admit(params.replace(seed=row)) for row in range(logits.shape[0])])
    kept = tuple(map(torch.from_numpy, out.kept_sets()))
    return torch.from_numpy(out.tokens).long(), kept, torch.from_numpy(out.logprobs)


def with_gradient(function: Any, logits: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
    leaf = logits.clone().requires_grad_()
    found = function(leaf * 1.0, *arguments, **named)
    found = found if isinstance(found, tuple) else (found,)
    weights = torch.linspace(-1, 2, found[0].numel()).view(found[0].shape)
    sum((one * weights).sum() for one in found).backward()
    return torch.stack([one.detach() for one in found]), leaf.grad


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trls_functions_say_the_same_without_sets(temperature: float) -> None:
    theirs = pytest.importorskip("trl.trainer.utils")
    logits, ids = batch()
    mask = torch.arange(PLACES) < torch.tensor([[6], [4], [1], [6]])
    for name, arguments in (
        ("selective_log_softmax", (ids, temperature)),
        ("selective_log_softmax", (ids, temperature, mask)),
        ("selective_log_softmax_and_entropy", (ids, True, temperature)),
        ("selective_log_softmax_and_entropy", (ids, True, temperature, mask)),
    ):
        (seen, slope), (wanted, theirs_slope) = (
            with_gradient(getattr(of, name), logits, *arguments) for of in (trl_functions, theirs)
        )
        torch.testing.assert_close(seen, wanted, **CLOSE)
        torch.testing.assert_close(slope, theirs_slope, **CLOSE)


def test_trls_fused_head_says_the_same_without_sets_and_the_sampler_with_them() -> None:
    theirs, transformers = pytest.importorskip("trl.trainer.utils"), pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    _, ids = batch()
    mask = torch.ones_like(ids)
    mask[1, -1:], mask[2, :1] = 0, 0
    keep = PLACES - 2
    seen, entropy = trl_functions.per_token_logps(model, ids, mask, keep, temperature=0.9)
    logits = model(input_ids=ids, attention_mask=mask).logits.detach()[:, -keep - 1 : -1]
    theirs.add_fused_lm_head(model, temperature=0.9, outputs=("log_probs", "entropy"))
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-keep] = -100
    wanted = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    torch.testing.assert_close(seen, wanted.log_probs[:, -keep:], **CLOSE)
    torch.testing.assert_close(entropy, wanted.entropy[:, -keep:], **CLOSE)
    tokens, kept, told = sampled(logits.reshape(-1, VOCAB).contiguous(), temperature=0.9)
    drawn = torch.cat([ids[:, : PLACES - keep], tokens.view(ROWS, keep)], 1)
    found = gumball.torch.logprobs(logits, drawn[:, -keep:], temperature=0.9, kept=kept)
    assert torch.equal(found.flatten(), told)
    assert torch.equal(trl_functions.selective_log_softmax(logits, drawn[:, -keep:], 0.9, kept=kept).flatten(), told)


def test_verls_function_says_the_same_without_sets_and_the_sampler_with_them() -> None:
    theirs = pytest.importorskip("verl.utils.torch_functional")
    logits, ids = batch()
    (seen, slope), (wanted, theirs_slope) = (
        with_gradient(of.logprobs_from_logits, logits, ids) for of in (verl_functions, theirs)
    )
    torch.testing.assert_close(seen, wanted, **CLOSE)
    torch.testing.assert_close(slope, theirs_slope, **CLOSE)
    # In verl's packed form, rows are those of one sequence after the other.
    rows = logits.view(-1, VOCAB)
    tokens, kept, told = sampled(rows)
    assert torch.equal(verl_functions.logprobs_from_logits(rows, tokens, kept=kept), told)


@pytest.mark.parametrize(("package", "ours"), [("trl", trl_functions), ("verl", verl_functions)])
def test_arguments_are_the_releases_and_the_sets(package: str, ours: Any) -> None:
    for _, name, text in recorded(package):
        assert_takes(getattr(ours, name), f"{text}, *, kept=None")


def test_a_row_without_a_record_of_its_draw_leaves_a_masked_loss_finite() -> None:
    logits, ids = batch()
    rows = logits.view(-1, VOCAB)
    tokens, (lengths, sets), told = sampled(rows)
    recorded = torch.arange(len(tokens)) % 4 > 0
    kept = (
        lengths * recorded,
        torch.cat([part for part, is_kept in zip(sets.split(lengths.tolist()), recorded) if is_kept]),
    )
    drawn = torch.where(recorded, tokens, ids.flatten())
    for function, shaped in (
        (trl_functions.selective_log_softmax, (logits, drawn.view_as(ids))),
        (verl_functions.logprobs_from_logits, (rows, drawn)),
    ):
        found, slope = with_gradient(
            lambda of, by, kept, function=function: (function(of, by, kept=kept).flatten() - told) * recorded,
            *shaped,
            kept,
        )
        assert (found == 0).all() and slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ligers_function_says_the_same_without_sets(temperature: float, dtype: Any) -> None:
    pytest.importorskip("liger_kernel")
    torch.manual_seed(5)
    hidden, head = torch.randn(ROWS, PLACES, 32, dtype=dtype), torch.nn.Linear(32, VOCAB, bias=False, dtype=dtype)
    ids, found = torch.randint(0, VOCAB, (ROWS, PLACES)), []
    ids[1, 2:] = -100
    for liger in (False, True):
        head.zero_grad()
        seen, slope = with_gradient(
            gumball.torch.hidden_logprobs, hidden, head, ids, temperature=temperature, entropy=True, liger=liger
        )
        found.append((seen, slope, head.weight.grad.clone()))
    for seen, wanted in zip(*found, strict=True):
        # In bf16 our head rounds the logits, and Liger none.
        near = {"rtol": 0.0, "atol": 0.0625 * min(wanted.abs().max().item(), 1.0)}
        close = CLOSE if dtype == torch.float32 else near
        torch.testing.assert_close(seen, wanted, **close)
    assert (found[1][0][:, 1, 2:] == 0).all() and found[1][2].abs().max() > 0.1
    for name, wrong in (
        ("kept", {"kept": torch.zeros(ROWS, PLACES, -(-VOCAB // 32), dtype=torch.int32)}),
        ("temperature", {"temperature": torch.ones(ROWS, PLACES)}),
        ("head", {"head": torch.nn.Linear(32, VOCAB)}),
        ("ids", {"ids": ids[..., None]}),
    ):
        with pytest.raises(ValueError, match=f"^{name} is .* beside liger=True"):
            gumball.torch.hidden_logprobs(**{"hidden": hidden, "head": head, "ids": ids, "liger": True} | wrong)
