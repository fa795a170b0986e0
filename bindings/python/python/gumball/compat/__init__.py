"""Gumball's functions under the names of other packages, if the package gumball-compat is installed.

``import gumball.compat.flashinfer`` gives the module ``gumball_compat.flashinfer`` itself: each is loaded once, under either name. Nothing
of it lies here, so the two packages are installed, upgraded and removed one without the other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_REAL = "gumball_compat"

if importlib.util.find_spec(_REAL) is None:
    raise ModuleNotFoundError("gumball.compat is a package of its own: pip install gumball-compat", name=_REAL)

# A package, of which no folder has modules.
__path__ = []


class _Alias(MetaPathFinder, Loader):
    """Finds the modules of this package under their own names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        real = importlib.util.find_spec(_REAL + name.removeprefix(__name__))
        return None if real is None else ModuleSpec(name, self, loader_state=real)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.loader_state.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the other name's here.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


# First in the list: the finder of folders would load the files of gumball_compat a second time.
sys.meta_path.insert(0, _Alias())
