"""The events of a Responses stream as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from turnlog.contract import JsonObject

from .._loose import as_object, as_text, unreadable


class Event(msgspec.Struct):
    """All kinds in one. Only ``type`` is sure to be what the protocol says; ``response`` is read when needed:
    it repeats instructions and tools, and comes three times."""

    type: str = ""
    sequence_number: Any = None
    output_index: Any = None
    item_id: Any = None
    content_index: Any = None
    summary_index: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    part: Any = None
    item: Any = None
    response: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    object: Any = None
    output: Any = None
    message: Any = None
    detail: Any = None


_decode = msgspec.json.Decoder(Event).decode
_plain = msgspec.json.Decoder().decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_event(data: bytes) -> Event:
    """One event, or a whole answer that was not streamed; ``ModelProtocolError`` for what is neither."""
    try:
        return _decode(data)
    except _UNREADABLE as error:
        return _read_loosely(data, error)


def read_json(data: bytes) -> JsonObject:
    """A JSON object with all its fields; empty for any other value, and for nothing."""
    if not data:
        return {}
    try:
        found = _plain(data)
    except _UNREADABLE as error:
        found = _loads(data, error)
    return as_object(found)


def _read_loosely(data: bytes, error: Exception) -> Event:
    """A character cut in two, which only the standard library reads, or a type that is none."""
    found = _loads(data, error)
    if not isinstance(found, dict):
        raise unreadable(data, error, "the Responses API")
    known: JsonObject = {name: value for name, value in as_object(found).items() if name in _FIELDS}
    if "response" in known:
        known["response"] = msgspec.Raw(json.dumps(known["response"]).encode())
    known["type"] = as_text(known.get("type"))
    return Event(**known)


_FIELDS = frozenset(Event.__struct_fields__)


def _loads(data: bytes, error: Exception) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise unreadable(data, error, "the Responses API") from error
