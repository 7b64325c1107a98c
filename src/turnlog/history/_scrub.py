"""Secrets never reach the log."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ..contract import EntryPayload, JsonObject, decode, encode, has_secret, scrub


def holds_secret(body: bytes) -> bool:
    return has_secret(body.decode())


def scrub_payload(payload: EntryPayload) -> EntryPayload:
    """``payload`` with every guarded value masked, wherever in it a text stands."""
    plain = msgspec.json.decode(encode(payload))
    return decode(encode(_scrubbed(plain)), type(payload))


def scrub_meta(meta: JsonObject | None) -> JsonObject | None:
    return cast("JsonObject | None", _scrubbed(meta))


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [_scrubbed(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {scrub(key): _scrubbed(item) for key, item in cast("JsonObject", value).items()}
    return value
