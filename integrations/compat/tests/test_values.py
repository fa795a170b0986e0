"""Values of all packages: they compare and hash, and never by an array's truth value."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

PACKAGES = ("gumball", "gumball_compat", "sampling_laws", "gumball_sglang", "gumball_tokenspeed", "gumball_transformers", "gumball_vllm")  # fmt: skip
HOLDS_ARRAYS = ("Tensor", "Sequence", "tuple", "ndarray", "Mapping")


def modules(package: str) -> Iterator[Any]:
    """The modules of a package that can be imported here."""
    found = pytest.importorskip(package)
    yield found
    for module in pkgutil.walk_packages(found.__path__, f"{package}.", onerror=lambda _: None):
        if not module.name.endswith("__main__"):
            try:
                yield importlib.import_module(module.name)
            except (ImportError, AttributeError):
                continue


@pytest.mark.parametrize("package", PACKAGES)
def test_values_that_hold_arrays_compare(package: str) -> None:
    kinds = {kind for module in modules(package) for kind in vars(module).values() if isinstance(kind, type)}
    kinds = {kind for kind in kinds if kind.__module__.startswith(package) and dataclasses.is_dataclass(kind)}
    for kind in kinds:
        fields = dataclasses.fields(kind)
        needed = {field.name: 0.5 for field in fields if field.default is field.default_factory is dataclasses.MISSING}
        for field in fields:
            if not any(name in str(field.type) for name in HOLDS_ARRAYS) or "Mapping" in str(field.type):
                continue
            try:
                one, two = (kind(**needed | {field.name: np.arange(3)}) for _ in range(2))
            except (TypeError, ValueError):
                continue
            assert isinstance(one == two, bool) and one == one, f"{kind.__name__}.{field.name}"
