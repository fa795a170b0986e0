"""TokenSpeed's verifications over tensor-parallel ranks: each rank has the rows of its own requests, and all get every token."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gumball_tokenspeed import ranks
from gumball_tokenspeed.backend import GumballSamplingBackend
from gumball_tokenspeed.kept import RADII, SWITCH
from gumball_tokenspeed.params import KNOWN
from test_backend import (
    INFO,
    REQUESTS,
    VOCAB,
    backend,
    model,
    on,
    output,
    request,
    samplers_telling,
    told,
    wanted_tokens,
)

from gumball import Pool, Ranks, dist
from gumball._gumball import EMULATOR
from threads import on_threads

WIDTH, TOKENS = 3, 14
MANY = [*REQUESTS, request(9, temperature=1.3, top_p=0.8)]


def runtime_of(made: Any, rank: int, world: int) -> None:
    """Configures a backend as TokenSpeed's executor does, by TokenSpeed's own code."""
    from tokenspeed.runtime.sampling import dp_sampling_config

    rows = -(-VOCAB // world)
    topology = SimpleNamespace(tp_rank=rank, tp_size=world, tp_group=tuple(range(world)))
    told: list[Any] = []
    processor = SimpleNamespace(
        **vars(topology), skip_all_gather=False, config=None, configure_dp_logits_layout=told.append
    )
    runtime = dp_sampling_config.setup_dp_sampling(
        model=SimpleNamespace(logits_processor=processor, lm_head=SimpleNamespace(weight=torch.zeros(rows, 1))),
        sampling_backend=made,
        requested=True,
        drafter_available=True,
        limits=dp_sampling_config.DpSamplingRuntimeLimits(
            runtime_vocab_size=VOCAB,
            max_num_seqs=6,
            data_parallel_size=1,
            num_tokens_per_req=WIDTH,
            configured_min_bs=2,
            device="cpu",
        ),
    )
    assert runtime.enabled and told == [runtime]


def meet_at(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ranks on threads find each other, and exchange rows, without torch's process groups."""
    parts: dict[int, Any] = {}
    barriers: dict[int, threading.Barrier] = {}

    def gather_rows(topology: Any, own: Any) -> Any:
        barrier = barriers.setdefault(topology.tp_size, threading.Barrier(topology.tp_size))
        parts[topology.tp_rank] = own.clone()
        barrier.wait(60)
        whole = torch.cat([parts[rank] for rank in range(topology.tp_size)])
        barrier.wait(60)
        return whole

    monkeypatch.setattr(ranks, "gather_rows", gather_rows)

    def join(topology: Any, vocab: int, **options: Any) -> Pool:
        addresses = [f"unix:{path}/ranks.{rank}" for rank in range(topology.tp_size)]
        of_ranks = {name: options.pop(name) for name in Ranks.__dataclass_fields__ if name in options}
        return Pool(vocab, ranks=Ranks(topology.tp_rank, addresses, **of_ranks), **options)

    monkeypatch.setattr(ranks, "join_ranks", join)


def chains(step: int, histories: list[list[int]], right: list[list[int]], width: int) -> tuple[Any, Any]:
    """Candidates of each request, of which drafts are right more often than not, and the model's rows after them."""
    candidates, rows = [], []
    for i, (history, text) in enumerate(zip(histories, right, strict=True)):
        ahead = text[len(history) : len(history) + width - 1]
        ahead = [token if (step + i + j) % 4 else (token + 1) % VOCAB for j, token in enumerate(ahead)]
        ahead += [0] * (width - 1 - len(ahead))
        candidates.append([history[-1] if history else 0, *ahead])
        rows += [model(history + ahead[:j]) for j in range(width)]
    return torch.tensor(candidates, dtype=torch.int32), torch.stack(rows)


def own_rows(logits: Any, bs: int, width: int, rank: int, world: int) -> tuple[Any, Any]:
    """What TokenSpeed hands a rank: its part of the requests, padded, with the columns of padded heads; and the plan."""
    bucket = bs + -bs % world
    columns = -(-VOCAB // world) * world - VOCAB
    padded = torch.nn.functional.pad(logits, (0, columns, 0, (bucket - bs) * width), value=float("nan"))
    count = bucket // world * width
    plan = SimpleNamespace(effective_bs=bs, bucket_bs=bucket, tp_size=world, num_tokens_per_req=width)
    return padded[rank * count : (rank + 1) * count], plan


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_ranks_emit_the_tokens_of_decoding_without_drafts(
    device: str, world: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "emulated" and not EMULATOR:
        pytest.skip("the emulated device is not built in")
    meet_at(tmp_path, monkeypatch)
    monkeypatch.setenv(SWITCH, "1")
    wanted = wanted_tokens(MANY, TOKENS + 3 * WIDTH)
    ids = [f"r{i}" for i in range(5)]

    def work(rank: int) -> list[Any]:
        places = list(range(1, 6))
        config = {"max_bs": 5, "max_draft_tokens_per_req": WIDTH, "enable_output_logprobs": True}
        made = on(device, backend(**config, tp_group=tuple(range(world)), enable_tp_sync=False))
        if world > 1:
            runtime_of(made, rank, world)
        histories: list[list[int]] = [[] for _ in MANY]
        sets: list[list[Any]] = [[] for _ in MANY]
        found: list[Any] = []
        for step in range(9):
            # Every third step has no drafts, and every fifth the whole rows on all ranks.
            width = 1 if step % 3 == 2 else WIDTH
            some = [0, 1, 2, 3, 4] if step % 4 else [4, 2, 1]
            made.prepare_step([ids[i] for i in some], [places[i] for i in some], [MANY[i] for i in some], width)
            candidates, logits = chains(step, [histories[i] for i in some], [wanted[i] for i in some], width)
            out = output(logits)
            if world > 1 and width > 1 and step % 5:
                out.next_token_logits, out.logits_layout_plan = own_rows(logits, len(some), width, rank, world)
            if width == 1:
                tokens, lengths = made.sample(out, INFO)
            else:
                tokens, lengths = made.verify(out, INFO, candidates)
            assert tokens.shape == (len(some) * width,) and lengths.shape == (len(some),)
            lines = zip(some, tokens.view(len(some), width).tolist(), lengths.tolist(), strict=True)
            for at, (i, row, length) in enumerate(lines):
                histories[i] += row[:length]
                sets[i] += told(made, tokens, lengths, list(range(at * width, at * width + length)))
            found.append([tokens.tolist(), lengths.tolist(), out.next_token_logprobs.tolist()])
            if step == 4:
                # The engine keeps one token less of a request.
                made.shorten([ids[3], ids[0]], [0, 1])
                histories[0].pop()
                sets[0].pop()
                # A part of a prompt, which has no token; then another request takes its index, and the first one returns with its tokens.
                made.prepare_step(ids[:1], places[:1], [None])
                made.sample(output(logits[:1].clone()), INFO)
                made.prepare_step(["other"], places[:1], MANY[:1])
                known = SimpleNamespace(**vars(MANY[0]), custom_params={KNOWN: ([], histories[0])})
                made.prepare_step(ids[:1], [6], [known])
                places[0] = 6
        if device == "emulated" and world > 1:
            # A replay takes the smallest variant that serves all rows, and has room for padding.
            variants = made.cuda_graph_capture_variants(WIDTH)
            assert variants == ("default", "edits")
            for variant in variants:
                made.prepare_capture_variant(5, WIDTH, variant)
                out = output(torch.zeros(5 * WIDTH, VOCAB))
                out.next_token_logits, out.logits_layout_plan = own_rows(out.next_token_logits, 5, WIDTH, rank, world)
                made.verify(out, INFO, torch.zeros(5, WIDTH, dtype=torch.int32))
            taken = []
            for i in range(5):
                made.prepare_step([ids[i]], [places[i]], [MANY[i]], WIDTH)
                taken.append(made.cuda_graph_replay_variant(WIDTH))
                needed = made.pool.on_device().needed_variant()
                assert taken[-1] == ("default" if needed == "full" else "edits")
            assert "edits" in taken
        return [found, histories, sets]

    results = on_threads(world, work)
    assert all(str(result) == str(results[0]) for result in results)
    histories = results[0][1]
    assert [history == text[: len(history)] for history, text in zip(histories, wanted, strict=True)] == [True] * 5
    assert sum(map(len, histories)) > 5 * 9, "drafts were accepted"
    for alone, history, sets in zip(samplers_telling(MANY), histories, results[0][2], strict=True):
        assert len(sets) == len(history)
        for place, (ids, _) in enumerate(sets):
            alone.sample(model(history[:place]))
            assert ids == sorted(alone.kept)


def test_ranks_draw_the_same_tokens_without_a_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenspeed.runtime.distributed.process_group_manager import process_group_manager

    sent: list[int] = []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, **_: sent.append(tensor.numel()))
    monkeypatch.setattr(process_group_manager, "get_device_process_group", lambda group: group)
    asked, ids, places = [*MANY, request(None, temperature=0.9)], [f"r{i}" for i in range(6)], list(range(1, 7))
    right = [*wanted_tokens(MANY, 30), []]

    def texts(**config: Any) -> list[list[int]]:
        made = backend(max_bs=6, max_draft_tokens_per_req=WIDTH, random_seed=7, **config)
        histories: list[list[int]] = [[] for _ in asked]
        for step in range(6):
            width = 1 if step % 3 == 2 else WIDTH
            made.prepare_step(ids, places, asked, width)
            candidates, logits = chains(step, histories, right, width)
            out = output(logits)
            tokens, lengths = made.sample(out, INFO) if width == 1 else made.verify(out, INFO, candidates)
            for history, row, length in zip(histories, tokens.view(6, width).tolist(), lengths.tolist(), strict=True):
                history += row[:length]
        return histories

    alone = texts(tp_group=None)
    ranks_of = [texts(tp_group=(0, 1), enable_tp_sync=False) for _ in range(2)]
    assert ranks_of == [alone, alone] and sent == [] and sum(map(len, alone)) > 6 * 6
    assert texts(tp_group=(0, 1)) == alone and sent, "with it the first rank's tokens are sent"


@pytest.mark.parametrize("device", ["cpu", "emulated"])
@pytest.mark.parametrize("width", [1, WIDTH])
def test_a_rank_that_is_gone_is_an_error_and_no_token_again_and_again(
    device: str, width: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "emulated" and not EMULATOR:
        pytest.skip("the emulated device is not built in")
    meet_at(tmp_path, monkeypatch)
    join, gone, done = ranks.join_ranks, threading.Event(), threading.Event()
    monkeypatch.setattr(ranks, "join_ranks", lambda *given, **options: join(*given, **options, timeout=0.5))
    logits, candidates = torch.randn(2 * width, VOCAB), torch.zeros(2, width, dtype=torch.int32)

    def work(rank: int) -> None:
        config = {"max_bs": 2, "max_draft_tokens_per_req": WIDTH, "tp_group": (0, 1), "enable_tp_sync": False}
        made = on(device, backend(**config))
        runtime = {"max_bucket_bs": 2, "vocab_size": VOCAB, "num_tokens_per_req": WIDTH, "device": "cpu"}
        topology = SimpleNamespace(tp_rank=rank, tp_size=2, tp_group=(0, 1))
        made.configure_dp_sampling(SimpleNamespace(enabled=True, min_bs=1, topology=topology, **runtime))

        def step() -> None:
            made.prepare_step(["a", "b"], [1, 2], REQUESTS[:2], width)
            made.verify(output(logits.clone()), INFO, candidates)

        step()
        step()
        if rank == 1:
            gone.set()
            assert done.wait(60)
        else:
            assert gone.wait(60)
            with pytest.raises(dist.DistError):
                step()
                # On a device the call after the failed step raises.
                step()
            with pytest.raises(dist.DistError):
                step()
            done.set()

    on_threads(2, work)


def test_masks_trees_and_requests_without_a_seed_are_the_same_on_all_ranks(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at(tmp_path, monkeypatch)
    for switch in (SWITCH, RADII):
        monkeypatch.setenv(switch, "1")
    world, width, bs = 2, 4, 3
    parents = torch.tensor([[-1, 0, 0, 1]] * bs, dtype=torch.int32)
    candidates = torch.randint(0, VOCAB, (bs, width), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    logits = torch.randn(bs * width, VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    # Only the drafts are likely, and of each row the mask forbids what lies after a number.
    logits[:, 40:] -= 30
    candidates = candidates % 40
    allowed = (torch.arange(VOCAB) < 30).expand(bs * width, VOCAB)

    def apply(logits: Any, vocab_mask: Any) -> None:
        assert len(logits) == len(vocab_mask)
        logits.masked_fill_(torch.nn.functional.pad(vocab_mask == 0, (0, logits.shape[1] - VOCAB)), float("-inf"))

    def work(rank: int, world: int) -> list[Any]:
        made = backend(max_bs=4, max_draft_tokens_per_req=width, tp_group=tuple(range(world)), enable_tp_sync=False)
        if world > 1:
            topology = SimpleNamespace(tp_rank=rank, tp_size=world, tp_group=(0, 1))
            runtime = {"max_bucket_bs": 4, "vocab_size": VOCAB, "num_tokens_per_req": width, "topology": topology}
            made.configure_dp_sampling(SimpleNamespace(enabled=True, min_bs=1, device="cpu", **runtime))
        seeds = [1, 2, 3] if world == 1 else [1, 2, None]
        asking = [request(seed, custom_params={"return_radii": True}) for seed in seeds]
        made.prepare_step(["a", "b", "c"], [1, 2, 3], asking, width)
        out, info = output(logits.clone()), SimpleNamespace(vocab_mask=allowed.int(), apply_vocab_mask=apply)
        if world > 1:
            out.next_token_logits, out.logits_layout_plan = own_rows(logits, bs, width, rank, world)
        tokens, lengths = made.verify(out, info, candidates, tree=SimpleNamespace(parents=parents))
        extras = [
            told(made, tokens, lengths, list(range(i * width, i * width + length)))
            for i, length in enumerate(lengths.tolist())
        ]
        return [tokens.tolist(), lengths.tolist(), made.accepted_path(bs, width).tolist(), extras]

    alone = work(0, 1)
    first, second = on_threads(world, lambda rank: work(rank, world))
    assert first == second
    for all_of, each in zip(first, alone, strict=True):
        # The requests with seeds draw what they draw alone.
        assert all_of[: len(each) * 2 // 3] == each[: len(each) * 2 // 3]
    assert all(token < 30 for token in first[0])


def test_masks_are_split_as_tokenspeed_splits_them(tmp_path: Any) -> None:
    from tokenspeed.runtime.sampling import dp_sampling_config as config

    mask = torch.arange(5 * 3 * 7).view(5 * 3, 7)
    made = backend()
    for rank, world in ((0, 2), (1, 2), (2, 3), (3, 4)):
        count = -(-5 // world)
        own = slice(rank * count, (rank + 1) * count)
        given = {"full_bs": 5, "pad_bs": count * world, "num_tokens_per_req": 3, "shard": own}
        assert (made._own_mask(mask.view(5, 3, 7), own) == config.slice_dp_vocab_mask(mask, **given)).all()


def test_what_cannot_be_spread_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_at(tmp_path, monkeypatch)
    assert GumballSamplingBackend._SUPPORTS_DP_VERIFY
    topology = SimpleNamespace(tp_rank=0, tp_size=2, tp_group=(0, 1))
    right = {
        "enabled": True,
        "vocab_size": VOCAB,
        "max_bucket_bs": 4,
        "num_tokens_per_req": 3,
        "topology": topology,
        "device": "cpu",
    }
    made = backend(max_draft_tokens_per_req=3, tp_group=(0, 1), enable_tp_sync=False)
    made.configure_dp_sampling(SimpleNamespace(enabled=False))
    other = SimpleNamespace(tp_rank=0, tp_size=2, tp_group=(0, 2))
    for text, changed in (
        ("needs a topology", {"topology": None}),
        (r"tp_group is \(0, 2\), but must be that of the config, \(0, 1\)", {"topology": other}),
        (r"max_bucket_bs is 6, but must be in 1\.\.=4", {"max_bucket_bs": 6}),
        (r"num_tokens_per_req is 4, but must be in 1\.\.=3", {"num_tokens_per_req": 4}),
        (r"vocab_size is 9, but must be in", {"vocab_size": 9}),
    ):
        with pytest.raises(RuntimeError, match=text):
            made.configure_dp_sampling(SimpleNamespace(**right | changed))
    out = output(torch.zeros(3, VOCAB))
    out.logits_layout_plan = SimpleNamespace(effective_bs=1, bucket_bs=2, tp_size=2, num_tokens_per_req=3)
    with pytest.raises(RuntimeError, match="configure_dp_sampling has spread no requests over ranks"):
        made.verify(out, INFO, torch.zeros(1, 3, dtype=torch.int32))
    made.prepare_step(["a"], [1], [request(1)])
    with pytest.raises(RuntimeError, match="comes behind 1 requests, but must come before"):
        made.configure_dp_sampling(SimpleNamespace(**right))
