"""Logits processors of the user's, and engines that cannot be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.sample.logits_processor import LogitsProcessor

import gumball
from recorded_model import row_of
from test_recorded import LENGTH, PROMPT, alone, asked, tokens


class Without(LogitsProcessor):
    """Takes away every token below 1000 of requests that say so."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: dict[int, bool] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        for row, params, _, _ in batch_update.added if batch_update else ():
            self.rows[row] = bool((params.extra_args or {}).get("without"))

    def apply(self, logits: Any) -> Any:
        for row, on in self.rows.items():
            if on and row < len(logits):
                logits[row, :1000] = -float("inf")
        return logits


class Late(Without):
    """The same, for a place behind the temperature."""

    def is_argmax_invariant(self) -> bool:
        return True


OPTIONS: dict[str, Any] = {"logits_processors": [Without]}


def test_a_processor_comes_before_the_penalties(engine: Any, recorded: Any) -> None:
    params = gumball.SamplingParams(seed=7, repetition_penalty=1.3)
    plain = alone(recorded, PROMPT, params, LENGTH)
    edited = recorded.copy()
    edited[:, :1000] = -float("inf")
    wanted = alone(edited, PROMPT, params, LENGTH)
    theirs = {"repetition_penalty": 1.3}
    given = [asked(theirs, 7), asked(theirs | {"extra_args": {"without": 1}, "logprobs": 1}, 7)]
    assert tokens(engine, [PROMPT] * 2, given) == [plain, wanted]
    (out,) = engine.generate([{"prompt_token_ids": PROMPT}], given[1:], use_tqdm=False)
    # Raw logprobs are those before the processor: its most likely token is one that was taken away, somewhere.
    listed = [max(found, key=lambda id: found[id].logprob) for found in out.outputs[0].logprobs]
    rows = [row_of(id, len(recorded)) for id in [PROMPT[-1], *wanted[:-1]]]
    assert listed == [int(recorded[row].argmax()) for row in rows] and min(listed) < 1000


def test_engines_that_cannot_be_had_are_refused_at_start() -> None:
    from gumball_vllm import follower
    from vllm.v1.sample.logits_processor import LogitsProcessors

    def config(mode: str = "raw_logprobs", **speculation: Any) -> Any:
        model = SimpleNamespace(logprobs_mode=mode, seed=0, max_logprobs=20, return_sampling_mask=False)
        scheduler = SimpleNamespace(max_num_seqs=4)
        drafts = SimpleNamespace(**speculation) if speculation else None
        return SimpleNamespace(
            model_config=model, scheduler_config=scheduler, speculative_config=drafts, reasoning_config=None
        )

    def build(one: Any, *others: Any) -> Any:
        made = follower.builder(lambda *_: LogitsProcessors([kind(None, None, False) for kind in others]))
        return made(one, "cpu", False, False)

    assert build(config(), Without).non_argmax_invariant
    with pytest.raises(ValueError, match="Late says that it is argmax invariant"):
        build(config(), Late)
    with pytest.raises(ValueError, match="processed_logits"):
        build(config("processed_logits"))
    with pytest.raises(ValueError, match="at most 64 drafts"):
        build(config(num_speculative_tokens=65, rejection_sample_method="standard"))
    for method in ("synthetic", "fly", "block"):
        with pytest.raises(ValueError, match=f"rejection_sample_method is {method}, but Gumball has standard alone"):
            build(config(num_speculative_tokens=4, rejection_sample_method=method))


def test_drafts_are_judged_by_their_probabilities_where_the_environment_says_so(monkeypatch: Any) -> None:
    from gumball_vllm import DRAFTS, checks

    def config(method: str) -> Any:
        drafts = SimpleNamespace(
            rejection_sample_method="standard", num_speculative_tokens=3, draft_sample_method=method
        )
        return SimpleNamespace(
            speculative_config=drafts,
            model_config=SimpleNamespace(logprobs_mode="raw_logprobs"),
            parallel_config=SimpleNamespace(),
        )

    assert not checks.draws_alone(config("probabilistic"))
    monkeypatch.setenv(DRAFTS, "rejection")
    assert checks.draws_alone(config("probabilistic"))
    # A drafter without probabilities, and model runner V1.
    for method, text in (("greedy", "gives none"), ("probabilistic", "runner V2")):
        with pytest.raises(ValueError, match=text):
            checks.refuse_configuration(config(method))
    monkeypatch.setenv(DRAFTS, "ratio")
    with pytest.raises(ValueError, match="'ratio', but must be coupled"):
        checks.draws_alone(config("greedy"))


def test_where_vllms_kernels_edit_their_limits_are_told_at_the_door() -> None:
    from gumball_vllm import checks

    from gumball.errors import RefusedError

    checks._refuse_long_lists(asked({"allowed_token_ids": list(range(1024))}, 7))
    for given in ({"allowed_token_ids": list(range(1025))}, {"stop_token_ids": list(range(129)), "min_tokens": 1}):
        with pytest.raises(RefusedError, match="at most (1024|128)"):
            checks._refuse_long_lists(asked(given, 7))
