"""Fields of the OpenAI server's requests that vLLM does not know: Gumball's are refused unless they are neutral, as nothing reads them, and near misses of
these; where the server is strict, near misses of vLLM's own, too. The log names others once.

vLLM drops such fields without a word, as OpenAI's interface allows them. It reads `vllm_xargs`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any

from gumball.errors import RefusedError
from gumball.flat import FLAT_NAMES, is_neutral, refuse_near_misses
from gumball.plugins.marks import SERVER_NAMES

from . import is_strict
from .params import RETURN_RADII, say_once

__all__ = ["checked", "take"]

_REQUESTS = (
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
)


def take() -> None:
    """Puts the check into the requests of this process; it has none where it is not a server's, which has loaded them before. Raises ValueError as `is_strict` does."""
    is_strict()
    for module, name in _REQUESTS:
        found = getattr(sys.modules.get(module), name, None)
        if found is not None:
            found.to_sampling_params = checked(found.to_sampling_params)


def checked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of a request that makes vLLM's `SamplingParams`, with a check of the request's unknown fields before it."""

    @functools.wraps(original)
    def to_sampling_params(self: Any, *given: Any, **named: Any) -> Any:
        from vllm.exceptions import VLLMValidationError

        try:
            _refuse_fields(self.model_extra or {}, type(self).model_fields if is_strict() else ())
            if (getattr(self, "vllm_xargs", None) or {}).get(RETURN_RADII):
                raise RefusedError(
                    f"vllm_xargs has {RETURN_RADII}, for which this server's answers have no place; ask by LLM or AsyncLLM"
                )
        except RefusedError as error:
            raise VLLMValidationError(f"Gumball refuses the request: {error}") from error
        return original(self, *given, **named)

    return to_sampling_params


def _refuse_fields(extra: dict[str, Any], theirs: Collection[str]) -> None:
    others = {name: value for name, value in extra.items() if name not in SERVER_NAMES}
    refuse_near_misses(others, "the request", besides=theirs)
    for name, value in extra.items():
        if value is None or (name in FLAT_NAMES and is_neutral(name, value)):
            continue
        if name in SERVER_NAMES or name == "extra_args":
            raise RefusedError(f"the request has {name!r}, which is not read there; give it in vllm_xargs")
        say_once(name, "a request: the server does not know this field, and leaves it out")
