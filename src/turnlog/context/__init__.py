"""Entries in, request out, pure: sections and levels of detail, folds, pairing, budget, tokens."""

from ._lane import ContextStats, ModelContext
from ._options import ContextOptions
from ._projection import Projection

__all__ = [
    "ContextOptions",
    "ContextStats",
    "ModelContext",
    "Projection",
]
