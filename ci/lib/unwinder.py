"""Looks at the library in a wheel: whether it leaves unwinding to the system's libgcc_s. ``python3 ci/lib/unwinder.py WHEEL``.

A library that brings its own unwinder ends the process when a thread is ended inside it; see ci/lib/wheel.
"""

import struct
import sys
import zipfile


def dynamic(library: bytes) -> tuple[list[str], dict[str, bool]]:
    """The names of the libraries that a 64-bit ELF library needs, and of its dynamic symbols, with whether each is defined."""
    assert library[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF library"
    start, size, count = struct.unpack_from("<Q", library, 40)[0], *struct.unpack_from("<HH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, start + size * place) for place in range(count)]

    def entries(kind: int, layout: str) -> list[tuple[tuple[int, ...], bytes]]:
        found = []
        for section in sections:
            if section[1] == kind:
                names = sections[section[6]]
                texts = library[names[4] : names[4] + names[5]]
                part = library[section[4] : section[4] + section[5]]
                found += [(entry, texts) for entry in struct.iter_unpack(layout, part)]
        return found

    def text(texts: bytes, place: int) -> str:
        return texts[place : texts.index(b"\0", place)].decode()

    needed = [text(texts, value) for (tag, value), texts in entries(6, "<QQ") if tag == 1]
    symbols = {text(texts, entry[0]): entry[3] != 0 for entry, texts in entries(11, "<IBBHQQ")}
    return needed, symbols


def main(wheel: str) -> int:
    with zipfile.ZipFile(wheel) as members:
        name = next(name for name in members.namelist() if name.endswith(".so"))
        needed, symbols = dynamic(members.read(name))
    undefined = sorted(name for name, defined in symbols.items() if name.startswith("_Unwind_") and not defined)
    if "libgcc_s.so.1" in needed and "_Unwind_Resume" in undefined:
        print(f"{name} unwinds by libgcc_s.so.1: {', '.join(undefined)}")
        return 0
    print(
        f"{name} brings an unwinder of its own: it needs {', '.join(needed)} and takes {undefined or 'nothing'} from them"
    )
    return 1


sys.exit(main(sys.argv[1]))
