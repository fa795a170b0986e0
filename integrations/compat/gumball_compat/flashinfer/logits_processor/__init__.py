"""FlashInfer's `logits_processor` of release 0.7: pipes of processors, checked, then fused, over gumball's operators.

::

    pipe = LogitsPipe([Temperature(), Softmax(), TopK(), TopP(), Sample()])
    tokens = pipe(logits, temperature=0.8, top_k=50, top_p=0.9, generator=generator)

The way of a pipe: processors are what the caller names (:mod:`.processors`); each becomes an operator for the type of
tensor that comes before it (:mod:`.legalization`, :mod:`.operators`, :mod:`.types`); what may not be is refused
(:mod:`.validators`); neighbours that have an operator together become it (:mod:`.fusion_rules`, :mod:`.compiler`); and
:mod:`.pipeline` runs them. With and without fusion the result is the same up to rounding; but for `joint_topk_topp`,
which only the fused operator knows, as in FlashInfer.
"""

from .compiler import Compiler, compile_pipeline
from .fusion_rules import FusionRule
from .legalization import LegalizationError, legalize_processors
from .op import Op, ParameterizedOp
from .pipeline import LogitsPipe
from .processors import LogitsProcessor, MinP, Sample, Softmax, Temperature, TopK, TopP
from .types import TaggedTensor, TensorType
from .validators import CompileError

__all__ = [
    "CompileError",
    "Compiler",
    "FusionRule",
    "LegalizationError",
    "LogitsPipe",
    "LogitsProcessor",
    "MinP",
    "Op",
    "ParameterizedOp",
    "Sample",
    "Softmax",
    "TaggedTensor",
    "Temperature",
    "TensorType",
    "TopK",
    "TopP",
    "compile_pipeline",
    "legalize_processors",
]
