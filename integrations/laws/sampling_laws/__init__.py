"""Does your sampler sample? Laws of next-token sampling, and what engines make of them."""

from .engine import ENGINES, FEATURES, Drawn, Engine, Request, engine
from .laws import LAWS, Law
from .session import Broken, NotApplicable, Session

__version__ = "0.1.0"
__all__ = [
    "ENGINES",
    "FEATURES",
    "LAWS",
    "Broken",
    "Drawn",
    "Engine",
    "Law",
    "NotApplicable",
    "Request",
    "Session",
    "engine",
]
