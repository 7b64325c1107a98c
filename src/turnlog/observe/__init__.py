"""Structured logs."""

from ._logs import debug_categories, get_logger, show_logs

__all__ = ["debug_categories", "get_logger", "show_logs"]
