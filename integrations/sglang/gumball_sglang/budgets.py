"""Thinking budgets of SGLang (`max_thinking_tokens`, `thinking_budget` of `custom_params`), refused where nothing would read them.

Where the server filters what is thought (`--enable-strict-thinking`), a request's bitmask allows the closing ids alone once its budget is used up, and the backend
draws these. A custom processor may read a budget, too.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.environ import envs
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_exec, get_serving

__all__ = ["refuse_unread"]


def refuse_unread(manager: Any, request: Any, *_: Any) -> None:
    """Refuses a request with a budget that SGLang would leave unread, when the request enters. Raises ValueError, which its server answers with 400."""
    budget = ((request.sampling_params or {}).get("custom_params") or {}).get("thinking_budget")
    budget = getattr(request, "max_thinking_tokens", None) if budget is None else budget
    if budget is None or get_exec().kernel.sampling_backend != "gumball" or request.custom_logit_processor is not None:
        return
    if type(budget) is not int:
        raise ValueError(f"thinking_budget is {budget!r}, but must be a whole number")
    if budget >= 0 and not _filters(manager):
        raise ValueError(
            f"max_thinking_tokens, or thinking_budget of custom_params, is {budget}, which this server reads nowhere; start it with "
            "--enable-strict-thinking, a --reasoning-parser and SGLANG_MAX_THINK_TOKENS=1000000000, or bring a custom_logit_processor"
        )


def _filters(manager: Any) -> bool:
    """Whether the server's bitmasks filter what is thought: SGLang's do where the environment has a limit, or the parser has tokens that no thought may have."""
    serving = get_serving()
    if not serving.enable_strict_thinking or not serving.reasoning_parser:
        return False
    if envs.SGLANG_MAX_THINK_TOKENS.get() >= 0:
        return True
    parser = ReasoningParser(serving.reasoning_parser, stream_reasoning=False, tokenizer=manager.tokenizer)
    return bool(parser.detector.think_excluded_tokens)
