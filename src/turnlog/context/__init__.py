"""Entries in, request out, pure: sections and levels of detail, folds, pairing, budget, tokens."""

from ._explain import CallStep, ContextDiff, ContextView, diff_contexts, explain, explain_all, gauge
from ._lane import ContextStats, ModelContext, PictureCache
from ._manager import (
    ContextBuildResult,
    ContextInput,
    ContextManager,
    ContextUpdateInput,
    ContextUpdateResult,
    ProjectionContext,
    Screen,
    input_sections,
    preview_result,
    result_sections,
)
from ._options import (
    CACHE_LIFETIME,
    ContextOptions,
    ModelLimits,
    fold_threshold,
    lookup_limits,
    smallest_limits,
)
from ._planner import MAX_OVERFLOW_STEPS, FoldPlanner, plan_fold
from ._projection import Projection
from ._render import Grains, Vocabulary, extract_words, make_grains
from ._search import recall_search, recall_text
from ._shrink import FoldDraft

__all__ = [
    "CACHE_LIFETIME",
    "CallStep",
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
    "Grains",
    "ModelContext",
    "ModelLimits",
    "PictureCache",
    "Projection",
    "ProjectionContext",
    "Screen",
    "Vocabulary",
    "diff_contexts",
    "explain",
    "explain_all",
    "extract_words",
    "fold_threshold",
    "gauge",
    "input_sections",
    "lookup_limits",
    "make_grains",
    "plan_fold",
    "preview_result",
    "recall_search",
    "recall_text",
    "result_sections",
    "smallest_limits",
]
