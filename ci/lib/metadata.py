"""The metadata of released artefacts: crates, wheels, the sdist, the npm package and the archive for C.

``python3 ci/lib/metadata.py write ADDRESS`` writes the address of the repository into the manifests of this tree, which name none, and into the
links of the pages that artefacts carry.
``python3 ci/lib/metadata.py check FOLDER [ADDRESS]`` holds that each artefact in a folder has both licences, a readme, a description, keywords and
authors, as far as its kind has a field for them; and that it names ADDRESS and no other, or no address if none is given. With ADDRESS, a link of
a page leads to a file of the artefact or of this tree.
"""

import io
import json
import posixpath
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

from sources import ROOT, tracked

LICENSES = ("LICENSE-APACHE", "LICENSE-MIT")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def files_at(address: str) -> str:
    """Where the files of this release are, as forges lay them out."""
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    return f"{address}/blob/v{version}"


def addresses(address: str) -> dict[str, str]:
    """Where things are, as forges lay them out."""
    return {
        "Repository": address,
        "Documentation": files_at(address).replace("/blob/", "/tree/") + "/docs",
        "Changelog": f"{files_at(address)}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def write(address: str) -> None:
    """Names the address in the manifests of what is released."""
    found = addresses(address)
    for path in tracked("*/Cargo.toml"):
        text = path.read_text()
        if "\nreadme = " in text:
            # The registry itself shows documentation beside the repository.
            path.write_text(text.replace("\nreadme = ", f'\nrepository = "{address}"\nreadme = ', 1))
    for path in tracked("*/pyproject.toml"):
        lines = "".join(f'{name} = "{there}"\n' for name, there in found.items())
        path.write_text(f"{path.read_text()}\n[project.urls]\n{lines}")
    path = ROOT / "bindings/wasm/js/package.json.in"
    package = json.loads(path.read_text())
    package["homepage"] = found["Documentation"] + "/wasm.md"
    package["repository"] = {"type": "git", "url": f"git+{address}.git"}
    package["bugs"] = {"url": found["Issues"]}
    path.write_text(json.dumps(package, indent=2) + "\n")
    path = ROOT / "bindings/c/package/gumball.pc"
    path.write_text(path.read_text().replace("\nVersion:", f"\nURL: {address}\nVersion:", 1))
    files = files_at(address)
    for path in (*tracked("*/README.md"), ROOT / "CHANGELOG.md", ROOT / "docs/c.md"):
        folder = path.parent.relative_to(ROOT).as_posix()

        def absolute(link: re.Match[str], folder: str = folder) -> str:
            if leads_out(link[1]):
                return link[0]
            return f"]({files}/{posixpath.normpath(posixpath.join(folder, link[1]))})"

        path.write_text(LINK.sub(absolute, path.read_text()))


def leads_out(link: str) -> bool:
    """Whether a link names another place than a file of the tree: an address, or a heading of its own page."""
    return link.startswith("#") or re.match(r"[a-z]+:", link) is not None


def dead_links(pages: dict[str, str], files: set[str], address: str) -> Iterator[str]:
    """The links of pages, by their paths in an artefact, that lead neither to one of its files nor to one of this tree."""
    tree = f"{files_at(address)}/"
    for name, text in pages.items():
        for link in LINK.findall(text):
            path = link.partition("#")[0]
            if path.startswith(tree):
                alive = (ROOT / path.removeprefix(tree)).exists()
            else:
                alive = leads_out(link) or posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) in files
            if not alive:
                yield f"{name}: {link}"


def members(path: Path) -> dict[str, bytes]:
    """The files of an archive by their paths, without the folder that holds all."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}
    with tarfile.open(path) as archive:
        files = [member for member in archive if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in files}


def of_python(said: bytes) -> Iterator[tuple[str, str]]:
    """The fields of a Python package."""
    message = Parser().parse(io.StringIO(said.decode()))
    yield "readme", message.get_payload()
    for name, field in message.items():
        if name in ("Project-URL", "Home-Page", "Download-URL"):
            yield "address", field.rpartition(", ")[2]
        yield name, field


def of_crate(said: bytes) -> Iterator[tuple[str, str]]:
    """The fields of a crate, from what cargo made of its manifest."""
    package = said.decode().partition("[package]\n")[2].partition("\n\n[")[0]
    for name, field in re.findall(r"^([a-z]+) = (\[[^]]*\]|.*)$", package, re.M):
        value = field.strip('"[]\n ,')
        yield ("address" if name in ("repository", "homepage", "documentation") else name), value


def of_npm(said: bytes) -> Iterator[tuple[str, str]]:
    """The fields of an npm package."""
    package = json.loads(said)
    for name in ("homepage", "repository", "bugs"):
        if name in package:
            field = package[name]
            yield "address", field if isinstance(field, str) else field["url"].removeprefix("git+")
    yield from ((name, str(field)) for name, field in package.items() if field)


def of_c(said: bytes) -> Iterator[tuple[str, str]]:
    """The fields of the file for pkg-config."""
    for name, field in re.findall(r"^(\w+): *(.*)$", said.decode(), re.M):
        yield ("address" if name == "URL" else name), field


PYTHON = [
    "Name",
    "Version",
    "Summary",
    "Author",
    "Keywords",
    "Classifier",
    "License-Expression",
    "Requires-Python",
    "readme",
]
CRATE = ["name", "version", "authors", "description", "keywords", "categories", "license", "readme"]
NPM = ["name", "version", "author", "description", "keywords", "license"]
# A pattern of file names; the file with the metadata; the function that reads it; the fields it must have; other files.
KINDS = (
    ("*.crate", "Cargo.toml", of_crate, CRATE, ["README.md"]),
    ("*.whl", r".*\.dist-info/METADATA", of_python, PYTHON, []),
    (
        "gumball-c-*.tar.gz",
        "lib/pkgconfig/gumball.pc",
        of_c,
        ["Name", "Version", "Description", "License"],
        ["c.md", "CHANGELOG.md"],
    ),
    ("gumball-[0-9]*.tar.gz", "PKG-INFO", of_python, PYTHON, ["README.md"]),
    ("*.tgz", "package.json", of_npm, NPM, ["README.md"]),
)


def check(folder: str, address: str | None) -> None:
    """Ends with the faults of the artefacts, if there are any."""
    wrong, seen = [], 0
    for pattern, manifest, read, wanted, beside in KINDS:
        for path in sorted(Path(folder).glob(pattern)):
            seen += 1
            files = members(path)
            [said] = (text for name, text in files.items() if re.fullmatch(manifest, name))
            fields = list(read(said))
            there = {name for name, field in fields if field.strip()}
            names = {name.rpartition("/")[2] for name, text in files.items() if text}
            lacks = [name for name in wanted if name not in there]
            lacks += [name for name in (*LICENSES, *beside) if name not in names]
            named = [field for name, field in fields if name == "address"]
            of_project = [field for field in named if f"{field}/".replace(".git/", "/").startswith(f"{address}/")]
            if lacks:
                wrong.append(f"{path.name} lacks {', '.join(lacks)}")
            if address is None and named:
                wrong.append(f"{path.name} names {', '.join(named)}, and the release has no address")
            if address is not None and (not named or of_project != named):
                wrong.append(f"{path.name} names {', '.join(named) or 'no address'} instead of {address}")
            if address is not None:
                pages = {name: text.decode() for name, text in files.items() if name.endswith(".md")}
                pages |= {f"its {name}": field for name, field in fields if name == "readme" and "\n" in field}
                wrong += [f"{path.name} has a dead link, {link}" for link in dead_links(pages, set(files), address)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{seen} artefacts say what they are, and name {address or 'no address'}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", address]:
            write(address.rstrip("/"))
        case ["check", folder, *rest]:
            check(folder, rest[0].rstrip("/") if rest and rest[0] else None)
        case _:
            sys.exit(__doc__)
