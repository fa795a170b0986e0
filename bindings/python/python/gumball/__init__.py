"""The last step of a language model: logits in, the next token out, the same bits on every machine.

=================================  ==================================================================
to do                              use
=================================  ==================================================================
decode one sequence                :class:`Sampler`
decode a batch, on CPU or GPU      :class:`Pool`
go from hidden states to tokens    :class:`Head`, :class:`DeviceHead`, :class:`Hidden`
say how tokens are chosen          :class:`SamplingParams` and its parts
move a sequence elsewhere          :class:`State`, :meth:`Pool.resume`
seeds for rollouts of a run        :func:`prompt_seed`, :func:`sample_seed`
mark texts, and find marked ones   :class:`Watermark`, :func:`add_watermark_keys`, :func:`detect`
softmax, renormalise, mask, draw   :mod:`gumball.operators`, whose functions are here too
let ``model.generate`` draw        the package gumball-transformers
other packages' names              the package gumball-compat
stand in a torch.compile graph     :mod:`gumball.torch`
write a plug-in of an engine       :mod:`gumball.plugins`
=================================  ==================================================================

Arrays go in as they are: numpy, torch on CPU and CUDA, CuPy, anything with ``__dlpack__``; float32, bfloat16 and float16; rows
may be strided. Importing this package imports neither numpy nor torch. A value outside its range is a ``ValueError`` that names
it, an object of another kind a ``TypeError``, and nothing was changed then.
"""

from . import operators, params, watermarks
from ._gumball import (
    Batch,
    CopyDrafts,
    DeviceArray,
    DeviceHead,
    Draft,
    DraftBatch,
    Drafts,
    Emitted,
    Graph,
    Head,
    Hidden,
    OnDevice,
    Outputs,
    Plan,
    Pool,
    Probabilities,
    RanksInfo,
    Receipt,
    Recorded,
    Sampler,
    Scored,
    Shorten,
    Step,
    Verify,
    __version__,
    add_watermark_keys,
    prompt_seed,
    sample_seed,
    verify_receipt,
)
from .errors import CallError, DeviceLostError, Error, InvalidTypeError, InvalidValueError, UnavailableError
from .operators import *  # noqa: F403
from .params import *  # noqa: F403
from .watermarks import *  # noqa: F403

__all__ = [
    "Batch",
    "CallError",
    "CopyDrafts",
    "DeviceArray",
    "DeviceHead",
    "DeviceLostError",
    "Draft",
    "DraftBatch",
    "Drafts",
    "Emitted",
    "Error",
    "Graph",
    "Head",
    "Hidden",
    "InvalidTypeError",
    "InvalidValueError",
    "OnDevice",
    "Outputs",
    "Plan",
    "Pool",
    "Probabilities",
    "RanksInfo",
    "Receipt",
    "Recorded",
    "Sampler",
    "Scored",
    "Shorten",
    "Step",
    "UnavailableError",
    "Verify",
    "__version__",
    "add_watermark_keys",
    "prompt_seed",
    "sample_seed",
    "verify_receipt",
]
__all__ += operators.__all__ + params.__all__ + watermarks.__all__
