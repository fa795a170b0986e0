"""The command: `sampling-laws run ENGINE`, `sampling-laws table RECORD..`, `sampling-laws list`."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from . import files
from .engine import ENGINES
from .laws import LAWS
from .run import run
from .table import page, renewed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 1 if a law is broken."""
    parser = argparse.ArgumentParser(prog="sampling-laws", description="Does your sampler sample?")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="try the laws on an engine")
    runs.add_argument("engine", help=f"{', '.join(ENGINES)}, or module:class of another adapter")
    runs.add_argument(
        "--law", action="append", default=[], metavar="NAME", help="one law alone; may be given several times"
    )
    runs.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="draw requests without seeds, and drafts, from another seed than 1, to see whether a verdict stays",
    )
    runs.add_argument("--out", type=_place, metavar="FILE", help="where the record of the run goes, as JSON")
    tables = commands.add_parser("table", help="write a page from records, as Markdown")
    tables.add_argument("records", type=pathlib.Path, nargs="+", metavar="RECORD")
    tables.add_argument(
        "--into", type=_place, metavar="PAGE", help="replace the part of this page that is made from records"
    )
    commands.add_parser("list", help="list the laws")
    given = parser.parse_args(arguments)
    if given.command == "run" and not 0 <= given.seed <= 2**20:
        parser.error(f"--seed is {given.seed}, but must be in 0..=1048576")
    if given.command == "list":
        for law in LAWS:
            print(f"{law.name:42} {law.sentence}")
        return 0
    if given.command == "table":
        records = [json.loads(file.read_text()) for file in sorted(given.records)]
        if given.into is None:
            print(page(records), end="")
        else:
            files.write(given.into, renewed(given.into.read_text(), records))
        return 0
    record = run(given.engine, given.law, lambda line: print(line, flush=True), given.seed)
    outcomes = [law["outcome"] for law in record["laws"].values()]
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("holds", "broken", "not applicable"))
    print(f"{record['engine']} {record['version']}: {counts}")
    for name, law in record["laws"].items():
        if law["outcome"] == "broken":
            print(f"\n# {name}: {law['why']}\n{law['program']}\n# prints {law['prints']}")
    if given.out is not None:
        files.write(given.out, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return int("broken" in outcomes)


def _place(path: str) -> pathlib.Path:
    try:
        return files.place(path)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
