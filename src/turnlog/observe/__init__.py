"""Structured logs, and logs of sessions as traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy
from ._logs import debug_categories as debug_categories
from ._logs import get_logger as get_logger
from ._logs import show_logs as show_logs

if TYPE_CHECKING:
    from ._otel import OpenTelemetry as OpenTelemetry
    from ._spans import Span as Span
    from ._spans import SpanEvent as SpanEvent
    from ._spans import SpanReader as SpanReader
    from ._spans import to_otlp as to_otlp
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {"._otel": "OpenTelemetry", "._spans": "Span SpanEvent SpanReader to_otlp"},
        "debug_categories",
        "get_logger",
        "show_logs",
    )
