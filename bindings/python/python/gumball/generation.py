"""What transformers' ``generate`` would do to scores by itself, and how that is switched off for one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["EDITS", "SAMPLING", "switched_off"]

# How generate draws: `SamplingParams` says that.
SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "top_h",
    "min_p",
    "typical_p",
    "top_a",
    "p_less",
    "epsilon_cutoff",
    "eta_cutoff",
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


def switched_off(config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of generate that leave the draw to whoever it is handed to.

    config: the model's GenerationConfig. given: the call's own arguments. What a model's config says of sampling, edits and beams is
    off. So is what the call says of sampling; its edits stay.

    Raises ValueError if the call asks for beams, or for continuous batching.
    """
    if given.get("num_beams") not in (None, 1):
        raise ValueError(f"num_beams is {given['num_beams']}, but must be 1: beams choose between tokens themselves")
    if given.get("cache_implementation") == "paged":
        raise ValueError(
            "cache_implementation is 'paged', but must be another: continuous batching does not run the processors of a call"
        )
    off = [name for name in (*SAMPLING, *EDITS) if hasattr(config, name)]
    several = given.get("num_return_sequences") or getattr(config, "num_return_sequences", None) or 1
    # generate then takes the only token that is left. Several sequences of a prompt it gives to those alone who sample; of one
    # token it samples that one, whatever acts on the score in between.
    arguments = dict.fromkeys(off) | {"num_beams": 1, "do_sample": several != 1}
    return {name: value for name, value in arguments.items() if name not in EDITS or given.get(name) is None}
