"""P. Models: what goes back to a provider, its own thoughts, others' histories, and where caches are marked.

M-7 is here too: what a provider needs back is kept beside its part and goes to that provider alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from acceptance.desk import Desk
from acceptance.wires import (
    ADD,
    ANTHROPIC,
    CHAT,
    CONVERSE,
    GEMINI,
    HELLO,
    KEY,
    PROTOCOLS,
    RESPONSES,
    Line,
    Protocol,
    Says,
    every,
    line_to,
)
from models.recorded import PlayingTransport
from turnlog import Agent, load_model
from turnlog.context import ContextOptions
from turnlog.contract import (
    CallArgs,
    CallEnd,
    CallStart,
    Image,
    ImagePart,
    Message,
    MessagePart,
    StreamDone,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolCallPart,
    encode,
    text_part,
    thinking_part,
    tool_result_part,
)
from turnlog.loop import compact_session
from turnlog.models import CacheConfig
from turnlog.testing import Turn, check_request
from turnlog.transcript import render_markdown

LOOK = (("look", '{"place": "gate"}'),)
FIRST = Says("I look.", "The gate, they say.", LOOK, number=1)
SECOND = Says("Quiet.", "Nothing moves.", number=2)
LATER = Says("Still quiet.", "As before.", LOOK, number=3)
LAST = Says("All is well.", number=4)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def agent_on(desk: Desk, line: Line, **options: Any) -> Agent:
    return Agent(
        line.model,
        tools=desk.tools(),
        store=desk.store,
        clock=desk.clock,
        ids=desk.ids,
        instructions="You are brief.",
        **options,
    )


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON value, at any depth."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from objects(each)
    if isinstance(value, list):
        for each in value:
            yield from objects(each)


def own(protocol: Protocol, says: Says) -> dict[str, Any]:
    """How the thoughts of an answer stand in a request to the provider that had them."""
    match protocol.name:
        case "openai-chat":
            return {"reasoning_content": says.thinking}
        case "openai-responses":
            summary = [{"type": "summary_text", "text": says.thinking}]
            return {"type": "reasoning", "summary": summary, "encrypted_content": says.signature}
        case "anthropic-messages":
            return {"type": "thinking", "thinking": says.thinking, "signature": says.signature}
        case "gemini":
            return {"thoughtSignature": says.signature}
        case _:
            return {"reasoningText": {"text": says.thinking, "signature": says.signature}}


def holds(body: Any, protocol: Protocol, says: Says) -> bool:
    wanted = own(protocol, says)
    return any({key: each.get(key) for key in wanted} == wanted for each in objects(body))


def thinks_of(body: Any, *answers: Says) -> list[str]:
    """Which thoughts and signatures occur in a request, in whatever form."""
    text = json.dumps(body)
    return [words for says in answers for words in (says.thinking, says.signature) if words in text]


# ── P-6, M-7 ──


@every
@pytest.mark.spec("P-6", "M-7")
async def test_thoughts_go_back_as_they_came_until_the_past_changes(protocol: Protocol) -> None:
    desk = Desk()
    async with line_to(protocol, FIRST, SECOND, LATER, LAST, LAST) as line:
        agent = agent_on(desk, line)
        await agent.run("Look at the gate. " + "A long story. " * 400, session="s")
        await agent.run("And now?", session="s")
        with_result, again, newest = line.bodies[1:4]
        assert holds(with_result, protocol, FIRST) and holds(again, protocol, FIRST)
        assert holds(newest, protocol, LATER), "in the middle of its work it has its newest thoughts"
        options = ContextOptions(fold_at=1_000, min_freed_tokens=10, tail_share=0.05)
        await compact_session(desk.store, "s", options=options)
        assert await desk.of_kind("fold")
        await agent.run("Well?", session="s")
        folded = line.bodies[4]
    assert thinks_of(folded, FIRST, SECOND, LATER) == [], "the wire before them has changed"
    text = json.dumps(folded)
    for continuation in ("resp_", "rs_1", "rs_3", "msg_1", "msg_2", "fc_1", "fc_3", "previous_response_id"):
        assert continuation not in text
    recorded = [entry.payload.context_hash for entry in await desk.of_kind("model_call_started")]
    shown = [(await agent.session("s").explain(call=number)).matches for number in range(1, 6)]
    assert all(recorded) and shown == [True] * 5


@every
@pytest.mark.spec("P-6")
async def test_thoughts_are_left_out_for_another_model_and_after_a_redaction(protocol: Protocol) -> None:
    others = {CHAT: "gpt-4.1", RESPONSES: "gpt-4.1", ANTHROPIC: "claude-3-5-haiku-20241022"}
    others |= {GEMINI: "gemini-2.0-flash", CONVERSE: "amazon.nova-pro-v1:0"}
    desk = Desk()
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(line_to(protocol, FIRST, SECOND, LAST))
        await agent_on(desk, line).run("Look.", session="s")
        await agent_on(desk, line).session("s").fork(session="redacted")
        name = f"{protocol.model.partition(':')[0]}:{others[protocol]}"
        plain = dataclasses.replace(protocol, model=name, options={})
        elsewhere = await stack.enter_async_context(line_to(plain, LAST))
        await agent_on(desk, elsewhere).run("And?", session="s")
        assert thinks_of(elsewhere.bodies[0], FIRST, SECOND) == []
        said = next(entry for entry in await desk.entries("redacted") if entry.kind == "model_input")
        await agent_on(desk, line).session("redacted").redact([said.id], by="ann")
        await agent_on(desk, line).run("And?", session="redacted")
        assert thinks_of(line.bodies[-1], FIRST, SECOND) == []


@pytest.mark.spec("M-7")
@every
async def test_what_a_provider_needs_back_is_beside_its_part_and_goes_to_no_other_family(
    protocol: Protocol,
) -> None:
    desk = Desk()
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(line_to(protocol, FIRST, SECOND, LAST))
        await agent_on(desk, line).run("Look.", session="s")
        parts = [p for e in await desk.of_kind("model_output") for p in e.payload.message.parts]
        kept = [part.payload.provider_data for part in parts if part.payload.provider_data]
        assert kept and all(data["origin"] for data in kept), "in the payload of the part it belongs to"
        ids = [
            data["id"]
            for part in parts
            if part.kind == "tool_call"
            for data in [part.payload.provider_data or {}]
            if "id" in data
        ]
        for other in PROTOCOLS.values():
            if other is not protocol:
                there = await stack.enter_async_context(line_to(other, LAST))
                branch = await agent_on(desk, line).session("s").fork(session=other.name)
                await agent_on(desk, there).run("And?", session=branch.session_id)
                text = json.dumps(there.bodies[0])
                assert not [word for word in (FIRST.signature, SECOND.signature, *ids) if word in text]


PLAIN = {"origin": "mars", "ab": 1, "bcdefghijk": "l", "mnop": "qrst, uvwx", "yzab": "cdefg", "hijkl": [True]}
ODD = {"origin": "mars", "id": 7, "toolCallId": "x", "text": "never read", "kind": "error", "parts": [None]}


@pytest.mark.spec("M-7")
async def test_nothing_but_its_own_adapter_reads_it() -> None:
    """Two sessions that differ in nothing but such data: every view and every decision is the same."""
    assert len(encode(PLAIN)) == len(encode(ODD)), "its size may count, for it is sent"

    async def played(data: dict[str, Any]) -> list[Any]:
        desk = Desk()
        chunks = [
            StreamStart(model_id="m"),
            ThinkingChunk(text_delta="Hm.", provider_data=data),
            TextChunk(text_delta="I look.", provider_data=data),
            CallStart(tool_call_id="1", tool_name="look", provider_data=data),
            CallArgs(tool_call_id="1", args_text_delta='{"place": "gate"}'),
            CallEnd(tool_call_id="1"),
            StreamDone(finish_reason="tool_calls"),
        ]
        agent = desk.agent(Turn(chunks=chunks), "Quiet.", "Well. " * 1_500, "Done.")
        context = ContextOptions(fold_at=1_000, min_freed_tokens=10, tail_share=0.05)
        for text in ("Look.", "Tell me.", "And?"):
            result = await agent.run(text, session="s")
            await compact_session(desk.store, "s", options=context, clock=desk.clock, ids=desk.ids)
        assert (await agent.session("s").replay()).identical
        assert await desk.of_kind("fold")
        log = [json.loads(encode(entry)) for entry in await desk.entries()]
        for each in objects(log):
            for name in ("hash", "contextHash", "wireHash", "providerData"):
                each.pop(name, None)
        assert desk.model is not None
        seen = [json.loads(encode(list(request.messages))) for request in desk.model.requests]
        for each in objects(seen):
            each.pop("providerData", None)
        return [result.text, log, seen, render_markdown(await desk.entries()), desk.done]

    assert await played(PLAIN) == await played(ODD)


# ── P-9 ──


def message(role: Any, *parts: MessagePart | str) -> Message:
    made = [text_part(part) if isinstance(part, str) else part for part in parts]
    return Message(run_id="r", role=role, parts=made, timestamp="2026-01-31T12:00:00.000Z")


def calls(call_id: str, data: dict[str, Any] | None = None) -> ToolCallPart:
    arguments = {"a": 1, "b": 2}
    payload = ToolCall(tool_call_id=call_id, tool_name="add", arguments=arguments, provider_data=data)
    return ToolCallPart(payload=payload)


def ring(step: int) -> list[tuple[Protocol, Protocol]]:
    """Each protocol with the one so many places further on."""
    found = list(PROTOCOLS.values())
    return list(zip(found, [*found[step:], *found[:step]], strict=True))


STRANGE = {"origin": "mars", "id": "id with/odd:characters é" + "x" * 90, "signature": "bWFycw"}
PICTURE = ImagePart(payload=Image(mime_type="image/png", data=PIXEL))
FOREIGN = [
    message("assistant", "I begin, unasked."),
    message("user", "Hello?"),
    message("user", "Are you there?"),
    message(
        "assistant",
        thinking_part("A martian thought.", STRANGE),
        "Adding.",
        calls("c" * 80, STRANGE),
        calls("c 2"),
    ),
    message("tool", tool_result_part("c 2", [text_part("see"), PICTURE])),
    message("tool", tool_result_part("c" * 80, "no such thing", is_error=True)),
    message("assistant", "One."),
    message("assistant", "Two.", calls("orphan")),
    message("user", "What is this?", PICTURE),
    message("assistant", ""),
    message("user", "Well?"),
]


@every
@pytest.mark.spec("P-9")
async def test_a_history_that_another_wrote_is_made_fit(protocol: Protocol) -> None:
    async with line_to(protocol, LAST) as line:
        deltas = await line.ask(FOREIGN, [ADD], "Be brief.")
        [body] = line.bodies
    assert deltas[-1].kind == "done"
    check_request(protocol.name, body, model=protocol.model_id)
    text = json.dumps(body, ensure_ascii=False)
    for words in ("Hello?", "Are you there?", "Adding.", "no such thing", "One.", "Two.", "Well?"):
        assert words in text, words
    for foreign in ("bWFycw", "odd:characters", '"origin"'):
        assert foreign not in text
    assert text.count("was not run, or its outcome was lost") == 1, "the orphan is completed"
    assert text.count(PIXEL) == 2


@pytest.mark.spec("P-9")
async def test_a_model_that_sees_no_images_is_told_of_them() -> None:
    async with line_to(CHAT, LAST, images=False) as line:
        assert not line.model.supports("images")
        await line.ask(FOREIGN, [ADD])
        [body] = line.bodies
    check_request("openai-chat", body, model=CHAT.model_id)
    text = json.dumps(body)
    assert PIXEL not in text and text.count("image") >= 2


@pytest.mark.spec("P-9")
@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(a, b, id=f"{a.name} to {b.name}") for step in (1, 2) for a, b in ring(step)],
)
async def test_a_session_goes_on_with_any_other_provider_and_comes_back(
    first: Protocol, second: Protocol
) -> None:
    """Calls at once, one that fails, one that nobody answered, an image, an answer that was broken off."""
    desk = Desk()
    several = Says("I look.", "Hm.", (*LOOK, ("nothing", "{}"), ("pay", '{"amount": 1}')), number=5)
    talk = [FIRST, SECOND, several, LAST, first.cut(Says("A long answer, broken off."), 4, "stall"), LAST]
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(line_to(first, *talk))
        there = await stack.enter_async_context(line_to(second, LATER, LAST))
        agent, other = agent_on(desk, here), agent_on(desk, there)
        await agent.run([text_part("What is this?"), PICTURE], session="s")
        assert (await agent.run("Pay.", session="s")).status == "awaiting_human"
        await agent.session("s").abort()
        await agent.run("Never mind.", session="s")
        async with agent.run_stream("Tell me all.", session="s") as run:
            async for _ in run.text:
                break
        await other.run("Now you.", session="s")
        await agent.run("And you?", session="s")
    for line in (here, there):
        for body in line.bodies:
            check_request(line.protocol.name, body, model=line.protocol.model_id)
    told = json.dumps(here.bodies[-1])
    for words in ("What is this?", "gate is quiet", "Never mind.", "Now you.", "Still quiet.", "And you?"):
        assert words in told


# ── P-7 ──


def marks(body: Any) -> int:
    return sum("cache_control" in each or "cachePoint" in each for each in objects(body))


def marked_prefixes(body: Any) -> list[str]:
    """What stands before each mark, in the order in which a provider reads a request; without the marks."""
    prefix, found = "", []
    tools = body.get("tools") or (body.get("toolConfig") or {}).get("tools") or []
    turns = [block for turn in body["messages"] for block in [{"role": turn["role"]}, *turn["content"]]]
    for block in [*tools, *body.get("system", []), *turns]:
        if "cachePoint" in block:
            found.append(prefix)
            continue
        plain = {name: value for name, value in block.items() if name != "cache_control"}
        prefix += json.dumps(plain)
        if "cache_control" in block:
            found.append(prefix)
    return [*found, prefix]


@pytest.mark.spec("P-7")
@pytest.mark.parametrize("protocol", [ANTHROPIC, CONVERSE], ids=["anthropic-messages", "bedrock-converse"])
async def test_marks_stand_on_the_prefix_that_later_calls_share(protocol: Protocol) -> None:
    desk = Desk()
    talk = [says for _ in range(6) for says in (Says("I look.", calls=LOOK), LAST)]
    async with line_to(protocol, *talk, cache_config=CacheConfig(strategy="auto")) as line:
        agent = agent_on(desk, line)
        for n in range(6):
            await agent.run(f"Question {n}.", session="s")
        bodies = line.bodies
    for earlier, later in pairwise(bodies):
        *shared, _ = marked_prefixes(earlier)
        *marked, whole = marked_prefixes(later)
        assert 2 <= len(shared) <= 4
        assert all(whole.startswith(prefix) for prefix in shared), "what was marked is there again"
        assert set(marked) & set(shared), "and a later call finds a mark where an earlier one set it"
    async with line_to(protocol, LAST, cache_config=CacheConfig(strategy="off")) as line:
        await line.ask(HELLO, [ADD], "Be brief.")
        assert marks(line.bodies[0]) == 0


@pytest.mark.spec("P-7")
@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, GEMINI], ids=["chat", "responses", "gemini"])
async def test_where_the_provider_caches_by_itself_the_prefix_stays(
    protocol: Protocol,
) -> None:
    desk = Desk()
    async with line_to(protocol, LAST, cache_config=CacheConfig(strategy="auto")) as line:
        for n in range(3):
            await agent_on(desk, line).run(f"Question {n}.", session="s")
        bodies = line.bodies
    turns = [body.get("messages") or body.get("input") or body["contents"] for body in bodies]
    for earlier, later in pairwise(turns):
        assert later[: len(earlier)] == earlier
    assert all(marks(body) == 0 for body in bodies)
    if protocol is RESPONSES:
        assert len({body["prompt_cache_key"] for body in bodies}) == 1


@pytest.mark.spec("P-7")
async def test_chat_completions_of_openai_name_the_conversation_too() -> None:
    played = PlayingTransport(200, {"content-type": "text/event-stream"}, CHAT.write(LAST))
    desk = Desk()
    async with httpx2.AsyncClient(transport=played) as client:
        model = load_model(CHAT.model, base_url="https://api.openai.com/v1", client=client, api_key=KEY)
        agent = Agent(model, store=desk.store)
        for session in ("s", "s", "t"):
            await agent.run("Hello?", session=session)
    first, second, other = (json.loads(request.content)["prompt_cache_key"] for request in played.requests)
    assert first == second != other
