"""The page: what ran of each engine, how many laws it keeps, and a section for each law that an engine breaks.

A page has its own words up to a line, `BEGIN`, after which all is made from records.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from .laws import LAWS

BEGIN = "<!-- Made from records by `sampling-laws table`. -->"
WIDTH = 160


def page(records: Sequence[dict[str, Any]]) -> str:
    """The part of a page that is made from records of runs."""
    lines = []
    for record in records:
        held = _held(record, list(record["laws"]))
        name = f"**{record['engine']}** {record['version']}".strip()
        lines += _wrapped(f"- {name}, {record['date']}: {held}. {record['remark']}".strip(), 2)
    lines += ["", f"| laws of | {' | '.join(record['engine'] for record in records)} |"]
    lines += [f"| --- |{' --- |' * len(records)}"]
    for chapter in dict.fromkeys(law.chapter for law in LAWS):
        names = [law.name for law in LAWS if law.chapter == chapter]
        lines.append(f"| {chapter} | {' | '.join(_held(record, names) for record in records)} |")
    shown = set[tuple[str, str]]()
    for law in LAWS:
        broken = [record for record in records if record["laws"].get(law.name, {}).get("outcome") == "broken"]
        if not broken:
            continue
        lines += ["", *_wrapped(f"**{law.sentence}** {law.remark}".strip())]
        for record in broken:
            found = record["laws"][law.name]
            lines += ["", *_wrapped(f"{record['engine']}: {_sentence(found['why'])}")]
            # An engine's programs differ in the rows and the parameters; the first one of each kind is shown.
            kind = (record["engine"], found["program"].partition("\n")[0])
            if kind in shown:
                continue
            shown.add(kind)
            lines += ["", "```python", found["program"]]
            for line in ("prints " + found["prints"]).split("\n")[:3]:
                lines += [f"# {part}" for part in textwrap.wrap(line, WIDTH - 2)]
            lines.append("```")
    return "\n".join(lines) + "\n"


def renewed(text: str, records: Sequence[dict[str, Any]]) -> str:
    """Replaces the part of a page that is made from records."""
    own, found, _ = text.partition(BEGIN + "\n")
    if not found:
        raise ValueError(f"the page has no line {BEGIN}")
    return f"{own}{BEGIN}\n\n{page(records)}"


def _held(record: dict[str, Any], names: Sequence[str]) -> str:
    outcomes = [record["laws"][name]["outcome"] for name in names if name in record["laws"]]
    tried = len(outcomes) - outcomes.count("not applicable")
    return f"{outcomes.count('holds')} of {tried}" if tried else "-"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _sentence(text: str) -> str:
    return text.replace("\n", " ") + ("" if text.endswith(".") else ".")
