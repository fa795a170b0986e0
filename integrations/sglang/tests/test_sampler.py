"""The backend on a CPU, with SGLang's own classes: its registry, its batches and how they change, its sampler."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("sglang") is None:
    pytest.skip("SGLang is not installed", allow_module_level=True)

import gumball_sglang
import numpy
import torch
from gumball_sglang import budgets, radii
from gumball_sglang.masks import any_top_k, refuse_edits
from gumball_sglang.penalties import penalties_of
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
from sglang.srt.layers import sampler as theirs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor as BatchResultProcessor,
)
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_mask import SamplingMaskRows
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.sampling.watermarking import WatermarkDetector, core

import gumball
import gumball.torch
from gumball.plugins import marks
from gumball.plugins.states import seed_of

VOCAB = 300


# Whether SGLang itself is patched (integrations/patches), and the plug-in stays away.
PATCHED = "GUMBALL_SGLANG_PATCHED" in os.environ


@pytest.fixture(scope="module")
def sampler() -> Any:
    if not PATCHED:
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
        customized_info=None,
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
    assert type(sampler).__module__ == ("sglang.srt.layers.sampler" if PATCHED else "gumball_sglang.sampler")
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


@pytest.mark.parametrize("seed", [7, -3, 2**63 - 2])
def test_sample_j_of_n_is_drawn_by_the_seed_plus_j(sampler: Any, seed: int) -> None:
    """Of two equal prompts with three samples each, as SGLang's manager makes, copies and sends them."""
    manager, sent = object.__new__(TokenizerManager), list[Any]()

    async def nothing(*_: Any) -> tuple[()]:
        return ()

    async def tokenized(one: Any) -> Any:
        params = SamplingParams(**one.sampling_params)
        params.normalize(None)
        own = {"set_api_server_dispatch_time": int, "set_api_server_dispatch_finish_time": int}
        return SimpleNamespace(
            rid=one.rid,
            sampling_params=params,
            mm_inputs=None,
            time_stats=SimpleNamespace(**own),
            wrap_pickle_fields=int,
        )

    async def answered(one: Any, _: Any) -> Any:
        yield one.rid

    def begun(one: Any) -> None:
        manager.rid_to_state[one.rid] = SimpleNamespace(time_stats=asked_times, dispatched=False)

    asked_times = SimpleNamespace(
        set_api_server_dispatch_time=int, set_api_server_dispatch_finish_time=int, set_finished_time=int
    )
    asked = GenerateReqInput(input_ids=[[1, 2], [1, 2]], sampling_params={"n": 3, "sampling_seed": seed})
    asked.normalize_batch_and_arguments()
    manager.rid_to_state, manager.encoder_dispatch_ready = {}, {}
    manager.cuda_vmm_feature_transport = SimpleNamespace(prepare_for_dispatch_async=nothing)
    manager.positional_embeds_transport = SimpleNamespace(prepare_for_dispatch=lambda _: ())
    manager._tokenize_one_request, manager._wait_one_response = tokenized, answered
    manager._init_req_state, manager._dispatch_to_scheduler = begun, sent.append
    for i in range(len(asked.rid)):
        begun(asked[i])

    async def handled() -> None:
        states = dict(manager.rid_to_state)
        async for _ in manager._handle_batch_request(asked, None, states):
            pass

    asyncio.run(handled())
    drawing = [one for one in sent if one.sampling_params.max_new_tokens != 0]
    assert len(sent) == 8 and len(drawing) == 6
    rows, count = LOGITS[:1].expand(3, VOCAB), len(drawing) // 2
    for some in (drawing[:count], drawing[count:]):
        wanted = [
            gumball.Sampler(gumball.SamplingParams(seed=(seed + j) % 2**64), VOCAB, prompt=[1, 2]).sample(
                rows[j].numpy()
            )
            for j in range(count)
        ]
        requests = [request(one.rid, sampling_seed=one.sampling_params.sampling_seed) for one in some]
        assert drawn(sampler, batch(*requests), rows, [2] * count)[0] == wanted
        assert len({one.sampling_params.sampling_seed for one in some}) == count


def test_logprobs_are_at_the_temperature(sampler: Any) -> None:
    info = batch(request("a", temperature=0.5, sampling_seed=1), request("b", sampling_seed=2))
    tokens, out = drawn(sampler, info, LOGITS[:2], [2, 2], logprob=True)
    scores = (LOGITS[:2] / torch.tensor([[0.5], [1.0]])).log_softmax(1)
    assert torch.allclose(out.next_token_logprobs, scores[[0, 1], tokens], atol=1e-5)


def masked(name: str, mode: str = "selected", **chosen: Any) -> Any:
    made = request(name, **chosen)
    made.return_sampling_mask, made.sampling_logprobs_mode, made.sampling_mask_rows = True, mode, SamplingMaskRows()
    return made


def masks(sampler: Any, requests: list[Any], rows: Any, lengths: list[int]) -> tuple[list[int], list[Any], list[Any]]:
    """Tokens of a step, and each request's mask and logprobs, as a client gets them, or None; and why requests are aborted."""
    tokens, out = drawn(sampler, batch(*requests), rows, lengths)
    if out.sampling_mask_output is not None:
        out.sampling_mask_output.map_device_tensors(lambda tensor: tensor)
    BatchResultProcessor.materialize_sampling_mask_output(requests, out)
    found, why = [], []
    for i, one in enumerate(requests):
        if not one.return_sampling_mask:
            found.append(None)
            continue
        status = out.next_token_sampling_mask_status[i]
        why.append(BatchResultProcessor.get_sampling_mask_finish_reason(None, status=status))
        if why[-1] is None:
            BatchResultProcessor.add_sampling_mask_return_values(None, i, one, out)
            lists, logprobs = one.sampling_mask_rows.take().to_lists(one.sampling_logprobs_mode == "support")
            found.append((lists[0], logprobs[0]))
    return tokens, found, why


def test_masks_are_what_samplers_keep_alone_and_beside_requests_without(sampler: Any) -> None:
    kinds = [
        *KINDS,
        ({"temperature": 0.9, "top_p": 0.95, "sampling_seed": 3}, {"temperature": 0.9, "top_p": 0.95, "seed": 3}),
    ]
    for modes in (["selected"] * 5, ["selected", None, "support", "support", "selected"], ["support", *[None] * 4]):
        requests, wanted = [], []
        for i, ((chosen, ours), mode) in enumerate(zip(kinds, modes, strict=True)):
            requests.append(request(str(i), **chosen) if mode is None else masked(str(i), mode, **chosen))
            params = gumball.SamplingParams(**ours, logprobs=gumball.LogprobsParams(mode="processed"))
            alone = gumball.Sampler(params, VOCAB, prompt=[0] * (i + 2))
            alone.collect_kept(True)
            token, kept = alone.sample(LOGITS[i].numpy()), sorted(alone.kept)
            logprob = alone.logprobs.token.logprob
            if mode == "support":
                named = torch.tensor([kept])
                every = gumball.torch.logprobs(
                    LOGITS[i : i + 1], named, temperature=alone.temperature, kept=(torch.tensor([len(kept)]), named[0])
                )
                logprob = every[0].tolist()
                assert logprob[kept.index(token)] == alone.logprobs.token.logprob
            wanted.append((token, None if mode is None else (kept, logprob)))
        tokens, found, why = masks(sampler, requests, LOGITS[:5], [i + 2 for i in range(5)])
        assert tokens == [token for token, _ in wanted] and found == [mask for _, mask in wanted]
        assert not any(why)


def test_a_wide_mask_goes_as_a_bitmask_and_too_wide_a_one_is_sglangs_overflow(sampler: Any, monkeypatch: Any) -> None:
    wide = masked("a", sampling_seed=1)
    info = batch(wide)
    _, out = drawn(sampler, info, LOGITS[:1], [2])
    BatchResultProcessor.materialize_sampling_mask_output([wide], out)
    assert len(out.next_token_sampling_mask_idx[0]) == 1 + 4 * -(-VOCAB // 128)
    _, ((ids, _),), _ = masks(sampler, [masked("a", sampling_seed=1)], LOGITS[:1], [2])
    assert ids == list(range(VOCAB))
    monkeypatch.setattr(sampler, "sampling_mask_max_tokens", VOCAB - 1)
    for mode in ("selected", "support"):
        _, _, (why, none) = masks(sampler, [masked("a", mode), masked("b", mode, top_k=7)], LOGITS[:2], [2, 2])
        assert "exceeds --sampling-mask-max-tokens" in why.message and none is None


def test_penalties_that_no_trainer_repeats_are_refused_where_requests_enter(sampler: Any, monkeypatch: Any) -> None:
    asking = SimpleNamespace(return_sampling_mask=True, custom_logit_processor=None)

    def enter(**given: Any) -> None:
        asking.sampling_params = {"top_k": 5, **given}
        refuse_edits(None, asking)

    enter(frequency_penalty=0.1, presence_penalty=0.1)
    enter(repetition_penalty=1.1, presence_penalty=0.0)
    for more in ({"frequency_penalty": 0.1}, {"presence_penalty": -0.1}):
        with pytest.raises(ValueError, match="^repetition_penalty is .*give no other penalty beside it, or ask"):
            enter(repetition_penalty=1.1, **more)
    with pytest.raises(ValueError, match="^repetition_penalty is .*no other penalty"):
        TokenizerManager._validate_one_request(SimpleNamespace(), asking, [1])
    monkeypatch.setattr(gumball_sglang.masks, "get_spec", lambda: SimpleNamespace(speculative_algorithm="DFLASH"))
    enter(repetition_penalty=1.0)
    with pytest.raises(ValueError, match="^presence_penalty is .*start the server without drafts, or ask without"):
        enter(presence_penalty=0.1)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_trainer_repeats_penalties_by_what_sglang_counted(sampler: Any, overlap: bool) -> None:
    kinds = [
        {"repetition_penalty": 1.7, "temperature": 0.8, "logit_bias": {"9": 2.5}},
        {"presence_penalty": 1.5, "top_p": 0.9},
        {"frequency_penalty": 0.3, "presence_penalty": -0.4, "top_k": 90},
        {"top_p": 0.9},
    ]
    requests = [masked(str(i), sampling_seed=i, **kind) for i, kind in enumerate(kinds)]
    found: list[list[Any]] = [[] for _ in kinds]
    # A step's rows and results, which the scheduler reads a step later.
    waiting: list[Any] = []

    def read() -> None:
        rows, tokens, out = waiting.pop(0)
        for i, one in enumerate(requests):
            one.output_ids.append(tokens[i])
            BatchResultProcessor._maybe_collect_customized_info(None, i, one, out)
            BatchResultProcessor.add_sampling_mask_return_values(None, i, one, out)
            lists, logprobs = one.sampling_mask_rows.take().to_lists(False)
            found[i].append((rows[i], tokens[i], lists[0], logprobs[0]))

    for step in range(24):
        if step in (0, 15):
            # The second time all come back after a retraction, which drops what has not been read.
            waiting.clear()
            held = Batch(requests)
            held.sampling_info = SamplingBatchInfo.from_schedule_batch(held, VOCAB)
        else:
            ScheduleBatch.cumulate_penalty_output_tokens(held)
        info = held.sampling_info.copy_for_forward() if overlap else held.sampling_info
        # Few likely tokens, so that some are counted twice.
        raw = LOGITS[: len(kinds)].roll(step % 3, 0) * 2
        rows = raw.clone()
        with torch.compiler.set_stance("force_eager"):
            info.apply_logits_bias(rows)
        out, count = LogitsProcessorOutput(next_token_logits=rows), len(kinds)
        tokens = sampler(out, info, False, [0] * count, [None] * count, torch.tensor([1 + step] * count)).tolist()
        out.sampling_mask_output.map_device_tensors(lambda tensor: tensor)
        BatchResultProcessor.materialize_sampling_mask_output(requests, out)
        waiting.append((raw, tokens, out))
        # Another request's prompt makes the scheduler read before the next step.
        while len(waiting) > (overlap and step % 7 != 4):
            read()
    repeated = 0
    for one, kind, steps in zip(requests, kinds, found, strict=True):
        counted = (one.customized_info or {}).get("output_token_penalized")
        bias = {int(id): value for id, value in kind.get("logit_bias", {}).items()}
        params = penalties_of(kind).replace(logit_bias=bias)
        if penalties_of(kind) == penalties_of({}):
            assert counted is None
            continue
        assert len(counted) == len(steps)
        starts = [i for i, id in enumerate(counted) if id < 0]
        assert starts == [0, 14 if overlap else 15]
        rows, tokens, sets, told = zip(*steps, strict=True)
        # Without overlap these are the tokens themselves.
        assert overlap != (counted[1:12] == list(tokens[:11]))
        repeated += len(counted) - len(set(counted))
        parts = [
            gumball.torch.edited(torch.stack(rows[a:b]), params, counted[a + 1 : b], prompt_len=0)
            for a, b in zip(starts, [*starts[1:], len(counted)], strict=True)
        ]
        kept = torch.tensor([len(ids) for ids in sets]), torch.tensor([id for ids in sets for id in ids])
        temperature = one.sampling_params.temperature
        again = gumball.torch.logprobs(torch.cat(parts), torch.tensor(tokens), temperature=temperature, kept=kept)
        if "frequency_penalty" in kind:
            # SGLang's sums of penalties are rounded otherwise.
            torch.testing.assert_close(again, torch.tensor(told), rtol=0, atol=1e-5)
        else:
            assert again.tolist() == list(told)
    assert repeated > 9


def test_a_trainer_repeats_a_bias_beside_a_mask(sampler: Any) -> None:
    bias = {5: 2.5, 17: -0.3, 40: -numpy.inf}
    chosen = {"top_p": 0.9, "logit_bias": {str(id): value for id, value in bias.items()}}
    refuse_edits(None, SimpleNamespace(return_sampling_mask=True, sampling_params=chosen))
    one, rows = masked("a", sampling_seed=3, **chosen), LOGITS[:1].clone()
    batch(one).apply_logits_bias(rows)
    (token,), ((ids, logprob),), _ = masks(sampler, [one], rows, [2])
    edited = gumball.torch.edited(LOGITS[:1], gumball.SamplingParams(logit_bias=bias), [1, 2, token], prompt_len=2)
    found = gumball.torch.logprobs(edited, torch.tensor([token]), kept=(torch.tensor([len(ids)]), torch.tensor(ids)))
    assert found.item() == logprob and 40 not in ids


def test_sglangs_check_of_top_k_beside_a_mask_is_passed_unless_it_judges_drafts(sampler: Any) -> None:
    seen: list[Any] = []

    def takes(scheduler: Any, asked: Any) -> None:
        seen.append(1 < asked.sampling_params.top_k <= 4096)

    for asking, drafts in ((True, False), (False, False), (True, True)):
        asked = SimpleNamespace(return_sampling_mask=asking, sampling_params=SimpleNamespace(top_k=1 << 30))
        scheduler = SimpleNamespace(spec_algorithm=SimpleNamespace(is_none=lambda drafts=drafts: not drafts))
        any_top_k(takes, scheduler, asked)
        assert type(asked.sampling_params.top_k) is int
    assert seen == [True, False, False]
    assert hasattr(Scheduler._handle_generate_request, "__wrapped__")


RADII = {"custom_params": {"return_radii": True}}


def told(sampler: Any, requests: list[Any], rows: Any, lengths: list[int]) -> tuple[list[int], list[Any]]:
    """Tokens of a step, and what SGLang's scheduler, its message and its server make of the radii of each request: a list of its `meta_info`, or None."""
    tokens, out = drawn(sampler, batch(*requests), rows, lengths)
    GenerationBatchResult(
        logits_output=out, next_token_ids=torch.tensor(tokens), copy_done=SimpleNamespace(record=lambda: None)
    ).copy_to_cpu(False)
    for i, one in enumerate(requests):
        BatchResultProcessor._maybe_collect_customized_info(None, i, one, out)
        one.output_ids.append(tokens[i])
    found = []
    lists = [None if one.customized_info is None else one.customized_info.get("radii") for one in requests]
    filled = [[None] if one is None else one for one in lists]
    for i in range(len(requests)):
        answer: dict[str, Any] = {}
        state = SimpleNamespace(customized_info_accumulated={}, customized_info_reported_keys=set())
        manager = SimpleNamespace(_accumulate_request_meta_info=TokenizerManager._accumulate_request_meta_info)
        info = {"radii": filled} if any(lists) else {}
        TokenizerManager.update_request_meta_info(manager, answer, state, info, i, None)
        found.append(answer.get("radii"))
    return tokens, found


def test_radii_are_those_of_samplers_alone_and_beside_requests_without(sampler: Any) -> None:
    for asks in ([True] * 4, [True, False, True, False], [False] * 4):
        requests = [
            request(str(i), **chosen, **(RADII if one else {}))
            for i, ((chosen, _), one) in enumerate(zip(KINDS, asks, strict=True))
        ]
        wanted: list[list[float]] = [[] for _ in KINDS]
        for step in range(3):
            rows = LOGITS[step : step + 4]
            for i, (_, ours) in enumerate(KINDS):
                params = gumball.SamplingParams(**ours, logprobs=gumball.LogprobsParams(mode=["raw", "radius"]))
                alone = gumball.Sampler(params, VOCAB, prompt=[0] * (2 + step))
                alone.sample(rows[i].numpy())
                wanted[i].append(alone.logprobs.second)
            _, found = told(sampler, requests, rows, [2 + step] * 4)
            assert found == [line if one else None for line, one in zip(wanted, asks, strict=True)]
        assert all(max(line) > 0 for line in wanted)


def test_radii_stay_with_their_requests_in_a_changing_batch(sampler: Any) -> None:
    requests = [request(str(i), **KINDS[i][0], **(RADII if i != 1 else {})) for i in range(3)]
    info = batch(*requests)
    _, out = drawn(sampler, info, LOGITS[:3], [2] * 3)
    alone = out.customized_info["radii"]
    info.filter_batch([2, 1], torch.tensor([2, 1]))
    info.merge_batch(batch(requests[0]))
    _, out = drawn(sampler, info, LOGITS[[2, 1, 0]], [2] * 3)
    assert out.customized_info["radii"].view(torch.int32).equal(alone[[2, 1, 0]].view(torch.int32))
    assert alone.isnan().tolist() == [False, True, False]


def test_radii_that_no_server_tells_are_refused_where_requests_enter(sampler: Any, monkeypatch: Any) -> None:
    asking = SimpleNamespace(return_sampling_mask=False, max_thinking_tokens=None, custom_logit_processor=None)

    def enter(value: Any, drafts: str | None, marked: bool) -> None:
        asking.sampling_params = {"custom_params": {"return_radii": value}}
        monkeypatch.setattr(radii, "get_spec", lambda: SimpleNamespace(speculative_algorithm=drafts))
        monkeypatch.setattr(radii, "get_server_args", lambda: SimpleNamespace(enable_watermark=marked))
        radii.refuse_untold(None, asking)

    enter(True, None, False)
    enter(False, "EAGLE", True)
    for value, drafts, marked, text in (
        (True, "EAGLE", False, "it has --speculative-algorithm, since SGLang judges drafts itself"),
        (True, None, True, "it has --enable-watermark"),
        ("yes", None, False, "return_radii = 'yes', but it must be true or false"),
    ):
        with pytest.raises(ValueError, match=text):
            enter(value, drafts, marked)
    with pytest.raises(ValueError, match="return_radii = 'yes'"):
        asking.sampling_params = {"custom_params": {"return_radii": "yes"}}
        TokenizerManager._validate_one_request(SimpleNamespace(), asking, [1])


def ban(logits: Any, vocab_mask: Any) -> None:
    """In the place of SGLang's kernel: what the bits of a mask leave."""
    bits = vocab_mask.unsqueeze(2) >> torch.arange(32) & 1
    logits.masked_fill_(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)


def thinking(budget: int) -> Any:
    """SGLang's limit of a request whose reasoning ends with the ids 8 and 9."""
    backend = XGrammarGrammarBackend
    made = ReasonerGrammarObject(
        *(None, [8, 9], [5], budget, True, backend.set_token_filter, backend.allocate_vocab_mask),
        *(backend.move_vocab_mask, ban),
    )
    made.maybe_init_reasoning(True)
    return made


def test_a_thinking_budget_of_strict_thinking_is_kept_among_others_as_alone(sampler: Any) -> None:
    requests = [request(str(i), sampling_seed=i) for i in range(3)]
    limits, texts = [thinking(3), thinking(-1), thinking(0)], [[], [], []]
    for step in range(6):
        info = batch(*requests)
        info.grammars = limits
        info.update_regex_vocab_mask()
        logits = LOGITS[:3].roll(step, 1)
        info.apply_logits_bias(logits)
        # All ranks would be asked.
        info.grammars = None
        for text, limit, token in zip(texts, limits, drawn(sampler, info, logits, [2 + step] * 3)[0], strict=True):
            text.append(token)
            limit.accept_token(token)
    for i, (text, forced) in enumerate(zip(texts, (3, 9, 0), strict=True)):
        alone = gumball.Sampler(gumball.SamplingParams(seed=i), VOCAB, prompt=[0, 0])
        for step in range(6):
            row = LOGITS[i].roll(step, 0).numpy().copy()
            if step < forced:
                row[5] = -numpy.inf
            if forced <= step < forced + 2:
                alone.push([8, 9][step - forced])
            else:
                alone.sample(row)
        assert text == alone.output


@pytest.mark.parametrize(
    ("strict", "limit", "parser", "reads"),
    [(False, 5, "qwen3", False), (True, 5, "deepseek-r1", True), (True, -1, "qwen3", True), (True, -1, None, False)],
)
def test_a_thinking_budget_that_sglang_would_not_read_is_refused(
    sampler: Any, monkeypatch: Any, strict: bool, limit: int, parser: Any, reads: bool
) -> None:
    monkeypatch.setattr(
        budgets, "get_serving", lambda: SimpleNamespace(enable_strict_thinking=strict, reasoning_parser=parser)
    )
    monkeypatch.setenv("SGLANG_MAX_THINK_TOKENS", str(limit))
    for by_name in (True, False):
        custom = None if by_name else {"thinking_budget": 7}
        asking = SimpleNamespace(
            return_sampling_mask=False,
            sampling_params={"custom_params": custom},
            max_thinking_tokens=7 if by_name else None,
            custom_logit_processor=None,
        )
        manager = SimpleNamespace(tokenizer=None)
        if reads:
            budgets.refuse_unread(manager, asking, [1])
        else:
            with pytest.raises(ValueError, match="is 7, which this server reads nowhere; start it with"):
                TokenizerManager._validate_one_request(manager, asking, [1])
            asking.custom_logit_processor = "a processor"
            budgets.refuse_unread(manager, asking, [1])


def test_the_seed_of_a_request_is_told_by_its_id(sampler: Any) -> None:
    (token,), _ = drawn(sampler, batch(request("some id")), LOGITS[:1], [2])
    alone = gumball.Sampler(gumball.SamplingParams(seed=seed_of("some id")), VOCAB, prompt=[0, 0])
    assert alone.sample(LOGITS[0].numpy()) == token


def test_a_server_takes_sglangs_watermarks_and_refuses_gumballs(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.arg_groups import validation_hook
    from sglang.srt.server_args import ServerArgs

    asked = ServerArgs(model_path="none", enable_watermark=True, sampling_backend=gumball_sglang.BACKEND, device="cuda")
    validation_hook.check_watermark_server_args(asked)
    monkeypatch.setattr(marks, "SERVER", marks.Server({"watermark_key": 1}))
    with pytest.raises(ValueError, match="GUMBALL_WATERMARK is set, .* --enable-watermark"):
        validation_hook.check_watermark_server_args(asked)


@pytest.mark.parametrize("key_b", [None, "fedcba9876543210"])
def test_what_sglang_marks_is_drawn_and_its_detector_finds_it(sampler: Any, key_b: str | None) -> None:
    key, ids, seen = "0123456789abcdef", [1, 2, 3, 4], set()
    keys = torch.tensor([core.parse_watermark_key(key)])
    second = [torch.tensor([core.parse_watermark_key(key_b)]), torch.tensor([int(0.3 * 2**32)])] if key_b else []
    for place in range(150):
        rows, info = LOGITS[place % len(LOGITS)][None].clone(), batch(request("marked", sampling_seed=7))
        hashes = core._hash_contexts(torch.tensor([ids[-4:]]), torch.tensor([4]))
        fresh = torch.tensor([hashes.item() not in seen])
        limits = info.temperatures, info.top_ks, info.top_ps, info.min_ps
        core.force_watermark_tokens(rows, hashes, fresh, *limits, keys, *second)
        seen.add(hashes.item())
        (token,), _ = drawn(sampler, info, rows, [len(ids)])
        ids.append(token)
    gumball.add_watermark_keys(f"91 0x{key}\n92 0xfedcba9876543210")
    scheme = "sglang=92,0.3" if key_b else "sglang"
    for prompt in (4, 2, 0):
        detector = WatermarkDetector(key, key_b=key_b, mixing_probability=0.3 if key_b else 0.5)
        theirs = detector.detect_tokens(ids[prompt:], prompt_token_ids=ids[:prompt]).combined
        found = gumball.detect(ids[prompt:], gumball.Watermark(key=91), prompt=ids[:prompt], scheme=scheme)
        assert found.p_value < 1e-20 and found.tokens == theirs.num_contexts
        assert math.isclose(found.ln_p, theirs.log_p_value, rel_tol=1e-9)


def test_sglang_finds_the_plugin() -> None:
    program = (
        "from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.server_args import SAMPLING_BACKEND_CHOICES as found; print('gumball' in found);"
        "from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo as info;"
        "print(hasattr(info.filter_batch, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-2:] == ["True", "True"], done.stdout + done.stderr
