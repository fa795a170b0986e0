"""What transformers loads for `custom_generate=` this folder: it calls `generate` with the arguments of `model.generate`."""

from typing import Any

from gumball_transformers.entry import from_folder

__all__ = ["generate"]


def generate(inputs: Any = None, generation_config: Any = None, *, model: Any, **arguments: Any) -> Any:
    """See :func:`gumball_transformers.generate`."""
    return from_folder(model, generate, inputs=inputs, generation_config=generation_config, **arguments)
