"""Lists cycles between files. Fails if there is one that the list below does not have, or none that it has,
or if a folder needs a folder that it may not use.

A Rust file depends on a file of its crate whose item it names (`crate::`, `super::`, `self::`), a C++ file on what it
includes, a Python file on what it imports from its package. A parent may name the modules below it, whether it declares,
re-exports or calls them: that is no dependency here. A re-exported name counts for the file that defines it. Test modules
inside a file are left out. The reading is textual: it expands no macros.
"""

import ast
import re
import sys

from sources import ROOT, code, tracked, without_tests

# Cycles that are known, each with the reason why it stands. Entries may only be removed.
ALLOWED = {
    (
        "bindings/python/src/hooks.rs",
        "bindings/python/src/turns.rs",
    ): "a call takes its turn unless it comes out of a hook, and a hook is noted as what its turn waits for",
    (
        "crates/spec/src/error.rs",
        "crates/spec/src/near.rs",
        "crates/spec/src/params/mod.rs",
        "crates/spec/src/params/names.rs",
        "crates/spec/src/params/parameter.rs",
        "crates/spec/src/params/table.rs",
    ): "the error for an unknown name hints at what was meant, by the table of parameters, whose checks give errors",
    (
        "apps/cli/src/model/pipeline.rs",
        "apps/cli/src/model/tokenizer.rs",
    ): "the tokenizer builds its pipeline, which reads the tokenizer's description",
    (
        "crates/inspect/src/page/cuts.rs",
        "crates/inspect/src/page/race.rs",
        "crates/inspect/src/page/sections.rs",
    ): "sections list the two that lie in files of their own, which use the frame of a section",
}

# The folders of a crate's sources, and the folders that each may use. A file outside them, such as the crate's errors, may
# be used by all.
FOLDERS = {
    "crates/cuda/src": {
        "abi": (),
        "programs": ("abi",),
        "driver": ("abi", "programs"),
        "memory": ("abi", "driver"),
        "requests": ("abi", "driver", "memory"),
        "launch": ("abi", "programs", "driver", "requests"),
        "operators": ("abi", "programs", "driver", "memory", "requests", "launch"),
        "pipeline": ("abi", "programs", "driver", "memory", "requests", "launch", "operators"),
    },
}

USE = re.compile(r"\buse\s+([^;]+);")
PATH_ATTRIBUTE = re.compile(r'#\[path\s*=\s*"[^"]+"\]')
MODULE = re.compile(r'(?:#\[path\s*=\s*"([^"]+)"\]\s*)?(?:pub(?:\([^)]*\))?\s+)?\bmod\s+(\w+)\s*;')
PATH = re.compile(r"\$?\b((?:crate|self|super)(?:::\w+)+)")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def leaves(tree):
    """The paths of a use tree as (path, name in scope): `a::{b, c as d}` is a::b as b and a::c as d."""
    tree = tree.strip()
    if "{" in tree:
        head, rest = tree.split("{", 1)
        inner, depth, part = rest.rsplit("}", 1)[0], 0, ""
        for letter in inner + ",":
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                if part.strip():
                    yield from leaves(head.strip() + part.strip())
                part = ""
            else:
                part += letter
        return
    path, _, alias = tree.partition(" as ")
    steps = [step.strip() for step in path.strip().split("::") if step.strip()]
    if steps and steps[-1] == "self" and len(steps) > 1:
        steps.pop()
    if steps:
        yield steps, alias.strip() or steps[-1]


class Crate:
    """The modules reached from one root file."""

    def __init__(self, root):
        self.files = {}  # module path, a tuple -> file
        self.code = {}
        self.names = {}  # module path -> {name brought into scope: steps}
        self.declare((), root, root.parent)

    def declare(self, module, file, folder):
        if not file.exists() or module in self.files:
            return
        source = file.read_text()
        # The paths of modules are the only literals that count.
        text = without_tests(code(source, [match.span() for match in PATH_ATTRIBUTE.finditer(source)]))
        self.files[module], self.code[module] = file, text
        self.names[module] = {name: steps for match in USE.finditer(text) for steps, name in leaves(match[1])}
        for path, child in MODULE.findall(text):
            options = [file.parent / path] if path else [folder / f"{child}.rs", folder / child / "mod.rs"]
            for option in options:
                if option.exists():
                    inner = option.parent if option.name == "mod.rs" else folder / child
                    self.declare((*module, child), option, inner)

    def origin(self, module, steps, depth=0):
        """The module whose file defines what a path names, as seen from a module; None if it is not of this crate."""
        at, steps = module, list(steps)
        if steps[0] == "crate":
            at, steps = (), steps[1:]
        elif steps[0] == "self":
            steps = steps[1:]
        elif steps[0] == "super":
            while steps and steps[0] == "super":
                at, steps = at[:-1], steps[1:]
        elif (*at, steps[0]) not in self.files:
            return None
        while steps and (*at, steps[0]) in self.files:
            at, steps = (*at, steps[0]), steps[1:]
        if steps and depth < 8 and (found := self.names.get(at, {}).get(steps[0])) and found != steps:
            if (further := self.origin(at, found + steps[1:], depth + 1)) is not None:
                return further
        return at if at in self.files else None

    def edges(self):
        """Pairs of files of which the first needs the second."""
        for module, text in self.code.items():
            named = [steps for match in USE.finditer(text) for steps, _ in leaves(match[1])]
            named += [path.split("::") for path in PATH.findall(USE.sub(" ", text))]
            for target in (self.origin(module, steps) for steps in named):
                if target is not None and target[: len(module)] != module:
                    yield self.files[module], self.files[target]


def rust_edges():
    roots = []
    for manifest in tracked("*Cargo.toml"):
        folder = manifest.parent
        found = [folder / "src/lib.rs", folder / "src/main.rs", *folder.glob("src/bin/*.rs")]
        found += [*folder.glob("tests/*.rs"), *folder.glob("tests/*/main.rs")]
        found += [*folder.glob("examples/*.rs"), *folder.glob("examples/*/main.rs"), *folder.glob("examples/*/lib.rs")]
        roots += [file for file in found if file.exists()]
    for root in roots:
        yield from Crate(root).edges()


def include_edges():
    files = tracked("*.cu", "*.cuh", "*.cpp", "*.hpp", "*.h", "*.c")
    for file in files:
        for name in INCLUDE.findall(file.read_text()):
            beside = (file.parent / name).resolve()
            # NVRTC gets the sources by name, so an include also means the file of that name or path's end.
            ends = [other for other in files if str(other).endswith("/" + name.removeprefix("../"))]
            for target in [beside] if beside in files else ends:
                if target != file:
                    yield file, target


def python_edges():
    files = set(tracked("*.py", "proof/bench/gpu/*"))
    for file in sorted(file for file in files if file.suffix == ".py"):
        for node in ast.walk(ast.parse(file.read_text())):
            bases = []
            # An absolute import begins where the package of the file lies.
            top = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
            if isinstance(node, ast.ImportFrom):
                folder = file.parents[node.level - 1] if node.level else top
                base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
                # A name may be a module of the package; what is none is in the package's own file.
                for name in node.names:
                    inner = base / f"{name.name}.py"
                    bases.append(base / name.name if inner in files else base)
            elif isinstance(node, ast.Import):
                bases = [top.joinpath(*name.name.split(".")) for name in node.names]
            for base in bases:
                for target in (base.with_suffix(".py"), base / "__init__.py"):
                    # A package's own file may import what lies in the package.
                    above = file.name == "__init__.py" and target.is_relative_to(file.parent)
                    if target in files and target != file and not above:
                        yield file, target


def trespasses(edges):
    """Edges from a folder to one that it may not use, and from a folder that the table does not have."""
    for crate, folders in FOLDERS.items():
        for first, second in edges:
            if not (first.is_relative_to(ROOT / crate) and second.is_relative_to(ROOT / crate)):
                continue
            folder, other = (file.relative_to(ROOT / crate).parts[0] for file in (first, second))
            if (ROOT / crate / folder).is_dir() and (ROOT / crate / other).is_dir():
                if other not in (folder, *folders.get(folder, ())):
                    yield first, second


def components(edges):
    """Strongly connected components of more than one file (Tarjan, 1972)."""
    graph = {}
    for first, second in edges:
        graph.setdefault(first, set()).add(second)
        graph.setdefault(second, set())
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found, graph


def main():
    sys.setrecursionlimit(10_000)
    edges = [*rust_edges(), *include_edges(), *python_edges()]
    found, graph = components(edges)
    cycles = {tuple(str(file.relative_to(ROOT)) for file in files): files for files in found}
    failed = False
    for names, files in sorted(cycles.items()):
        reason = ALLOWED.get(names)
        failed |= reason is None
        print(f"{'a new cycle' if reason is None else 'known'}: {' <-> '.join(names)}")
        if reason:
            print(f"    {reason}")
            continue
        for file in files:
            for other in sorted(graph[file] & set(files)):
                print(f"    {file.relative_to(ROOT)} needs {other.relative_to(ROOT)}")
    for entry in sorted(set(ALLOWED) - set(cycles)):
        failed = True
        print(f"no cycle any more; take it out of the list in ci/lib/cycles.py: {' <-> '.join(entry)}")
    for first, second in sorted(set(trespasses(edges))):
        failed = True
        print(f"a folder that may not be used: {first.relative_to(ROOT)} needs {second.relative_to(ROOT)}")
    print(f"{len(graph)} files, {sum(map(len, graph.values()))} needs, {len(found)} cycles")
    sys.exit(failed)


if __name__ == "__main__":
    main()
