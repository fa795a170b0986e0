"""Writes what the released artefacts are made of, as CycloneDX 1.6 in JSON: ``python3 ci/lib/sbom.py``.

Components are the crates that the published members, the C library and the Python package are built of on this platform, by
the lock file; crates that only tests and build scripts' tests need are left out. With ``--private`` it names the members that do not
go to the registry.
"""

import json
import subprocess
import sys

# Members that are no crates of the registry, but artefacts of their own.
ARTEFACTS = ("gumball-c", "gumball-python")


def metadata() -> dict:
    host = next(
        line.removeprefix("host: ")
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host]
    return json.loads(subprocess.check_output(command, text=True))


def purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, checksums: dict[tuple[str, str], str]) -> dict:
    made = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["description"]:
        made["description"] = package["description"].strip()
    if package["license"]:
        # Before SPDX had expressions, cargo took a slash for "or".
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return made


def locked(text: str) -> dict[tuple[str, str], str]:
    """Returns the checksums of the lock file by name and version."""
    found = {}
    for entry in text.split("[[package]]")[1:]:
        fields = dict(line.split(" = ", 1) for line in entry.splitlines() if " = " in line and line[0].isalpha())
        if "checksum" in fields:
            found[fields["name"].strip('"'), fields["version"].strip('"')] = fields["checksum"].strip('"')
    return found


def bill() -> dict:
    data = metadata()
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}

    def needed(identity: str) -> list[str]:
        """What a package is built of; not what its tests need besides."""
        return [
            dep["pkg"] for dep in nodes[identity]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        ]

    members = [packages[identity] for identity in data["workspace_members"]]
    roots = [package for package in members if package["publish"] != [] or package["name"] in ARTEFACTS]
    reached, ahead = set(), [package["id"] for package in roots]
    while ahead:
        identity = ahead.pop()
        if identity not in reached:
            reached.add(identity)
            ahead.extend(needed(identity))
    with open(f"{data['workspace_root']}/Cargo.lock", encoding="utf-8") as file:
        checksums = locked(file.read())
    own = {
        "type": "application",
        "bom-ref": "gumball",
        "name": "gumball",
        "version": roots[0]["version"],
        "licenses": [{"expression": roots[0]["license"]}],
    }
    order = sorted(reached, key=lambda identity: purl(packages[identity]))
    depends = [{"ref": "gumball", "dependsOn": sorted(purl(package) for package in roots)}]
    depends += [
        {"ref": purl(packages[identity]), "dependsOn": sorted({purl(packages[other]) for other in needed(identity)})}
        for identity in order
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [component(packages[identity], checksums) for identity in order],
        "dependencies": depends,
    }


def private() -> list[str]:
    data = metadata()
    return [package["name"] for package in data["packages"] if package["source"] is None and package["publish"] == []]


if __name__ == "__main__":
    print(" ".join(private()) if sys.argv[1:] == ["--private"] else json.dumps(bill(), indent=1))
