"""The events of a Messages stream as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

import msgspec

from turnlog.contract import JsonObject

from .._loose import fit, unreadable


class BlockDelta(msgspec.Struct):
    """What ``content_block_delta`` and ``message_delta`` carry, all kinds in one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: Any = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None


class Answer(msgspec.Struct):
    """The message as ``message_start`` announces it; its content is nearly always still empty."""

    type: str | None = None
    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None
    usage: dict[str, Any] | None = None


class StreamEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None
    content_block: dict[str, Any] | None = None
    message: Answer | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _RawDelta(msgspec.Struct):
    delta: dict[str, Any] | None = None


T = TypeVar("T", StreamEvent, Answer)

_decode_event = msgspec.json.Decoder(StreamEvent, strict=False).decode
_decode_message = msgspec.json.Decoder(Answer, strict=False).decode
_decode_raw_delta = msgspec.json.Decoder(_RawDelta).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_event(data: bytes) -> StreamEvent:
    """One event; ``ModelProtocolError`` for what is none."""
    try:
        return _decode_event(data)
    except _UNREADABLE as error:
        return _read_oddly(data, StreamEvent, error)


def read_message(data: bytes) -> Answer:
    """A whole answer, or the error that came in its place."""
    try:
        return _decode_message(data)
    except _UNREADABLE as error:
        return _read_oddly(data, Answer, error)


def read_raw_delta(data: bytes) -> JsonObject:
    """The delta of an event with all its fields."""
    try:
        return _decode_raw_delta(data).delta or {}
    except _UNREADABLE:
        return json.loads(data)["delta"]  # it was read before, by the standard library


def says_something(data: bytes) -> bool:
    """Whether an object of no type tells of a failure."""
    found = cast("JsonObject", json.loads(data))
    return any(found.get(key) for key in ("error", "message", "detail", "msg"))


def _read_oddly(data: bytes, kind: type[T], error: Exception) -> T:
    """Half a surrogate pair, which only the standard library reads, or a type that is another one."""
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return fit(cast("JsonObject", found), kind)
    raise unreadable(data, error, "the Messages API") from error
