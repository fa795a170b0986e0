"""The laws, in the order of their chapters."""

from . import distribution, extremes, filters, logprobs, penalties, seeds, speculation
from .book import LAWS, Law

__all__ = ["LAWS", "Law", "distribution", "extremes", "filters", "logprobs", "penalties", "seeds", "speculation"]

CHAPTERS = (
    "distribution",
    "greedy and extremes",
    "infinity and NaN",
    "filters",
    "masks and bias",
    "seeds",
    "penalties",
    "logprobs",
    "speculation",
)
LAWS.sort(key=lambda law: CHAPTERS.index(law.chapter))
