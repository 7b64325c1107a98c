"""P. Models: what goes into a request and what comes of an answer, each mapped for every protocol."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from acceptance.desk import Desk
from acceptance.wires import (
    ADD,
    ANTHROPIC,
    CHAT,
    CONVERSE,
    GEMINI,
    HELLO,
    NO_THINKING,
    PROTOCOLS,
    RESPONSES,
    Protocol,
    Says,
    calls_of,
    every,
    line_to,
    sse,
    text_of,
    thinking_of,
)
from turnlog import Agent, File
from turnlog.contract import FINISH_REASONS, SpecificTool
from turnlog.testing import LoopbackAnswer

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TWO = (("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}'))
FILES: dict[Protocol, dict[str, Any]] = {CHAT: {"files": True}, RESPONSES: {"files": True}}


def documented() -> list[tuple[str, str, str]]:
    """The table of the page: a protocol, its word, ours."""
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text("utf-8")
    section = page.split("## How an answer ends")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert {row[0].strip(" `") for row in rows} == set(FINISH_REASONS)
    found = []
    for ours, *columns in rows:
        for protocol, cell in zip(PROTOCOLS, columns, strict=True):
            found += [(protocol, word, ours.strip(" `")) for word in re.findall(r"`(\w+)`", cell)]
    return found


@pytest.mark.spec("P-5")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_documented_end_is_its_finish_reason(protocol: str) -> None:
    ends = [(word, ours) for name, word, ours in documented() if name == protocol]
    assert {"length", "stop"} <= {ours for _, ours in ends}
    for word, ours in [*ends, ("a_word_of_tomorrow", "other")]:
        calls = TWO if ours == "tool_calls" else ()
        end = "" if word == "completed" else word
        async with line_to(PROTOCOLS[protocol], Says("Here it is.", calls=calls, end=end)) as line:
            final = (await line.ask(HELLO, [ADD]))[-1]
        assert (final.kind, getattr(final.payload, "finish_reason", None)) == ("done", ours), word


@every
@pytest.mark.spec("P-5")
async def test_text_thinking_parallel_calls_and_cached_tokens_come_out(protocol: Protocol) -> None:
    async with line_to(protocol, Says("Adding.", "Two sums.", TWO, cached=40)) as line:
        deltas = await line.ask(HELLO, [ADD])
    assert (text_of(deltas), thinking_of(deltas)) == ("Adding.", "Two sums.")
    assert [json.loads(raw) for _, raw in calls_of(deltas)] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    [*_, usage] = [delta.payload for delta in deltas if delta.kind == "usage"]
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (100, 40, 7)
    assert deltas[-1].payload.finish_reason == "tool_calls"


CHOICES: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "required": '"tool_choice": "required"',
        "none": '"tool_choice": "none"',
        "add": '"tool_choice": {"type": "function", "function": {"name": "add"}}',
    },
    "openai-responses": {
        "required": '"tool_choice": "required"',
        "none": '"tool_choice": "none"',
        "add": '"tool_choice": {"type": "function", "name": "add"}',
    },
    "anthropic-messages": {
        "required": '"tool_choice": {"type": "any"',
        "none": '"tool_choice": {"type": "none"',
        "add": '"tool_choice": {"type": "tool", "name": "add"',
    },
    "gemini": {
        "required": '"mode": "ANY"',
        "none": '"mode": "NONE"',
        "add": '"allowedFunctionNames": ["add"]',
    },
    "bedrock-converse": {"required": '"any": {}', "none": None, "add": '"tool": {"name": "add"}'},
}


@every
@pytest.mark.spec("P-5")
async def test_a_tool_can_be_forced_forbidden_and_named(protocol: Protocol) -> None:
    async with line_to(protocol, Says("Hi."), **NO_THINKING.get(protocol, {})) as line:
        for choice, sent in CHOICES[protocol.name].items():
            wanted: Any = SpecificTool(name="add") if choice == "add" else choice
            await line.ask(HELLO, [ADD], tool_choice=wanted)
            body = json.dumps(line.bodies[-1])
            if sent is not None:
                assert sent in body, (choice, body)
            else:  # a protocol without a word for it: no tool is offered
                assert "any" not in body and '"add"' not in body


@every
@pytest.mark.spec("P-5")
async def test_images_files_and_stop_sequences_go_in(protocol: Protocol) -> None:
    desk = Desk()
    options = {**FILES.get(protocol, {}), "stop_sequences": ["HALT"]}
    async with line_to(protocol, Says("A dot and a page."), **options) as line:
        assert line.model.supports("images") and line.model.supports("files")
        agent = Agent(line.model, store=desk.store)
        await agent.run(
            [
                "What are these?",
                File.from_bytes(base64.b64decode(PIXEL), name="dot.png"),
                File.from_bytes(PDF, name="scan.pdf"),
                File.from_bytes(b"Soft paws at dawn.", name="poem.txt"),
            ],
            session="s",
        )
        [body] = line.bodies
    text = json.dumps(body)
    assert PIXEL in text and base64.b64encode(PDF).decode() in text and "Soft paws at dawn." in text
    assert "HALT" in text


def refusal(protocol: Protocol) -> LoopbackAnswer | None:
    """A model that declines, in words or without any."""
    match protocol.name:
        case "openai-chat":
            said = {"index": 0, "delta": {"refusal": "I cannot help with that."}}
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            body = sse({"id": "c", "choices": [said]}, {"id": "c", "choices": [end]}) + b"data: [DONE]\n\n"
            return LoopbackAnswer.sse(body)
        case "openai-responses":
            part = {"type": "refusal", "refusal": "I cannot help with that."}
            item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
            told = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            done = {"id": "r", "status": "completed", "output": [{**item, "status": "completed"}]}
            return LoopbackAnswer.sse(
                sse(
                    {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
                    {
                        "type": "response.output_item.added",
                        "output_index": 0,
                        "item": {**item, "content": []},
                    },
                    {"type": "response.refusal.delta", **told, "delta": "I cannot help with that."},
                    {"type": "response.output_item.done", "output_index": 0, "item": item},
                    {"type": "response.completed", "response": done},
                    named=True,
                )
            )
        case "anthropic-messages":
            return protocol.answer(Says("", end="refusal"))
        case _:
            return None  # no word for a refusal: it is text like any other


@every
@pytest.mark.spec("P-5")
async def test_refusals_and_filters_that_leave_nothing_else_are_told(protocol: Protocol) -> None:
    declined = refusal(protocol)
    if declined is not None:
        async with line_to(protocol, declined) as line:
            deltas = await line.ask()
        final = deltas[-1].payload
        in_words = deltas[-1].kind == "done" and final.finish_reason == "refusal"
        assert in_words or final.error_code == "ModelRefused"
        if protocol is not ANTHROPIC:
            told = text_of(deltas) + getattr(final, "message", "")
            assert "I cannot help with that." in told
    words = {
        CHAT: "content_filter",
        RESPONSES: "content_filter",
        GEMINI: "SAFETY",
        CONVERSE: "content_filtered",
    }
    if protocol in words:
        async with line_to(protocol, Says("", end=words[protocol])) as line:
            final = (await line.ask())[-1]
        filtered = final.kind == "done" and final.payload.finish_reason == "content_filter"
        assert filtered or final.payload.error_code == "ModelContentFiltered"
