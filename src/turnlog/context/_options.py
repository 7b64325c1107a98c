"""Every number the room uses, in one value; what a model allows; and how many tokens a wire takes. All limits
are tokens of one estimator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, cast

from turnlog.contract import (
    PDF,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallPart,
    ToolResultPart,
    Value,
    model_facts,
)

CACHE_LIFETIME = 300.0
"""Seconds after which a provider's prompt cache is taken to be cold."""


class ContextOptions(Value, frozen=True, kw_only=True):
    """How large a context may grow and how it shrinks.

    ``window`` and ``price_step`` override the table; ``fold_at`` is the ceiling that holds on any model.
    ``preview_at`` is 2,500 where it is not given, less in a small window. Shares are of the fold threshold H,
    except ``window_share`` and ``price_share``. ``recap_instructions`` tell the model what a recap has to
    keep; ``recap_wait`` is how many seconds one is waited for when a prompt did not fit.
    """

    window: int | None = None
    price_step: int | None = None
    fold_at: int = 120_000
    window_share: float = 0.75
    price_share: float = 0.95
    cold_share: float = 0.6
    recap_share: float = 0.6
    recap_instructions: str | None = None
    recap_wait: float = 20.0
    turn_end_share: float = 0.9
    target_share: float = 0.5
    tail_share: float = 0.2
    merge_share: float = 0.3
    min_freed_share: float = 0.15
    min_freed_tokens: int = 8_000
    user_cap: int = 2_000
    preview_at: int | None = None
    bytes_per_token: float = 3.45
    image_tokens: int = 1_500
    fold: bool = True

    def __post_init__(self) -> None:
        for name in ("window", "price_step", "fold_at", "user_cap", "preview_at", "image_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AgentError("ConfigInvalid", f"context.{name} is {value}; it counts tokens, at least 1")
        for name in (
            "window_share",
            "price_share",
            "cold_share",
            "recap_share",
            "target_share",
            "tail_share",
        ):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise AgentError(
                    "ConfigInvalid", f"context.{name} is {value}; it is a share, above 0 up to 1"
                )
        if not 0 <= self.recap_wait <= 600:
            raise AgentError(
                "ConfigInvalid", f"context.recap_wait is {self.recap_wait}; it may be 0 to 600 seconds"
            )
        if self.tail_share >= self.target_share:
            raise AgentError(
                "ConfigInvalid",
                f"context.tail_share {self.tail_share} is not below target_share {self.target_share}; "
                "the kept tail has to fit into what a fold leaves",
            )
        if self.bytes_per_token <= 0:
            raise AgentError("ConfigInvalid", f"context.bytes_per_token is {self.bytes_per_token}")


WindowOf: TypeAlias = Callable[[ModelInvocationDescriptor], "int | None"]
"""A model's own word on its window, in tokens; None where it has none."""


class ModelLimits(NamedTuple):
    """``window`` in tokens; above ``price_step`` the provider charges more for all of them."""

    window: int | None = None
    price_step: int | None = None


def lookup_limits(model: str) -> ModelLimits:
    """The limits of a model by name; both unknown when the table does not hold it."""
    facts = model_facts(model)
    return ModelLimits(facts.window, facts.price_step)


def smallest_limits(
    options: ContextOptions,
    targets: Iterable[ModelInvocationDescriptor],
    window_of: WindowOf | None = None,
) -> ModelLimits:
    """What holds for all of these models at once; what the options say comes first, then what ``window_of``
    knows of a model, then the table."""
    windows: list[int] = []
    steps: list[int] = []
    for target in targets:
        limits = lookup_limits(target.model)
        window = (window_of(target) if window_of is not None else None) or limits.window
        if window is not None:
            windows.append(window)
        if limits.price_step is not None:
            steps.append(limits.price_step)
    return ModelLimits(
        options.window or min(windows, default=None), options.price_step or min(steps, default=None)
    )


def fold_threshold(options: ContextOptions, limits: ModelLimits) -> int:
    """H: the tokens at which a context is folded."""
    bounds: list[float] = [options.fold_at]
    if limits.window is not None:
        bounds.append(options.window_share * limits.window)
    if limits.price_step is not None:
        bounds.append(options.price_share * limits.price_step)
    return int(min(bounds))


# ── tokens: bytes over a ratio that corrects itself by what the provider reports ──

_CORRECTION = (0.2, 5.0)
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
            self._factors[target] = min(max(factor, _CORRECTION[0]), _CORRECTION[1])

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
        elif type(part) is ImagePart or type(part) is FileRefPart:
            size += _weight_of(part, options)
        elif type(part) is ToolResultPart and isinstance(part.payload.content, list):
            for inner in part.payload.content:
                if type(inner) is ImagePart or type(inner) is FileRefPart:
                    size += _weight_of(inner, options)
    return size


def _weight_of(part: ImagePart | FileRefPart, options: ContextOptions) -> int:
    """What a provider counts for a picture or a file, less the data in the message. A PDF is pages, each as
    much as a picture; their number follows from its size."""
    file, sent = part.payload, len(part.payload.data or "")
    if isinstance(file, FileRef):
        if file.data is None and file.url is None:
            return 0
        if file.mime_type != PDF:
            return (file.size or 0) - sent
    pages = 1 if isinstance(file, Image) else 1 + (file.size or 0) // _PDF_PAGE
    return int(pages * options.image_tokens * options.bytes_per_token) - sent


_PDF_PAGE = 50_000
"""Bytes of a page, roughly: text takes less, a scan more."""


# ── windows that nobody stated, learned from the prompts that a provider refused, or told by a server ──

_FIGURE = r"(\d(?:[\d,_]*\d)?)"
_LIMITS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"[<>]=?\s*{_FIGURE}",
        rf"\[\s*\d+\s*,\s*{_FIGURE}\s*\]",
        rf"(?:less than|at most|n_ctx)\W{{1,4}}{_FIGURE}",
        rf"(?:maximum|max|limit|context[ _](?:length|window|size))\b[^\d.;]{{0,50}}?{_FIGURE}",
        rf"{_FIGURE}\s*(?:tokens?\s*)?(?:maximum|max|limit|allowed)\b",
    )
)
_PLAUSIBLE = range(500, 20_000_000)


class Refusal(NamedTuple):
    """The most a model takes: ``tokens`` in its own count, ``weight`` in our bytes; None where unknown."""

    tokens: int | None
    weight: int | None


class LearnedWindows:
    """A fold over calls and refusals. The smallest that was learned of a model holds, and of what its server
    told the last word."""

    __slots__ = ("_asked", "_found", "_told")

    def __init__(self) -> None:
        self._found: dict[ModelInvocationDescriptor, Refusal] = {}
        self._asked: tuple[ModelInvocationDescriptor, int] | None = None
        self._told: dict[ModelInvocationDescriptor, int] = {}

    def call_started(self, entry: ModelCallStartedEntry, meter: TokenMeter) -> None:
        target, estimate = entry.payload.target, entry.payload.estimated_tokens
        if entry.payload.window is not None:
            self._told[target] = entry.payload.window
        self._asked = (target, meter.weight(estimate, target) if estimate else 0)

    def call_failed(self, entry: ModelCallFailedEntry) -> None:
        error, asked = entry.payload.error, self._asked
        if asked is None or error.code != "ModelContextOverflow":
            return
        target, weight = asked
        tokens, counted = read_figures(error.message)
        if tokens is not None and counted is not None:
            weight = int(weight * tokens / counted)
        before = self._found.get(target, Refusal(None, None))
        self._found[target] = Refusal(_least(before.tokens, tokens), _least(before.weight, weight or None))

    def window(self, targets: Iterable[ModelInvocationDescriptor], meter: TokenMeter) -> int | None:
        """The smallest window learned of these models, in tokens of the estimator."""
        found: list[int] = []
        for target in targets:
            refusal = self._found.get(target)
            if refusal is not None and refusal.tokens is not None:
                found.append(refusal.tokens)
            if refusal is not None and refusal.weight is not None:
                found.append(meter.tokens(refusal.weight, target))
            if target in self._told:
                found.append(self._told[target])
        return min(found, default=None)


def read_figures(message: str) -> tuple[int | None, int | None]:
    """The window that a refusal names, and the count of the refused prompt, where it names them."""
    for pattern in _LIMITS:
        for found in pattern.finditer(message):
            limit = _number(found.group(1))
            if limit in _PLAUSIBLE:
                larger = (number for number in map(_number, re.findall(_FIGURE, message)) if number > limit)
                return limit, next(larger, None)
    return None, None


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _least(left: int | None, right: int | None) -> int | None:
    return left if right is None or (left is not None and left < right) else right
