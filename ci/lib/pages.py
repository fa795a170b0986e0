"""The pages of the documentation's site: `pages.py lay TO [ADDRESS]` lays them out as docs/site.toml orders them, for the generator, and
`pages.py check SITE` ends with the links of the site that lead nowhere, or to the network for what a page consists of.

A link to a page leads to its place on the site. One to another file of the tree leads to the repository at ADDRESS; without it, its text alone is left.
"""

import ast
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import tomli

from metadata import files_at, leads_out
from sources import ROOT, tracked

# Of the explorer, which the front page shows in the place of this picture where `ci/explorer` made it.
EXPLORER = ROOT / "target/explorer/index.html"
PICTURE = re.compile(r'<p align="center"><img src="docs/pictures/row.svg".*?></p>', re.S)
FRAME = '<iframe src="explorer/index.html" title="The explorer" loading="lazy" style="width: 100%; height: 48rem; border: 0"></iframe>'
LINK = re.compile(r'\[((?:`[^`]*`|[^\[\]`])*)\]\(([^)\s]+)\)|src="([^"]+)"|^```.*?^```$|`[^`\n]*`', re.M | re.S)


def order(nav: list) -> Iterator[str]:
    """The pages of a part of the order."""
    for one in nav:
        if isinstance(one, str):
            yield one
        else:
            for inside in one.values():
                yield from order([inside] if isinstance(inside, str) else inside)


def place(path: str) -> str:
    """Where a page lies on the site."""
    return {"docs/index.md": "index.md", "README.md": "overview.md"}.get(path) or re.sub(r"\.py$", ".md", path)


def laid_out(path: str, pages: set[str], to: Path, address: str) -> str:
    """The text of a page of the site, beside which its pictures are laid."""
    here = posixpath.dirname(place(path))

    def moved(link: re.Match[str]) -> str:
        target, _, anchor = (link[2] or link[3] or "#").partition("#")
        if not target or leads_out(target):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if f"{target}/README.md" in pages:
            target += "/README.md"
        if target in pages:
            there = posixpath.relpath(place(target), here)
        elif target.endswith(".svg"):
            (to / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / target, to / target)
            there = posixpath.relpath(target, here)
        elif address:
            there = f"{files_at(address)}/{target}"
        else:
            return link[1]
        there += f"#{anchor}" if anchor else ""
        return f'src="{there}"' if link[3] else f"[{link[1]}]({there})"

    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        docstring = ast.parse(text).body[0]
        code = "\n".join(text.splitlines()[docstring.end_lineno :]).strip()
        return f"{ast.get_docstring(ast.parse(text))}\n\n```python\n{code}\n```\n"
    text = LINK.sub(moved, text)
    # The generator's Markdown has lists begin after an empty line.
    text = re.sub(r"^(?![- |])(.*[:*])\n(?=- )", r"\1\n\n", text, flags=re.M)
    return PICTURE.sub(FRAME, text) if path == "docs/index.md" and EXPLORER.exists() else text


def lay_out(to: Path, address: str) -> None:
    """Writes the generator's settings and pages."""
    settings = (ROOT / "docs/site.toml").read_text()
    listed = list(order(tomli.loads(settings)["project"]["nav"]))
    named = [path.relative_to(ROOT).as_posix() for path in tracked("docs/*.md", "bindings/*.md", "integrations/*.md")]
    wrong = [f"{path} is there {listed.count(path)} times" for path in {*named, *listed} if listed.count(path) != 1]
    wrong += [f"{path} is no file" for path in listed if not (ROOT / path).is_file()]
    if wrong:
        sys.exit("docs/site.toml: " + "; ".join(sorted(wrong)))
    for path in listed:
        page = to / "pages" / place(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(laid_out(path, set(listed), to / "pages", address))
        settings = settings.replace(f'"{path}"', f'"{place(path)}"')
    (to / "zensical.toml").write_text(settings)
    if EXPLORER.exists():
        (to / "pages/explorer").mkdir()
        shutil.copy(EXPLORER, to / "pages/explorer")


class Page(HTMLParser):
    """The anchors of a page, and its links with their tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links = set[str](), list[tuple[str, str]]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append((tag, value))


def check(site: Path) -> None:
    """Ends with the links that lead nowhere, if there are any."""
    # The generator's page for addresses that do not exist has absolute links.
    names = [
        path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] not in ("explorer", "404.html")
    ]
    pages = {path: Page(path) for path in names}
    wrong, count = [], 0
    for path, page in pages.items():
        for tag, link in page.links:
            count += 1
            place, _, anchor = link.partition("#")
            target = path if not place else (path.parent / unquote(place)).resolve()
            if re.match(r"([a-z]+:)?//|data:", link):
                alive = tag == "a" or link.startswith("data:")
            else:
                alive = target.is_file() and (not anchor or target not in pages or anchor in pages[target].anchors)
            if not alive:
                wrong.append(f"{path.relative_to(site)}: {link}")
    if wrong or count < 1000:
        sys.exit("\n".join([*wrong, f"{len(wrong)} of {count} links of the site lead nowhere"]))
    print(f"{len(pages)} pages, {count} links; each leads somewhere")


match sys.argv[1:]:
    case ["lay", to, *address]:
        lay_out(Path(to).resolve(), address[0].rstrip("/") if address else "")
    case ["check", site]:
        check(Path(site).resolve())
    case _:
        sys.exit(__doc__)
