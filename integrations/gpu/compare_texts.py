"""Whether engines in several settings gave each request the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def _close(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of logprobs agree to 1e-5; which ids of equal logits end a list may differ."""
    return len(one) == len(other) and all(
        len(a) == len(b) and all(abs(p - q) < 1e-5 for p, q in zip(sorted(a.values()), sorted(b.values()), strict=True))
        for a, b in zip(one, other, strict=True)
    )


def compare(files: list[str]) -> int:
    """Compares each text with the first of the same request, drawn alone, among all, or joining later; 1 if one differs.

    A file has "among", "alone" and "joined": by a request's name its "tokens" and "logprobs", a dict from id to logprob for each token; and
    "redrawn", tokens that must equal those alone. A text may have "kept", and a file "redrawn_kept", kept sets that must be equal, too. A text with "retractions" may be another: a prompt's rows are not, to the bit, a step's.
    """
    first: dict[str, Any] = {}
    counts = {
        "texts": 0,
        "texts that differ": 0,
        "other texts after retraction": 0,
        "redrawn": 0,
        "redrawn that differ": 0,
        "logprobs that differ": 0,
    }
    for file in files:
        found, label = json.loads(Path(file).read_text()), Path(file).stem
        for part in ("among", "alone", "joined"):
            for name, text in found[part].items():
                wanted = first.setdefault(name, text)
                counts["texts"] += 1
                if text["tokens"] != wanted["tokens"]:
                    counts["other texts after retraction" if text.get("retractions") else "texts that differ"] += 1
                    pairs = enumerate(zip(text["tokens"], wanted["tokens"], strict=False))
                    at = next((i for i, (a, b) in pairs if a != b), -1)
                    print(f"DIFFERS {label} {part} at {at} of {len(wanted['tokens'])}: {name[:110]}")
                elif text.get("kept", []) != wanted.get("kept", []):
                    counts["texts that differ"] += 1
                    print(f"KEPT {label} {part}: {name[:110]}")
                elif not _close(text["logprobs"], wanted["logprobs"]):
                    counts["logprobs that differ"] += 1
                    print(f"LOGPROBS {label} {part}: {name[:110]}")
        for name, tokens in found["redrawn"].items():
            alone = found["alone"][name]["tokens"]
            counts["redrawn"] += 1
            if tokens != alone:
                counts["redrawn that differ"] += 1
                print(f"REDRAWN {label}: {name[:110]}\n  {tokens[:12]}\n  {alone[:12]}")
        for name, sets in found.get("redrawn_kept", {}).items():
            if sets != found["alone"][name]["kept"]:
                counts["redrawn that differ"] += 1
                print(f"REDRAWN KEPT {label}: {name[:110]}")
    print(json.dumps(counts))
    differ = sum(count for name, count in counts.items() if "differ" in name)
    print("VERDICT:", "passed" if differ == 0 and counts["texts"] else "FAILED")
    return int(differ > 0)
