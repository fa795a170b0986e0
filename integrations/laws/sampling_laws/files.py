"""Files at paths that users name: written as a whole, and only over plain files."""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile

__all__ = ["place", "write"]


def place(path: str) -> pathlib.Path:
    """Returns the path of a file to be written. Raises ValueError for one where a link, a folder, a pipe or a device lies, or in no folder."""
    found = pathlib.Path(path)
    if not found.parent.is_dir():
        raise ValueError(f"{path} is in no folder")
    if os.path.lexists(found) and not stat.S_ISREG(found.lstat().st_mode):
        raise ValueError(f"{path} is no plain file")
    return found


def write(path: pathlib.Path, text: str) -> None:
    """Writes a new file beside a path and renames it to that, so that a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o644)
        os.replace(name, place(str(path)))
    except BaseException:
        os.unlink(name)
        raise
