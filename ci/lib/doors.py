"""Goes through the door of each page, its first block of code, as a newcomer does: ``ENVIRONMENT/bin/python ci/lib/doors.py``, in a new environment.

Blocks of Python run as they stand. Of blocks for the shell each line runs, by the builds of ``ci/run``; what pages install by pip is installed by one
command, since each would build the package again. What is left out is named. A package of ours that a page installs by its name is an error: no registry has
it yet.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

BUILDS = os.environ.get("CARGO_TARGET_DIR", "target")
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(sh|python|c|rust|rust,no_run|js)\n(.*?)^```$", re.M | re.S)
BY_NAME = re.compile(r"\b(?:pip|cargo) install ['\"]?gumball[\w-]*")
LEFT = {
    r"\bserve |launch_server|sampling-laws run|rivals/setup": "needs a foreign engine",
    r"gumball kernels|serve\.py|\"cuda": "needs a GPU",
    r"ci/(wasm|explorer)|\bnpm\b|\bexplore\b": "run by `ci/wasm` and `ci/explorer`",
    r"\bPATH/|gumball generate": "run by tests of the command",
    r"cargo (build|test)": "run by `ci/run`, in its profile",
}
OTHERS = {
    "c": "run by tests of C",
    "rust": "run by doctests",
    "rust,no_run": "run by doctests",
    "js": "run by `ci/wasm`",
}


def doors() -> tuple[list[str], list[tuple[str, str, str]], list[str]]:
    """Returns the packages that pages install by pip; the other commands and programs, each with its place and language; and the blocks left out."""
    installed, run, left = [], [], []
    listed = subprocess.run(["git", "ls-files", "*.md"], check=True, capture_output=True, text=True).stdout
    for page in (name for name in listed.splitlines() if "record/" not in name):
        text = Path(page).read_text()
        if by_name := BY_NAME.search(text):
            sys.exit(f"{page}: no registry has what `{by_name[0]}` names; install it by its path")
        if not (match := BLOCK.search(text)):
            continue
        place, language = f"{page}:{text.count(chr(10), 0, match.start()) + 1}", match[1]
        if language in OTHERS:
            left.append(f"{place}: {OTHERS[language]}")
            continue
        for line in match[2].splitlines() if language == "sh" else [match[2]]:
            command = line.split(" #")[0].strip() if language == "sh" else line
            if reason := next((LEFT[it] for it in LEFT if re.search(it, command)), None):
                left.append(f"{place}: {reason}" + (f": {command}" if language == "sh" else ""))
            elif command.startswith("pip install "):
                installed += shlex.split(command)[2:]
            elif command:
                run.append((place, language, command))
    return installed, run, left


def main() -> None:
    installed, run, left = doors()
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    if subprocess.run([BIN / "pip", "install", "--quiet", *dict.fromkeys(installed)], env=environment).returncode:
        sys.exit(f"pip install {shlex.join(dict.fromkeys(installed))} fails")
    for place, language, command in run:
        if language == "sh":
            command = command.replace("cargo gumball", f"{BUILDS}/debug/gumball").replace(
                "target/release", f"{BUILDS}/debug"
            )
            command = re.sub(r"(-o |\./)decode\b", rf"\1{BUILDS}/decode", command)
            done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
        else:
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run([sys.executable, "-c", command], cwd=folder, capture_output=True, text=True)
        lacks = re.search(r"^ModuleNotFoundError: No module named '(?!gumball)(\w+)", done.stderr, re.M)
        if language == "python" and lacks:
            left.append(f"{place}: no {lacks[1]}")
        elif done.returncode:
            sys.exit(f"{place}: {command}\n{done.stdout}{done.stderr}")
        else:
            print(f"{place}: {command.splitlines()[0]}")
    print("\nleft out:", *left, sep="\n  ")


if __name__ == "__main__":
    main()
