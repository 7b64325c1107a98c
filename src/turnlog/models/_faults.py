"""A provider's refusal, over HTTP or in the middle of a stream, as one of our errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from turnlog.contract import AgentError, scrub

from ._fault_table import RULES, Fault
from ._retry_after import in_words, retry_after_of

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
