"""Prices of runs, and structured logs."""

from ._logs import debug_categories, get_logger, show_logs
from ._prices import cost_of

__all__ = ["cost_of", "debug_categories", "get_logger", "show_logs"]
