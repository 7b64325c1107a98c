"""Histories that every adapter must take: ours, other providers', a newer writer's."""

from __future__ import annotations

from turnlog.contract import (
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    Role,
    ToolCall,
    ToolCallPart,
    ToolSpec,
    decode,
    encode,
    text_part,
    thinking_part,
    tool_result_part,
)


def tools() -> list[ToolSpec]:
    numbers = {"a": {"type": "number"}, "b": {"type": "number"}}
    return [
        ToolSpec(
            name="add",
            description="Adds two numbers.",
            parameter_schema={"type": "object", "properties": numbers, "required": ["a", "b"]},
        ),
        ToolSpec(name="now", description="The time.", parameter_schema={"type": "object", "properties": {}}),
    ]


LIVE_SCREEN = "# [LiveScreen]\n\n# [Live Screen]\n\n## notebook\n\n- the user counts from zero"
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


FOREIGN = ("some-other-provider", "weird id/with:characters ", "c2lnbmF0dXJl", "b3BhcXVl")
"""What stands in the data of another provider's history and must not be sent to anyone else."""

ODD_NAME = "files.read text/" + "x" * 70


def message(role: Role, *parts: MessagePart) -> Message:
    return Message(run_id="run_check", role=role, parts=list(parts), timestamp="2026-01-01T00:00:00.000Z")


def call(
    call_id: str, raw: str, arguments: JsonObject | None, data: JsonObject | None = None
) -> ToolCallPart:
    payload = ToolCall(
        tool_call_id=call_id, tool_name="add", arguments=arguments, raw_args_text=raw, provider_data=data
    )
    return ToolCallPart(payload=payload)


def ask() -> Message:
    return message("user", text_part("What is one and two?"))


def odd_tool() -> ToolSpec:
    """A tool whose name no provider takes as it is."""
    return ToolSpec(name=ODD_NAME, description="", parameter_schema={"type": "object", "properties": {}})


def odd_call() -> list[Message]:
    payload = ToolCall(tool_call_id="call_0", tool_name=ODD_NAME, arguments={}, raw_args_text="{}")
    return [
        ask(),
        message("assistant", ToolCallPart(payload=payload)),
        message("tool", tool_result_part("call_0", "ok")),
    ]


def _called(*calls: ToolCallPart) -> list[Message]:
    return [ask(), message("assistant", text_part("Let me see."), *calls)]


def _newer() -> list[Message]:
    """What a newer version might write: unknown optional fields at every level."""
    plain = encode(message("user", text_part("What is one and two?")))
    known = b'"payload":{"text":'
    assert plain.count(known) == 1
    newer = plain.replace(known, b'"mood":["curious"],"payload":{"language":"en","text":')
    return [decode(newer[:-1] + b',"priority":{"level":2}}', Message)]


def _foreign() -> list[Message]:
    """A history that some other provider's adapter wrote, with what only that one understands."""
    data = {"origin": FOREIGN[0], "id": FOREIGN[1] + "x" * 100}
    thought = thinking_part("Adding.", {"origin": FOREIGN[0], "signature": FOREIGN[2]})
    hidden = thinking_part("", {"origin": FOREIGN[0], "type": "redacted", "data": FOREIGN[3]})
    answer = message(
        "assistant", thought, hidden, call("call_foreign", '{"a":1,"b":2}', {"a": 1, "b": 2}, data)
    )
    return [ask(), answer, message("tool", tool_result_part("call_foreign", "3")), ask()]


def _results() -> list[Message]:
    calls = [call(f"call_{number}", '{"a":1,"b":2}', {"a": 1, "b": 2}) for number in range(5)]
    results = [
        tool_result_part("call_0", "3"),
        tool_result_part("call_1", {"sum": 3, "steps": [1, None, True]}),
        tool_result_part("call_2", [text_part("3"), text_part("three")]),
        tool_result_part("call_3", "no such tool", is_error=True),
        tool_result_part("call_4", ""),
    ]
    return [*_called(*calls), message("tool", *results)]


def _image() -> ImagePart:
    return ImagePart(payload=Image(mime_type="image/png", data=_PIXEL))


def histories() -> dict[str, list[Message]]:
    """What may have come before. What a provider cannot take of it, its adapter leaves out or rewrites."""
    return {
        "a question without attachments": [ask()],
        "a LiveScreen section after the question": [
            message("user", text_part("What is one and two?"), text_part(LIVE_SCREEN))
        ],
        "a LiveScreen section after tool results": [
            *_called(call("call_0", "{}", {})),
            message("tool", tool_result_part("call_0", [text_part("3"), text_part(LIVE_SCREEN)])),
        ],
        "unknown optional fields": _newer(),
        "results of every shape": _results(),
        "arguments that never parsed": [
            *_called(call("call_0", '{"a": 1, "b": two', None)),
            message("tool", tool_result_part("call_0", "the arguments did not parse", is_error=True)),
        ],
        "a call that was never answered": [*_called(call("call_0", "{}", {})), ask()],
        "another provider's history": _foreign(),
        "two questions in a row": [ask(), ask()],
        "two answers in a row": [
            ask(),
            message("assistant", text_part("One.")),
            message("assistant", text_part("Two.")),
        ],
        "an answer first": [message("assistant", text_part("Hello.")), ask()],
        "a system message among the others": [ask(), message("system", text_part("Be brief.")), ask()],
        "empty text": [
            ask(),
            message("assistant", text_part("")),
            message("user", text_part(""), text_part("Well?")),
        ],
        "every script and symbol": [
            message("user", text_part("數 \U0001f600 e\u0301 \u2028 \u0000 \u202e </tool> {{x}}"))
        ],
        "an image": [message("user", text_part("What is this?"), _image())],
        "an image in a result": [
            *_called(call("call_0", "{}", {})),
            message("tool", tool_result_part("call_0", [text_part("see"), _image()])),
        ],
        "a file": [
            message(
                "user",
                text_part("Read this."),
                FileRefPart(payload=FileRef(path="notes.txt", mime_type="text/plain", size=12)),
            )
        ],
        "a long history": [ask(), message("assistant", text_part("Three."))] * 100 + [ask()],
    }
