"""What transformers loads for `custom_generate=` this folder: it calls `generate` with the arguments of `model.generate`."""

from gumball_transformers import generate

__all__ = ["generate"]
