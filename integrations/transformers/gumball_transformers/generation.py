"""What transformers' ``generate`` would do to scores by itself, and how that is switched off for one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig, GenerationMixin

from gumball.params import FILTERS

__all__ = ["DRAFTS", "EDITS", "SAMPLING", "configs_of", "has_own_generate", "said_by", "switched_off"]

# How generate draws: `SamplingParams` says that.
SAMPLING = (
    "temperature",
    *FILTERS,
    "repetition_penalty",
    "renormalize_logits",
    "penalty_alpha",
    "dola_layers",
    "watermarking_config",
)

# How generate changes scores before it draws.
EDITS = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "remove_invalid_values",
    "sequence_bias",
    "suppress_tokens",
)

# By what generate takes drafts, in the call or in its config.
DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "speculation_type")


def said_by(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a call of generate says: its arguments, and what its generation_config has where these are silent.

    An argument that is None switches off what the generation_config says, as in transformers.
    """
    config = arguments.get("generation_config")
    said = ({} if config is None else vars(config)) | dict(arguments)
    return {name: value for name, value in said.items() if value is not None}


def configs_of(model: Any) -> list[Any]:
    """The GenerationConfigs of a model and of its parts, which a `generate` of its class may call."""
    every = [model, *(model.modules() if has_own_generate(model) else [])]
    found = [getattr(one, "generation_config", None) for one in every]
    return [one for one in found if isinstance(one, GenerationConfig)]


def has_own_generate(model: Any) -> bool:
    """Whether the model's class has a `generate` of its own, which prepares the inputs, and may decode several times in one call."""
    return type(model).generate is not GenerationMixin.generate


def switched_off(configs: Sequence[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of generate that leave the draw to the caller's own loop.

    configs: the GenerationConfigs of the model and its parts. said: what the call says (:func:`said_by`). What they say of sampling, edits,
    drafts and beams is off. So is what the call says of sampling; its edits, drafts and beams stay.
    """
    off: dict[str, Any] = {name: None for name in SAMPLING if any(hasattr(config, name) for config in configs)}
    # Where the model says nothing, nothing is said: transformers counts with some of these names without asking whether they are None.
    for name in (*EDITS, *DRAFTS):
        if name not in said and any(getattr(config, name, None) is not None for config in configs):
            off[name] = 0 if name == "min_length" else None
    # generate hands several sequences of a prompt to those alone who sample.
    several = said.get("num_return_sequences") or getattr(configs[0], "num_return_sequences", None) or 1
    return off | {"num_beams": said.get("num_beams", 1), "do_sample": several != 1}
