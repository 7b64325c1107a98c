"""What Anthropic sent goes back to it as it came: every block of every recorded answer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from models.anthropic_wire import Heard, anthropic, ask, hear, results
from turnlog.contract import Message, user_message
from turnlog.testing import Loopback, LoopbackAnswer


def recorded(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "streams" / "exchanges").glob("anthropic.*.json"))
    exchanges = [json.loads(file.read_text()) for file in files]
    answers = [one for one in exchanges if one["kind"] == "sse" and one["expected"].get("blocks")]
    return [one for one in answers if "message_start_twice" not in one["oddities"]]


def blocks_of(body: str) -> list[dict[str, Any]]:
    """The answer's blocks, put together by the protocol's plain rules."""
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for line in body.splitlines():
        if not line.startswith("data:"):
            continue
        event = json.loads(line[5:])
        index, delta = event.get("index"), event.get("delta") or {}
        match event["type"], delta.get("type"):
            case "message_start", _:
                blocks.update(enumerate(event["message"]["content"]))
            case "content_block_start", _:
                blocks[index] = event["content_block"]
            case "content_block_delta", "text_delta" | "thinking_delta" | "signature_delta":
                key = delta["type"].removesuffix("_delta")
                blocks[index][key] = blocks[index].get(key, "") + delta[key]
            case "content_block_delta", "input_json_delta":
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
            case "content_block_delta", "citations_delta":
                blocks[index].setdefault("citations", []).append(delta["citation"])
            case "content_block_delta", "compaction_delta":
                blocks[index]["content"] = delta["content"]
            case _:
                pass
    for index, text in inputs.items():
        if text:
            blocks[index]["input"] = json.loads(text)
    return [blocks[index] for index in sorted(blocks)]


def plain(block: dict[str, Any]) -> dict[str, Any]:
    """A block without what means nothing: a mark, the caller that is the default, an empty list."""
    kept = {key: value for key, value in block.items() if key != "cache_control"}
    if block["type"] == "tool_use" and kept.get("caller") == {"type": "direct"}:
        del kept["caller"]
    if block["type"] == "text" and not kept.get("citations"):
        kept.pop("citations", None)
    return kept


@pytest.mark.spec("M-7")
async def test_every_recorded_block_goes_back(shared_data: Path) -> None:
    seen: set[str] = set()
    for exchange in recorded(shared_data):
        body = exchange["response"]["body_text"]
        heard: Heard = await hear(LoopbackAnswer.sse(body))
        assert heard.done is not None, exchange["id"]
        history: list[Message] = [user_message("question"), heard.message]
        if heard.message.tool_calls:
            history.append(results(*((part.payload.tool_call_id, "ok") for part in heard.message.tool_calls)))
        sent = await ask([*history, user_message("and?")])
        turns = [turn for turn in sent["messages"] if turn["role"] == "assistant"]
        expected = [plain(block) for block in blocks_of(body)]
        if not expected:
            assert turns == []
            continue
        assert [plain(block) for block in turns[0]["content"]] == expected, exchange["id"]
        seen |= {block["type"] for block in expected}
    assert {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "compaction"} <= seen


async def test_a_request_extends_the_one_before_it(shared_data: Path) -> None:
    """Without marks, what is sent later begins with what was sent before, to the byte."""
    bodies = [exchange["response"]["body_text"] for exchange in recorded(shared_data)]
    async with Loopback(*(LoopbackAnswer.sse(body) for body in bodies)) as server:
        model = anthropic(server, cache_config={"strategy": "off"})
        history: list[Message] = [user_message("question")]
        for _ in bodies:
            heard = Heard([delta async for delta in model.stream(history)])
            history.append(heard.message)
            if calls := heard.message.tool_calls:
                history.append(results(*((part.payload.tool_call_id, "ok") for part in calls)))
            else:
                history.append(user_message("and?"))
        await model.close()
    wires = [request.body[request.body.index(b'"messages":[') :] for request in server.requests]
    for before, after in pairwise(wires):
        assert after.startswith(before.removesuffix(b"]}]}"))
