"""A provider's refusal, over HTTP or in a running stream, as one of our errors; and how long to wait."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from turnlog.contract import AgentError, scrub

from ._fault_table import RULES, Fault

_MESSAGE_LIMIT = 600

_ADVICE: Mapping[str, str] = {
    "ModelAuthError": "check the API key and what it may do",
    "ModelQuotaExceeded": "check plan, credit and billing at the provider",
    "ModelNotFound": "check the model's name, and base_url",
    "ModelContextOverflow": "the prompt must shrink, or max_tokens where it counts too",
    "ModelContentFiltered": "the provider's policy withheld it",
    "ModelBadRequest": "the request must change before it can succeed",
}


def map_fault(
    status: int,
    headers: Mapping[str, str],
    body: bytes | str,
    provider: str = "",
    *,
    now: float | None = None,
) -> AgentError:
    """The error that an HTTP answer with ``status`` stands for.

    ``headers`` are looked up in lower case. ``provider`` is named in the message. ``now`` is the time in
    seconds since 1970 that dates in Retry-After are measured from; the clock's when absent.
    """
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    found = _parse(text)
    amazon = headers.get("x-amzn-errortype", "").partition(":")[0]
    fault = _reduce(found, status, amazon)
    if not fault.message:
        fault = fault._replace(message=_plain(text))
    return _error(fault, found, headers, provider, now, f"answered {status}", headers.get("location"))


def map_stream_fault(
    error: object, provider: str = "", *, status: int | None = None, kind: str = "", now: float | None = None
) -> AgentError:
    """The error that an object in a running stream stands for, ``{"error": …}`` or what is inside it.

    ``kind`` is the name of the event or frame that brought it, when that says something.
    """
    fault = _reduce(error, status, kind)
    if fault.status is None:
        numbers = [int(word) for word in fault.words if word.isdigit() and 400 <= int(word) < 600]
        fault = fault._replace(status=numbers[0] if numbers else None)
    return _error(fault, error, {}, provider, now, "broke off the answer", None)


def classify(fault: Fault) -> tuple[str, bool | None]:
    """(code, retryable when it differs from the code's own) of a reduced fault."""
    for rule in RULES:
        if rule.fits(fault):
            return rule.code, rule.retryable
    return "ModelUnknownError", None


def _error(
    fault: Fault,
    raw: object,
    headers: Mapping[str, str],
    provider: str,
    now: float | None,
    did: str,
    location: str | None,
) -> AgentError:
    code, retryable = classify(fault)
    wait = retry_after_of(headers, raw, fault.message, now)
    if code == "ModelBadRequest" and headers.get("x-should-retry") == "true":
        retryable = True
    named = next((word for word in fault.words if not word.isdigit()), "")
    said = scrub(fault.message)[:_MESSAGE_LIMIT] or "no explanation"
    if location and fault.status and fault.status < 400:
        said = f"a redirect to {scrub(location)}, which is not followed; set base_url to where it points"
    advice = None if retryable else _ADVICE.get(code)
    text = f"{provider or 'the server'} {did}{f' ({named})' if named else ''}: {said}"
    if wait:
        text = f"{text.rstrip('.')}; it asks to wait {in_words(wait)}"
    meta: dict[str, Any] = {}
    if fault.status is not None:
        meta["status"] = fault.status
    if named:
        meta["provider_code"] = scrub(named)[:100]
    if wait is not None:
        meta["retry_after"] = wait
    return AgentError(code, f"{text} [{advice}]" if advice else text, retryable=retryable, meta=meta)


def _parse(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _reduce(found: object, status: int | None, kind: str = "") -> Fault:
    """Find type, code and message in whichever shape they come."""
    words: list[str] = [kind] if kind else []
    texts: list[str] = []
    _collect(found, words, texts, 0)
    lowered = tuple(dict.fromkeys(word.strip().lower() for word in words if word))
    return Fault(status, lowered, " · ".join(dict.fromkeys(text for text in texts if text)))


_WORD_KEYS = ("code", "type", "status", "status_code", "reason", "__type", "error_type", "name", "quotaId")
_TEXT_KEYS = ("message", "Message", "msg", "detail", "error_description", "error_msg", "originalMessage")
_INNER_KEYS = (
    "error",
    "errors",
    "details",
    "detail",
    "innererror",
    "metadata",
    "response",
    "violations",
    "raw",
)


def _collect(found: object, words: list[str], texts: list[str], depth: int) -> None:
    if depth > 5:
        return
    if isinstance(found, list):
        for item in cast("list[object]", found)[:10]:
            _collect(item, words, texts, depth + 1)
        return
    if isinstance(found, str):
        inner = _parse(found) if found[:1] in "{[" else None
        if inner is not None:
            _collect(inner, words, texts, depth + 1)
        else:
            texts.append(found)
        return
    if not isinstance(found, dict):
        return
    known = cast("dict[str, object]", found)
    # An error's own fields first, what wraps it last: `type: "error"` says nothing.
    inner_first = [known[key] for key in ("error",) if isinstance(known.get(key), dict | list)]
    for item in inner_first:
        _collect(item, words, texts, depth + 1)
    for key in _WORD_KEYS:
        value = known.get(key)
        if isinstance(value, str) and value.lower() not in ("error", "none", ""):
            words.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            words.append(str(value))
    for key in _TEXT_KEYS:
        value = known.get(key)
        if isinstance(value, str):
            texts.append(value)
    for key in _INNER_KEYS:
        value = known.get(key)
        if value is None or any(value is item for item in inner_first):
            continue
        nested = isinstance(value, dict | list)
        if nested or (isinstance(value, str) and key in ("error", "raw")):
            _collect(cast("object", value), words, texts, depth + 1)


def _plain(text: str) -> str:
    """A page or a line of text, as one short line."""
    shown = re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", " ", text[:20_000], flags=re.IGNORECASE | re.DOTALL)
    return " ".join(shown.split())[:300]


# ── how long a provider asks us to wait ──

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
