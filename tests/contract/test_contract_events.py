"""Events are flat objects; their JSON keeps its content under `payload`."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from contract.wire_examples import ANSWERED, DELTAS, EVENTS, RESULT
from turnlog import events
from turnlog.contract import DELTA_KINDS, AgentError, Message, decode, encode, text_part, tool_result_part
from turnlog.contract.events import DELTA_EVENTS
from turnlog.contract.events import RunEvent as RunEvent

PLACE: dict[str, Any] = {"seq": 1, "session_id": "s", "run_id": "r", "timestamp": "t"}


def summarize(event: RunEvent) -> str:
    match event:
        case events.TextDelta(text=text):
            return f"says {text}"
        case events.ThinkingDelta(text=text):
            return f"thinks {text}"
        case events.ToolCallDelta(tool_call_id=call, tool_name=name, arguments_text=arguments):
            return f"{call} {name} {arguments}"
        case events.ToolStarted(tool_name=name, arguments=arguments):
            return f"runs {name} {arguments}"
        case events.ToolFinished(tool_name=name, text=text, is_error=failed):
            return f"{name} gave {text} {failed}"
        case events.RunEnded(result=result):
            return f"ended {result.status}"
        case events.StatusChanged(status=status, previous=previous):
            return f"{previous} to {status}"
        case _:
            return event.kind


def test_an_event_is_matched_by_what_it_tells() -> None:
    told = [summarize(event) for event in EVENTS.values()]
    assert told == [
        "idle to preparing",
        "input",
        "model_call",
        f"says {DELTAS['text'].payload.text_delta}",
        "retracted",
        "error",
        "assistant_message",
        "approval_requested",
        "approval_decided",
        "runs add None",
        "tool_progress",
        "add gave 3 False",
        "context",
        "tool_deferred",
        "ended completed",
    ]


@pytest.mark.parametrize("kind", DELTA_KINDS)
def test_every_delta_has_its_event(kind: str) -> None:
    event: Any = DELTA_EVENTS[kind](**PLACE, model_call_index=1, attempt=2, delta=DELTAS[kind])
    again = decode(encode(event), RunEvent)
    assert again == event
    assert type(again) is type(event)
    assert event.kind == "model_delta"
    assert json.loads(encode(event))["payload"] == {
        "modelCallIndex": 1,
        "attempt": 2,
        "delta": json.loads(encode(DELTAS[kind])),
    }


def test_a_call_comes_in_pieces() -> None:
    kinds = ("tool_call_start", "tool_call_args", "tool_call_end")
    pieces = [
        events.ToolCallDelta(**PLACE, model_call_index=1, attempt=1, delta=DELTAS[kind]) for kind in kinds
    ]
    assert [piece.tool_call_id for piece in pieces] == ["call_0001"] * 3
    assert [piece.tool_name for piece in pieces] == ["add", None, None]
    assert [bool(piece.arguments_text) for piece in pieces] == [False, True, False]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("as it is", "as it is"),
        ({"b": 1, "a": ["ä"]}, '{"b":1,"a":["ä"]}'),
        ([text_part("one "), text_part("two")], "one two"),
    ],
)
def test_a_result_as_text(content: Any, text: str) -> None:
    part = tool_result_part("call_1", content, is_error=True)
    message = Message(run_id="r", role="tool", parts=[part], timestamp="t")
    event = events.ToolFinished(
        **PLACE, entry_id="e", tool_call_id="call_1", tool_name="t", status="failed", message=message
    )
    assert (event.text, event.is_error) == (text, True)


def test_what_was_said_is_one_word_away() -> None:
    asked = events.InputAdded(**PLACE, entry_id="e", message=ANSWERED)
    answered = events.AnswerAdded(**PLACE, entry_id="e", message=ANSWERED, finish_reason="stop")
    assert asked.text == answered.text == "1 + 2 is 3."
    assert RESULT.text == ""


def test_the_module_for_users_has_every_event_and_nothing_else() -> None:
    public = {name for name in vars(events) if not name.startswith(("_", "@"))}  # pytest adds names with @
    assert public == {event.__name__ for event in get_args(RunEvent)}


def test_an_event_cannot_be_changed_and_one_class_alone_is_not_a_wire_type() -> None:
    event = EVENTS["status"]
    with pytest.raises(AttributeError):
        event.status = "failed"
    with pytest.raises(AgentError, match="does not fit"):
        decode(encode(event), events.StatusChanged)
