"""The pieces of a generateContent answer as they lie on the wire. Fields we do not know are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from turnlog.contract import JsonObject

from .._loose import UNREADABLE, LooseDecoder, unreadable

ORIGIN = "google"
"""The family that reads back what this adapter puts into ``providerData``."""


class FunctionCall(msgspec.Struct, rename="camel"):
    """A call, whole."""

    name: str | None = None
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw()
    will_continue: bool | None = None


class Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct):
    parts: list[Part] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    index: int = 0
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    continuation_token: str | None = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    url_context_metadata: Any = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class Piece(msgspec.Struct, rename="camel"):
    """One event of a stream, one element of an array, or a whole answer."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: dict[str, Any] | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


_SERVER = "the Gemini API"
_read = LooseDecoder(Piece, _SERVER)
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_pieces(data: bytes) -> Iterator[tuple[Piece, bytes]]:
    """The pieces that ``data`` holds, each with its own bytes; ``ModelProtocolError`` for what is none."""
    if data.lstrip()[:1] != b"[":
        lines = data.splitlines() if b"\n{" in data else ()
        if len(lines) > 1 and all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line):
            for line in filter(None, lines):  # one object after another, from a server without events
                yield _read(line), line
        else:
            yield _read(data), data
        return
    if data.strip() == b"[DONE]":  # proxies that speak other protocols too say so
        return
    try:
        items = _decode_list(data)
    except UNREADABLE as error:
        raise unreadable(data, error, _SERVER) from error
    for item in items:
        yield _read(bytes(item)), bytes(item)


def read_part(data: bytes, candidate: int, part: int) -> JsonObject:
    """A part with all its fields."""
    try:
        found: Any = json.loads(data)
        return found["candidates"][candidate]["content"]["parts"][part]
    except ValueError as error:
        raise unreadable(data, error, _SERVER) from error


def args_text(args: msgspec.Raw) -> str:
    """A call's arguments as JSON text without white space between its values; ``{}`` for none."""
    raw = bytes(args)
    if not raw or raw == b"null":
        return "{}"
    try:
        return msgspec.json.format(raw, indent=-1).decode()
    except UNREADABLE as error:
        try:
            return raw.decode()  # half a surrogate pair: whether it can be used is not decided here
        except UnicodeDecodeError:
            raise unreadable(raw, error, _SERVER) from error
