"""The events of a Messages stream as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from turnlog.contract import JsonObject

from .._loose import UNREADABLE, LooseDecoder


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


_SERVER = "the Messages API"
_decode_raw_delta = msgspec.json.Decoder(_RawDelta).decode

read_event = LooseDecoder(StreamEvent, _SERVER)
"""One event; ``ModelProtocolError`` for what is none."""

read_message = LooseDecoder(Answer, _SERVER)
"""A whole answer, or the error that came in its place."""


def read_raw_delta(data: bytes) -> JsonObject:
    """The delta of an event with all its fields."""
    try:
        return _decode_raw_delta(data).delta or {}
    except UNREADABLE:
        return json.loads(data)["delta"]  # it was read before, by the standard library


def says_something(data: bytes) -> bool:
    """Whether an object of no type tells of a failure."""
    found = cast("JsonObject", json.loads(data))
    return any(found.get(key) for key in ("error", "message", "detail", "msg"))
