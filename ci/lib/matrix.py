"""One wheel for all: ``python3 ci/lib/matrix.py WHEEL`` installs it for several releases of CPython, with and without several releases of numpy and
torch, draws, and runs the package's tests that need no more. Then it holds that other Pythons are refused. Prints a table.

uv, which pip installs, finds the Pythons on this machine or fetches them; else apt-get fetches Debian's, of the suite sid. A Python that
neither has is counted as left out. pip fetches gigabytes: torch for x86-64 comes with CUDA's libraries.
"""

import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "target/matrix"
TESTS = ROOT / "bindings/python/tests"

# A Python, and what pip installs beside the wheel.
CELLS = (
    ("3.10",),
    ("3.10", "numpy==1.24.*"),
    ("3.10", "numpy==1.26.*", "torch==2.4.*"),
    ("3.10", "numpy"),
    ("3.11",),
    ("3.11", "numpy==1.26.*"),
    ("3.11", "numpy"),
    ("3.12",),
    ("3.12", "numpy==1.26.*"),
    ("3.12", "numpy"),
    ("3.13",),
    ("3.13", "numpy", "torch"),
    ("3.14",),
    ("3.14", "numpy"),
)
# Names of tests: those that need no more than numpy, and those that need torch.
WITH_NUMPY = ("arrays", "command", "golden", "params", "pool", "sampler", "verify")
WITH_TORCH = ("torch", "operators")
# Pythons for which pip must refuse the wheel, as pip's flags, and one for which it must not. Where no platform is named, it is the wheel's.
REFUSED = (
    ("CPython 3.9", "--python-version 3.9 --abi abi3"),
    ("CPython 3.13t, free-threaded", "--python-version 3.13 --abi cp313t"),
    ("CPython 3.12 of musl", "--python-version 3.12 --abi abi3 --platform musllinux_1_2_x86_64"),
)
TAKEN = "--python-version 3.12 --abi abi3"
DRAW = """
import array
import gumball

params = gumball.SamplingParams(top_k=20, top_p=0.9, seed=7)
row = array.array("f", [id * 37 % 101 / 8 for id in range(100)])
print([gumball.Sampler(params, 100, draw=draw).sample(row) for draw in range(50)])
"""


def said(*command: object, cwd: Path | None = None) -> str:
    """Runs a command and returns its standard output. Raises OSError with the last lines of its output if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(f"{done.stdout}{done.stderr}".splitlines()[-40:])
        raise OSError(f"{shlex.join(map(str, command))} ended with {done.returncode}\n{last}")
    return done.stdout.strip()


def skip(reason: str) -> None:
    """Counts this part of ci/release as left out."""
    print(f"skipped: {reason}")
    with open(os.environ.get("GUMBALL_SKIPPED", os.devnull), "a", encoding="utf-8") as skipped:
        skipped.write(f"part\t{os.environ.get('GUMBALL_PART')}\t{reason}\n")


def debians(version: str) -> Path:
    """Debian's Python with the C library that it needs, in a folder of its own."""
    folder = PLACE / f"debian-{version}"
    python = folder / f"usr/bin/python{version}"
    if python.exists():
        return python
    sites = said("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").splitlines()
    [site] = {site for site in sites if site.rstrip("/").endswith("/debian")}
    for name in ("lists", "cache/archives"):
        (folder / "apt" / name / "partial").mkdir(parents=True, exist_ok=True)
    (folder / "apt/status").touch()
    source = f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {site} sid main\n"
    (folder / "apt/sources.list").write_text(source)
    places = {"State": "", "State::status": "status", "Cache": "cache", "Etc::sourcelist": "sources.list"}
    apt = ["apt-get", *(f"-oDir::{name}={folder / 'apt' / place}" for name, place in places.items())]
    apt.append("-oDir::Etc::sourceparts=/dev/null")
    said(*apt, "update")
    packages = (f"python{version}", f"python{version}-venv", "libgcc-s1", "libstdc++6")
    said(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages)
    for package in (folder / "apt/cache/archives").glob("*.deb"):
        said("dpkg-deb", "-x", package, folder)
    libraries = folder / "usr/lib" / f"{platform.machine()}-linux-gnu"
    [loader] = libraries.glob("ld-linux-*")
    real = python.rename(f"{python}.real")
    python.write_text(f'#!/bin/sh\nexec {loader} --argv0 "$0" --library-path {libraries} {real} "$@"\n')
    python.chmod(0o755)
    return python


@functools.cache
def find(uv: Path, version: str) -> Path | None:
    """Where a Python is; none if it cannot be had."""

    def there() -> Path:
        return Path(said(uv, "python", "find", version))

    def fetched() -> Path:
        said(uv, "python", "install", version)
        return there()

    for way in (there, fetched, lambda: debians(version)):
        try:
            return way()
        except (OSError, ValueError) as error:
            print(f"CPython {version}: {str(error).splitlines()[-1].strip()}", file=sys.stderr)
    return None


def version_of(python: Path, package: str) -> str:
    """The release of a package that an environment has."""
    program = (
        f"import importlib.metadata as m; print(*{{d.version for d in m.distributions(name='{package}')}} or ['none'])"
    )
    return said(python, "-c", program)


def hold(uv: Path, wheel: Path, interpreter: Path, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Installs the wheel and what is beside it, tries it, and returns the line of the table."""
    folder = PLACE / "cell"
    python = folder / "bin/python"
    said(uv, "venv", "--clear", "--python", interpreter, folder)
    said(uv, "pip", "install", "--python", python, wheel, *packages, *(["ml_dtypes", "pytest"] if packages else []))
    said(folder / "bin/gumball", "doctor", cwd=PLACE)
    drawn, passed = said(python, "-c", DRAW, cwd=PLACE), "no test without numpy"
    if packages:
        names = WITH_NUMPY + (WITH_TORCH if any(name.startswith("torch") for name in packages) else ())
        files = [TESTS / f"test_{name}.py" for name in names]
        # Released wheels have no emulator.
        pytest = (python, "-m", "pytest", "-k", "not emulated", "--rootdir", TESTS.parent)
        passed = said(*pytest, *files, cwd=PLACE).splitlines()[-1]
    versions = (version_of(python, name) for name in ("numpy", "torch"))
    return said(python, "-c", "import platform; print(platform.python_version())"), *versions, drawn, passed


def refuses(python: Path, wheel: Path, flags: str) -> bool:
    """Whether pip finds nothing to install for a Python."""
    if "--platform" not in flags:
        flags += "".join(f" --platform {tag}" for tag in wheel.stem.split("-")[-1].split("."))
    pip = f"-m pip download gumball --no-index --no-deps --only-binary :all: {flags} --find-links".split()
    try:
        said(python, *pip, wheel.parent, "--dest", PLACE / "refused")
    except OSError as error:
        return "No matching distribution" in str(error)
    return False


def sources_refuse(uv: Path, interpreter: Path) -> bool:
    """Whether a free-threaded Python is told that the package cannot be built for it."""
    said(uv, "venv", "--clear", "--python", interpreter, PLACE / "cell")
    try:
        said(uv, "pip", "install", "--python", PLACE / "cell/bin/python", ROOT / "bindings/python")
    except OSError as error:
        return "this Python is free-threaded" in str(error)
    return False


def main() -> None:
    """Holds all cells."""
    wheel = Path(sys.argv[1]).resolve()
    PLACE.mkdir(parents=True, exist_ok=True)
    said(sys.executable, "-m", "venv", PLACE / "tools")
    tools = PLACE / "tools/bin"
    # From that release on pip knows free-threaded Pythons.
    said(tools / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip>=24.1", "uv")
    uv = tools / "uv"
    if shutil.which("pyenv"):
        # Its Pythons run only where they are asked for.
        os.environ["PYENV_VERSION"] = ":".join(said("pyenv", "versions", "--bare").split())
    tokens, row = set(), "{:<9} {:<8} {:<14} {}".format
    print(row("CPython", "numpy", "torch", "tests"))
    for version, *packages in CELLS:
        interpreter = find(uv, version)
        if interpreter is None:
            skip(f"CPython {version} cannot be had")
            continue
        python, numpy, torch, drawn, passed = hold(uv, wheel, interpreter, tuple(packages))
        tokens.add(drawn)
        print(row(python, numpy, torch, passed), flush=True)
    assert len(tokens) == 1, f"other tokens on another Python: {tokens}"
    print("the same 50 tokens in each line")
    assert not refuses(tools / "python", wheel, TAKEN), f"pip does not take the wheel with {TAKEN}"
    for who, flags in REFUSED:
        assert refuses(tools / "python", wheel, flags), f"pip takes the wheel for {who}"
        print(f"pip refuses the wheel for {who}")
    interpreter = find(uv, "3.13t")
    if interpreter is None:
        skip("CPython 3.13t cannot be had")
        return
    assert sources_refuse(uv, interpreter), "a free-threaded Python is not told why the package cannot be built"
    print("the sources refuse CPython 3.13t")


main()
