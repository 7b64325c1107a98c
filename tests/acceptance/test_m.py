"""M. Message."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given

from acceptance.desk import Desk, asks_for, call
from strategies import messages
from turnlog import AgentError, tool
from turnlog.contract import (
    Image,
    ImagePart,
    Message,
    MessagePart,
    TokenUsage,
    ToolCall,
    ToolCallPart,
    decode,
    encode,
    parse_arguments,
    request_of,
    text_part,
    thinking_part,
    tool_result_part,
)
from turnlog.testing import Turn

NOW = "2026-01-31T12:00:00.000Z"


def made(role: Any, *parts: Any, **more: Any) -> Message:
    return Message(run_id="r", role=role, parts=list(parts), timestamp=NOW, **more)


PARTS: dict[str, MessagePart] = {
    "text": text_part("a"),
    "thinking": thinking_part("b"),
    "tool_call": ToolCallPart(payload=ToolCall(tool_call_id="c", tool_name="t", arguments={})),
    "tool_result": tool_result_part("c", "ok"),
    "image": ImagePart(payload=Image(mime_type="image/png", data="aGk=")),
    "file_ref": decode(b'{"kind":"file_ref","payload":{"path":"a.txt","size":3}}', MessagePart),
}
ALLOWED = {
    "system": {"text", "thinking"},
    "user": {"text", "image", "file_ref"},
    "assistant": {"text", "thinking", "tool_call"},
    "tool": {"tool_result"},
}


@pytest.mark.spec("M-1")
async def test_a_message_has_these_fields_and_its_time_comes_from_the_clock_that_was_given() -> None:
    plain = msgspec.json.decode(encode(made("user", text_part("hi"), meta={"trace": "t"})))
    assert set(plain) == {"runId", "role", "parts", "timestamp", "meta"}
    assert "meta" not in msgspec.json.decode(encode(made("user", text_part("hi"))))
    with pytest.raises(AgentError, match=r"role 'judge' does not exist; roles are system, user"):
        made("judge", text_part("hi"))
    desk = Desk()
    desk.clock.advance(86_400 * 365)
    await desk.agent(asks_for(call("look", place="x")), "Quiet.").run("Look.", session="s")
    stamps = [message.timestamp for message in await desk.agent().session("s").messages()]
    assert len(stamps) == 4 and stamps == sorted(stamps)
    begin = desk.clock.now()[:4]
    assert all(re.fullmatch(rf"{begin}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", stamp) for stamp in stamps)


@pytest.mark.spec("M-2")
def test_the_kinds_of_parts_are_these_six_with_these_payloads() -> None:
    assert {part.kind for part in get_args(MessagePart)} == set(PARTS)
    wire = {kind: msgspec.json.decode(encode(part)) for kind, part in PARTS.items()}
    assert all(set(part) == {"kind", "payload"} for part in wire.values())
    assert wire["text"]["payload"] == {"text": "a"}
    assert wire["thinking"]["payload"] == {"text": "b"}
    assert wire["tool_call"]["payload"] == {
        "toolCallId": "c",
        "toolName": "t",
        "arguments": {},
        "rawArgsText": "{}",
    }
    assert wire["tool_result"]["payload"] == {"toolCallId": "c", "isError": False, "content": "ok"}
    assert wire["image"]["payload"] == {"mimeType": "image/png", "data": "aGk="}
    assert wire["file_ref"]["payload"] == {"path": "a.txt", "size": 3}
    for content in ("text", {"a": 1}, [text_part("x")]):
        part = tool_result_part("c", content)
        assert decode(encode(part), MessagePart) == part


@pytest.mark.spec("M-2")
async def test_raw_text_is_kept_where_arguments_do_not_parse_and_bytes_are_stored_apart() -> None:
    desk = Desk()
    broken = {"name": "look", "rawArgs": '{"place": '}
    agent = desk.agent(asks_for(broken), "Sorry.")
    picture = ImagePart(payload=Image(mime_type="image/png", data="aGVsbG8="))
    await agent.run([text_part("Look at this."), picture], session="s")
    [first, *_] = await desk.of_kind("model_output")
    found = first.payload.message.tool_calls[0].payload
    assert (found.arguments, found.raw_args_text) == (None, '{"place": ')
    [said] = await desk.of_kind("model_input")
    url = next(part for part in said.payload.message.parts if part.kind == "image").payload.url
    assert url.startswith("blob:sha256-")
    assert await desk.store.get_blob(url.removeprefix("blob:")) == b"hello"


@pytest.mark.spec("M-3")
@pytest.mark.parametrize("role", ALLOWED)
@pytest.mark.parametrize("kind", PARTS)
def test_a_role_holds_its_own_parts_and_no_others(role: str, kind: str) -> None:
    if kind in ALLOWED[role]:
        assert made(role, PARTS[kind]).parts == [PARTS[kind]]
        return
    legal = PARTS[next(iter(ALLOWED[role]))]
    with pytest.raises(AgentError, match=rf"{role}.*{kind}.*1") as caught:
        made(role, legal, PARTS[kind])
    assert caught.value.code == "InvalidMessage"


@pytest.mark.spec("M-4")
@given(messages())
def test_a_message_is_the_same_after_a_round_trip(message: Message) -> None:
    again = decode(encode(message), Message)
    assert again == message
    assert [part.kind for part in again.parts] == [part.kind for part in message.parts]


@pytest.mark.spec("M-4")
def test_what_is_not_sound_is_refused_and_what_is_newer_is_kept() -> None:
    for bad in ("\ud800", float("nan"), float("inf")):
        with pytest.raises(AgentError):
            encode(made("tool", tool_result_part("c", {"x": bad})))
    assert parse_arguments('{"a": 1, "a": 2}').arguments is None
    newer = encode(made("user", text_part("hi"))).replace(b'"role"', b'"later":{"x":[1]},"role"')
    assert msgspec.json.decode(encode(decode(newer, Message)))["later"] == {"x": [1]}
    unknown = encode(made("user", text_part("hi"))).replace(b'"kind":"text"', b'"kind":"hologram"')
    with pytest.raises(AgentError, match=r"'hologram'.*schema version \d"):
        decode(unknown, Message)


@pytest.mark.spec("M-5")
async def test_meta_is_small_and_in_snake_case_and_carries_usage_and_parse_errors() -> None:
    with pytest.raises(AgentError, match="snake_case"):
        made("user", text_part("hi"), meta={"traceId": "t"})
    made("user", text_part("hi"), meta={"note": "x" * 2_000})
    with pytest.raises(AgentError) as caught:
        made("user", text_part("hi"), meta={"note": "x" * 2_048})
    assert caught.value.code == "MetaTooLarge" and "2048" in caught.value.message.replace(",", "")
    desk = Desk()
    used = TokenUsage(input_tokens=3, output_tokens=4, total_tokens=7)
    broken = Turn(tool_calls=[{"name": "look", "rawArgs": "{"}], usage=used)
    await desk.agent(broken, "Sorry.").run("Look.", session="s")
    [first, *_] = await desk.of_kind("model_output")
    meta = first.payload.message.meta
    assert meta["usage"]["inputTokens"] == 3
    assert list(meta["parse_errors"]) == [first.payload.message.tool_calls[0].payload.tool_call_id]


@pytest.mark.spec("M-6")
async def test_typed_views_of_a_call_its_result_and_usage() -> None:
    broken = ToolCall(tool_call_id="c", tool_name="look", arguments=None, raw_args_text="{")
    request = request_of(broken)
    assert (request.tool_name, request.tool_call_id, request.raw_arguments) == ("look", "c", "{")
    assert request.arguments is None and request.parse_error
    used = TokenUsage(
        input_tokens=3,
        output_tokens=4,
        total_tokens=7,
        cached_input_tokens=1,
        reasoning_tokens=2,
        cost=0.1,
    )
    assert set(msgspec.json.decode(encode(used))) == {
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "cachedInputTokens",
        "reasoningTokens",
        "cost",
    }
    desk = Desk()
    turns = [asks_for(call("look", place="x"), call("nothing"), call("pay", amount=1)), "Well."]
    session = desk.agent(*turns).session("s")
    await session.run("Go.")
    [waiting] = await session.pending()
    await session.deny(waiting, by="ann")
    await session.resume()
    outcomes = {
        outcome.tool_name: outcome
        for entry in await desk.of_kind("tool_results")
        for outcome in entry.payload.outcomes
    }
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "look": "success",
        "nothing": "failed",
        "pay": "denied",
    }
    assert outcomes["look"].elapsed_ms is not None


@pytest.mark.spec("M-8")
async def test_a_call_has_one_id_everywhere_and_no_other_call_of_the_session_has_it() -> None:
    desk = Desk()
    agent = desk.agent(
        asks_for(call("look", place="x"), call("look", place="y")), asks_for(call("look", place="z")), "Well."
    )
    told: dict[str, list[str]] = {}
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            if (call_id := getattr(event, "tool_call_id", None)) is not None:
                told.setdefault(event.kind, []).append(call_id)
    outputs = [entry.payload.message for entry in await desk.of_kind("model_output")]
    made_ids = [part.payload.tool_call_id for message in outputs for part in message.tool_calls]
    assert len(set(made_ids)) == len(made_ids) == 3
    for kind, ids in told.items():
        assert list(dict.fromkeys(ids)) == made_ids, kind
    for kind in ("tool_started",):
        assert [entry.payload.tool_call_id for entry in await desk.of_kind(kind)] == made_ids
    results = [
        part.payload.tool_call_id
        for entry in await desk.of_kind("tool_results")
        for part in entry.payload.message.tool_results
    ]
    assert results == made_ids
    wire = encode(await desk.entries())
    assert b"messageId" not in wire and b"turnId" not in wire


async def of_messages(desk: Desk) -> list[Any]:
    kinds = ("model_input", "model_output", "tool_results")
    return [entry for entry in await desk.entries() if entry.kind in kinds]


@pytest.mark.spec("M-9")
async def test_what_was_handed_out_cannot_change_the_past() -> None:
    desk = Desk()
    given: dict[str, Any] = {"places": ["gate"]}

    @tool
    async def keep(places: list[str]) -> dict[str, Any]:
        """Keep a list, and change it afterwards."""
        places.append("changed by the tool")
        return given

    agent = desk.agent(asks_for(call("keep", places=["gate"])), "Kept.", tools=[keep])
    await agent.run("Keep.", session="s")
    before = [entry.hash for entry in await desk.entries()], encode(await desk.entries())
    given["places"].append("changed later")
    # All that is handed out: each change is refused, or changes a copy.
    session = agent.session("s")
    for message in [
        *await session.messages(),
        *desk.seen,
        *(e.payload.message for e in await of_messages(desk)),
    ]:
        for change in (
            lambda message=message: setattr(message, "role", "system"),
            lambda message=message: message.parts.append(text_part("more")),
            lambda message=message: message.parts[0].payload.arguments["places"].append("more"),
            lambda message=message: message.parts[0].payload.content.update(more=1),
        ):
            with suppress(AttributeError, TypeError, KeyError, IndexError):
                change()
    assert ([entry.hash for entry in await desk.entries()], encode(await desk.entries())) == before
    assert (await session.replay()).identical
    await desk.agent("Still here.", tools=[keep]).run("And?", session="s")
    assert (await session.replay()).identical, "what is sent later is what the log has, not what was changed"
