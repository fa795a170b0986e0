"""What llama-cpp-python's calls say of sampling, in Gumball's words, for the package `gumball-llama-cpp`.

Nothing of llama.cpp is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gumball.errors import RefusedError
from gumball.flat import FLAT_NAMES, flat_params
from gumball.params import FILTERS, Mirostat, SamplingParams, Section

__all__ = ["OUR_NAMES", "RANDOM_SEED", "params_of", "with_section"]

# What llama-cpp-python has itself.
_THEIRS = {"typical_p", "mirostat_tau", "mirostat_eta", "mirostat_mu"}

# The arguments of a call that are read; and those that llama.cpp no longer applies, each with the value that asks for nothing.
_READ = {"temp", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "frequency_penalty", "presence_penalty"}
_READ |= {"mirostat_mode", "mirostat_tau", "mirostat_eta", "last_n_tokens_size"}
_GONE = {"tfs_z": 1.0, "penalize_nl": True}

OUR_NAMES = tuple(name for name in FLAT_NAMES if name not in _THEIRS)
"""The names of parameters that llama-cpp-python's calls have not."""

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's seed that asks for another one each time. llama-cpp-python calls it -1, too."""


# llama.cpp's names of a reasoning budget, which llama-cpp-python has not, and what they are if they are left out.
_BUDGET = {
    "reasoning_budget": -1,
    "reasoning_budget_message": "",
    "reasoning_budget_start_tag": "<think>",
    "reasoning_budget_end_tag": "</think>",
}


def with_section(ours: Mapping[str, Any], ids: Callable[[str], list[int]]) -> dict[str, Any]:
    """Returns parameters with llama.cpp's names of a reasoning budget put as those of a section.

    ours: parameters under the names of `OUR_NAMES`, and the names of `llama-server`, whose start tag an empty text leaves out: the reasoning then begins with the output.
    ids: the model's ids of a text. Raises RefusedError for a value of another type or below -1, which is no budget, and for a section beside a budget; `section_min` may stand there.
    """
    said = {name: ours.get(name, value) for name, value in _BUDGET.items()}
    rest = {name: value for name, value in ours.items() if name not in _BUDGET}
    for name, value in said.items():
        if type(value) is not type(_BUDGET[name]):
            raise RefusedError(
                f"{name} is {value!r}, but must be {'a whole number' if name == 'reasoning_budget' else 'text'}"
            )
    budget, message, start, end = said.values()
    if budget < -1:
        raise RefusedError(f"reasoning_budget is {budget}, but must be at least -1, which is none")
    if budget == -1:
        return rest
    beside = [name for name in rest if name.startswith("section_") and name != "section_min"]
    if beside:
        raise RefusedError(f"{beside[0]} is given beside reasoning_budget, which is a section, too; leave one out")
    found = {"section_open": ids(start), "section_close": ids(end), "section_end": ids(message + end)}
    # No text is as long as the largest budget.
    return rest | found | {"section_budget": min(budget, Section().budget)}


def params_of(theirs: Mapping[str, Any], *, seed: int, ours: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters of a call.

    theirs: the arguments of llama-cpp-python's `_init_sampler`, by name, and the `last_n_tokens_size` of the `Llama`. seed: that of the `Llama`; -1 or `RANDOM_SEED` for another one each time. ours: parameters
    under the names of `OUR_NAMES`.

    Raises RefusedError for mirostat of version 1, for a value outside its range, for parameters that do not go together, and for one of theirs that would
    have no effect.
    """
    for name, value in theirs.items():
        if name not in _READ and (name not in _GONE or value != _GONE[name]):
            raise RefusedError(f"{name} is {value!r}, but Gumball does not apply it; leave it out")
    unknown = [name for name in ours if name not in OUR_NAMES]
    if unknown:
        raise RefusedError(f"{unknown[0]} is no parameter of Gumball alone; those are {', '.join(OUR_NAMES)}")
    # A chain of llama.cpp gets no prompt.
    chosen: dict[str, Any] = {"repetition_scope": "output", "seed": None if seed in (-1, RANDOM_SEED) else seed % 2**64}
    # There a window of no tokens switches the penalties off.
    window = theirs.get("last_n_tokens_size", 64)
    if window > 0:
        chosen |= {
            "repetition_penalty": theirs["repeat_penalty"],
            "frequency_penalty": theirs["frequency_penalty"],
            "presence_penalty": theirs["presence_penalty"],
            "penalty_window": window,
        }
    temperature, mode = theirs["temp"], theirs["mirostat_mode"]
    if temperature != temperature:
        raise RefusedError("temperature is NaN, but must be a number")
    if temperature == 0:
        chosen["temperature"] = 0.0
    elif temperature > 0 and mode == 1:
        raise RefusedError("mirostat_mode is 1, which Gumball has not; pass 2, or 0 for none")
    elif temperature > 0 and mode == 2:
        # There the temperature does not enter.
        chosen["mirostat"] = Mirostat(theirs["mirostat_tau"], theirs["mirostat_eta"])
    elif temperature > 0:
        chosen |= {
            "temperature": temperature,
            "temperature_last": True,
            "top_k": max(theirs["top_k"], 0),
            # There 1 and more is off.
            "typical_p": min(theirs["typical_p"], 1.0),
            "top_p": min(theirs["top_p"], 1.0),
            "min_p": max(theirs["min_p"], 0.0),
            # The sequence of its chain, of which the draw alone is tempered.
            "order": FILTERS,
        }
    try:
        return SamplingParams(**(chosen | flat_params(ours, "gumball")))
    except (TypeError, ValueError) as error:
        raise RefusedError(f"Gumball refuses the call: {error}") from error
