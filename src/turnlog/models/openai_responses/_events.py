"""The events of a Responses stream as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

from typing import Any

import msgspec

from turnlog.contract import JsonObject

from .._loose import LooseDecoder, as_object


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


read_event = LooseDecoder(Event, "the Responses API")
"""One event, or a whole answer that was not streamed; ``ModelProtocolError`` for what is neither."""


def read_json(data: bytes) -> JsonObject:
    """A JSON object with all its fields; empty for any other value, and for nothing."""
    return as_object(read_event.plain(data)) if data else {}
