"""A head of Gumball's in place of a model's last product: a pool then draws from hidden states, and nobody computes rows of logits for it.

:mod:`gumball_vllm.heads` makes it and puts it into the engine.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from gumball import DeviceHead, Head, Hidden
from gumball.errors import RefusedError

from .params import TOP_LIMIT

__all__ = ["HEAD", "AnyHead", "chosen_head", "refuse_head", "refuse_without_logits", "rows_of"]

AnyHead = Head | DeviceHead

HEAD = "GUMBALL_VLLM_HEAD"
"""The environment variable that names the kind of head, and after it arguments of the head's constructor: `auto`, or `clustered,fast,file=clusters.safetensors,probes=256`."""

# Kinds, and what the variable may tell each.
_KINDS = {"auto": ("file", "screen"), "clustered": ("file", "probes", "fast"), "fast": ()}


def chosen_head() -> dict[str, Any] | None:
    """What the variable asks for, as a kind of head and arguments of its constructor; None if it is empty or not there. Raises ValueError for another word."""
    words = os.environ.get(HEAD, "")
    if not words:
        return None
    kind, *rest = words.split(",")
    options: dict[str, Any] = {"kind": kind}
    if kind not in _KINDS:
        refuse_head(f"the kind must be one of {', '.join(_KINDS)}")
    for word in rest:
        name, _, text = word.partition("=")
        value = {
            "file": text or None,
            "probes": int(text) if text.isdecimal() else None,
            "screen": False if text == "off" else None,
            "fast": True if word == "fast" else None,
        }.get(name)
        if value is None:
            refuse_head(f"{word!r} is neither file=PATH, probes=NUMBER, fast nor screen=off")
        if name not in _KINDS[kind]:
            refuse_head(f"{name} is not for kind {kind}")
        options[name] = value
    return options


def refuse_head(reason: str) -> NoReturn:
    """Raises ValueError for a head that this engine cannot have."""
    raise ValueError(f"{HEAD} is {os.environ.get(HEAD)!r}, but {reason}; change it, or leave it out")


def rows_of(rows: Any, head: AnyHead | None) -> Any:
    """Rows of logits, or, with a head, the hidden states that it makes logits of."""
    return rows if head is None else Hidden(head, rows)


def refuse_without_logits(theirs: Any, kind: str) -> None:
    """Raises RefusedError for a request that needs what a head has not.

    theirs: vLLM's `SamplingParams`. kind: the head's.
    """
    count = theirs.logprobs or 0
    for asked, what in (
        (theirs.structured_outputs is not None, "structured_outputs"),
        (not 0 <= count <= TOP_LIMIT, f"logprobs {count}, with more than {TOP_LIMIT} lines of a token"),
        (
            kind == "clustered" and bool(theirs.allowed_token_ids),
            "allowed_token_ids, all of which a clustered head may leave out",
        ),
    ):
        if asked:
            raise RefusedError(
                f"Gumball refuses the request: it has {what}, which needs all logits, but this server's tokens are drawn from hidden "
                f"states by a {kind} head; leave it out, or start the server without {HEAD}"
            )
