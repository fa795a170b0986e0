"""Says which names of a package that ours uses moved between two releases: `python places.py PACKAGE TRIED NEWEST FOLDER`, where pip puts them.

Both are read by `ast`, as ours is, so nothing is installed. The names that ours uses are what it imports of the package, attributes of these, methods of the
package's classes that its own classes override or call, and names in strings, such as those of hooks; besides these what `signatures.json` has of the package. A
name moved if it is gone, or if the function, or the class that ours calls, takes other arguments, or if it is new in a file of which `signatures.json` has all
names. What is behind an instance's attributes is left to tests.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from signatures import INTEGRATIONS, RECORDED

sys.path.insert(0, str(INTEGRATIONS / "compat/tests/real"))
from releases import FOLDERS, RELEASES, download, files_of, functions_of, text_of

# Where ours uses a package, under this folder; what stands in `signatures.json` alone has none.
USERS = {
    **{name: [f"{name}/gumball_{name}"] for name in ("vllm", "sglang", "tokenspeed", "transformers")},
    "llama-cpp-python": ["llama_cpp/gumball_llama_cpp"],
    "trl": ["trainers"],
    "verl": ["trainers"],
    "liger-kernel": ["trainers", "../bindings/python/python/gumball"],
    "mlx-lm": ["others"],
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Release:
    """The sources of a release, in which names are found."""

    def __init__(self, sources: dict[str, bytes]) -> None:
        """sources: the text of each file by its path in the wheel."""
        self.sources = {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text
            for path, text in sources.items()
            if path.endswith(".py")
        }
        self.packages = {
            path.removesuffix("/__init__.py").replace("/", ".") for path in sources if "/__init__.py" in path
        }
        self.read: dict[str, dict[str, ast.stmt | str]] = {}

    def find(self, dotted: str) -> Found | None:
        """What a name leads to: a module, or what stands in one; None if it leads nowhere."""
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            if (module := ".".join(parts[:count])) in self.sources:
                found: Found | None = (module, None)
                for part in parts[count:]:
                    found = found and self.member(found, part)
                return found
        return None

    def member(self, found: Found, name: str) -> Found | None:
        module, node = found
        if node is None:
            there = self.names(module).get(name)
            if isinstance(there, str):
                # A module may import its submodule under the submodule's own name.
                return (
                    (there, None)
                    if there in self.sources
                    else self.find(there)
                    if there != f"{module}.{name}"
                    else None
                )
            if there is not None:
                return module, there
            if f"{module}.{name}" in self.sources:
                return f"{module}.{name}", None
            starred = (self.find(f"{other}.{name}") for key, other in self.names(module).items() if key.startswith("*"))
            return next((one for one in starred if one is not None), None)
        if not isinstance(node, ast.ClassDef):
            return None
        for one in node.body:
            if name in names_of(one):
                return module, one
        for base in node.bases:
            above = self.above(module, base)
            inner = above and self.member(above, name)
            if inner is not None:
                return inner
        return None

    def above(self, module: str, base: ast.expr) -> Found | None:
        """The class that a class of a module is derived from."""
        return self.find(f"{module}.{ast.unparse(base)}") if isinstance(base, ast.Name | ast.Attribute) else None

    def names(self, module: str) -> dict[str, ast.stmt | str]:
        """The names of a module, those under a condition, too, each with its statement, or with the dotted name that it imports; "*1" and so on are imports of all names."""
        if module not in self.read:
            self.read[module] = found = {}
            package = module if module in self.packages else module.rpartition(".")[0]
            for node in statements(ast.parse(self.sources[module]).body):
                if isinstance(node, ast.ImportFrom):
                    start = package.rsplit(".", node.level - 1)[0] if node.level else ""
                    source = ".".join(filter(None, (start, node.module)))
                    for one in node.names:
                        key = f"*{len(found)}" if one.name == "*" else one.asname or one.name
                        found[key] = source if one.name == "*" else f"{source}.{one.name}"
                elif isinstance(node, ast.Import):
                    for one in node.names:
                        found[one.asname or one.name.partition(".")[0]] = (
                            one.name if one.asname else one.name.partition(".")[0]
                        )
                else:
                    found |= dict.fromkeys(names_of(node), node)
        return self.read[module]

    def takes(self, found: Found, called: bool) -> str:
        """What a function takes, or a class that is called: the arguments of its `__init__`, or its fields."""
        _, node = found
        if isinstance(node, Function):
            return text_of(node)
        if not called or not isinstance(node, ast.ClassDef):
            return ""
        made = self.member(found, "__init__")
        return text_of(made[1]) if made and isinstance(made[1], Function) else ", ".join(self.fields(found))

    def fields(self, found: Found) -> list[str]:
        module, node = found
        assert isinstance(node, ast.ClassDef)
        above = (self.above(module, base) for base in node.bases)
        inherited = (self.fields(one) for one in above if one and isinstance(one[1], ast.ClassDef))
        own = (ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign))
        return list(dict.fromkeys(itertools.chain(*inherited, own)))


# A module, and what stands there; the module itself without.
Found = tuple[str, ast.stmt | None]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of its branches."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            branches = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
            yield from statements(
                list(itertools.chain(*branches, *(one.body for one in getattr(node, "handlers", []))))
            )


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def uses(source: str, root: str) -> Iterator[tuple[str, bool]]:
    """The names of a package that a file of a plug-in uses, from the package's own name on, and whether each is called."""
    tree = ast.parse(source)
    local: dict[str, set[str]] = {}
    words: dict[str, set[str]] = {}

    def inside(dotted: str) -> bool:
        return dotted.partition(".")[0] == root

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and inside(node.module or ""):
            for one in node.names:
                local.setdefault(one.asname or one.name, set()).add(f"{node.module}.{one.name}")
                yield f"{node.module}.{one.name}", False
        elif isinstance(node, ast.Import):
            for one in node.names:
                if inside(one.name):
                    local.setdefault(one.asname or root, set()).add(one.name if one.asname else root)
                    yield one.name, False

    def texts(node: ast.expr) -> set[str]:
        """The strings that an expression may be, by the file's assignments and loops."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return {node.value}
        if isinstance(node, ast.JoinedStr):
            return {"".join(parts) for parts in itertools.product(*map(texts, node.values))}
        if isinstance(node, ast.FormattedValue):
            return texts(node.value)
        return words.get(node.id, set()) if isinstance(node, ast.Name) else set()

    def bind(target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            words.setdefault(target.id, set()).update(texts(value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for pair in zip(target.elts, value.elts, strict=False):
                bind(*pair)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, node.value)
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple | ast.List):
            for element in node.iter.elts:
                bind(node.target, element)

    def dotted(node: ast.expr) -> set[str]:
        if isinstance(node, ast.Name):
            return local.get(node.id, set())
        return {f"{one}.{node.attr}" for one in dotted(node.value)} if isinstance(node, ast.Attribute) else set()

    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            for one in dotted(node):
                yield one, id(node) in called
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            yield from ((one, False) for one in texts(node) if re.fullmatch(rf"{root}(\.\w+)+", one))
        elif isinstance(node, ast.ClassDef):
            own = [one.name for one in node.body if isinstance(one, Function)]
            for one in ast.walk(node):
                holder = ast.unparse(one.value) if isinstance(one, ast.Attribute) else ""
                if holder in ("self", "cls", "super()"):
                    own.append(one.attr)
            for base in itertools.chain(*map(dotted, node.bases)):
                yield from ((f"{base}.{name}", False) for name in own)


def places(plug_in: Path, root: str, tried: Release) -> dict[tuple[str, str], bool]:
    """Each file of a plug-in with each name that the tried release has, and whether the file calls it."""
    found: dict[tuple[str, str], bool] = {}
    for path in sorted(plug_in.rglob("*.py")):
        for dotted, called in uses(path.read_text(), root):
            # Behind a name there may be attributes of an instance.
            while "." in dotted and tried.find(dotted) is None:
                dotted, called = dotted.rpartition(".")[0], False
            key = (path.relative_to(plug_in.parent).as_posix(), dotted)
            found[key] = found.get(key, False) or called
    return found


def recorded_places(package: str, root: str) -> dict[tuple[str, str], bool]:
    """What `signatures.json` has of a package, likewise."""
    return {
        ("signatures.json", f"{module_of(root, path)}.{name}"): True
        for release, files in RECORDED.items()
        if release.partition("==")[0] == package
        for path, names in files.items()
        for name in names
    }


def module_of(root: str, path: str) -> str:
    return f"{root}.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


def added(package: str, root: str, newest: Release) -> Iterator[str]:
    """A line for each name that the newest release has in a file of `signatures.json`, which does not have it."""
    known = recorded_places(package, root)
    wanted = {
        path: pattern
        for one in RELEASES
        if one.partition("==")[0] == package
        for path, pattern in RELEASES[one].items()
    }
    for path, pattern in wanted.items():
        module = module_of(root, path)
        for name in functions_of(newest.sources.get(module, b"").decode(), pattern):
            if ("signatures.json", f"{module}.{name}") not in known:
                yield f"signatures.json: {module}.{name} is new"


def moved(found: dict[tuple[str, str], bool], tried: Release, newest: Release) -> Iterator[str]:
    """A line for each place that moved. Where a class is gone, its methods get no lines of their own."""
    gone: set[tuple[str, str]] = set()
    for (path, dotted), called in sorted(found.items()):
        before, after = tried.find(dotted), newest.find(dotted)
        if before is None:
            yield f"{path}: {dotted} is not in the release that was tried"
        elif after is None:
            if (path, dotted.rpartition(".")[0]) not in gone:
                yield f"{path}: {dotted} is gone"
            gone.add((path, dotted))
        elif (was := tried.takes(before, called)) != (now := newest.takes(after, called)):
            yield f"{path}: {dotted} has another signature: {difference(was, now)}"


def difference(was: str, now: str) -> str:
    """In words, how two texts of arguments differ."""
    old, new = (
        [one.partition("=")[0].strip(" *") for one in text.partition(" | ")[0].split(",")] for text in (was, now)
    )
    said = [
        f"{verb} {name}"
        for verb, ours, theirs in (("takes", new, old), ("lacks", old, new))
        for name in ours
        if name not in theirs
    ]
    return ", ".join(said) or f"({now}) for ({was})"


def main(package: str, tried: str, newest: str, folder: Path) -> None:
    root = FOLDERS.get(package, package.replace("-", "_"))
    releases = [Release(dict(files_of(download(folder, f"{package}=={version}")))) for version in (tried, newest)]
    found = recorded_places(package, root)
    for user in USERS.get(package, ()):
        found |= places((INTEGRATIONS / user).resolve(), root, releases[0])
    for line in itertools.chain(moved(found, *releases), added(package, root, releases[1])):
        print(f"{package} {newest}: {line}")
    print(f"{len(found)} places of {package} {tried} were looked for in {newest}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
