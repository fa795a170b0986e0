"""The backend on a CPU, with SGLang's own classes: its registry, its batches and how they change, its sampler."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("sglang") is None:
    pytest.skip("SGLang is not installed", allow_module_level=True)

import gumball_sglang
import torch
from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams

import gumball

VOCAB = 300


@pytest.fixture(scope="module")
def sampler() -> Any:
    gumball_sglang.register()
    HookRegistry.apply_hooks()
    settings = get_context().override_server_args(sampling_backend=gumball_sglang.BACKEND)
    settings.install()
    with get_parallel().override(tp_group=SimpleNamespace(device_group=None)):
        return theirs.create_sampler()


def request(name: str, **chosen: Any) -> Any:
    params = SamplingParams(**chosen)
    params.normalize(None)
    return SimpleNamespace(
        rid=name,
        sampling_params=params,
        custom_logit_processor=None,
        return_sampling_mask=False,
        sampling_logprobs_mode=None,
        output_ids=[],
        origin_input_ids=[1, 2],
    )


class Batch:
    """Of SGLang's `ScheduleBatch` what its sampling information is made of."""

    def __init__(self, requests: list[Any]) -> None:
        self.reqs, self.device = requests, "cpu"


def batch(*requests: Any) -> Any:
    return SamplingBatchInfo.from_schedule_batch(Batch(list(requests)), VOCAB)


KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"sampling_seed": 7}, {"seed": 7}),
    ({"temperature": 0.0, "sampling_seed": 1}, {"temperature": 0.0, "seed": 1}),
    (
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "sampling_seed": -3},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "order": "joint", "seed": 2**64 - 3},
    ),
    ({"min_p": 0.1, "sampling_seed": 9}, {"min_p": 0.1, "order": "joint", "seed": 9}),
]
LOGITS = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(1)) * 3


def drawn(sampler: Any, info: Any, rows: Any, lengths: list[int], logprob: bool = False) -> tuple[list[int], Any]:
    out = LogitsProcessorOutput(next_token_logits=rows.clone())
    count = len(rows)
    ids: list[Any] = [None] * count
    tokens = sampler(out, info.copy_for_forward(), logprob, [2] * count, ids, torch.tensor(lengths) - 1)
    return tokens.tolist(), out


def test_a_batch_draws_what_samplers_draw_alone(sampler: Any) -> None:
    assert type(sampler).__module__ == "gumball_sglang.sampler"
    requests = [request(str(i), **chosen) for i, (chosen, _) in enumerate(KINDS)]
    lengths = [2, 5, 3, 9]
    wanted = [
        gumball.Sampler(gumball.SamplingParams(**ours), VOCAB, prompt=[0] * length).sample(LOGITS[i].numpy())
        for i, ((_, ours), length) in enumerate(zip(KINDS, lengths))
    ]
    info = batch(*requests)
    assert drawn(sampler, info, LOGITS[:4], lengths)[0] == wanted
    # The batch changes: one goes, others come.
    info.filter_batch([3, 0], torch.tensor([3, 0]))
    info.merge_batch(batch(requests[2]))
    rows = [3, 0, 2]
    assert drawn(sampler, info, LOGITS[rows], [lengths[i] for i in rows])[0] == [wanted[i] for i in rows]
    for i in range(4):
        assert drawn(sampler, batch(requests[i]), LOGITS[i : i + 1], lengths[i : i + 1])[0] == wanted[i : i + 1]


def test_requests_without_seeds_differ_and_keep_theirs(sampler: Any) -> None:
    rows, lengths = LOGITS[:1].expand(6, VOCAB), [2] * 6
    requests = [request(f"r{i}") for i in range(6)]
    tokens = drawn(sampler, batch(*requests), rows, lengths)[0]
    assert len(set(tokens)) > 1
    assert drawn(sampler, batch(*requests[::-1]), rows, lengths)[0] == tokens[::-1]


def test_logprobs_are_at_the_temperature(sampler: Any) -> None:
    info = batch(request("a", temperature=0.5, sampling_seed=1), request("b", sampling_seed=2))
    tokens, out = drawn(sampler, info, LOGITS[:2], [2, 2], logprob=True)
    scores = (LOGITS[:2] / torch.tensor([[0.5], [1.0]])).log_softmax(1)
    assert torch.allclose(out.next_token_logprobs, scores[[0, 1], tokens], atol=1e-5)


def test_masks_are_refused_where_requests_enter(sampler: Any) -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    asking = SimpleNamespace(return_sampling_mask=True)
    with pytest.raises(ValueError, match="return_sampling_mask"):
        TokenizerManager._validate_one_request(SimpleNamespace(), asking, [1])
    inside = request("a")
    inside.return_sampling_mask = True
    with pytest.raises(NotImplementedError, match="return_sampling_mask"):
        drawn(sampler, batch(inside), LOGITS[:1], [2])


def test_a_server_that_is_to_write_watermarks_is_told_what_to_leave_out(sampler: Any) -> None:
    from sglang.srt.arg_groups import validation_hook

    asked = SimpleNamespace(enable_watermark=True, sampling_backend=gumball_sglang.BACKEND)
    with pytest.raises(ValueError, match="leave out either --enable-watermark or --sampling-backend gumball"):
        validation_hook.check_watermark_server_args(asked)


def test_sglang_finds_the_plugin() -> None:
    program = (
        "from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.server_args import SAMPLING_BACKEND_CHOICES as found; print('gumball' in found);"
        "from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo as info;"
        "print(hasattr(info.filter_batch, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-2:] == ["True", "True"], done.stdout + done.stderr
