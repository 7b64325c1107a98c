"""What is known of Anthropic's models by name. The first pattern that fits decides."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Thinks = Literal["never", "when asked", "by default", "always"]


class ModelLimits(NamedTuple):
    max_output: int
    window: int | None
    thinks: Thinks


_TABLE: tuple[tuple[str, ModelLimits], ...] = (
    ("3-7-", ModelLimits(64_000, 200_000, "when asked")),
    ("3-5-", ModelLimits(8_192, 200_000, "never")),
    ("3-", ModelLimits(4_096, 200_000, "never")),
    (r"(opus|sonnet)-4-[6-9]", ModelLimits(128_000, 1_000_000, "when asked")),
    (r"(opus|sonnet|haiku)-4-5", ModelLimits(64_000, 200_000, "when asked")),
    ("opus-4", ModelLimits(32_000, 200_000, "when asked")),
    ("sonnet-4", ModelLimits(64_000, 200_000, "when asked")),
    (r"(fable|mythos)-|opus-5-[5-9]", ModelLimits(128_000, 1_000_000, "always")),
    (r"(opus|sonnet|haiku)-[5-9]", ModelLimits(128_000, 1_000_000, "by default")),
)
_ROWS = tuple((re.compile(rf"claude-{pattern}"), limits) for pattern, limits in _TABLE)
_UNKNOWN = ModelLimits(8_192, None, "when asked")

DEFAULT_MAX_TOKENS = 32_000
"""``max_tokens`` when nothing is configured and the model allows as much: only what is written is paid."""


def limits_of(model: str) -> ModelLimits:
    """``claude-…`` may stand anywhere in the name: clouds put a vendor or a region before it."""
    for pattern, limits in _ROWS:
        if pattern.search(model):
            return limits
    return _UNKNOWN
