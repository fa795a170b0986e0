"""Lets ``model.generate`` of Hugging Face's transformers draw with Gumball.

::

    from gumball_transformers import generate

    ids = generate(model, SamplingParams(temperature=0.8, top_p=0.9, seed=7), **tokenizer(text, return_tensors="pt"))

`generate` is transformers' own with another loop, of greedy decoding, sampling and drafts. By transformers' own names it draws from
`model.generate` itself, which loads it from `FOLDER`::

    ids = model.generate(**inputs, do_sample=True, top_p=0.9, seed=7, custom_generate=FOLDER, trust_remote_code=True)

`replace_head` puts a `Head` in the place of a model's output layer. `generate` then draws from hidden states: an auto head
reads about half of the layer's weights for a token, a clustered one a part of them, approximately::

    with replace_head(model):
        ids = generate(model, SamplingParams(temperature=0.8, seed=7), **inputs)

What it takes of transformers' list of processors is in :mod:`.params`, and the rows of a call in :mod:`.sequences`. Importing this module imports torch and transformers.
"""

from __future__ import annotations

from pathlib import Path

from gumball.plugins.releases import warn_if_untried

from .entry import generate
from .heads import HeadLayer, ReplacedHead, replace_head
from .outputs import GumballEncoderDecoderOutput, GumballOutput
from .params import OUR_NAMES

__all__ = [
    "FOLDER",
    "OUR_NAMES",
    "TRIED",
    "GumballEncoderDecoderOutput",
    "GumballOutput",
    "HeadLayer",
    "ReplacedHead",
    "generate",
    "replace_head",
]

TRIED = ("5.19", "5.25")
"""The oldest release of transformers that this was tried with, and the first above those."""

warn_if_untried("gumball-transformers", ("transformers",), *TRIED)

FOLDER = str(Path(__file__).parent)
"""For `custom_generate` of transformers. The folder `custom_generate` in it may be copied beside a model's weights, too."""
