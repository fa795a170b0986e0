"""The sampling backend by its own calls: requests come, go and move; trees of drafts; graphs' calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gumball_tokenspeed.backend import GumballSamplingBackend
from gumball_tokenspeed.kept import RADII, SWITCH, extras_of
from gumball_tokenspeed.params import KNOWN, params_of
from signatures import assert_takes, named, recorded
from tokenspeed.runtime.sampling.backends.base import SamplingBackendConfig

import gumball
from gumball import Sampler, SamplingParams
from gumball.plugins.kept import lists_of

VOCAB = 900
OFF = 1 << 30


def request(seed: int | None = 1, **given: Any) -> Any:
    """A request's parameters as TokenSpeed has them after it resolved them."""
    fields = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": OFF,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "stop_token_ids": None,
        "logit_bias": None,
    }
    return SimpleNamespace(**fields | given, seed=seed)


REQUESTS = [
    request(1, temperature=0.8, top_k=40, top_p=0.9),
    request(2, min_p=0.05, frequency_penalty=0.7, presence_penalty=0.4),
    request(3, repetition_penalty=1.3, logit_bias={"5": 3.0, "7": -100.0}),
    request(4, top_k=1),
]


def backend(**config: Any) -> GumballSamplingBackend:
    given = {"max_bs": 4, "max_req_pool_size": 6, "vocab_size": VOCAB, "device": "cpu"} | config
    their = {"enable_speculative_sampling": False, "sampling_stream": "batch", "logprob_order": "torch"}
    return GumballSamplingBackend(SamplingBackendConfig(**their | given))


def samplers(requests: list[Any]) -> list[Sampler]:
    return [Sampler(params_of(params), VOCAB) for params in requests]


def rows_of(step: int, count: int = 4) -> Any:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(step)) * 3


def output(logits: Any) -> Any:
    return SimpleNamespace(next_token_logits=logits, next_token_logprobs=None)


INFO = SimpleNamespace(vocab_mask=None)


def test_a_place_that_changes_hands_begins_anew_and_a_request_that_moves_goes_on() -> None:
    made, alone = backend(), samplers([REQUESTS[1], REQUESTS[2]])
    logits = rows_of(0, 1)
    made.prepare_step(["a"], [3], [REQUESTS[1]])
    assert made.sample(output(logits), INFO)[0].tolist() == [alone[0].sample(logits[0])]
    made.prepare_step(["a"], [5], [REQUESTS[1]])
    assert made.sample(output(logits), INFO)[0].tolist() == [alone[0].sample(logits[0])]
    made.prepare_step(["b", "a"], [3, 5], [REQUESTS[2], REQUESTS[1]])
    both = rows_of(1, 2)
    assert made.sample(output(both), INFO)[0].tolist() == [alone[1].sample(both[0]), alone[0].sample(both[1])]
    assert len(made.pool) == 2
    made.prepare_step(["c"], [5], [REQUESTS[1]])
    assert made.sample(output(logits), INFO)[0].tolist() == [samplers([REQUESTS[1]])[0].sample(logits[0])]
    assert len(made.pool) == 2


def test_the_same_requests_again_have_their_rows_whatever_came_between() -> None:
    made, alone = backend(), samplers(REQUESTS[:2])
    asked = ["a", "b"], [3, 5], REQUESTS[:2]
    for step in range(6):
        made.prepare_step(*(list(one) for one in asked))
        logits = rows_of(step, 2)
        assert made.sample(output(logits), INFO)[0].tolist() == [one.sample(row) for one, row in zip(alone, logits)]
        if step == 1:
            made.prepare_capture(4)
        if step == 3:
            with pytest.raises(ValueError, match="request_pool_indices"):
                made.prepare_step(["c"], [99], [REQUESTS[2]])
        if step == 4:
            made.prepare_step(["a", "b"], [3, 5], [None, None])
    assert len(made.pool) == 2


def model(history: list[int]) -> Any:
    seed = sum((i + 1) * token for i, token in enumerate(history)) + len(history)
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def wanted_tokens(requests: list[Any], count: int = 20) -> list[list[int]]:
    """What the requests draw without drafts."""
    alone = samplers(requests)
    for sampler in alone:
        while len(sampler.history) < count:
            sampler.sample(model(sampler.history))
    return [sampler.history for sampler in alone]


def on(device: str, made: GumballSamplingBackend) -> GumballSamplingBackend:
    """The backend with its pool on another device; the emulated one reads the host's memory."""
    if device == "emulated":
        config = made.config
        made.pool = gumball.Pool(
            config.vocab_size,
            device=device,
            slots=config.max_req_pool_size + 1,
            rows=config.max_bs * made.most,
            keep_histories=True,
            kept=made._extras.sets is not None,
        )
        made._variants = list(made.pool.counts()["variants"])
    return made


def on_host_or_emulated(device: str) -> None:
    if device not in ("cpu", "emulated"):
        pytest.skip("left out: tests/gpu has this")


def told(made: GumballSamplingBackend, tokens: Any, lengths: Any, rows: list[int]) -> list[Any]:
    """Copies a step's outputs to the host, and returns the kept set of each of some rows, and its radius if the server was started for radii, else None."""
    copied = made.get_packed_output_d2h(tokens, lengths)
    assert copied is not None
    sets, radii = extras_of(copied[1])
    lists = lists_of(*sets.packed(np.array(rows)))
    return [(ids, None if radii is None else radii[row].item()) for ids, row in zip(lists, rows, strict=True)]


def samplers_telling(requests: list[Any]) -> list[Sampler]:
    """Samplers with kept sets."""
    made = samplers(requests)
    for sampler in made:
        sampler.collect_kept(True)
    return made


def test_trees_change_no_token_and_leave_their_path(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host_or_emulated(device)
    for switch in (SWITCH, RADII):
        monkeypatch.setenv(switch, "1")
    assert GumballSamplingBackend.supports_tree_verify
    requests = [SimpleNamespace(**vars(one), custom_params={"return_radii": True}) for one in REQUESTS]
    alone = samplers_telling(requests)
    width, wanted = 5, wanted_tokens(REQUESTS)
    made = on(device, backend(max_draft_tokens_per_req=width, enable_output_logprobs=True))
    # Node 1 and 2 stand after the root, 3 after 1, 4 after 2; the right drafts are those of 2 and 4.
    parents = torch.tensor([[-1, 0, 0, 1, 2]] * 4, dtype=torch.int32)
    depths = torch.tensor([[0, 1, 1, 2, 2]] * 4, dtype=torch.int32)
    tree = SimpleNamespace(parents=parents, depths=depths)
    got: list[list[int]] = [[] for _ in REQUESTS]
    for step in range(4):
        rows, candidates = [], []
        for i, ids in enumerate(got):
            first, second = wanted[i][len(ids) : len(ids) + 2]
            second = second if step % 2 else (second + 1) % VOCAB
            nodes = [0, (first + 1) % VOCAB, first, second, second]
            candidates.append(nodes)
            paths: list[list[int]] = [[], [1], [2], [1, 3], [2, 4]]
            rows += [model(ids + [nodes[node] for node in path]) for path in paths]
        made.prepare_step(list("abcd"), [1, 2, 3, 4], requests, num_tokens_per_req=width)
        asked = output(torch.stack(rows))
        tokens, lengths = made.verify(asked, INFO, torch.tensor(candidates), tree=tree)
        assert lengths.tolist() == [2 + step % 2] * 4
        path = made.accepted_path(4, width)
        assert path.dtype == torch.int32 and path.tolist() == [[0, 2, 4 if step % 2 else -1, -1, -1]] * 4
        for i, (ids, line) in enumerate(zip(got, tokens.view(4, width).tolist(), strict=True)):
            ids += line[: lengths[i]]
            for place, node in enumerate(path[i, : lengths[i]].tolist()):
                scores = torch.log_softmax(rows[i * width + node], 0)
                found = asked.next_token_logprobs[i * width + place]
                torch.testing.assert_close(found, scores[line[place]], rtol=0, atol=1e-5)
                alone[i].sample(rows[i * width + node].numpy())
                extras = told(made, tokens, lengths, [i * width + place])
                assert extras == [(sorted(alone[i].kept), alone[i].logprobs.second)]
    assert got == [ids[:10] for ids in wanted]


def test_tokens_that_the_engine_does_not_keep_are_taken_away(device: str) -> None:
    """TokenSpeed keeps one token of a request whose drafts are no drafts; its cache lengths say so."""
    on_host_or_emulated(device)
    width, wanted = 3, wanted_tokens(REQUESTS[:2])
    made = on(device, backend(max_draft_tokens_per_req=width))
    cached, places = torch.zeros(7, dtype=torch.int32), torch.tensor([1, 2])
    info = SimpleNamespace(vocab_mask=None, valid_cache_lengths=cached, req_pool_indices=places)
    got: list[list[int]] = [[], []]
    for step in range(4):
        drafts = [wanted[i][len(ids) : len(ids) + width - 1] for i, ids in enumerate(got)]
        logits = torch.stack([model(got[i] + line[:j]) for i, line in enumerate(drafts) for j in range(width)])
        made.prepare_step(["a", "b"], [1, 2], REQUESTS[:2], num_tokens_per_req=width)
        assert bool(made._returned) == (step == 0), "only a request that was not in the step before is looked at"
        tokens, lengths = made.verify(output(logits), info, torch.tensor([[0, *line] for line in drafts]))
        assert lengths.tolist() == [3, 3]
        kept = [1, 3] if step == 0 else [3, 3]
        cached[places] += torch.tensor(kept, dtype=torch.int32)
        for ids, line, length in zip(got, tokens.view(2, width).tolist(), kept, strict=True):
            ids += line[:length]
        if step == 2:
            # Said by the caller.
            made.shorten(["b"], [2])
            del got[1][-2:]
        if step == 3:
            made.shorten(["b", "a"], torch.tensor([1, 0]))
            del got[1][-1:]
    assert got == [wanted[0][:10], wanted[1][:9]]
    assert [made.pool.output(made._slots[name]) for name in "ab"] == got


class NoWaits:
    """A pool on a device whose calls that wait for it fail."""

    def __init__(self, pool: gumball.Pool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        if name in (
            "fetch",
            "fetch_verification",
            "shorten",
            "output",
            "history",
            "state",
            "position",
            "tokens",
            "truncate",
        ):
            raise AssertionError(f"{name} waits for the device")
        return getattr(self._pool, name)


def test_a_step_with_drafts_waits_for_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device != "emulated":
        pytest.skip("left out: a pool of the host has nothing to wait for")
    width, wanted = 3, wanted_tokens(REQUESTS[:2])
    made = on(device, backend(max_draft_tokens_per_req=width))
    pool, made.pool = made.pool, NoWaits(made.pool)  # type: ignore[assignment]
    cached, places = torch.zeros(7, dtype=torch.int32), torch.tensor([1, 2])
    info = SimpleNamespace(vocab_mask=None, valid_cache_lengths=cached, req_pool_indices=places)
    got: list[list[int]] = [[], []]

    def waits(*_: Any) -> None:
        raise AssertionError("a value of the device is read")

    for step in range(3):
        drafts = [wanted[i][len(ids) : len(ids) + width - 1] for i, ids in enumerate(got)]
        rows = torch.stack([model(got[i] + line[:j]) for i, line in enumerate(drafts) for j in range(width)])
        candidates = torch.tensor([[0, *line] for line in drafts])
        with monkeypatch.context() as patch:
            for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__"):
                patch.setattr(torch.Tensor, name, waits)
            made.prepare_step(["a", "b"], [1, 2], REQUESTS[:2], num_tokens_per_req=width)
            tokens, _ = made.verify(output(rows), info, candidates)
        kept = [1, 2] if step == 0 else [3, 3]
        cached[places] += torch.tensor(kept, dtype=torch.int32)
        for ids, line, length in zip(got, tokens.view(2, width).tolist(), kept, strict=True):
            ids += line[:length]
    assert got == [wanted[0][:7], wanted[1][:8]]
    assert [pool.output(made._slots[name]) for name in "ab"] == got


def test_a_captured_verification_reads_the_drafts_that_lie_there(device: str) -> None:
    if device != "emulated":
        pytest.skip("left out: a GPU's graphs are in tests/gpu; the host has none")
    made, alone = on(device, backend(max_draft_tokens_per_req=2)), samplers(REQUESTS[:3])
    made.prepare_capture(4, 2)
    made.verify(output(rows_of(9, 8)), INFO, torch.zeros(4, 2, dtype=torch.int64))
    made.reset_capture_state()
    made.prepare_step(list("abc"), [1, 2, 3], REQUESTS[:3], num_tokens_per_req=2)
    assert made.cuda_graph_replay_variant(2) == made.cuda_graph_replay_variant(2) == "default"
    logits = rows_of(0, 8)
    drawn = [sampler.sample(row) for sampler, row in zip(alone, logits[::2], strict=False)]
    # What a graph of four requests would do.
    made._drafts[:4] = torch.tensor([*drawn[:2], (drawn[2] or 0) + 1, 0], dtype=torch.int32)
    made.pool.on_device().record([gumball.Verify(logits, made._drafts[:4])])
    assert torch.from_dlpack(made.pool.on_device().outputs("accepted")).tolist() == [1, 1, 0, 0]
    made.prepare_step(list("abc"), [1, 2, 3], REQUESTS[:3])
    for i, name in enumerate("abc"):
        more = [alone[i].sample(logits[2 * i + 1])] if i < 2 else []
        assert made.pool.output(made._slots[name]) == [drawn[i], *more]


def test_a_drafter_finds_the_parameters_of_requests_by_pool_index() -> None:
    made = backend(max_draft_tokens_per_req=2)
    pools = made.speculative_sampling_pools()
    made.prepare_step(["a", "b"], [5, 2], [request(-3, temperature=0.7, top_k=9), request(4, top_k=1)])
    assert pools is made.speculative_sampling_pools()
    assert pools.temperature.dtype == torch.float32 and pools.temperature[5].item() == np.float32(0.7)
    assert pools.top_k.dtype == torch.int32 and pools.top_k[[5, 2]].tolist() == [9, 1]
    assert pools.seed.dtype == torch.int64 and pools.seed[[5, 2]].tolist() == [-3, 4]
    assert len(pools.seed) == made.config.max_req_pool_size + 1


def test_masks_logprobs_and_rows_without_a_token() -> None:
    made = backend(enable_output_logprobs=True)
    made.prepare_step(["a", "b"], [1, 2], [request(1), request(2)])

    def apply(logits: Any, vocab_mask: Any) -> None:
        logits.masked_fill_(~vocab_mask, -torch.inf)

    mask = torch.zeros((2, VOCAB), dtype=torch.bool)
    mask[0, 17] = True
    logits = output(rows_of(0, 2))
    tokens, _ = made.sample(logits, SimpleNamespace(vocab_mask=mask, apply_vocab_mask=apply))
    assert tokens.tolist() == [17, 0] and logits.next_token_logprobs[0] == 0
    made.prepare_step(["a", "b"], [1, 2], [request(1), request(2)])
    logits = output(rows_of(1, 2))
    tokens, _ = made.sample(logits, INFO)
    want = torch.log_softmax(logits.next_token_logits, 1).gather(1, tokens.long().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logits.next_token_logprobs, want, rtol=0, atol=1e-5)


def test_the_calls_of_a_graph_and_rows_of_nobody() -> None:
    if not gumball._gumball.EMULATOR:
        pytest.skip("left out: tests/gpu has this")
    made, alone = on("emulated", backend(max_draft_tokens_per_req=2)), samplers(REQUESTS[:3])
    variants = ("default", "no_filter", "min_p", "top_k", "top_k_top_p", "top_p", "edits")
    assert made.cuda_graph_capture_variants(1) == variants
    for bs in (2, 4):
        made.prepare_capture(bs, 1)
        tokens, _ = made.sample(output(rows_of(9, bs)), INFO)
        assert tokens.tolist() == [0] * bs
        made.reset_capture_state()
    with pytest.raises(ValueError, match="Unsupported CUDA graph variant: greedy"):
        made.prepare_capture_variant(2, 1, "greedy")
    made.prepare_step(list("abc"), [1, 2, 3], REQUESTS[:3])
    # What a graph of four rows would do.
    assert made.cuda_graph_replay_variant(1) == made.cuda_graph_replay_variant(1) == "default"
    logits = rows_of(0)
    made.pool.enqueue([gumball.Step(logits)])
    assert made.pool.fetch().tolist() == [sampler.sample(row) for sampler, row in zip(alone, logits, strict=False)] + [
        -1
    ]
    assert made.get_packed_output_d2h(tokens, tokens) is None


def test_a_replay_takes_the_smallest_captured_variant_that_serves_its_rows() -> None:
    if not gumball._gumball.EMULATOR:
        pytest.skip("left out: tests/gpu has this")
    made = on("emulated", backend())
    for name in made.cuda_graph_capture_variants(1):
        if name != "min_p":
            made.prepare_capture_variant(2, 1, name)
            made.sample(output(rows_of(9, 2)), INFO)
    cases = [
        ("no_filter", [request(1), request(2, top_k=1)]),
        ("top_k", [request(1, min_p=0.1)]),
        ("top_k", [request(1, top_k=40), request(2)]),
        ("top_k_top_p", [request(1, top_k=40, top_p=0.9), request(2, top_k=5)]),
        ("top_p", [request(1, top_p=0.9), request(2, top_k=5)]),
        ("edits", [request(1, presence_penalty=0.5, top_p=0.9), request(2, top_k=5)]),
        ("default", [request(1, top_k=400)]),
    ]
    before = made.pool.counts()["variants"]
    for step, (wanted, requests) in enumerate(cases):
        names = [f"{step}.{i}" for i in range(len(requests))]
        made.prepare_step(names, list(range(len(requests))), requests)
        assert made.cuda_graph_replay_variant(1) == made.cuda_graph_replay_variant(1) == wanted
        # That reserves a step of the graph. An eager step launches what its rows need.
        made.prepare_step(names, list(range(len(requests))), requests)
        made.sample(output(rows_of(step, len(requests))), INFO)
    after = {name: steps - before[name] for name, steps in made.pool.counts()["variants"].items()}
    assert after == {"no_filter": 2, "min_p": 1, "top_k": 3, "top_k_top_p": 2, "top_p": 2, "edits": 2, "full": 2}
    asked = on("emulated", backend(enable_output_logprobs=True))
    assert asked.cuda_graph_capture_variants(1) == ("default", "edits")


def test_a_round_of_prompts_and_drafts_reads_each_row_at_its_place() -> None:
    made, alone = backend(max_draft_tokens_per_req=2), samplers(REQUESTS[:2])
    made.prepare_step(["a", "b"], [1, 2], REQUESTS[:2], num_tokens_per_req=2)
    logits = rows_of(0, 3)
    prompts, ones = made.sample(output(logits[:1]), SimpleNamespace(vocab_mask=None, batch_row_offset=0))
    wanted = [alone[0].sample(logits[0])]
    first = alone[1].sample(logits[1])
    info = SimpleNamespace(vocab_mask=None, batch_row_offset=1)
    tokens, lengths = made.verify(output(logits[1:]), info, torch.tensor([[0, first]]))
    assert tokens.tolist() == [first, alone[1].sample(logits[2])] and lengths.tolist() == [2]
    assert prompts.tolist() == wanted and ones.tolist() == [1]
    made.prepare_step(["a", "b"], [1, 2], REQUESTS[:2])
    assert [made.pool.output(made._slots[name]) for name in "ab"] == [sampler.output for sampler in alone]


def test_mistakes_are_named() -> None:
    made = backend()
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "requires max_req_pool_size > 0", lambda: backend(max_req_pool_size=0)),
        (ValueError, "as many of each", lambda: made.prepare_step(["a"], [1, 2], [REQUESTS[0]])),
        (ValueError, "request_pool_indices has 7 for a", lambda: made.prepare_step(["a"], [7], [REQUESTS[0]])),
        (ValueError, "top_p", lambda: made.prepare_step(["a"], [1], [request(top_p=-1.0)])),
        (ValueError, "logit_bias", lambda: made.prepare_step(["a"], [1], [request(logit_bias={"900": 1.0})])),
        (ValueError, "at most 1", lambda: made.verify(output(rows_of(0)), INFO, torch.zeros(2, 2))),
        (ValueError, "has 4 rows, but must have 3", lambda: made.verify(output(rows_of(0)), INFO, torch.zeros(3, 1))),
    ]
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text):
            mistake()
    # TokenSpeed asserts these; a program may expect either.
    for _, _, mistake in mistakes[1:5]:
        with pytest.raises(AssertionError):
            mistake()
    assert len(made.pool) == 0


def test_parameters_are_carried_over() -> None:
    got = params_of(request(-1, min_new_tokens=3, stop_token_ids={9, 2}, logit_bias={"4": -1}))
    want = SamplingParams(
        top_k=OFF, repetition_scope="output", min_tokens=3, stop_ids=[2, 9], logit_bias={4: -1.0}, seed=(1 << 64) - 1
    )
    assert got == want and params_of(request(min_new_tokens=3)).min_tokens == 0
    assert params_of(request(None)).seed is None
    assert params_of(request(1, top_k=1)).temperature == 0
    own = {"typical_p": 0.9, "repetition_scope": "both", "__req__": object()}
    assert params_of(request(custom_params=own)) == params_of(request()).replace(typical_p=0.9, repetition_scope="both")


@pytest.mark.parametrize(("_", "name", "text"), recorded("tokenspeed"))
def test_its_methods_take_what_tokenspeeds_take(_: str, name: str, text: str) -> None:
    import gumball_tokenspeed.backend

    assert_takes(named(gumball_tokenspeed.backend, name), text)


@pytest.mark.parametrize("own", [{}, {"dry_multiplier": 1.0, "mirostat_tau": 3.0}])
def test_a_request_that_comes_back_goes_on_behind_the_tokens_that_it_has(own: dict[str, Any]) -> None:
    """All but mirostat's limit, which starts from its initial value because the engine does not keep it."""
    tokens: list[int] = []
    params = request(3, repetition_penalty=1.3, custom_params={**own, KNOWN: ([5, 6], tokens)})
    made, logits = backend(), rows_of(0, 1)
    made.prepare_step(["a"], [1], [params])
    state = made.pool.state(made._slots["a"])
    tokens += made.sample(output(logits.clone()), INFO)[0].tolist()
    made.prepare_step(["b"], [1], [REQUESTS[0]])
    made.prepare_step(["a"], [2], [params])
    again = made.pool.state(made._slots["a"])
    assert list(state.prompt) == list(again.prompt) == ([5, 6] if own else [])
    assert list(again.output) == tokens and again.position == state.position + 1
    assert (again.seed, again.mu) == (state.seed, state.mu)
