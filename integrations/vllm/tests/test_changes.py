"""Requests that come, go, move, are preempted and come back keep their tokens, in any batch and on both model runners."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gumball_vllm import pooled
from gumball_vllm.draws import draw, verify
from gumball_vllm.kept import Mask, Sets
from test_pooled import HIDDEN, MOST, ROWS, STEPS, VOCAB, WEIGHTS, Runner, row
from test_requests import REASONING, on, there
from vllm import SamplingParams

import gumball
from gumball import Head, Mirostat, Section

LENGTH = 14
# The parameters of a request for vLLM, and the same for Gumball.
KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"top_p": 0.9}, {"top_p": 0.9}),
    ({"temperature": 0.0, "frequency_penalty": 0.7}, {"temperature": 0.0, "frequency_penalty": 0.7}),
    ({"extra_args": {"mirostat_tau": 2.0}}, {"mirostat": Mirostat(2.0, 0.1)}),
    (
        {"repetition_penalty": 1.3, "logit_bias": {3: 2.0}},
        {"repetition_penalty": 1.3, "logit_bias": {3: 2.0}, "bias_first": True},
    ),
    ({"extra_args": {"xtc_probability": 0.5, "xtc_threshold": 0.1}}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}),
    (
        {"thinking_token_budget": 2, "logit_bias": {5: 4.0}},
        {"section": Section(open=[5], close=[6], end=[7, 6], budget=2), "logit_bias": {5: 4.0}},
    ),
]


def kept_of(sets: Any, counts: list[int]) -> list[Any]:
    """The kept sets of each request's tokens, as its output has them; None for each where there are none."""
    if sets is None:
        return [[None] * count for count in counts]
    lists = sets.to_cpu_nonblocking().tolists(counts)
    return [Mask([lists.slice_request(i, count)]).token_ids if count else [] for i, count in enumerate(counts)]


class V1:
    """Model runner V1: a batch that changes as vLLM's `InputBatch` does, of which each step draws every row."""

    most = 8

    def __init__(self, most_drafts: int, with_head: bool, kept: bool, device: str, rng: random.Random) -> None:
        self.requests = on(device, rows=self.most, most_drafts=most_drafts, top_n=2, kept=kept, reasoning=REASONING)
        self.given, self.device, self.rng = HIDDEN if with_head else ROWS, device, rng
        if with_head:
            head = Head.auto(WEIGHTS)
            self.requests.head = head if device == "cpu" else head.to(device, rows=self.most * (1 + most_drafts))
        self.rows: list[Any] = []

    def add(self, one: Any) -> None:
        self.rows.append(one)
        # In turns as without and with asynchronous scheduling, where a request comes back with a new list.
        if self.rng.random() < 0.5:
            one.output = list(one.output)
        self.requests.update(
            [], [(len(self.rows) - 1, one.name, one.params, one.prompt, one.output)], [], len(self.rows)
        )

    def remove(self, one: Any) -> int:
        """Takes a request out, and the last row moves into its place. Returns how many of its tokens the engine may drop.

        A device has the last two of mirostat's limits.
        """
        index, last = self.rows.index(one), self.rows.pop()
        if last is one:
            self.requests.update([index], [], [], len(self.rows))
        else:
            # vLLM takes an index that is filled again out of the list of those removed.
            self.rows[index] = last
            self.requests.update([], [], [(len(self.rows), index, False)], len(self.rows))
        return 2 if self.device == "cpu" else 1

    def batch(self, running: list[Any]) -> list[Any]:
        if len(self.rows) > 1 and self.rng.random() < 0.3:
            one, other = self.rng.sample(range(len(self.rows)), 2)
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
            self.requests.update([], [], [(one, other, True)], len(self.rows))
        return list(self.rows)

    def step(self, batch: list[Any], scheduled: list[int], drawing: list[bool], drafts: Any) -> list[Any]:
        """Returns each request's tokens, with the logprobs that are listed of each, and its kept set. A token within a prompt is thrown away."""
        lines = drafts or [[] for _ in batch]
        rows = [
            row([*one.prompt, *one.output, *line[:j]], self.given)
            for one, line in zip(batch, lines, strict=True)
            for j in range(len(line) + 1)
        ]
        logits = there(torch.stack(rows), self.device)
        if drafts is None:
            drawn = draw(self.requests, logits, width=2)
        else:
            ids = torch.tensor([id for line in drafts for id in line], dtype=torch.int32)
            drawn = verify(self.requests, logits, [len(line) for line in drafts], there(ids, self.device), width=2)
        assert drawn.logprobs is not None and drawn.tokens.dtype == torch.int32
        tokens = drawn.tokens.reshape(len(batch), -1).tolist()
        assert len(tokens[0]) == 1 + max(map(len, lines))
        width, (ids, logprobs, _) = len(tokens[0]), drawn.logprobs.laid_out()
        counts = [sum(id >= 0 for id in line) if now else 0 for line, now in zip(tokens, drawing, strict=True)]
        sets = None if drawn.kept is None else Sets(drawn.kept, drawn.firsts)
        kept = kept_of(sets, counts)
        return [
            [
                (id, ids[i * width + j].tolist(), logprobs[i * width + j].tolist(), kept[i][j])
                for j, id in enumerate(line)
                if id >= 0
            ]
            if now
            else []
            for i, (line, now) in enumerate(zip(tokens, drawing, strict=True))
        ]

    def slots(self) -> int:
        """How many slots requests have that are gone: theirs are kept until they are needed."""
        assert self.requests.pool is not None
        return max(0, len(self.requests.pool) - 2 * self.most)


class V2(Runner):
    """Model runner V2: requests by index, of which a step takes some, in any order."""

    most = MOST

    def __init__(self, most_drafts: int, with_head: bool, kept: bool, device: str, rng: random.Random) -> None:
        super().__init__(most_drafts, with_head, kept)
        self.rng = rng

    def remove(self, one: Any) -> int:
        super().remove(one)
        return int(len(one.prompt) + len(one.output) > self.prefill[one.index])

    def batch(self, running: list[Any]) -> list[Any]:
        some = [one for one in running if self.rng.random() < 0.8]
        self.rng.shuffle(some)
        return some

    def step(self, batch: list[Any], scheduled: list[int], drawing: list[bool], drafts: Any) -> list[Any]:  # type: ignore[override]
        """Returns each request's tokens, with the logprobs that are listed of each, and its kept set."""
        drafts = drafts if drafts is not None and any(drafts) else None
        out, made = super().step(batch, scheduled, drafts), []
        found = out.logprobs_tensors.to_cpu_nonblocking().tolists()
        bounds = found.cu_num_generated_tokens or list(range(len(batch)))
        kept = kept_of(out.sampling_mask_tensors, out.num_sampled.tolist())
        for i, one in enumerate(batch):
            count = int(out.num_sampled[i])
            emitted = out.sampled_token_ids[i].tolist()[:count]
            assert int(out.num_rejected[i]) == (len(drafts[i]) + 1 - count if drafts and drawing[i] else 0)
            lists = [tuple(part[bounds[i] + j].tolist() for part in found[:2]) for j in range(count)]
            made.append([(id, *lists[j], kept[i][j]) for j, id in enumerate(emitted)])
            self.computed[one.index] += max(0, count - 1)
        return made

    def slots(self) -> int:
        return len(self.sequences.pool)


@pytest.mark.parametrize(
    ("most_drafts", "with_head", "kept"),
    [(0, False, True), (0, True, False), (STEPS, False, False), (STEPS, True, True)],
)
@pytest.mark.parametrize("kind", [V1, V2])
def test_requests_keep_their_tokens_through_every_change_of_the_batch(
    kind: Any, most_drafts: int, with_head: bool, kept: bool, device: str, monkeypatch: Any
) -> None:
    if kind is V2 and device != "emulated":
        pytest.skip("left out: the emulated device stands for a GPU, without which that runner is not there")
    # None of these logprobs are vLLM's own.
    monkeypatch.setattr(pooled, "compute_topk_scores", None)
    rng = random.Random(7 + most_drafts)
    runner: Any = kind(most_drafts, with_head, kept, device, rng)
    everybody = []
    for i in range(24):
        given, ours = KINDS[i % len(KINDS)]
        prompt = [rng.randrange(VOCAB) for _ in range(1 + i % 5)]
        listed = gumball.LogprobsParams(top_n=2) if i % 2 else None
        alone = gumball.Sampler(gumball.SamplingParams(seed=i, logprobs=listed, **ours), VOCAB, prompt=prompt)
        alone.collect_kept(True)
        lines: list[Any] = []
        sets: list[Any] = []
        while len(alone.output) < LENGTH:
            alone.sample(row(alone.history).numpy())
            sets.append(sorted(alone.kept) if kept else None)
            if listed is not None:
                found = [alone.logprobs.token, *alone.logprobs.top]
                lines.append(([one.id for one in found], [one.logprob for one in found]))
        params = SamplingParams(seed=i, logprobs=2 if i % 2 else None, **given)
        everybody.append(
            SimpleNamespace(
                **{"name": f"r{i}", "params": params, "prompt": prompt, "output": [], "limit_is_lost": False},
                **{"wanted": alone.output, "lines": lines, "sets": sets},
            )
        )
    waiting, running, accepted = list(everybody), [], 0
    while waiting or running:
        if waiting and len(running) < runner.most and rng.random() < 0.6:
            running.append(waiting.pop(0))
            runner.add(running[-1])
            running[-1].computed = 0
        if running and rng.random() < 0.2:
            # Preempted; tokens in flight may be dropped.
            one = running.pop(rng.randrange(len(running)))
            dropped = runner.remove(one)
            one.limit_is_lost = "mirostat_tau" in (one.params.extra_args or {})
            if rng.random() < 0.5:
                del one.output[max(0, len(one.output) - rng.randrange(dropped + 1)) :]
            waiting.append(one)
        batch = runner.batch(running)
        if not batch:
            continue
        left = [len(one.prompt) + len(one.output) - one.computed for one in batch]
        scheduled = [rng.randrange(1, n + 1) for n in left]
        drawing = [count == n for count, n in zip(scheduled, left, strict=True)]
        drafts = None
        if most_drafts and rng.random() < 0.7:
            drafts = [
                [id if rng.random() < 0.8 else 0 for id in one.wanted[len(one.output) :][:STEPS]]
                if now and one.output
                else []
                for one, now in zip(batch, drawing, strict=True)
            ]
        emitted = runner.step(batch, scheduled, drawing, drafts)
        for one, now, count, some in zip(batch, drawing, scheduled, emitted, strict=True):
            assert bool(some) == now
            for id, ids, logprobs, ours in some:
                assert ids[0] == id >= 0
                # Mirostat's limit starts again for a request whose slot another one was given.
                if len(one.output) < LENGTH and not one.limit_is_lost:
                    assert ours == one.sets[len(one.output)]
                if one.params.logprobs and len(one.output) < LENGTH:
                    # No matter which other requests are in the batch.
                    assert (ids, logprobs) == one.lines[len(one.output)]
                one.output.append(id)
            accepted += max(0, len(some) - 1)
            one.computed += count + max(0, len(some) - 1)
        for one in [one for one in running if len(one.output) >= LENGTH]:
            running.remove(one)
            runner.remove(one)
    for one in everybody:
        assert one.output[:LENGTH] == one.wanted, one.params
    assert (accepted > 0) == (most_drafts > 0)
    assert runner.slots() == 0
