"""Windows that nobody told us: learned from the prompts that a provider refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from turnlog.contract import ModelCallFailedEntry, ModelCallStartedEntry, ModelInvocationDescriptor

from ._tokens import TokenMeter

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
    """A fold over calls and refusals. The smallest that was learned of a model holds."""

    __slots__ = ("_asked", "_found")

    def __init__(self) -> None:
        self._found: dict[ModelInvocationDescriptor, Refusal] = {}
        self._asked: tuple[ModelInvocationDescriptor, int] | None = None

    def call_started(self, entry: ModelCallStartedEntry, meter: TokenMeter) -> None:
        target, estimate = entry.payload.target, entry.payload.estimated_tokens
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
