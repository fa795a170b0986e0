"""Looks at the library in a wheel for macOS, which nothing here can load. ``python3 ci/lib/macho.py WHEEL``.

The wheel's tags say abi3 and macOS 11 on arm64; the library is built for these, has not changed since it was signed, and binds names of libSystem
alone, and names of Python's, which are looked for in the program that loads it.
"""

import hashlib
import struct
import sys
import zipfile
from collections.abc import Iterator

LIBRARY = "gumball/_gumball.abi3.so"
SYSTEM = "/usr/lib/libSystem.B.dylib"
# Rust's standard library asks for these two of the system's as well, and takes no name from them.
UNUSED = {"/usr/lib/libiconv.2.dylib", "/usr/lib/libcharset.1.dylib"}
# Of mach-o/loader.h.
HEADER, ARM64, DYNAMIC = 0xFEEDFACF, 0x0100000C, (6, 8)
LOAD_DYLIB, SIGNATURE, BUILD_VERSION, BINDINGS = 0xC, 0x1D, 0x32, 0x80000022
MACOS, IN_ANY = 1, -2


def commands(library: bytes) -> Iterator[tuple[int, bytes]]:
    """The load commands of a library for arm64: the number of each, and its bytes."""
    magic, cpu, _, kind, count = struct.unpack_from("<5I", library)
    assert (magic, cpu) == (HEADER, ARM64) and kind in DYNAMIC, "not a library for macOS on arm64"
    place = 32
    for _ in range(count):
        number, size = struct.unpack_from("<2I", library, place)
        yield number, library[place : place + size]
        place += size


def bound(code: bytes) -> Iterator[tuple[str, int]]:
    """The names that a table of bindings binds, each with the number of the library that has it."""
    owner, name, place = 0, "", 0
    while place < len(code):
        what, value = code[place] & 0xF0, code[place] & 0x0F
        place += 1
        if what == 0x10:
            owner = value
        elif what == 0x30:
            owner = value - 16 if value else 0
        elif what == 0x40:
            end = code.index(b"\0", place)
            name, place = code[place:end].decode(), end + 1
        elif what >= 0x90:
            yield name, owner
        assert what != 0x20, "more than fifteen libraries"
        # Numbers of any length follow: an addend, an offset, a count and a distance.
        for _ in range({0x60: 1, 0x70: 1, 0x80: 1, 0xA0: 1, 0xC0: 2}.get(what, 0)):
            while code[place] & 0x80:
                place += 1
            place += 1


def signed(library: bytes, place: int) -> bool:
    """Whether the signature that lies there has the SHA-256 of each page before it."""
    directory = place + struct.unpack_from(">I", library, place + 16)[0]
    hashes, pages, end, page = struct.unpack_from(">I8x2I3xB", library, directory + 16)
    wanted = (hashlib.sha256(library[n << page : min(n + 1 << page, end)]).digest() for n in range(pages))
    return end == place and pages == -(-end >> page) and b"".join(wanted) == library[directory + hashes :][: 32 * pages]


def main(wheel: str) -> None:
    assert wheel.endswith("-cp310-abi3-macosx_11_0_arm64.whl"), f"{wheel} has other tags"
    with zipfile.ZipFile(wheel) as members:
        library = members.read(LIBRARY)
        kernels = [name for name in members.namelist() if name.endswith(".bin")]
    assert not kernels, f"carries kernels for GPUs, which no Mac can run: {kernels}"
    found = list(commands(library))
    platform, least = next(struct.unpack_from("<2I", body, 8) for number, body in found if number == BUILD_VERSION)
    assert (platform, least) == (MACOS, 11 << 16), f"built for platform {platform}, version {least:#x}"
    libraries = [body[24:].split(b"\0")[0].decode() for number, body in found if number == LOAD_DYLIB]
    assert libraries[0] == SYSTEM and UNUSED.issuperset(libraries[1:]), f"needs {libraries}"
    signatures = [struct.unpack_from("<I", body, 8)[0] for number, body in found if number == SIGNATURE]
    assert signatures, "not signed, and arm64 loads nothing without a signature"
    assert signed(library, signatures[0]), "changed after it was signed"
    tables = next(struct.unpack_from("<6I", body, 16) for number, body in found if number == BINDINGS)
    names = {one for start, size in zip(tables[::2], tables[1::2]) for one in bound(library[start : start + size])}
    python = sorted(name for name, owner in names if owner == IN_ANY)
    other = sorted(name for name, owner in names if owner not in (1, IN_ANY))
    assert python and all(name.startswith(("_Py", "__Py")) for name in python), f"in any library: {python}"
    assert not other, f"of other libraries: {other}"
    print(f"{LIBRARY} is for macOS 11 on arm64: {len(names) - len(python)} names of {SYSTEM}, {len(python)} of Python")


main(sys.argv[1])
