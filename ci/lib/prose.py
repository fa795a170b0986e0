"""Holds comments on lines of their own to the width of the code beside them, in languages whose comments begin
with `//`, and pages to theirs: `prose.py [--write] FILE..`."""

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby

# As rustfmt.toml has it, and .clang-format.
WIDTHS = {"rs": 110, "md": 160, "": 120}
COMMENT = re.compile(r"( *)(//[/!]?)( |$)(.*)")
# What begins a paragraph of its own, with the indent of its lines after the first: an item of a list, the first
# of two columns, depth.
ITEM = re.compile(r"( *)([-*+] |\d+\. )")
COLUMN = re.compile(r" *\S(?:.{0,30}?\S)?(?<![.:;]) {2,}(?=\S)(?!.*\S {2,}\S)")
DEEP = re.compile(r" {4,}")
# Lines that are laid out by hand: tables, headings, targets of links, directives of tools, columns.
FIXED = re.compile(
    r" *(\||#+ |\[[^\]]+\]: |<|clang-format|rustfmt|eslint|@ts-)|.*\S {2,}\S|.*(\\|  )$| {4,}.*(; *|[{}(]|\|\|)$| {4,}.* \| "
)
NAMED = re.compile(r" *[\w*,` ]+: ")


def start(line: str) -> str:
    """What stands before the text of a paragraph's first line."""
    for kind in (ITEM, COLUMN, DEEP):
        if found := kind.match(line):
            return found.group()
    return re.match(" *", line).group()  # type: ignore[union-attr]


def goes_on(one: list[str], line: str, width: int) -> bool:
    """Whether a line is the next of a paragraph."""
    indent, depth = len(start(one[0])), len(line) - len(line.lstrip())
    if ITEM.match(line) or COLUMN.match(line):
        return False
    if COLUMN.match(one[0]):
        return depth == indent and len(one[-1]) > width - 25 and not NAMED.match(line)
    return not DEEP.match(one[0]) and (depth < 4 or depth == indent)


def paragraphs(lines: list[str], width: int) -> Iterator[tuple[list[str], bool]]:
    """The paragraphs of a comment, and whether each may be wrapped."""
    one: list[str] = []
    in_code = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        more = bool(one) and goes_on(one, line, width)
        by_hand = FIXED.match(line) and not COLUMN.match(line) and not (more and not re.match(r" *(\||#+ )", line))
        fixed = in_code or fence or not line.strip() or bool(by_hand)
        in_code ^= fence
        if one and (fixed or not more):
            yield one, True
            one = []
        if fixed:
            yield [line], False
        else:
            one.append(line)
    if one:
        yield one, True


def wrapped(lines: list[str], width: int) -> list[str]:
    """The lines of a paragraph at a width, as they were if none is too long."""
    if all(len(line) <= width for line in lines):
        return lines
    first = start(lines[0])
    text = " ".join([lines[0][len(first) :].strip(), *(line.strip() for line in lines[1:])])
    indent = " " * (len(first) + 4 * bool(DEEP.fullmatch(first)))
    fill = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    # Words inside of `code` stay together, and no line begins as an item of a list would.
    joined = re.sub(r"`[^`]{,60}`", lambda code: code.group().replace(" ", "\0"), text)
    joined = re.sub(r" (?=([-*+#|<]|\d+\.) )", "\0", joined)
    return [line.replace("\0", " ") for line in fill.wrap(joined)]


def marker(line: str) -> str | None:
    """What stands before the text of a comment on a line of its own; None for another line."""
    found = COMMENT.fullmatch(line)
    return found and found.group(1) + found.group(2)


def filled(lines: list[str], width: int) -> Iterator[str]:
    """Lines of text with their paragraphs wrapped."""
    for one, may_wrap in paragraphs(lines, width):
        yield from wrapped(one, width) if may_wrap else one


def rewritten(text: str, width: int) -> str:
    """A file with its comments wrapped."""
    out: list[str] = []
    for before, lines in groupby(text.split("\n"), marker):
        if before is None:
            out.extend(lines)
            continue
        comment = [line[len(before) + 1 :] for line in lines]
        out.extend(f"{before} {line}" if line else before for line in filled(comment, width - len(before) - 1))
    return "\n".join(out)


def main() -> None:
    names = sys.argv[1:]
    write = names[:1] == ["--write"]
    bad = 0
    for name in names[write:]:
        with open(name, encoding="utf-8", newline="") as file:
            text = file.read()
        width = WIDTHS.get(name.rpartition(".")[2], WIDTHS[""])
        is_page = name.endswith(".md")
        wanted = "\n".join(filled(text.split("\n"), width)) if is_page else rewritten(text, width)
        if wanted != text and write:
            with open(name, "w", encoding="utf-8", newline="") as file:
                file.write(wanted)
        elif wanted != text:
            print(
                f"{name}: a {'line' if is_page else 'comment'} is wider than {width} columns; ci/style --write wraps it"
            )
            bad += 1
        for number, line in enumerate(wanted.split("\n"), 1):
            before = marker(line)
            if len(line) > width and before and " " in line[width:] and not line.startswith(f"{before} |"):
                print(f"{name}:{number}: a comment of {len(line)} columns, but at most {width}")
                bad += 1
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
