"""Prints where blocks of lines stand twice: of LEAST lines and more, by default ten.

Lines are compared without the space around them. Blank lines and comments do not count, nor do imports: files that use the
same things import the same things.
"""

import os
import re

from sources import ROOT, tracked

NOTHING = re.compile(r"^(//.*|/\*.*|\*.*|#(?!\[|include|define|if|el|end).*|)$")
IMPORT = re.compile(r"^((pub(\(\w+\))? )?use |import |from [\w.]|#include|mod |pub mod )")


def lines_of(file):
    """A file's lines that count, with their numbers; an import of several lines is left out whole."""
    inside = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        line = line.strip()
        if inside or IMPORT.match(line):
            opened = line.count("{") + line.count("(") > line.count("}") + line.count(")")
            inside = opened or (inside and not re.search(r"[;)]$", line))
        elif not NOTHING.match(line):
            yield number, line


def main(least):
    names = tracked("*.rs", "*.cu", "*.cuh", "*.cpp", "*.h", "*.c", "*.py")
    files = [list(lines_of(file)) for file in names]
    first, pairs = {}, {}
    for place, lines in enumerate(files):
        for start in range(len(lines) - least + 1):
            block = tuple(line for _, line in lines[start : start + least])
            for other in first.setdefault(block, []):
                pairs.setdefault((other, (place, start)), None)
            first[block].append((place, start))
    found = 0
    for (file, start), (other, begin) in sorted(pairs):
        # A pair whose lines before are a pair as well only makes that one longer.
        if ((file, start - 1), (other, begin - 1)) in pairs:
            continue
        length = least
        while ((file, start + length - least + 1), (other, begin + length - least + 1)) in pairs:
            length += 1
        if file == other and start + length > begin:
            continue
        found += 1
        where = [f"{names[at].relative_to(ROOT)}:{files[at][line][0]}" for at, line in ((file, start), (other, begin))]
        print(f"{length:4} lines: {where[0]}  {where[1]}")
    print(f"{found} pairs of blocks of {least} lines and more")


if __name__ == "__main__":
    main(int(os.environ.get("LEAST", "10")))
