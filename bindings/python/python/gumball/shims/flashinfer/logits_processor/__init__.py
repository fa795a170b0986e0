"""`flashinfer.logits_processor`: the package :mod:`gumball.compat.flashinfer.logits_processor` itself."""

import sys

from gumball.compat.flashinfer import logits_processor
from gumball.compat.flashinfer.logits_processor import (
    compiler,
    fusion_rules,
    legalization,
    op,
    operators,
    pipeline,
    processors,
    types,
    validators,
)

for module in (compiler, fusion_rules, legalization, op, operators, pipeline, processors, types, validators):
    sys.modules[f"{__name__}.{module.__name__.rpartition('.')[2]}"] = module
sys.modules[__name__] = logits_processor
