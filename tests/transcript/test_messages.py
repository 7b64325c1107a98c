"""Conversations of other systems: in, out, and round."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.speakers import SPEAKERS, Speaker, on_air
from models.speakers import Said as Answer
from turnlog import Agent
from turnlog.contract import AgentError, ModelOutputEntry, ToolResultsEntry
from turnlog.history import MemoryStore, verify
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, check_request
from turnlog.transcript import export_messages, import_messages

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DATA_URL = f"data:image/png;base64,{PNG}"

OPENAI: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is the weather in Rome and in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "call_2", "content": "snow"},
    {"role": "assistant", "content": "Sun in Rome, snow in Oslo."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": DATA_URL}},
            {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
        ],
    },
    {"role": "assistant", "content": "A dot."},
]
ANTHROPIC: Any = {
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "How is the weather in Rome?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "sunny"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                        },
                    ],
                },
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no city", "is_error": True},
                {"type": "text", "text": "And be quick."},
            ],
        },
        {"role": "assistant", "content": "Sun."},
    ],
}
LANGCHAIN: Any = [
    {"type": "system", "data": {"type": "system", "content": "Be brief."}},
    {"type": "human", "data": {"type": "human", "content": "How is the weather in Rome?"}},
    {
        "type": "ai",
        "data": {
            "type": "ai",
            "content": "",
            "tool_calls": [{"type": "tool_call", "id": "c1", "name": "weather", "args": {"city": "Rome"}}],
        },
    },
    {
        "type": "tool",
        "data": {
            "type": "tool",
            "content": "no such city",
            "tool_call_id": "c1",
            "status": "error",
            "name": "weather",
        },
    },
    {"type": "ai", "data": {"type": "ai", "content": "I do not know."}},
]
CONVERSATIONS: Any = {"openai": OPENAI, "anthropic": ANTHROPIC, "langchain": LANGCHAIN}


async def _blobs(store: MemoryStore) -> dict[str, bytes]:
    return dict(store._blobs)


@pytest.mark.spec("H-16")
@pytest.mark.parametrize("format", CONVERSATIONS)
async def test_a_conversation_comes_back_as_it_was(format: Any) -> None:
    store = MemoryStore()
    assert await import_messages(store, "s1", CONVERSATIONS[format], format=format, title="Rome") == "s1"
    entries = await store.load("s1")
    assert export_messages(entries, format=format, blobs=await _blobs(store)) == CONVERSATIONS[format]
    assert all(entry.meta == {"imported": format} for entry in entries)
    assert not {entry.kind for entry in entries} & {"run_started", "model_call_started", "tool_started"}
    assert await verify(store, "s1") == []
    [info] = await store.sessions()
    assert (info.title, info.about, info.status) == ("Rome", info.about, "idle")
    assert PNG not in str(entries)


@pytest.mark.parametrize("first", CONVERSATIONS)
@pytest.mark.parametrize("second", CONVERSATIONS)
async def test_a_conversation_travels_between_systems(first: Any, second: Any) -> None:
    one, two, three = MemoryStore(), MemoryStore(), MemoryStore()
    await import_messages(one, "s", CONVERSATIONS[first], format=first)
    there = export_messages(await one.load("s"), format=second, blobs=await _blobs(one))
    await import_messages(two, "s", json.loads(json.dumps(there)), format=second)
    back = export_messages(await two.load("s"), format=second, blobs=await _blobs(two))
    assert back == there
    await import_messages(three, "s", back, format=second)
    assert [entry.kind for entry in await three.load("s")] == [entry.kind for entry in await two.load("s")]


@pytest.mark.parametrize("format", CONVERSATIONS)
async def test_an_imported_conversation_is_continued(format: Any) -> None:
    store = MemoryStore()
    await import_messages(store, "s1", CONVERSATIONS[format], format=format)
    model = ScriptedModel(["More."])
    assert (await Agent(model, store=store).run("Go on.", session="s1")).text == "More."
    sent = str(model.requests[-1])
    assert "weather" in sent and "Rome" in sent
    assert await verify(store, "s1") == []


@pytest.mark.spec("P-9")
@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.protocol)
@pytest.mark.parametrize("format", CONVERSATIONS)
async def test_an_imported_conversation_is_continued_by_any_provider(format: Any, speaker: Speaker) -> None:
    store = MemoryStore()
    await import_messages(store, "s1", CONVERSATIONS[format])
    async with on_air(speaker, FixedIds(), FixedClock()) as voice:
        voice.will_say(Answer(text="More."))
        assert (await Agent(voice.model, store=store).run("More, please.", session="s1")).text == "More."
        check_request(speaker.protocol, voice.bodies[0], model=speaker.model_id)


RESPONSES: Any = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "How is the weather in Rome?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny."}]},
    ],
}
OLDER_OPENAI: Any = [
    {"role": "user", "content": "Rome?"},
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
    {"role": "function", "name": "weather", "content": "sunny"},
]
DUMPED: Any = [
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "HumanMessage"],
        "kwargs": {"content": "Rome?"},
    },
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {
            "content": "",
            "tool_calls": [{"id": "c1", "name": "weather", "args": {}, "type": "tool_call"}],
        },
    },
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "ToolMessage"],
        "kwargs": {"content": "sunny", "tool_call_id": "c1"},
    },
]


@pytest.mark.parametrize(
    ("messages", "format"),
    [
        *((conversation, format) for format, conversation in CONVERSATIONS.items()),
        (RESPONSES, "openai"),
        (OLDER_OPENAI, "openai"),
        (DUMPED, "langchain"),
        ([{"role": "user", "content": "weather: sunny"}], "openai"),
    ],
)
async def test_the_system_is_told_by_its_spelling(messages: Any, format: str) -> None:
    store = MemoryStore()
    await import_messages(store, "s1", messages)
    entries = await store.load("s1")
    assert {(entry.meta or {}).get("imported") for entry in entries} == {format}
    assert await verify(store, "s1") == []
    said = json.dumps(export_messages(entries, format="openai"))
    assert "weather" in said and ("sunny" in said or format == "langchain")
    failed = [o.status for e in entries if isinstance(e, ToolResultsEntry) for o in e.payload.outcomes]
    assert "skipped" not in failed


async def test_calls_without_results_and_ids_that_clash_are_put_right() -> None:
    store = MemoryStore()
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{broken"}}
    odd = {**call, "id": "an id with spaces " * 5}
    messages: Any = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call, odd]},
        {"role": "tool", "tool_call_id": odd["id"], "content": "late"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    await import_messages(store, "s1", messages, format="openai")
    entries = await store.load("s1")
    assert await verify(store, "s1") == []
    calls = [
        part.payload
        for entry in entries
        if isinstance(entry, ModelOutputEntry)
        for part in entry.payload.message.tool_calls
    ]
    outcomes = {
        outcome.tool_call_id: outcome.status
        for entry in entries
        if isinstance(entry, ToolResultsEntry)
        for outcome in entry.payload.outcomes
    }
    assert [outcomes[each.tool_call_id] for each in calls] == ["skipped", "success", "skipped"]
    assert len({each.tool_call_id for each in calls}) == 3
    assert (calls[0].arguments, calls[0].raw_args_text) == (None, "{broken")


@pytest.mark.parametrize(
    ("format", "messages", "words"),
    [
        ("openai", "text", "the conversation is a str"),
        ("openai", [], "no message to import"),
        ("openai", [{"role": "user", "content": "a"}, 5], "message 2 .* is a int"),
        ("openai", [{"role": "function", "content": "a"}], "message 1 .* its role is 'function'"),
        ("openai", [{"role": "user", "content": [{"type": "input_audio"}]}], "part of type 'input_audio'"),
        ("openai", [{"role": "tool", "tool_call_id": "x", "content": "a"}], "call 'x', which is not open"),
        (
            "openai",
            [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,?"}]}],
            "not base64",
        ),
        ("anthropic", {"messages": [{"role": "user", "content": 5}]}, "its content is a int"),
        (
            "anthropic",
            [{"role": "assistant", "content": [{"type": "tool_use", "name": 5}]}],
            "arguments of a call",
        ),
        ("langchain", [{"type": "function", "data": {}}], "its type is 'function'"),
        (
            "auto",
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video"}]}],
            "message 1 .* part 2: it has a part of type 'video'",
        ),
        ("auto", [{"type": "web_search_call"}], "message 1 .* item of type 'web_search_call'"),
        ("auto", [{"content": "a"}], "message 1 .* its role is None"),
        ("auto", {"prompt": "a"}, "the conversation is a NoneType"),
    ],
)
async def test_what_cannot_be_imported_is_named_and_nothing_is_written(
    format: Any, messages: Any, words: str
) -> None:
    store = MemoryStore()
    with pytest.raises(AgentError, match=words) as error:
        await import_messages(store, "s1", messages, format=format)
    assert error.value.code == "InvalidMessage"
    assert await store.sessions() == []


async def test_a_session_that_is_there_is_not_written_to() -> None:
    store = MemoryStore()
    await import_messages(store, "s1", OPENAI, format="openai")
    with pytest.raises(AgentError, match="exists already"):
        await import_messages(store, "s1", OPENAI, format="openai")
    with pytest.raises(AgentError, match="'cohere' is not known"):
        await import_messages(store, "s2", OPENAI, format="cohere")  # pyright: ignore[reportArgumentType]


async def test_what_was_redacted_is_not_exported() -> None:
    from turnlog.loop import redact_entries

    store = MemoryStore()
    await import_messages(store, "s1", OPENAI, format="openai")
    entries = await store.load("s1")
    await redact_entries(store, "s1", [entries[2].id], by="ann")
    assert "Rome and in Oslo" not in str(export_messages(await store.load("s1"), format="openai"))
