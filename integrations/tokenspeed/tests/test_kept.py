"""Kept sets, radii, flat logprobs and seeds in a request's last answer, through TokenSpeed's own reading of a step's tokens, equal a `gumball.Sampler`'s."""

from __future__ import annotations

import math
import pickle
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gumball_tokenspeed.kept import RADII, SWITCH, is_on
from gumball_tokenspeed.params import params_of
from test_backend import on, on_host_or_emulated
from test_requests import VOCAB, entered, wired
from test_steps import Engine, text_model

from gumball import Sampler

ASKING = {"custom_params": {"return_kept": True}}
NAMES = {"return_kept", "return_radii"}
SECTION = {"section_close": [9, 4], "section_budget": 2}
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 1, "logprobs": 0, **ASKING},
    {"min_p": 0.05, "seed": 2, "logprobs": 0, "custom_params": {"return_radii": True}},
    {"temperature": 0.0, "custom_params": {"return_kept": True, "return_radii": True}},
    {"seed": -5, "logprobs": 0, "custom_params": {"typical_p": 0.9, "return_kept": True}},
    {
        "top_p": 0.95,
        "seed": 6,
        "logprobs": 0,
        "logit_bias": {},
        "frequency_penalty": 0.3,
        "custom_params": {"return_kept": True, "return_radii": True, **SECTION},
    },
]
LENGTHS = [9, 7, 12, 1, 10]


class Loop:
    """Steps whose tokens TokenSpeed's `OutputProcesser` reads and sends, until all requests have ended."""

    def __init__(self, server_args: Any, width: int, device: str, requests: list[dict[str, Any]]) -> None:
        from tokenspeed.runtime.engine.generation_output_processor import OutputProcesser

        asked = [
            one | {"max_new_tokens": length, "ignore_eos": True} for one, length in zip(requests, LENGTHS, strict=True)
        ]
        self.engine, self.width, self.sent = Engine(server_args, width, asked), width, list[Any]()
        on(device, self.engine.sampling_backend)
        drafts = {"spec_algorithm": "EAGLE3", "spec_num_tokens": width} if width > 1 else {}
        metrics = SimpleNamespace(enabled=False, record_nan_abort=None)
        sender = SimpleNamespace(send_pyobj=lambda batch: self.sent.append(pickle.loads(pickle.dumps(batch))))
        self.processor = OutputProcesser(sender, metrics=metrics, **drafts)
        self.states = self.engine.output_processor.rid_to_state
        self.processor.rid_to_state = self.states
        self.all = dict(self.states)

    def output(self, i: int) -> list[int]:
        return list(self.all[f"r{i}"].output_ids)

    def run(self, wanted: list[list[int]], right: float) -> None:
        rng = random.Random(3)
        # All but one; that one comes beside requests that have begun.
        self.step([0, 1, 2, 3], [], [])
        late = [4]
        while self.states:
            going = [i for i in range(4 + (not late)) if f"r{i}" in self.states]
            drafts = [
                [
                    id if rng.random() < right else (id + 1) % VOCAB
                    for id in (wanted[i] + [0] * 9)[len(self.output(i)) :]
                ]
                for i in going
            ]
            self.step(late, going, [line[: self.width - 1] for line in drafts])
            late = []

    def step(self, extending: list[int], decoding: list[int], drafts: list[list[int]]) -> None:
        from tokenspeed.runtime.execution.types import ModelExecutionResult

        lines = [text_model([]) for _ in extending]
        lines += [
            text_model(self.output(i) + line[:j])
            for i, line in zip(decoding, drafts, strict=True)
            for j in range(self.width)
        ]
        candidates = torch.tensor([[0, *line] for line in drafts], dtype=torch.int64) if decoding else None
        tokens, lengths, logprobs = self.engine.step(extending, decoding, torch.stack(lines), candidates)
        copied = self.engine.sampling_backend.get_packed_output_d2h(tokens, lengths)
        assert copied is not None
        count = len(extending)
        operation = SimpleNamespace(
            request_ids=[f"r{i}" for i in extending + decoding],
            extend_prefix_lens=[0] * count,
            extend_replay_lens=[0] * count,
            input_lengths=[3] * count + [self.width] * len(decoding),
            prefill_lengths=[3] * count,
            num_extends=lambda: count,
        )
        results = ModelExecutionResult(output_tokens=copied[0], output_lengths=copied[1], output_logprobs=logprobs)
        self.processor.post_process_forward_op(operation, results, False)

    def answers(self) -> dict[str, Any]:
        """The extra part of each request's last answer, as a client gets it."""
        from tokenspeed.runtime.engine.output_processor import OutputProcessor

        found = {}
        client = OutputProcessor.__new__(OutputProcessor)
        client.engine = SimpleNamespace(rid_to_state={})
        for batch in self.sent:
            client.handle_batch_output(batch)
            for name, info, reason in zip(batch.rids, batch.output_extra_infos, batch.finished_reasons, strict=True):
                assert reason is not None or not {"kept", "radii", "logprobs"} & set(info)
                if reason is not None:
                    found[name] = info
        return found


@pytest.mark.parametrize(
    ("width", "right", "switches"), [(1, 0.0, [SWITCH, RADII]), (4, 0.6, [SWITCH, RADII]), (4, 0.6, [RADII])]
)
def test_sets_radii_logprobs_and_seeds_are_in_the_last_answer(
    served: Any, monkeypatch: pytest.MonkeyPatch, device: str, width: int, right: float, switches: list[str]
) -> None:
    on_host_or_emulated(device)
    for switch in switches:
        monkeypatch.setenv(switch, "1")
    others = {} if SWITCH in switches else {"return_kept": False}
    requests = [one | {"custom_params": one.get("custom_params", {}) | others} for one in REQUESTS]
    loop = Loop(served(), width, device, requests)
    tokens, sets, radii, seeds, logprobs = [], [], [], [], []
    for i, (one, length) in enumerate(zip(requests, LENGTHS, strict=True)):
        params = params_of(loop.all[f"r{i}"].sampling_params, logprobs=True)
        # Parameters of Gumball alone make the prompt count; what asks for sets and radii is none.
        has_own = not set(one["custom_params"]) <= NAMES
        alone = Sampler(params, VOCAB, prompt=[5, 6, 7] if has_own else [])
        alone.collect_kept(True)
        kept, firm, listed = [], [], []
        while len(alone.output) < length:
            alone.sample(text_model(alone.output).numpy())
            kept.append(sorted(alone.kept))
            firm.append(alone.logprobs.second)
            listed.append(alone.logprobs.token.logprob)
        tokens.append(alone.output)
        sets.append(kept)
        radii.append(firm)
        seeds.append(params.seed)
        logprobs.append(listed)
    loop.run(tokens, right)
    assert [loop.output(i)[:length] for i, length in enumerate(LENGTHS)] == tokens
    answers = loop.answers()
    assert [answers[f"r{i}"]["seed_used"] for i in range(len(REQUESTS))] == seeds
    for i, (one, kept) in enumerate(zip(requests, sets, strict=True)):
        asked = one["custom_params"]
        assert answers[f"r{i}"].get("kept") == (kept if asked.get("return_kept") else None)
        assert answers[f"r{i}"].get("radii") == (radii[i] if asked.get("return_radii") else None)
        # Over the sets, if they are told.
        assert answers[f"r{i}"].get("logprobs") == (logprobs[i] if "logprobs" in one else None)
    # A token that the section's end forces is a kept set of its own, and no other can be drawn.
    assert sets[4][2:4] == [[9], [4]] and radii[4][2:4] == [math.inf, math.inf]
    # Also such as go as bitmasks.
    assert max(len(ids) for ids in sets[4]) > VOCAB // 32 + 1


def test_sets_and_radii_that_cannot_be_told_are_refused_by_name(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server_args = served()
    with pytest.raises(ValueError, match=f"return_kept, but the server tells no kept sets; start it with {SWITCH}=1"):
        entered(server_args, ASKING)
    monkeypatch.setenv(SWITCH, "1")
    assert entered(server_args, ASKING).sampling_params.custom_params == ASKING["custom_params"]
    for more, text in (
        (
            {"custom_params": {"return_kept": True, "dynamic_temperature_min": 0.5, "dynamic_temperature_max": 1.0}},
            "dynamic_temperature is given, which a kept set does not tell",
        ),
        ({"custom_params": {"return_kept": True, "adaptive_target": 0.3}}, "adaptive_target cannot be combined with"),
        ({"custom_params": {"return_kept": "yes"}}, "return_kept = 'yes', but it must be true or false"),
        ({"custom_params": {"return_kpet": True}}, "custom_params has 'return_kpet', but takes only"),
    ):
        with pytest.raises(ValueError, match=text):
            entered(server_args, ASKING | more)
    assert "return_kept, for which the gateway's answers have no place" in wired(ASKING)[1]
    radii = {"custom_params": {"return_radii": True}}
    with pytest.raises(ValueError, match=f"return_radii, but the server tells no radii; start it with {RADII}=1"):
        entered(server_args, radii)
    monkeypatch.setenv(RADII, "1")
    assert entered(server_args, radii).sampling_params.custom_params == radii["custom_params"]
    assert "return_radii, for which the gateway's answers have no place" in wired(radii)[1]
    monkeypatch.setenv(SWITCH, "yes")
    with pytest.raises(ValueError, match=f"{SWITCH} is 'yes', but must be 1"):
        is_on()


def test_without_the_switch_a_step_is_as_before(served: Any) -> None:
    backend = Engine(served(), 1).sampling_backend
    assert not backend._extras
    assert backend.get_packed_output_d2h(torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)) is None
