"""Heads: from hidden states to tokens, the same as from their logits, over anybody's weights."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Drafts, Head, Hidden, LogprobsParams, Pool, SamplingParams, Scored

VOCAB, WIDTH = 600, 40

random = np.random.default_rng(7)
WEIGHTS = random.standard_normal((VOCAB, WIDTH), np.float32) / 4
HIDDEN = random.standard_normal((64, WIDTH), np.float32) * 2

REQUESTS = [
    SamplingParams(seed=1),
    SamplingParams(temperature=0, repetition_penalty=1.2),
    SamplingParams(top_k=20, top_p=0.9, frequency_penalty=0.3, seed=2),
    SamplingParams(min_p=0.1, logit_bias={5: 2.0}, seed=3),
    SamplingParams(top_p=0.8, seed=4),
    SamplingParams(top_k=9, logprobs=LogprobsParams(mode="processed", top_n=2), seed=5),
]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def pool_of(requests: list[SamplingParams], **config: Any) -> tuple[Pool, list[int]]:
    pool = Pool(VOCAB, top_n=3, **config)
    return pool, [pool.admit(params, [1, 2, 1]) for params in requests]


def test_logits_have_the_bias_the_scale_and_the_cap() -> None:
    plain = Head(WEIGHTS).logits(HIDDEN[:3])
    assert plain.dtype == np.float32 and plain.shape == (3, VOCAB)
    np.testing.assert_allclose(plain, HIDDEN[:3] @ WEIGHTS.T, atol=1e-4)
    for bias in ([0.5] * VOCAB, np.full(VOCAB, 0.5), np.full(VOCAB, 0.5, np.float16)):
        assert np.array_equal(Head(WEIGHTS, bias=bias).logits(HIDDEN[:3]), plain + np.float32(0.5))
    scaled = Head(WEIGHTS, logit_scale=0.5, kind="certified").logits(HIDDEN[:3])
    assert np.array_equal(scaled, plain * np.float32(0.5))
    assert np.allclose(Head(WEIGHTS, logit_scale=0.5, softcap=2.0).logits(HIDDEN[:3]), 2.0 * np.tanh(scaled / 2.0))


@pytest.mark.parametrize("kind", ["exact", "certified"])
def test_each_call_takes_hidden_states_in_the_place_of_logits(kind: str) -> None:
    head = Head(WEIGHTS, kind=kind)
    (a, slots), (b, _) = pool_of(REQUESTS, kept=True), pool_of(REQUESTS, kept=True)
    hidden, rows = HIDDEN[:7], [*slots[:2], -1, *slots[2:]]
    masks = np.insert(np.full((6, 19), -9, np.int32), 2, 0, axis=0)
    expected, seen = (
        a.step(head.logits(hidden), Batch(rows, masks=masks)),
        b.step(Hidden(head, hidden), Batch(rows, masks=masks)),
    )
    for name in ("tokens", "statuses", "logprobs", "ranks", "temperatures", "top_ids", "top_logprobs"):
        assert getattr(seen, name).tobytes() == getattr(expected, name).tobytes(), name
    assert not seen.is_approximate
    assert all(np.array_equal(seen.kept(row), expected.kept(row)) for row in range(7))
    counts = b.counts()["heads"]
    assert counts["whole_rows"] + counts["certified_rows"] == 6
    assert (counts["certified_rows"] > 0) == (counts["screen_reads"] == 1) == (kind == "certified")
    assert (counts["clustered_rows"], counts["clustered_logits"], counts["centroid_reads"]) == (0, 0, 0)

    block, paths = Batch(slots, mode="block"), [[3, 1]] * 6
    drafts, probs = b.draft(Hidden(head, HIDDEN[:6]), block, paths, probs=True)
    for one, other in zip((drafts, probs), a.draft(head.logits(HIDDEN[:6]), block, paths, probs=True)):
        assert np.array_equal(one, other)
    siblings = b.draft(Hidden(head, HIDDEN[:6]), slots, siblings=3)
    assert np.array_equal(siblings, a.draft(head.logits(HIDDEN[:6]), slots, siblings=3))
    hidden, given = np.repeat(HIDDEN[:6], 2, axis=0), Drafts(drafts, probs=np.repeat(probs, 2, axis=0))
    verified, wanted = b.verify(Hidden(head, hidden), block, given), a.verify(head.logits(hidden), block, given)
    assert verified.emitted() == wanted.emitted() and verified.accepted.tolist() == wanted.accepted.tolist()

    ids = random.integers(0, VOCAB, 40)
    scores = a.score(head.logits(HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4))
    for chunk_rows in (1, 64):
        seen = b.score(Hidden(head, HIDDEN[:30]), REQUESTS[5], Scored(ids, start=4, chunk_rows=chunk_rows))
        assert seen.logprobs.tobytes() == scores.logprobs.tobytes() and seen.ranks.tobytes() == scores.ranks.tobytes()


def test_forced_tokens_and_hooks_act_on_rows_from_hidden_states() -> None:
    head = Head(WEIGHTS, kind="certified")
    pool, slots = pool_of(REQUESTS[:3])

    def only_seven(row: np.ndarray[Any, Any]) -> None:
        row[:] = -np.inf
        row[7] = 0

    out = pool.step(Hidden(head, HIDDEN[:3]), Batch(slots, forced=[5, None, -1], hooks=[None, only_seven, None]))
    assert out.tokens[:2].tolist() == [5, 7]
    assert pool.counts()["heads"]["whole_rows"] == 1


def test_what_needs_the_whole_row_is_said_before() -> None:
    hot = SamplingParams(temperature=0.5, logprobs=LogprobsParams(mode="raw"))
    pool, slots = pool_of([*REQUESTS[:5], hot])
    reasons = [Head.needs_whole_row(pool, slot) for slot in slots]
    assert reasons == [None, None, None, None, "top_p", "logprobs"]
    assert Head.needs_whole_row(pool, slots[0], hooked=True) == "hook"
    pool, [slot] = pool_of(REQUESTS[:1], kept=True)
    assert Head.needs_whole_row(pool, slot) == "kept"
    pool, [slot] = pool_of(REQUESTS[:1], route="oracle")
    assert Head.needs_whole_row(pool, slot) is None
    pool, [slot] = pool_of(REQUESTS[:1], route="probabilities")
    assert Head.needs_whole_row(pool, slot) == "route"
    with pytest.raises(ValueError, match="slot is 9"):
        Head.needs_whole_row(pool, 9)


def test_weights_are_borrowed_where_rows_follow_each_other() -> None:
    weights = WEIGHTS.copy()
    strided = np.zeros((VOCAB, WIDTH + 3), np.float32)
    strided[:, :WIDTH] = weights
    heads = Head(weights), Head(strided[:, :WIDTH])
    assert [head.is_borrowed for head in heads] == [True, False]
    # Borrowed memory outlives its name; of numpy's, what is written there shows.
    weights[0] = 0
    assert heads[0].logits(HIDDEN[0])[0, 0] == 0 and heads[1].logits(HIDDEN[0])[0, 0] != 0
    del weights, strided
    gc.collect()
    assert np.array_equal(heads[0].logits(HIDDEN[:2])[:, 1:], heads[1].logits(HIDDEN[:2])[:, 1:])
    head = heads[0]
    assert (head.vocab, head.width, head.kind, head.dtype) == (VOCAB, WIDTH, "exact", "float32")
    assert repr(head) == 'Head([600, 40] float32 borrowed, kind="exact")'
    assert head.screen_bytes == 0 and head.most_rows == 0 and head.unscreened.tolist() == []
    assert head.is_approximate is False and (head.probes, head.capacity, head.centroid_bytes) == (0, 0, 0)
    assert [len(array) for array in (head.special_ids, head.cluster_ids, head.places, head.centroids)] == [0] * 4


def test_rows_that_are_not_finite_are_listed() -> None:
    weights = WEIGHTS.copy()
    weights[[3, 9]] = [[np.nan], [np.inf]]
    head = Head(weights, kind="certified")
    assert head.unscreened.tolist() == [3, 9] and head.unscreened.dtype == np.int64
    assert head.most_rows == 8 and VOCAB * WIDTH < head.screen_bytes < 2 * VOCAB * WIDTH


def test_what_does_not_fit_is_refused() -> None:
    def refuses(text: str, *args: Any, **arguments: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=text):
            Head(*args, **arguments)

    refuses('kind is "fast", but must be', WEIGHTS, kind="fast")
    refuses('most_rows is for kind="certified" or kind="clustered", but kind is "exact"', WEIGHTS, most_rows=3)
    refuses("weights is of float64, but must be of float32", WEIGHTS.astype(np.float64))
    refuses("weights must be an array", [[1.0]])
    refuses("weights has 3 dimensions", WEIGHTS[None])
    refuses("bias has length 3, but must have one for each of 600 ids", WEIGHTS, bias=[1.0, 2.0, 3.0])
    refuses("logit_scale is 0", WEIGHTS, logit_scale=0)
    refuses("softcap is -1", WEIGHTS, softcap=-1)
    refuses(r"weights.shape\[1\] is 65537", np.zeros((1, 65537), np.float32))
    head, (pool, slots) = Head(WEIGHTS), pool_of(REQUESTS[:2])
    for hidden, text in [
        (HIDDEN[:1], "slots has length 2, but must have one per hidden state, 1"),
        (HIDDEN[:2, :-1], "hidden has length 39, but must have 40 elements each"),
        (HIDDEN[:2].astype(np.float64), "hidden is of float64"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            pool.step(Hidden(head, hidden), slots)
    with pytest.raises(ValueError, match="chunk_rows is 0"):
        pool.score(Hidden(head, HIDDEN[:1]), SamplingParams(), Scored([1, 2], chunk_rows=0))
    with pytest.raises(ValueError, match="logits has length 600, but must have 7 elements"):
        Pool(7).step(Hidden(head, HIDDEN[:0]), [])
    assert [pool.state(slot).position for slot in slots] == [3, 3]


def test_a_saved_head_is_the_head(tmp_path: Path) -> None:
    made = Head(WEIGHTS, kind="certified", bias=np.ones(VOCAB, np.float32))
    path = tmp_path / "head"
    made.save(path, name="w")
    read = Head(WEIGHTS, kind="certified", bias=np.ones(VOCAB, np.float32), file=path, most_rows=3)
    assert (read.screen_bytes, read.most_rows) == (made.screen_bytes, 3)
    tokens = []
    for head in (made, read):
        pool, slots = pool_of(REQUESTS[:3])
        tokens.append([pool.step(Hidden(head, HIDDEN[i : i + 3]), slots).tolist() for i in range(9)])
        assert pool.counts()["heads"]["certified_rows"] == 27
    assert tokens[0] == tokens[1]
    with pytest.raises(ValueError, match="file cannot be used: it is of another head: the bias it was built from"):
        Head(WEIGHTS, kind="certified", file=str(path))
    with pytest.raises(ValueError, match="the weights it was built from"):
        Head(WEIGHTS * 2, kind="certified", bias=np.ones(VOCAB, np.float32), file=path)
    with pytest.raises(ValueError, match='file is for kind="certified" or kind="clustered", but kind is "exact"'):
        Head(WEIGHTS, file=path)
    with pytest.raises(FileNotFoundError, match="none"):
        Head(WEIGHTS, kind="certified", file=tmp_path / "none")
    with pytest.raises(ValueError, match="nothing to save"):
        Head(WEIGHTS).save(path)
    with pytest.raises(OSError):
        made.save(tmp_path / "no" / "folder")
    # Only a plain file is replaced: nothing is written through a link, a pipe is not waited for, and no other file is left.
    precious, link, pipe, folder = (tmp_path / name for name in ("precious", "link", "pipe", "folder"))
    precious.write_text("years of work")
    link.symlink_to(precious)
    os.mkfifo(pipe)
    folder.mkdir()
    before = sorted(tmp_path.iterdir())
    for place, what in ((link, "a link"), (pipe, "a pipe"), (folder, "a folder")):
        with pytest.raises(OSError, match=f"it is {what}, not a file"):
            made.save(place)
    assert precious.read_text() == "years of work" and sorted(tmp_path.iterdir()) == before
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        Head(WEIGHTS, kind="certified", file=path)


def test_types_of_others_are_taken() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = WEIGHTS.astype(ml_dtypes.bfloat16)
    head, wide = Head(weights), Head(weights.astype(np.float32))
    assert head.dtype == "bfloat16" and head.is_borrowed
    assert np.array_equal(head.logits(HIDDEN[:3]), wide.logits(HIDDEN[:3]))


class TestTorch:
    """Over tensors of torch."""

    def test_tensors_are_taken_in_every_type(self, torch: Any) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            linear = torch.nn.Linear(WIDTH, VOCAB, dtype=dtype)
            head = Head(linear.weight, bias=linear.bias, kind="certified")
            assert head.is_borrowed and head.dtype == str(dtype).removeprefix("torch.")
            hidden = torch.from_numpy(HIDDEN[:4]).to(dtype)
            with torch.no_grad():
                near = linear.float()(hidden.float()).numpy()
            assert np.allclose(head.logits(hidden), near, atol=1e-4)
        pool, slots = pool_of(REQUESTS)
        assert len(pool.step(Hidden(head, hidden.repeat(2, 1)[:6]), slots).tokens) == 6

    def test_memory_outlives_a_parameter_whose_data_are_changed(self, torch: Any) -> None:
        linear = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        head = Head(linear.weight)
        before = head.logits(HIDDEN[:2])
        linear.weight.data = torch.zeros(VOCAB, WIDTH)
        del linear
        gc.collect()
        assert np.array_equal(head.logits(HIDDEN[:2]), before)

    def test_weights_that_were_written_are_refused(self, torch: Any) -> None:
        weight = torch.nn.Linear(WIDTH, VOCAB).weight
        head = Head(weight, kind="certified")
        with torch.no_grad():
            weight[0] += 1
        with pytest.raises(RuntimeError, match="were written since"):
            head.logits(HIDDEN[:1])
        pool, slots = pool_of(REQUESTS[:1])
        with pytest.raises(RuntimeError, match="were written since"):
            pool.step(Hidden(head, HIDDEN[:1]), slots)

    def test_tensors_of_inference_mode_have_no_count(self, torch: Any) -> None:
        with torch.inference_mode():
            head = Head(torch.zeros(VOCAB, WIDTH))
            assert not head.logits(torch.ones(1, WIDTH)).any()


class TestTransformers:
    """In the place of a model's output layer."""

    @pytest.fixture
    def model(self, torch: Any) -> Any:
        return self.made(torch)

    @staticmethod
    def made(torch: Any, **config: Any) -> Any:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        sizes = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
        config = transformers.LlamaConfig(**sizes, eos_token_id=None, pad_token_id=0, bos_token_id=1, **config)
        return transformers.LlamaForCausalLM(config).eval()

    @pytest.mark.parametrize("tied", [False, True])
    def test_logits_are_the_heads_and_the_layer_comes_back(self, torch: Any, tied: bool) -> None:
        model = self.made(torch, tie_word_embeddings=tied)
        layer, ids = model.lm_head, torch.tensor([[5, 6, 7], [1, 2, 3]])
        with torch.no_grad():
            own = model(ids).logits
        with Head.replace(model, kind="certified") as replaced:
            assert model.lm_head is replaced.layer and replaced.head.kind == "certified"
            assert model.lm_head.weight is layer.weight and model.lm_head.bias is None
            assert not tied or layer.weight is model.model.embed_tokens.weight
            assert replaced.head.is_borrowed
            with torch.no_grad():
                seen = model(ids)
                hidden = model.model(ids).last_hidden_state
            assert seen.logits.dtype == torch.float32 and torch.allclose(seen.logits, own, atol=1e-5)
            assert np.array_equal(seen.logits[1], replaced.head.logits(hidden[1]))
            with pytest.raises(RuntimeError, match="no gradients"):
                model(ids)
            with pytest.raises(ValueError, match="is a head already"):
                Head.replace(model)
        assert model.lm_head is layer
        replaced.restore()
        with torch.no_grad():
            assert torch.equal(model(ids).logits, own)

    def test_generate_draws_from_hidden_states_what_a_pool_draws(self, torch: Any, model: Any) -> None:
        from gumball.transformers import generate

        ids, mask = torch.tensor([[0, 0, 8], [4, 5, 6]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
        for params in ([SamplingParams(temperature=0), REQUESTS[2]], SamplingParams(seed=7, temperature=0.8)):
            seen = {}
            for kind in ("exact", "certified"):
                with Head.replace(model, kind=kind) as replaced:
                    calls = dict(input_ids=ids, attention_mask=mask, max_new_tokens=12)
                    seen[kind] = generate(model, params, **calls)
                    head = replaced.head
            assert torch.equal(seen["exact"], seen["certified"])
            # By hand, a row at a time.
            first = params[1] if isinstance(params, list) else params
            pool = Pool(512)
            prompt = ids[1].tolist()
            draw = 0 if isinstance(params, list) else 1
            seed = first.seed
            slot = pool.resume(first, gumball.State(prompt, seed=seed, position=3, draw=draw))
            for _ in range(12):
                with torch.no_grad():
                    hidden = model.model(torch.tensor([pool.state(slot).prompt + pool.state(slot).output]))
                pool.step(Hidden(head, hidden.last_hidden_state[0, -1]), [slot])
            assert pool.state(slot).output == seen["exact"][1, 3:].tolist()

    def test_a_prompt_may_be_read_in_chunks(self, torch: Any, model: Any) -> None:
        from gumball.transformers import generate

        ids = torch.tensor([[7, 6, 8, 9, 3], [4, 5, 6, 7, 8]])
        calls = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6)
        with Head.replace(model):
            whole = generate(model, SamplingParams(temperature=0), **calls)
            assert torch.equal(generate(model, SamplingParams(temperature=0), **calls, prefill_chunk_size=2), whole)

    def test_what_would_edit_logits_that_are_not_computed_is_refused(self, torch: Any, model: Any) -> None:
        from gumball.transformers import generate

        ids = torch.tensor([[4, 5, 6]])
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=3)
        with Head.replace(model):
            with pytest.raises(ValueError, match="SuppressTokensLogitsProcessor edits logits"):
                generate(model, SamplingParams(), **inputs, suppress_tokens=[2])
            with pytest.raises(ValueError, match="function edits logits"):
                generate(model, SamplingParams(), **inputs, logits_processor=[lambda ids, scores: scores])
            model.config.final_logit_softcapping = 30.0
            with pytest.raises(ValueError, match="final_logit_softcapping is 30.0"):
                generate(model, **inputs)
            del model.config.final_logit_softcapping
            # Two calls of one model may follow each other.
            assert generate(model, SamplingParams(temperature=0), **inputs).shape == (1, 6)
            assert generate(model, SamplingParams(temperature=0), **inputs).shape == (1, 6)

    def test_a_head_that_does_not_fit_is_refused(self, torch: Any, model: Any) -> None:
        with pytest.raises(ValueError, match=r"head is \[600, 40\], but must be \[512, 32\]"):
            Head.replace(model, head=Head(WEIGHTS))
        with pytest.raises(ValueError, match="kind is for a head that is made here"):
            Head.replace(model, head=Head(WEIGHTS), kind="exact")
        given = Head(model.lm_head.weight, kind="certified")
        with Head.replace(model, head=given) as replaced:
            assert replaced.head is given
            layer = replaced.layer
            model.set_output_embeddings(torch.nn.Linear(32, 512))
            with pytest.raises(RuntimeError, match="was replaced again"):
                replaced.restore()
            model.set_output_embeddings(layer)
        model.lm_head = torch.nn.Identity()
        with pytest.raises(TypeError, match="must be a torch.nn.Linear, not Identity"):
            Head.replace(model)
