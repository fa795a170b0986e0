"""vLLM's watermark: `gumball.detect` gives the p-values of vLLM's own detector, and beside our sampler a server of `--watermark-config` writes the same marks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gumball_vllm import checks, places
from vllm.config.watermarking import WatermarkConfig
from vllm.v1.watermarking import watermarker as vllms
from vllm.v1.watermarking.factory import create_watermarker
from vllm.v1.watermarking.gpu_sampler import GPUWatermarkSampler
from vllm.v1.watermarking.gumbel import (
    DualKeyGumbelWatermarkDetector,
    DualKeyGumbelWatermarker,
    GumbelWatermarkDetector,
    GumbelWatermarker,
)

import gumball
from gumball import Watermark

KEY = 0x0123456789ABCDEF
VOCAB = 200


@pytest.mark.parametrize("alpha", [None, 0.0, 0.1, 0.4, 0.5])
@pytest.mark.parametrize("context", [1, 4, 5])
def test_p_values_are_those_of_vllms_detector(context: int, alpha: float | None) -> None:
    """alpha: of vLLM's two keys; None: one key."""
    gumball.add_watermark_keys(f"90 {KEY:#x}")
    theirs: Any = GumbelWatermarkDetector(KEY, context)
    marker, scheme = GumbelWatermarker(KEY, context), "vllm"
    if alpha is not None:
        theirs = DualKeyGumbelWatermarkDetector(KEY, context, alpha=alpha)
        marker = DualKeyGumbelWatermarker(KEY, context).draft_watermarker
        scheme = f"vllm_dual_key={alpha}"
    words = np.random.default_rng(context)
    texts = [words.integers(most, size=words.integers(150)).tolist() for most in (20, 151936) * 50]
    for most in (20, 1000):
        marked: list[int] = []
        for _ in range(60):
            before = ([-1] * context + marked)[-context:]
            logits = torch.from_numpy(words.normal(size=(1, most)).astype(np.float32))
            marked.append(int(marker.sample(logits, torch.tensor([before])).token_ids))
        texts.append(marked)
    for ids in texts:
        wanted = theirs.detect(ids)
        found = gumball.detect(ids, Watermark(key=90, context=context), scheme=scheme)
        assert (found.tokens, found.tokens + found.skipped) == (wanted.num_scored_tokens, len(ids))
        assert math.isclose(found.p_value, wanted.p_value, rel_tol=1e-9 if alpha is None else 1e-8)
    assert found.p_value < (1e-20 if alpha is None else 1e-6)


def backed(values: Any) -> Any:
    return SimpleNamespace(gpu=values, np=values.numpy())


def marking(config: WatermarkConfig, temperatures: Any, wanted: Any, ids: Any, prompts: Any) -> GPUWatermarkSampler:
    """vLLM's sampler of a server of this configuration, with the states of its requests; ids: the prompt of each request, and room for its text."""
    made = GPUWatermarkSampler.__new__(GPUWatermarkSampler)
    made.__dict__ |= {
        "watermarker": create_watermarker(config),
        "deduplicate_contexts": config.deduplicate_contexts,
        "deduplicate_contexts_max_history": config.deduplicate_contexts_max_history,
        "watermarking": backed(wanted),
        "sampling_states": SimpleNamespace(temperature=backed(temperatures), seeds=backed(torch.arange(len(ids)) - 3)),
        "req_states": SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=ids),
            prompt_len=SimpleNamespace(gpu=prompts),
            total_len=SimpleNamespace(gpu=prompts.clone()),
        ),
        "use_fp64_gumbel": False,
    }
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deduplicate_contexts": "all", "context_width": 2},
        {"deduplicate_contexts": "none", "context_width": 5},
        {"deduplicate_contexts_max_history": 30, "context_width": 1},
        {"algorithm": "dual_key_gumbel", "alpha": 0.4},
    ],
)
def test_marked_rows_are_vllms_and_all_others_gumballs(options: dict[str, Any], monkeypatch: Any) -> None:
    """vLLM's own method beside ours, step by step. Only its random draws, which need a GPU, are told apart by a token that there is not."""
    config, steps = WatermarkConfig(key=KEY, **options), 150
    gumball.add_watermark_keys(f"90 {KEY:#x}")
    temperatures = torch.tensor([1.0, 0.7, 1.3, 0.0, 1.0, 1.0])
    wanted, prompts = torch.tensor([True] * 5 + [False]), torch.tensor([3, 1, 9, 2, 6, 4])
    ids = torch.zeros(6, 9 + steps, dtype=torch.int32)
    generator = torch.Generator().manual_seed(7)
    for line, count in zip(ids, prompts.tolist(), strict=True):
        line[:count] = torch.randint(VOCAB, (count,), generator=generator)
    theirs = marking(config, temperatures, wanted, ids, prompts)
    ours = marking(config, temperatures, wanted, ids, prompts)
    state = SimpleNamespace(
        vllm_config=SimpleNamespace(watermark_config=config, speculative_config=None, use_v2_model_runner=True)
    )
    state.vllm_config.model_config = state.vllm_config.parallel_config = None
    # vLLM goes on with its own sampler, which is ours then: it takes none that is handed back.
    assert places._custom_sampler(state, ours) is None and isinstance(ours, GPUWatermarkSampler)

    def random(logits: Any, index: Any, *_: Any, **named: Any) -> Any:
        return torch.full((len(logits),), -7) if logits.shape[1] == VOCAB else draw(logits, theirs.req_states)

    def draw(logits: Any, states: Any) -> Any:
        return gumball.operators.sample(
            logits.contiguous(),
            temperature=1.0,
            seed=theirs.sampling_states.seeds.gpu,
            position=states.total_len.gpu,
            draw=0,
            dtype="int64",
        )

    monkeypatch.setattr(vllms, "gumbel_sample", random)
    index, marked = torch.arange(6), 0
    peaks = torch.tensor([[1.0], [4.0], [0.0], [1.0], [1.0], [1.0]])
    for _ in range(steps):
        logits = torch.randn(6, VOCAB, generator=generator) * peaks
        # Of three tokens, so that contexts come again.
        logits[2, 5:8] = 6.0
        top_k = torch.tensor([VOCAB, 20, 3, 5, 40, VOCAB])
        given = (index, index.numpy(), ours.req_states.total_len.gpu - 1, top_k, torch.full((6,), 0.95))
        tokens, processed = ours._sample_random(logits.clone(), *given, False)
        of_theirs, same = theirs._sample_random(logits.clone(), *given, False)
        assert torch.equal(processed, same)
        drawn = torch.as_tensor(draw(processed, theirs.req_states))
        drawn = torch.where(temperatures == 0, processed.argmax(1), drawn)
        assert torch.equal(tokens, torch.where(of_theirs == -7, drawn, of_theirs))
        assert of_theirs[3] != -7 and of_theirs[5] == -7
        marked += int((of_theirs != -7).sum()) - 1
        for one in (ours, theirs):
            ids[index, one.req_states.total_len.gpu] = tokens.int()
            one.req_states.total_len.gpu += 1
    texts = [line[count : count + steps].tolist() for line, count in zip(ids, prompts.tolist(), strict=True)]
    context, is_dual = config.context_width, config.algorithm == "dual_key_gumbel"
    if is_dual:
        detector: Any = DualKeyGumbelWatermarkDetector(KEY, context, alpha=config.alpha)
    else:
        detector = GumbelWatermarkDetector(KEY, context)
    for number, text in enumerate(texts):
        found = [detector.detect(text).p_value]
        if not is_dual:
            found.append(gumball.detect(text, Watermark(key=90, context=context), scheme="vllm").p_value)
        # The rows of requests 1 and 2 leave little to chance, request 3 is greedy, 5 asked for no mark.
        if number in (0, 3, 4, 5):
            assert all((p < 1e-6) == (number in (0, 4)) for p in found), (number, found)
    assert (marked < 4 * steps) == (config.deduplicate_contexts != "none")


def test_gumballs_marks_and_parameters_are_refused_beside_vllms(monkeypatch: Any) -> None:
    from gumball.errors import RefusedError
    from gumball.plugins import marks

    config = SimpleNamespace(
        watermark_config=WatermarkConfig(key=KEY),
        speculative_config=None,
        use_v2_model_runner=True,
        model_config=None,
        parallel_config=None,
    )
    assert checks.draws_alone(config)
    checks.refuse_two_marks(config)
    with pytest.raises(RefusedError, match="'watermark_key'.*without --watermark-config"):
        checks._refuse_extra(SimpleNamespace(extra_args={"watermark_key": 3}), config)
    monkeypatch.setattr(marks, "SERVER", marks.Server({"watermark_key": 3}))
    with pytest.raises(ValueError, match=r"GUMBALL_WATERMARK is set.*without --watermark-config"):
        checks.refuse_two_marks(config)
