"""The events of a Messages stream as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

from typing import Any

import msgspec


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


decode_event = msgspec.json.Decoder(StreamEvent).decode
decode_message = msgspec.json.Decoder(Answer).decode


class _RawDelta(msgspec.Struct):
    delta: dict[str, Any] | None = None


decode_raw_delta = msgspec.json.Decoder(_RawDelta).decode
