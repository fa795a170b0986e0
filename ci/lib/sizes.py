"""Prints the size of the code by crate.

Lines count comments and blank lines. A file is source, a test (in a folder `tests`, or named for one) or an example. A
function's length is from its first line to its closing brace, without attributes and documentation.
"""

import ast
import re

from sources import ROOT, code, end_of_block, tracked

LANGUAGES = {".rs": "Rust", ".cu": "CUDA", ".cuh": "CUDA", ".cpp": "C", ".h": "C", ".c": "C", ".py": "Python"}
RUST = re.compile(r"\bfn\s+(\w+)[^;{}]*\{")
# A name, parameters and a brace; what only looks like that begins with one of the words.
C = re.compile(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?(?:noexcept\s*)?\{")
NO_FUNCTIONS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "defined"}


def functions(file, text):
    """Names of a file's functions with their lengths."""
    if file.suffix == ".py":
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        return [(node.name, node.end_lineno - node.lineno + 1) for node in nodes]
    bare = code(text)
    found, pattern = [], RUST if file.suffix == ".rs" else C
    for match in pattern.finditer(bare):
        if match[1] not in NO_FUNCTIONS:
            end = end_of_block(bare, match.end())
            found.append((match[1], bare.count("\n", match.start(), end) + 1))
    return found


def part(file):
    """The crate or folder that a file counts for, and what it is there."""
    names = file.relative_to(ROOT).parts
    depth = 3 if names[:2] == ("proof", "bench") and names[2] in ("gpu", "protocol", "rivals") else 2
    depth = 1 if names[0] in ("ci", "docs") else min(depth, len(names) - 1)
    tests = "tests" in names or names[-1].startswith("test_")
    return "/".join(names[:depth]), "tests" if tests else "examples" if "examples" in names else "source"


def rank(values, share):
    """The value that a share of all does not exceed."""
    return sorted(values)[max(0, -(-len(values) * share // 100) - 1)]


def main():
    crates = {}
    for file in tracked(*(f"*{end}" for end in LANGUAGES), "ci/*", "proof/bench/gpu/*"):
        text = file.read_text()
        if file.suffix in LANGUAGES or "python" in text.partition("\n")[0]:
            crate, kind = part(file)
            crates.setdefault(crate, []).append((kind, file, text))
    titles = f"{'part':22}{'source':>8}{'tests':>8}{'examples':>9}{'files':>7}{'median':>7}{'p90':>5}"
    print(f"{titles}  longest file, function")
    totals = dict.fromkeys(("source", "tests", "examples"), 0)
    for crate, files in sorted(crates.items()):
        lines = {file: text.count("\n") for _, file, text in files}
        sums = {kind: sum(lines[file] for which, file, _ in files if which == kind) for kind in totals}
        totals = {kind: totals[kind] + sums[kind] for kind in totals}
        longest = max(lines, key=lines.get)
        spans = [
            (length, name, file)
            for _, file, text in files
            if file.suffix in LANGUAGES
            for name, length in functions(file, text)
        ]
        words = f"{longest.relative_to(ROOT / crate)} {lines[longest]}"
        if spans:
            length, name, file = max(spans, key=lambda span: span[0])
            words += f", {name} {length} ({file.relative_to(ROOT / crate)})"
        sizes = list(lines.values())
        figures = f"{sums['source']:8}{sums['tests']:8}{sums['examples']:9}{len(files):7}"
        print(f"{crate:22}{figures}{rank(sizes, 50):7}{rank(sizes, 90):5}  {words}")
    print(f"{'all':22}{totals['source']:8}{totals['tests']:8}{totals['examples']:9}")
    pages = {file: file.read_text().count("\n") for file in tracked("*.md")}
    longest = max(pages, key=pages.get)
    words = f"{sum(pages.values())} lines in {len(pages)} pages"
    print(f"documents: {words}, longest {longest.relative_to(ROOT)} {pages[longest]}")


if __name__ == "__main__":
    main()
