"""What a Responses server sent goes back to it as it came: every item of every recorded answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.anthropic_wire import Heard
from models.responses_wire import (
    CALL_ID,
    FAMILY,
    HELLO,
    SEARCH,
    WEATHER,
    answer,
    ask,
    check_official,
    function_call,
    hear,
    message,
    reasoning,
    responses,
    results,
    sse,
)
from turnlog.contract import Message, ToolCallPart, decode, encode, text_part, user_message
from turnlog.models.wire import NO_RESULT
from turnlog.testing import Loopback, LoopbackAnswer

AGAIN = user_message("And?")
THOUGHT = reasoning("**One**", "**Two**", encrypted_content="gAAAAAB==", content=[], status=None)


async def returned(heard: Heard, **kw: Any) -> list[dict[str, Any]]:
    """The items that an answer becomes, when it is sent back to the server it came from."""
    assert heard.finish is not None, heard.error
    given = [part.payload.tool_call_id for part in heard.parts if isinstance(part, ToolCallPart)]
    after = [results(*((one, "ok") for one in given))] if given else []
    body = await ask([*HELLO, heard.message, *after, AGAIN], **kw)
    assert body["input"][0] == {"role": "user", "content": "hello"}
    assert body["input"][-1] == {"role": "user", "content": "And?"}
    return body["input"][1:-1]


# ── recorded ──


def recorded(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "streams" / "exchanges").glob("oairesp.*.json"))
    exchanges = [json.loads(file.read_text()) for file in files]
    return [one for one in exchanges if one["kind"] == "sse" and "error" not in one["features"]]


def items_of(body: str) -> list[dict[str, Any]]:
    """The answer's items in the order of their index: as they were done, else as the end lists them."""
    found: dict[int, dict[str, Any]] = {}
    for line in body.splitlines():
        if not line.startswith("data:") or "[DONE]" in line:
            continue
        event = json.loads(line[5:])
        if event["type"] == "response.output_item.done":
            found[event["output_index"]] = event["item"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            found = {**dict(enumerate(event["response"]["output"])), **found}
    return [found[at] for at in sorted(found)]


def plain(item: dict[str, Any]) -> dict[str, Any]:
    """A message or a call without what means nothing on the way back; any other item as it is."""
    if item["type"] == "message":
        content = [
            {key: value for key, value in part.items() if key != "logprobs"} for part in item["content"]
        ]
        return {**item, "content": content, "status": ""}
    if item["type"] == "function_call":
        return {**item, "status": ""}
    return item


def is_thought(item: dict[str, Any]) -> bool:
    return item["type"] == "reasoning"


@pytest.mark.spec("M-7", "P-6", "P-9")
async def test_every_recorded_answer_goes_back_as_it_came(shared_data: Path) -> None:
    whole = 0
    for exchange in recorded(shared_data):
        body = exchange["response"]["body_text"]
        expected = items_of(body)
        while expected and is_thought(expected[-1]):
            expected.pop()
        heard = await hear(body.encode())
        made_up = ("_output", "_response")
        items = [one for one in await returned(heard) if "id" in one or not one["type"].endswith(made_up)]
        unreadable = [
            one
            for one in expected
            if is_thought(one) and not one.get("encrypted_content") and not one.get("content")
        ]
        kinds = {one["type"] for one in expected}
        if unreadable or "local_shell_call" in kinds or kinds <= {"message", "function_call"}:
            assert {one["type"] for one in items} <= {"message", "function_call"}, exchange["id"]
            assert not any("id" in one for one in items), exchange["id"]
            continue
        whole += 1
        # Copilot and OpenRouter name a message differently in every event.
        assert [one["type"] for one in items] == [one["type"] for one in expected], exchange["id"]
        for item, one in zip(items, expected, strict=True):
            if "id" in item or one["type"] != "message":
                theirs = {**plain(one), "call_id": item["call_id"]} if "call_id" in one else plain(one)
                assert plain(item) == theirs, exchange["id"]
    assert whole >= 15


@pytest.mark.spec("M-7", "P-6", "P-9")
async def test_what_goes_back_fits_the_official_types(shared_data: Path) -> None:
    for exchange in recorded(shared_data):
        if exchange["provider"] not in ("openai", "azure", "copilot", "bedrock-mantle"):
            continue
        heard = await hear(exchange["response"]["body_text"].encode())
        body = await ask([*HELLO, heard.message])
        for item in body["input"]:
            if item.get("type") == "custom_tool_call":
                del item["status"]  # which an answer has, and the type of what goes back lacks
        check_official(body)


# ── thoughts ──


@pytest.mark.spec("M-7", "P-6")
async def test_thoughts_go_back_byte_by_byte() -> None:
    heard = await hear(answer(THOUGHT, message("Hi.", phase="final_answer"), function_call()))
    items = await returned(heard)
    assert json.dumps(items[0]) == json.dumps(THOUGHT)
    assert items[1] == message("Hi.", phase="final_answer")
    assert items[2] == function_call()
    assert items[3] == {"type": "function_call_output", "call_id": CALL_ID, "output": "ok"}


@pytest.mark.spec("M-7", "P-6")
@pytest.mark.parametrize(
    "content",
    [
        [{"type": "reasoning_text", "text": "hm"}],
        [{"type": "reasoning_text", "text": "hm"}, {"type": "reasoning_text", "text": "hmm"}],
    ],
)
async def test_thoughts_in_the_open_go_back_too(content: list[Any]) -> None:
    thought = reasoning(id="rs_1", content=content)
    assert (await returned(await hear(answer(thought, message("Hi.")))))[0] == thought


@pytest.mark.spec("M-7", "P-6")
async def test_thoughts_that_were_not_shown_as_they_are_kept() -> None:
    """A server that shows its thinking and then tells it differently."""
    events = answer(THOUGHT, message("Hi."))
    other = reasoning("Something else.", encrypted_content="e")
    shown = [
        {**one, "item": other} if one["type"].endswith("item.done") and one["output_index"] == 0 else one
        for one in events
    ]
    assert (await returned(await hear(shown)))[0] == other


@pytest.mark.spec("P-6", "M-7")
@pytest.mark.parametrize(
    "change",
    [
        {"config": {"model_id": "another"}},
        {"config": {"base_url": "http://localhost:1"}},
        {"system": "Another prompt."},
        {"specs": [WEATHER]},
    ],
)
async def test_elsewhere_only_plain_words_go_back(change: dict[str, Any]) -> None:
    heard = await hear(answer(THOUGHT, SEARCH, message("Hi."), function_call()))
    if "base_url" in change.get("config", {}):
        async with Loopback(LoopbackAnswer.sse(sse(answer(message())))) as server:
            model = responses(server, base_url=server.url.replace("127.0.0.1", "localhost"))
            deltas = [delta async for delta in model.stream([*HELLO, heard.message, AGAIN])]
            await model.close()
            assert deltas[-1].kind == "done", deltas[-1]
            items = server.requests[0].json["input"][1:-1]
    else:
        items = await returned(heard, **change)
    assert [one["type"] for one in items] == ["message", "function_call", "function_call_output"]
    assert not any("id" in one for one in items)
    assert items[0]["content"] == "Hi."
    assert items[1]["call_id"] == items[2]["call_id"] == CALL_ID


@pytest.mark.spec("P-6")
async def test_a_fold_leaves_thoughts_out_and_later_ones_in() -> None:
    """Another past before an answer, and its thoughts stay away; those that came after the change return."""
    first = await hear(answer(THOUGHT, message("One.")))
    folded = [user_message("summary of all that was"), first.message, AGAIN]
    assert [one.get("type") for one in (await ask(folded))["input"]] == [None, "message", None]
    second = await hear(answer(reasoning(encrypted_content="later"), message("Two.", id="msg_2")), folded)
    wire = (await ask([*folded, second.message, *HELLO]))["input"]
    assert [one.get("encrypted_content") for one in wire if one.get("type") == "reasoning"] == ["later"]


@pytest.mark.spec("P-6")
async def test_a_thought_that_nothing_follows_stays_away() -> None:
    last = reasoning(id="rs_2", encrypted_content="e")
    heard = await hear(answer(THOUGHT, message("Hi."), last))
    assert [one["type"] for one in await returned(heard)] == ["reasoning", "message"]


@pytest.mark.spec("P-6")
async def test_an_answer_with_a_lost_thought_goes_back_in_plain_words() -> None:
    """A server refuses what followed a thought, under its id, without the thought."""
    heard = await hear(answer(reasoning("Hm."), SEARCH, message("Hi.")))
    assert await returned(heard) == [{"type": "message", "role": "assistant", "content": "Hi."}]


@pytest.mark.spec("P-6")
@pytest.mark.parametrize(("config", "kept"), [({}, True), ({"item_ids": False}, False)])
async def test_ids_go_along_where_they_are_wanted(config: dict[str, Any], kept: bool) -> None:
    heard = await hear(answer(THOUGHT, message("Hi."), function_call()))
    items = await returned(heard, config=config)
    assert [("id" in one) for one in items] == [kept, kept, kept, False]
    assert items[0]["encrypted_content"] == THOUGHT["encrypted_content"]


# ── other items ──


@pytest.mark.spec("M-7")
async def test_parts_of_one_message_become_one_item_again() -> None:
    two = message() | {
        "content": [
            {"type": "output_text", "text": "One", "annotations": [{"type": "url_citation", "url": "u"}]},
            {"type": "refusal", "refusal": "No."},
        ]
    }
    heard = await hear(answer(THOUGHT, two))
    assert [part.payload.text for part in heard.parts if part.kind == "text"] == ["One", "No."]
    assert (await returned(heard))[1] == two


@pytest.mark.spec("M-7")
async def test_items_are_put_back_in_their_order() -> None:
    """Some servers list an item only at the end that was the first."""
    events = [one for one in answer(THOUGHT, SEARCH, message("Hi.")) if one.get("output_index") != 1]
    heard = await hear(events)
    assert [part.payload.text for part in heard.parts][-2:] == ["Hi.", ""]
    assert await returned(heard) == [THOUGHT, SEARCH, message("Hi.")]


CALLS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    (
        {"type": "custom_tool_call", "id": "c_1", "call_id": "c1", "name": "sql", "input": "SELECT 1"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": NO_RESULT},
    ),
    (
        {
            "type": "apply_patch_call",
            "id": "a_1",
            "call_id": "c1",
            "status": "completed",
            "operation": {"type": "delete_file", "path": "a"},
        },
        {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed", "output": NO_RESULT},
    ),
    (
        {
            "type": "shell_call",
            "id": "s_1",
            "call_id": "c1",
            "status": "completed",
            "action": {"commands": ["ls"]},
        },
        {
            "type": "shell_call_output",
            "call_id": "c1",
            "output": [{"stdout": "", "stderr": NO_RESULT, "outcome": {"type": "exit", "exit_code": 1}}],
        },
    ),
    (
        {"type": "mcp_approval_request", "id": "m_1", "name": "n", "arguments": "{}", "server_label": "l"},
        {"type": "mcp_approval_response", "approval_request_id": "m_1", "approve": False},
    ),
    (SEARCH, None),
]


@pytest.mark.spec("P-9", "M-7")
@pytest.mark.parametrize(("item", "reply"), CALLS)
async def test_calls_of_tools_that_are_not_ours_get_a_reply(
    item: dict[str, Any], reply: dict[str, Any] | None
) -> None:
    heard = await hear(answer(message("Look."), item))
    items = await returned(heard)
    assert items[1:] == ([item] if reply is None else [item, reply])
    check_official(await ask([*HELLO, heard.message]))


@pytest.mark.spec("P-9")
async def test_a_call_that_was_answered_needs_no_reply() -> None:
    output = {
        "type": "shell_call_output",
        "id": "o_1",
        "call_id": "c1",
        "status": "completed",
        "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        "max_output_length": 9,
    }
    heard = await hear(answer(CALLS[2][0], output, message("Done.")))
    assert [one["type"] for one in await returned(heard)] == ["shell_call", "shell_call_output", "message"]


@pytest.mark.spec("P-9")
async def test_a_call_that_cannot_be_answered_stays_away() -> None:
    screen = {"type": "computer_call", "id": "cu_1", "call_id": "c1", "action": {"type": "screenshot"}}
    heard = await hear(answer(THOUGHT, message("Look."), screen))
    assert [one["type"] for one in await returned(heard)] == ["message"]


@pytest.mark.spec("M-4", "M-7")
async def test_a_history_that_was_written_down_reads_the_same() -> None:
    heard = await hear(answer(THOUGHT, SEARCH, message("Hi."), function_call()))
    again: Message = decode(encode(heard.message), Message)
    assert again == heard.message
    assert (await ask([*HELLO, again]))["input"] == (await ask([*HELLO, heard.message]))["input"]


@pytest.mark.spec("M-7")
async def test_data_of_ours_that_makes_no_sense_does_no_harm() -> None:
    odd: list[dict[str, Any]] = [
        {"origin": FAMILY, "item": None},
        {"origin": FAMILY, "item": {"type": "reasoning", "summary": [{"text": None}]}},
        {"origin": FAMILY, "id": 7, "annotations": "x", "phase": None},
    ]
    for data in odd:
        said = Message(run_id="r", role="assistant", parts=[text_part("Hi.", data)], timestamp="t")
        items = (await ask([*HELLO, said]))["input"]
        assert items[1] == {"type": "message", "role": "assistant", "content": "Hi."}
