"""How long a provider asks us to wait, in whichever way it says so."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

_LONGEST = 7 * 24 * 3600.0
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_IN_WORDS = re.compile(
    r"(?:try again|retry|wait)(?: in| after)?:? "
    r"((?:\d+(?:\.\d+)?(?:ms|[dhms]))+|\d+(?:\.\d+)? ?(?:seconds?|minutes?))",
    re.IGNORECASE,
)
_RESETS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
)


def retry_after_of(
    headers: Mapping[str, str], body: object, message: str, now: float | None = None
) -> float | None:
    """Seconds to wait, or None when nothing says. The most exact statement wins, a zero only when alone."""
    moment = time.time() if now is None else now
    stated = (
        _scaled(headers.get("retry-after-ms"), 0.001),
        _moment(headers.get("retry-after"), moment),
        _retry_info(body, moment),
        _exhausted(headers, moment),
        _in_words(message),
    )
    waits = [wait for wait in stated if wait is not None and wait >= 0]
    found = next((wait for wait in waits if wait > 0), waits[0] if waits else None)
    return None if found is None else min(found, _LONGEST)


def in_words(seconds: float) -> str:
    """A wait as people say it: ``2 minutes``, ``1.5 seconds``."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}s"
    return "1 second" if seconds == 1 else f"{seconds:.3g} seconds"


def _scaled(text: str | None, unit: float) -> float | None:
    try:
        return float(text) * unit if text else None
    except ValueError:
        return None


def _moment(text: str | None, now: float) -> float | None:
    """Seconds from now: a number, a duration (``1m30.5s``), a date of HTTP or ISO, or a Unix time."""
    if not text:
        return None
    text = text.strip()
    number = _scaled(text, 1.0)
    if number is not None:
        if number > 1e12:
            return max(0.0, number / 1000 - now)
        return max(0.0, number - now) if number > 1e9 else number
    parts = _PART.findall(text)
    if parts and "".join(f"{count}{unit}" for count, unit in parts) == text:
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    try:
        date = datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)


def _exhausted(headers: Mapping[str, str], now: float) -> float | None:
    """The reset of whichever limit has nothing remaining; the latest when several have not."""
    waits = [
        wait
        for remaining, reset in _RESETS
        if headers.get(remaining, "").strip() in ("0", "0.0")
        and (wait := _moment(headers.get(reset), now)) is not None
    ]
    return max(waits, default=None)


def _retry_info(body: object, now: float, depth: int = 0) -> float | None:
    """Google's RetryInfo, OpenRouter's copied headers, ``retry_after`` in a body."""
    if depth > 5:
        return None
    if isinstance(body, list):
        for item in cast("list[object]", body)[:10]:
            if (found := _retry_info(item, now, depth + 1)) is not None:
                return found
        return None
    if not isinstance(body, dict):
        return None
    for key, value in cast("dict[str, object]", body).items():
        name = key.lower()
        if name in ("retrydelay", "retry_after", "retryafter", "retry_after_seconds", "x-ratelimit-reset"):
            if isinstance(value, str | int | float) and (found := _moment(str(value), now)) is not None:
                return found
        elif (found := _retry_info(value, now, depth + 1)) is not None:
            return found
    return None


def _in_words(message: str) -> float | None:
    found = _IN_WORDS.search(message)
    if not found:
        return None
    text = found.group(1)
    if text[-1].isdigit() or " " in text or text.endswith(("second", "seconds", "minute", "minutes")):
        number = re.match(r"[\d.]+", text)
        return float(number.group()) * (60 if "minute" in text else 1) if number else None
    return sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))
