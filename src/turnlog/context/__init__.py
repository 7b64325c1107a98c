"""Entries in, request out, pure: sections and levels of detail, folds, pairing, budget, tokens."""

from ._attach import hints_section, input_sections, preview_result, result_sections
from ._draft import FoldDraft, FoldReason
from ._explain import ContextDiff, ContextView, GaugePart, diff_contexts, explain, gauge
from ._grains import Grains, extract_words, make_grains
from ._lane import ContextStats, ModelContext
from ._limits import ModelLimits, WindowOf, fold_threshold, lookup_limits, smallest_limits
from ._manager import (
    ContextBuildResult,
    ContextInput,
    ContextManager,
    ContextUpdateInput,
    ContextUpdateResult,
    ProjectionContext,
    Screen,
)
from ._options import ContextOptions
from ._oversize import make_preview
from ._pictures import PictureCache
from ._planner import MAX_OVERFLOW_STEPS, FoldPlanner, plan_fold
from ._projection import Projection
from ._recall import recall_text
from ._search import recall_search
from ._tokens import TokenMeter
from ._words import Vocabulary

__all__ = [
    "MAX_OVERFLOW_STEPS",
    "ContextBuildResult",
    "ContextDiff",
    "ContextInput",
    "ContextManager",
    "ContextOptions",
    "ContextStats",
    "ContextUpdateInput",
    "ContextUpdateResult",
    "ContextView",
    "FoldDraft",
    "FoldPlanner",
    "FoldReason",
    "GaugePart",
    "Grains",
    "ModelContext",
    "ModelLimits",
    "PictureCache",
    "Projection",
    "ProjectionContext",
    "Screen",
    "TokenMeter",
    "Vocabulary",
    "WindowOf",
    "diff_contexts",
    "explain",
    "extract_words",
    "fold_threshold",
    "gauge",
    "hints_section",
    "input_sections",
    "lookup_limits",
    "make_grains",
    "make_preview",
    "plan_fold",
    "preview_result",
    "recall_search",
    "recall_text",
    "result_sections",
    "smallest_limits",
]
