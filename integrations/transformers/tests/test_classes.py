"""Classes with a `generate` of their own, by every door: each decoding of a call has seeds of its own, and a loop that is not transformers' is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import gumball_transformers.decoding as loop
from gumball import Sampler, SamplingParams, prompt_seed
from gumball.errors import RefusedError
from gumball_transformers import FOLDER, generate

VOCAB = 90
DOOR = {"custom_generate": FOLDER, "trust_remote_code": True}
IDS = torch.tensor([[5, 6, 7]])


class Thrice(LlamaForCausalLM):
    """Its generate decodes three times, as speech in windows does."""

    def generate(self, *given: Any, **named: Any) -> Any:
        return torch.stack([super(Thrice, self).generate(*given, **named) for _ in range(3)])


class Whole(LlamaForCausalLM):
    """Its generate calls the generate of a part, as a model of pictures has it."""

    def generate(self, *given: Any, **named: Any) -> Any:
        return self.part.generate(*given, **named)


class Looping(LlamaForCausalLM):
    """Draws in a loop of its own."""

    def _sample(self, input_ids: Any, **_: Any) -> Any:
        return input_ids


class Alone(LlamaForCausalLM):
    """Its generate takes nothing of transformers'."""

    def generate(self, inputs: Any) -> Any:
        return inputs


class Deaf(LlamaForCausalLM):
    """Its generate takes everything, and does not hear it."""

    def generate(self, inputs: Any, **_: Any) -> Any:
        return super().generate(inputs, max_new_tokens=2)


def made(kind: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(LlamaConfig(vocab_size=VOCAB, pad_token_id=0, bos_token_id=1, eos_token_id=None, **sizes)).eval()


def by_hand(model: Any, params: SamplingParams, draw: int = 0) -> list[int]:
    sampler = Sampler(params, VOCAB, prompt=IDS[0].tolist(), draw=draw)
    for _ in range(8):
        with torch.no_grad():
            sampler.sample(model(torch.tensor([IDS[0].tolist() + sampler.output])).logits[0, -1])
    return sampler.output


def test_each_decoding_of_a_call_has_seeds_of_its_own() -> None:
    model, plain = made(Thrice), SamplingParams(seed=7)
    named = {"inputs": IDS, "do_sample": True, "top_k": 0, "max_new_tokens": 8, "num_return_sequences": 2}
    wanted = [
        [by_hand(model, plain.replace(seed=seed), draw) for draw in range(2)]
        for seed in (7, prompt_seed(7, 0, 1), prompt_seed(7, 0, 2))
    ]
    assert generate(model, seed=7, **named)[..., 3:].tolist() == wanted
    assert generate(model, seed=[7], **named)[..., 3:].tolist() == wanted
    named = {name: named[name] for name in ("inputs", "max_new_tokens", "num_return_sequences")}
    assert generate(model, plain, **named)[..., 3:].tolist() == wanted
    rows = generate(model, [plain, plain.replace(seed=8)], **named)[..., 3:].tolist()
    assert [window[0] for window in rows] == [window[0] for window in wanted]
    assert rows[2][1] == by_hand(model, plain.replace(seed=prompt_seed(8, 0, 2)))
    torch.manual_seed(1)
    first = generate(model, inputs=IDS, do_sample=True, max_new_tokens=8)
    assert len({tuple(window[0].tolist()) for window in first}) == 3


def test_a_seed_by_the_folder_is_refused_where_the_call_cannot_be_known() -> None:
    model = made(Thrice)
    with pytest.raises(
        RefusedError, match=r"Thrice may decode several times.*write gumball_transformers.generate\(model, seed="
    ):
        model.generate(IDS, seed=7, max_new_tokens=3, **DOOR)
    model.generation_config.seed = 7
    with pytest.raises(RefusedError, match="seed is given"):
        model.generate(IDS, max_new_tokens=3, **DOOR)
    del model.generation_config.seed
    texts = model.generate(IDS, do_sample=True, max_new_tokens=8, **DOOR)
    assert len({tuple(window[0].tolist()) for window in texts}) == 3


@pytest.mark.parametrize("folder", [False, True])
def test_the_generate_of_a_part_draws_by_the_part(folder: bool) -> None:
    model, part = made(Whole), made(LlamaForCausalLM)
    model.part, wanted = part, by_hand(part, SamplingParams(seed=7, top_p=0.9))
    named = {"inputs": IDS, "do_sample": True, "top_p": 0.9, "top_k": 0, "max_new_tokens": 8}
    if folder:
        # That of the part's class is called once, and has the seed.
        assert part.generate(seed=7, **named, **DOOR)[0, 3:].tolist() == wanted
        greedy = part.generate(IDS, max_new_tokens=8, do_sample=False)
        assert torch.equal(model.generate(IDS, max_new_tokens=8, do_sample=False, **DOOR), greedy)
        return
    assert generate(model, seed=7, **named)[0, 3:].tolist() == wanted
    # The part's own file does not count beside params.
    part.generation_config.top_k, part.generation_config.presence_penalty = 1, 9.0
    params = SamplingParams(seed=7, top_p=0.9)
    assert generate(model, params, inputs=IDS, max_new_tokens=8)[0, 3:].tolist() == wanted


@pytest.mark.parametrize("kind", [Looping, Alone, Deaf])
def test_a_loop_that_is_not_transformers_is_refused(kind: Any) -> None:
    text = f"{kind.__name__} has (a loop of its own|drawn its tokens by itself)"
    with pytest.raises(RefusedError, match=text):
        generate(made(kind), SamplingParams(seed=7), inputs=IDS)


@pytest.fixture(scope="module")
def whisper() -> Any:
    torch.manual_seed(0)
    sizes = {
        f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in (("layers", 1), ("ffn_dim", 16))
    }
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16, "num_mel_bins": 8}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    none: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    config = transformers.WhisperConfig(
        vocab_size=120, max_source_positions=30, max_target_positions=40, **sizes, **ids, **none
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for weight in model.parameters():
        weight.data.mul_(4)
    said = {"max_length": 20, "is_multilingual": False, "no_timestamps_token_id": 100, "return_timestamps": False}
    model.generation_config = transformers.GenerationConfig(
        suppress_tokens=[7, 8], begin_suppress_tokens=[10], **said, **ids
    )
    return model


def test_speech_is_decoded_by_the_folder_as_by_transformers(whisper: Any) -> None:
    sound = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(1))
    wanted = whisper.generate(input_features=sound).tolist()
    assert whisper.generate(input_features=sound, **DOOR).tolist() == wanted
    assert generate(whisper, input_features=sound).tolist() == wanted


def test_windows_and_fallbacks_of_speech_draw_anew(whisper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    class Seen(loop.Sequences):
        """Keeps the seed of each decoding."""

        def __init__(self, params: Any, prompts: Any, words: Any, **named: Any) -> None:
            seeds.append(words[0].seed)
            super().__init__(params, prompts, words, **named)

    monkeypatch.setattr(loop, "Sequences", Seen)
    sound = torch.randn(1, 8, 60, generator=torch.Generator().manual_seed(1)).repeat(1, 1, 3)
    named = {"input_features": sound, "attention_mask": torch.ones(1, 180, dtype=torch.long), "return_timestamps": True}
    # Each window fails once: no text reaches this logprob.
    failing = {
        "temperature": (1.5, 2.0),
        "logprob_threshold": 0.0,
        "compression_ratio_threshold": 1e9,
        "do_sample": True,
    }
    first = generate(whisper, seed=3, **named, **failing)
    assert len(seeds) >= 6 and seeds == [3, *(prompt_seed(3, 0, turn) for turn in range(1, len(seeds)))]
    assert torch.equal(generate(whisper, seed=3, **named, **failing), first)


def test_a_list_of_seeds_for_windows_of_fewer_rows_is_refused(whisper: Any) -> None:
    sound = torch.randn(2, 8, 180, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 180, dtype=torch.long)
    mask[1, 60:] = 0
    named = {"input_features": sound, "attention_mask": mask, "return_timestamps": True, "do_sample": True}
    with pytest.raises(
        ValueError, match="seed has length 2, but must have one for each prompt, 1, in decoding .*; give one for all"
    ):
        generate(whisper, seed=[3, 4], **named)
    assert len(generate(whisper, seed=3, **named)) == 2
