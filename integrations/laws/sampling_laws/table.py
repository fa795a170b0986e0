"""The page: a table of laws and engines, and what to look at for each law that an engine breaks.

A page has its own words up to a line, `BEGIN`, behind which all is made from records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .laws import LAWS

BEGIN = "<!-- Made from records by `sampling-laws table`. -->"
MARKS = {"holds": "yes", "broken": "**no**", "not applicable": "–"}


def page(records: Sequence[dict[str, Any]]) -> str:
    """The part of a page that is made from records of runs: tables, and a section for each engine that breaks a law."""
    names = [f"{record['engine']} {record['version']}".strip() for record in records]
    heads = [f"{name}, {record['date']}" for name, record in zip(names, records)]
    lines = [f"| law | {' | '.join(heads)} |", f"| --- |{' --- |' * len(records)}"]
    chapter = ""
    for law in LAWS:
        if law.chapter != chapter:
            chapter = law.chapter
            lines.append(f"| *{chapter}* |{' |' * len(records)}")
        marks = (MARKS.get(record["laws"].get(law.name, {}).get("outcome"), "") for record in records)
        lines.append(f"| {law.sentence} | {' | '.join(marks)} |")
    totals = []
    for record in records:
        outcomes = [law["outcome"] for law in record["laws"].values()]
        totals.append(f"{outcomes.count('holds')} of {len(outcomes) - outcomes.count('not applicable')}")
    lines.append(f"| hold, of those that apply | {' | '.join(totals)} |")
    lines += ["", "What of each engine runs:", ""]
    lines += [f"- {name}: {record['remark']}" for name, record in zip(names, records)]
    for name, record in zip(names, records):
        broken = [
            (law, record["laws"][law.name])
            for law in LAWS
            if record["laws"].get(law.name, {}).get("outcome") == "broken"
        ]
        if not broken:
            continue
        lines += ["", f"## {name}"]
        for law, found in broken:
            lines += ["", f"**{law.sentence}**", "", f"{_sentence(found['why'])}", "", "```python", found["program"]]
            lines += [f"# {line}" for line in ("prints " + found["prints"]).split("\n")[:3]]
            lines.append("```")
            if law.remark:
                lines += ["", law.remark]
    return "\n".join(lines) + "\n"


def renewed(text: str, records: Sequence[dict[str, Any]]) -> str:
    """Replaces the part of a page that is made from records."""
    own, found, _ = text.partition(BEGIN + "\n")
    if not found:
        raise ValueError(f"the page has no line {BEGIN}")
    return f"{own}{BEGIN}\n\n{page(records)}"


def _sentence(text: str) -> str:
    text = text.replace("\n", " ")
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")
