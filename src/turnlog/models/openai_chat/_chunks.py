"""The chunks of a Chat Completions stream, as every compatible server sends them.

Fields we do not read are skipped while decoding. Where a server sends another type than the protocol
says, the chunk is read again without types and what fits is taken.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .._loose import LooseDecoder


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    extra_content: dict[str, Any] | None = None


class Delta(msgspec.Struct):
    content: str | list[Any] | None = None
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    images: list[dict[str, Any]] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: dict[str, Any] | None = None
    error: Any = None


class Completion(msgspec.Struct):
    """One chunk, or a whole answer that was not streamed."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    id: str | None = None
    model: str | None = None
    x_groq: GroqExtra | None = None
    object: str | None = None
    message: Any = None
    msg: Any = None
    detail: Any = None
    type: Any = None
    code: Any = None
    base_resp: dict[str, Any] | None = None


_decode = LooseDecoder(Completion, "Chat Completions")


def decode_chunk(data: bytes) -> Completion:
    """``ModelProtocolError`` for what is no JSON: a cut stream, or no such stream at all."""
    if data[:1] != b"{" and not isinstance(found := _decode.plain(data), dict):
        return Completion(error=found)
    return _decode(data)
