"""Any history we can make goes out in a form that Chat Completions servers accept."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.contract import (
    Image,
    ImagePart,
    Message,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    parse_arguments,
    text_part,
    thinking_part,
)
from turnlog.models._turns import FoldCache, Wire
from turnlog.models.openai_chat._request import Form

_TEXT = st.sampled_from(["", "hello", "ünï\u2028", "x" * 50])
_NAMES = st.sampled_from(["add", "files.read", "ä", "x" * 90, "a b"])
_ARGS = st.sampled_from(["{}", "", '{"a":1}', '{"a":', "[1]", "null", "7"])
_DATA = st.sampled_from(
    [
        None,
        {"origin": "anthropic", "signature": "s"},
        {"origin": "openai-chat", "id": "7"},
        {"origin": "google"},
    ]
)
_IMAGE = ImagePart(payload=Image(mime_type="image/png", data="AA"))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = []
    ids: list[str] = []
    for _ in range(draw(st.integers(0, 8))):
        role: Any = draw(st.sampled_from(["user", "assistant", "tool", "system"]))
        parts: list[Any] = []
        for _ in range(draw(st.integers(1, 3))):
            match role:
                case "user":
                    parts.append(draw(st.sampled_from([text_part("u"), _IMAGE, text_part("")])))
                case "system":
                    parts.append(text_part(draw(_TEXT)))
                case "assistant":
                    kind = draw(st.sampled_from(["text", "thinking", "call"]))
                    if kind == "text":
                        parts.append(text_part(draw(_TEXT), draw(_DATA)))
                    elif kind == "thinking":
                        parts.append(thinking_part(draw(_TEXT), draw(_DATA)))
                    else:
                        ids.append(f"call_{len(ids)}")
                        parts.append(_call(ids[-1], draw(_NAMES), draw(_ARGS), draw(_DATA)))
                case _:
                    known = draw(st.sampled_from([*ids[-3:], "call_unknown"]))
                    content: Any = draw(st.sampled_from(["r", "", {"a": 1}, [text_part("t"), _IMAGE]]))
                    result = ToolResultPayload(
                        tool_call_id=known, is_error=draw(st.booleans()), content=content
                    )
                    parts.append(ToolResultPart(payload=result))
        messages.append(Message(run_id="r", role=role, parts=parts, timestamp="t"))
    return tuple(messages)


def _call(id: str, name: str, args: str, data: Any) -> ToolCallPart:
    parsed = parse_arguments(args).arguments
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=id, tool_name=name, arguments=parsed, raw_args_text=args, provider_data=data
        )
    )


def check_wire(wire: list[dict[str, Any]], id_pattern: str) -> None:
    """The rules a server holds a request to."""
    open_ids: list[str] = []
    for one in wire:
        if one["role"] == "tool":
            assert open_ids, "a result without a call before it"
            assert one["tool_call_id"] == open_ids.pop(0), "results follow their calls in order"
            assert isinstance(one["content"], str)
            continue
        assert not open_ids, f"calls without results: {open_ids}"
        if one["role"] != "assistant":
            assert isinstance(one["content"], str) or all(part["type"] for part in one["content"])
            continue
        assert one.get("content") or one.get("tool_calls"), "an answer with nothing in it"
        for call in one.get("tool_calls", []):
            assert re.fullmatch(id_pattern, call["id"])
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"])
            assert isinstance(msgspec.json.decode(call["function"]["arguments"]), dict)
            open_ids.append(call["id"])
        assert len(set(open_ids)) == len(open_ids)
    assert not open_ids


@pytest.mark.spec("P-9")
@given(histories(), st.booleans(), st.booleans())
def test_every_history_keeps_the_rules(messages: tuple[Message, ...], mistral: bool, images: bool) -> None:
    form = Form("h", "m", mistral, images, images, "reasoning_content")
    cache: FoldCache[Wire] = FoldCache()
    data = cache.fold("k", messages, lambda: Wire(form.encode)).data
    wire = msgspec.json.decode(b"[" + data + b"]")
    check_wire(wire, r"[A-Za-z0-9]{9}" if mistral else r"[A-Za-z0-9_-]{1,40}")
    assert ("image_url" in str(wire)) <= images
