"""The files of the repository as the parts of ci/report read them."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
LITERAL = re.compile(
    r'\bb?r(?P<marks>#*)".*?"(?P=marks)|"(?:\\.|[^"\\])*"' + r"|'(?:\\u\{\w+\}|\\x\w\w|\\.|[^'\\\n])'", re.S
)
TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub\s+)?mod\s+\w+\s*\{")


def tracked(*patterns):
    """Files that git knows or would add, in order."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(names)) if (ROOT / name).is_file()]


def code(text, keep=()):
    """Rust or C++ with comments and literals blanked; every line stays where it is.

    `keep` are spans that stay as they are.
    """
    both = re.compile(f"{COMMENT.pattern}|{LITERAL.pattern}", re.S)

    def blank(match):
        if any(first <= match.start() < end for first, end in keep):
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return both.sub(blank, text)


def end_of_block(text, start):
    """Where the block ends that was opened just before `start`."""
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def without_tests(text):
    """Rust code without the test modules inside."""
    while found := TESTS.search(text):
        text = text[: found.start()] + text[end_of_block(text, found.end()) :]
    return text
