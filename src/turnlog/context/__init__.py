"""Entries in, request out, pure: sections and levels of detail, folds, pairing, budget, tokens."""

from ._attach import hints_section, input_sections, result_sections
from ._grains import Grains, extract_words, make_grains
from ._lane import ContextStats, ModelContext
from ._limits import LIMITS, ModelLimits, fold_threshold, lookup_limits, smallest_limits
from ._options import ContextOptions
from ._oversize import make_preview
from ._planner import FoldPlanner, FoldReason, plan_fold
from ._projection import Projection
from ._tokens import TokenMeter
from ._words import Vocabulary

__all__ = [
    "ContextOptions",
    "ContextStats",
    "FoldPlanner",
    "FoldReason",
    "Grains",
    "LIMITS",
    "ModelContext",
    "ModelLimits",
    "Projection",
    "TokenMeter",
    "Vocabulary",
    "extract_words",
    "fold_threshold",
    "hints_section",
    "input_sections",
    "lookup_limits",
    "make_grains",
    "make_preview",
    "plan_fold",
    "result_sections",
    "smallest_limits",
]
