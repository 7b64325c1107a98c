"""Debug records of what a provider is sent and sends. Off unless ``TURNLOG_DEBUG`` names ``provider``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import msgspec

from turnlog.contract import MASK, JsonObject, scrub

_log = logging.getLogger("turnlog.provider")
_SHOWN_HEADERS = frozenset(
    {"accept", "content-type", "content-length", "user-agent", "retry-after", "retry-after-ms", "date"}
)
_BODY_LIMIT = 20_000


def debug_is_on() -> bool:
    switched = os.environ.get("TURNLOG_DEBUG")
    return bool(switched) and bool({"provider", "all", "*"} & {word.strip() for word in switched.split(",")})


def raw_event(name: str, data: bytes) -> JsonObject:
    """An event as it came, for ``include_raw``."""
    try:
        shown: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        shown = data.decode("utf-8", "replace")
    return {"event": name, "data": shown} if name else {"data": shown}


def log_request(url: str, headers: Mapping[str, str], body: bytes) -> None:
    if debug_is_on():
        _write("request", url, {"headers": _safe(headers), "body": _short(body)})


def log_response(url: str, status: int, headers: Mapping[str, str], body: bytes | None = None) -> None:
    if debug_is_on():
        fields: JsonObject = {"status": status, "headers": _safe(headers)}
        if body is not None:
            fields["body"] = _short(body)
        _write("response", url, fields)


def _write(what: str, url: str, fields: JsonObject) -> None:
    """One record, its fields as JSON in the text and as attributes for structured handlers."""
    if not _log.isEnabledFor(logging.DEBUG):
        _log.setLevel(logging.DEBUG)
    if not _log.hasHandlers():  # nobody set up logging: whoever switched this on wants to see it
        _log.addHandler(logging.StreamHandler())
    text = msgspec.json.encode(fields).decode()
    _log.debug("%s %s %s", what, scrub(url), text, extra=fields)


def _safe(headers: Mapping[str, str]) -> dict[str, str]:
    """Names of all headers; values only of those that cannot hold a key."""
    shown: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        harmless = name in _SHOWN_HEADERS or "ratelimit" in name or name.endswith("request-id")
        shown[name] = scrub(value) if harmless else MASK
    return shown


def _short(body: bytes) -> str:
    text = scrub(body[:_BODY_LIMIT].decode("utf-8", "replace"))
    return text if len(body) <= _BODY_LIMIT else f"{text}… ({len(body)} bytes)"
