"""Structured logs by category, switched on by ``TURNLOG_DEBUG=history,context,…``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable


def debug_categories() -> frozenset[str]:
    return frozenset(part.strip() for part in os.environ.get("TURNLOG_DEBUG", "").split(",") if part.strip())


def show_logs(categories: Iterable[str]) -> None:
    """Write the log lines of these categories to stderr; ``all`` means every one."""
    _shown.update(categories)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("turnlog."):
            get_logger(name.removeprefix("turnlog."))


_shown: set[str] = set()


def get_logger(category: str) -> logging.Logger:
    """The logger ``turnlog.CATEGORY``; it writes to stderr when the category is switched on."""
    logger = logging.getLogger(f"turnlog.{category}")
    wanted = debug_categories() | _shown
    if (category in wanted or "all" in wanted) and not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    return logger
