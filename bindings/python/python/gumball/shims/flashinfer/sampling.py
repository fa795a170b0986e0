"""`flashinfer.sampling`: the module :mod:`gumball.compat.flashinfer.sampling` itself."""

import sys

from gumball.compat.flashinfer import sampling

sys.modules[__name__] = sampling
