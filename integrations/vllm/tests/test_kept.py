"""Sampling masks of a server with `--return-sampling-mask`: the sets that a `gumball.Sampler` keeps of the same logits, with drafts and without."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.outputs
from gumball_vllm import checks, kept, places
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import output_processor
from vllm.v1.outputs import SamplingMaskLists

import gumball
import gumball.torch
import recorded_model
from conftest import closing
from gumball import LogprobsParams
from gumball.plugins.kept import Guess, PackedKept, lists_of, packed
from recorded_model import row_of
from test_recorded import CASES, LENGTH, PROMPT, REASONING, asked

MASKS = {
    "return_sampling_mask": True,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": 20,
    "reasoning_config": REASONING,
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
LARGE = 4096
# All but the case that may end early.
KEPT = {name: case for name, case in CASES.items() if name != "min tokens"} | {
    "banned": ({"extra_args": {"banned_ids": [28, 338]}}, {"banned_ids": [28, 338]}),
    "warm top-p": ({"temperature": 2.0, "top_p": 0.99}, {"temperature": 2.0, "top_p": 0.99}),
}


@pytest.fixture(scope="module", params=["plain", "drafts"])
def masked(request: Any, model: Path, tmp_path_factory: Any) -> Iterator[Any]:
    folder = recorded_model.write(tmp_path_factory.mktemp("recorded"), model)
    # Of a small cache requests are preempted.
    options = {"speculative_config": DRAFTS} if request.param == "drafts" else {"num_gpu_blocks_override": 80}
    yield from closing(recorded_model.engine(folder, block_size=32, **MASKS, **options))


def test_masks_and_logprobs_are_the_samplers(masked: Any, recorded: Any) -> None:
    cases = list(KEPT.items())
    given, prompts = [], []
    for i in range(2 * len(cases)):
        theirs, _ = cases[i % len(cases)][1]
        flat = {"logprobs": 0, "flat_logprobs": i >= len(cases)}
        given.append(asked(flat | theirs, theirs.get("seed", 70 + i), max_tokens=2 * LENGTH))
        prompts.append({"prompt_token_ids": [*PROMPT, 40 + i] * (1 + 30 * (i % 5 == 0))})
    sizes = set()
    for i, out in enumerate(masked.generate(prompts, given, use_tqdm=False)):
        name, (theirs, ours) = cases[i % len(cases)]
        (one,) = out.outputs
        chosen = {"seed": theirs.get("seed", 70 + i)} | ours
        params = gumball.SamplingParams(**chosen, logprobs=LogprobsParams(mode="processed"))
        sampler = gumball.Sampler(params, recorded.shape[1], prompt=out.prompt_token_ids)
        sampler.collect_kept(True)
        assert len(one.token_ids) == len(one.sampling_mask.token_ids) == 2 * LENGTH, name
        told = []
        steps = zip(one.token_ids, one.sampling_mask.token_ids, one.logprobs, strict=True)
        for place, (token, ids, found) in enumerate(steps):
            row, before = recorded[row_of(sampler.history[-1], len(recorded))], sampler.history
            assert sampler.sample(row) == token, name
            assert found[token].logprob == sampler.logprobs.token.logprob, name
            told.append(sampler.logprobs.token.logprob)
            sizes.add(len(ids))
            # To compare a set of most tokens takes twenty milliseconds: of these, every sixth.
            if len(ids) > LARGE and place % 6:
                continue
            assert ids == sorted(sampler.kept), name
            assert all(type(id) is int for id in ids[:1])
            # The trainer's function over the set says the same, bit for bit.
            edited = gumball.torch.edited(
                torch.tensor(row[None]), params, before, prompt_len=len(out.prompt_token_ids), start=len(before)
            )
            one_set = torch.tensor([len(ids)]), torch.tensor(ids)
            named = {"temperature": sampler.temperature, "kept": one_set}
            trained = gumball.torch.logprobs(edited, torch.tensor([token]), **named)
            assert trained.item() == found[token].logprob, name
        if given[i].flat_logprobs:
            assert one.logprobs.logprobs == told, name
        lengths, flat = one.sampling_mask.kept()
        assert lengths.tolist() == list(map(len, one.sampling_mask.token_ids)), name
        assert all(
            part.tolist() == ids
            for part, ids in zip(flat.split(lengths.tolist()), one.sampling_mask.token_ids, strict=True)
            if len(ids) <= LARGE
        ), name
    # Greedy ones, and such as are sent as bitmasks.
    assert min(sizes) == 1 and max(sizes) > 2 * recorded.shape[1] // 32


def test_what_a_set_does_not_tell_is_refused_by_name(masked: Any) -> None:
    extra = {"dynamic_temperature_min": 0.5, "dynamic_temperature_max": 1.0}
    said = "^dynamic_temperature is given, which a kept set does not tell.*without --return-sampling-mask"
    with pytest.raises(VLLMValidationError, match=said):
        masked.generate([{"prompt_token_ids": PROMPT}], [asked({"extra_args": extra}, 7)], use_tqdm=False)


def test_a_stop_string_cuts_the_masks_where_it_cuts_the_tokens(masked: Any) -> None:
    plain = asked({"temperature": 0, "detokenize": True}, 7, max_tokens=40)
    prompt = [{"prompt_token_ids": PROMPT}]
    (out,) = masked.generate(prompt, [plain], use_tqdm=False)
    stop = masked.get_tokenizer().decode(out.outputs[0].token_ids[5:6])
    given = asked({"temperature": 0, "detokenize": True, "stop": [stop]}, 7, max_tokens=40)
    (out,) = masked.generate(prompt, [given], use_tqdm=False)
    assert 0 < len(out.outputs[0].token_ids) == len(out.outputs[0].sampling_mask.token_ids) < 40
    assert out.outputs[0].sampling_mask.token_ids == [[id] for id in out.outputs[0].token_ids]


def test_v1_needs_processed_logprobs_and_no_processors_for_masks() -> None:
    told: list[Any] = []
    check = checks.check_of_masks(told.append)
    for more in ({"logprobs_mode": "raw_logprobs"}, {"logits_processors": ["a.b"]}):
        model = SimpleNamespace(
            **{"return_sampling_mask": True, "logits_processors": None, "logprobs_mode": "processed_logprobs"} | more
        )
        with pytest.raises(ValueError, match="--return-sampling-mask needs --logprobs-mode processed_logprobs"):
            check(SimpleNamespace(model_config=model, use_v2_model_runner=False))
        assert not told
        # vLLM's own words where it has some.
        check(SimpleNamespace(model_config=model, use_v2_model_runner=True))
        assert told.pop()


def test_a_configuration_seen_without_masks_is_the_same_one_otherwise(masked: Any) -> None:
    config, view = masked.llm_engine.model_config, masked.llm_engine.input_processor.model_config
    assert config.return_sampling_mask and not view.return_sampling_mask and isinstance(view, type(config))
    before = config.max_model_len
    config.max_model_len = 17
    assert view.max_model_len == 17
    config.max_model_len = before


def chunk(*sets: list[int], bitmasks: bool = False) -> SamplingMaskLists:
    """The sets of some tokens, as they come to the client."""
    lengths, ids = packed(
        (np.array([len(one) for one in sets]), np.fromiter(itertools.chain(*sets), np.int32)), bitmasks
    )
    return SamplingMaskLists(ids, None if len(sets) == 1 else np.cumsum([0, *lengths]))


def test_sets_of_a_text_are_arrays_whose_lists_are_made_when_asked_for(monkeypatch: Any) -> None:
    places.take()
    wide = list(range(200))
    for bitmasks in (False, True):
        chunks = [chunk([3], [], [5, 9], bitmasks=bitmasks), chunk(wide, bitmasks=bitmasks), chunk([7])]
        made = output_processor.SamplingMask([one for part in chunks for one in part.to_nested_list()])
        asked_for: list[Any] = []
        monkeypatch.setattr(kept, "lists_of", lambda *given: asked_for.append(given) or lists_of(*given))
        lengths, ids = made.kept()
        assert not asked_for and lengths.tolist() == [1, 0, 2, 200, 1] and ids.tolist() == [3, 5, 9, *wide, 7]
        assert (
            made.token_ids == [[3], [], [5, 9], wide, [7]] and made.token_ids is made.token_ids and len(asked_for) == 1
        )
        # A stream that is read late has what followed added.
        whole = vllm.outputs.SamplingMask([])
        for part in (made, output_processor.SamplingMask([chunk([2])])):
            whole.token_ids.extend(part.token_ids)
        made.token_ids.extend([[2], [4, 6]])
        lengths, ids = made.kept()
        assert whole.token_ids == [*made.token_ids[:-2], [2]] and lengths.tolist() == [1, 0, 2, 200, 1, 1, 2]
        assert ids.tolist() == [3, 5, 9, *wide, 7, 2, 4, 6] and ids.dtype == torch.int32
        assert pickle.loads(pickle.dumps(made)).token_ids == made.token_ids and "[4, 6]" in repr(made)


def test_sets_of_a_device_are_fetched_whole_whatever_was_guessed() -> None:
    lengths = [3, 40, 0, 7, 33]
    lists = [
        np.sort(np.random.default_rng(i).choice(1024, n, replace=False)).astype(np.int32) for i, n in enumerate(lengths)
    ]
    parts = [_bits_of(ids, 32) if len(ids) > 32 else ids for ids in lists]
    sets = torch.zeros(5, 33, dtype=torch.int32)
    words = np.concatenate([np.array(lengths, np.int32), *parts])
    sets.view(-1)[: len(words)] = torch.from_numpy(words)
    guess = Guess()
    for guess.words in (32, 1, 1024):
        there, lines = (PackedKept(sets, guess), PackedKept(sets, guess).to_host()), np.array([4, 0, 0, 2, 1])
        for one, bitmasks in itertools.product(there, (True, False)):
            assert lists_of(*one.packed(lines, bitmasks)) == [lists[i].tolist() for i in lines]
            assert guess.words == max(32, 2 * len(words) // 5)


def _bits_of(ids: np.ndarray, words: int) -> np.ndarray:
    bits = np.zeros(words * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view("<i4")
