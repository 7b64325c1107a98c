"""How many tokens a wire takes: bytes over a ratio that corrects itself by what the provider reports."""

from __future__ import annotations

from typing import Any, cast

from turnlog.contract import (
    ImagePart,
    Message,
    ModelCallStartedEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallPart,
    ToolResultPart,
)

from ._options import ContextOptions

_LIMITS = (0.2, 5.0)
"""How far the correction may go: beyond that the report is about something else than our text."""


class TokenMeter:
    """A fold over calls and answers, one correction per model.

    An estimate is recorded before each call and the provider's count after it; their quotient corrects
    the next estimate, so the error never grows beyond what was added since the last answer.
    """

    __slots__ = ("_factors", "_options", "_waiting")

    def __init__(self, options: ContextOptions) -> None:
        self._options = options
        self._factors: dict[ModelInvocationDescriptor, float] = {}
        self._waiting: tuple[ModelInvocationDescriptor, int] | None = None

    def call_started(self, entry: ModelCallStartedEntry) -> None:
        estimate = entry.payload.estimated_tokens
        self._waiting = (entry.payload.target, estimate) if estimate else None

    def call_answered(self, entry: ModelOutputEntry) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting[0] != entry.payload.invocation:
            return
        reported = reported_input(entry.payload.message.meta)
        if reported:
            target, estimate = waiting
            factor = self.factor(target) * reported / estimate
            self._factors[target] = min(max(factor, _LIMITS[0]), _LIMITS[1])

    def factor(self, target: ModelInvocationDescriptor | None) -> float:
        if target is None:
            return next(reversed(self._factors.values()), 1.0)
        return self._factors.get(target, 1.0)

    def tokens(self, weight: float, target: ModelInvocationDescriptor | None = None) -> int:
        return int(weight / self._options.bytes_per_token * self.factor(target))

    def weight(self, tokens: float, target: ModelInvocationDescriptor | None = None) -> int:
        """The bytes that ``tokens`` allow."""
        return int(tokens * self._options.bytes_per_token / self.factor(target))


def reported_input(meta: dict[str, Any] | None) -> int:
    """The input tokens that an answer's usage reports; 0 when it does not."""
    usage: Any = meta.get("usage") if meta else None
    if not isinstance(usage, dict):
        return 0
    counts = cast("dict[str, Any]", usage)
    found = counts.get("inputTokens") or counts.get("input_tokens") or 0
    return found if isinstance(found, int) and found > 0 else 0


def weigh(message: Message, size: int, options: ContextOptions) -> int:
    """``size`` bytes of wire as bytes of text: a picture counts by its tokens, a call's arguments once."""
    for part in message.parts:
        if type(part) is ToolCallPart:
            size -= len(part.payload.raw_args_text)
        elif type(part) is ImagePart:
            size += _image_weight(part, options)
        elif type(part) is ToolResultPart and isinstance(part.payload.content, list):
            for inner in part.payload.content:
                if type(inner) is ImagePart:
                    size += _image_weight(inner, options)
    return size


def _image_weight(part: ImagePart, options: ContextOptions) -> int:
    return int(options.image_tokens * options.bytes_per_token) - len(part.payload.data or "")
