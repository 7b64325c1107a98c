"""What ``check_model`` asks an adapter's author to act out, as data."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from turnlog.contract import (
    AgentError,
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
from turnlog.models import Model, ScriptedCall, Turn

Ending: TypeAlias = Literal["stop", "tool_calls", "length", "cut", "hang", "error"]


@dataclass(frozen=True, slots=True)
class CaseCall:
    """A tool call the provider makes. ``args_text`` goes out to the letter, parsable or not."""

    name: str
    args_text: str
    id: str


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One answer for the provider to give: ``thinking``, then ``text``, then ``calls``, then ``ending``.

    Text and arguments go out in several pieces wherever the protocol has pieces. ``cut`` means that the
    source ends without the protocol's end mark, a last call in the middle of its arguments; ``hang`` that
    it stays open and silent after the text; ``error`` that it refuses the request so that ``error_code``
    is what an adapter should make of it (with ``retry_after`` in the protocol's way of saying so).
    """

    name: str
    about: str
    text: str = ""
    thinking: str = ""
    calls: tuple[CaseCall, ...] = ()
    ending: Ending = "stop"
    error_code: str = ""
    retry_after: float | None = None
    required: bool = False

    def as_turn(self) -> Turn:
        """The same for a scripted model, as an example of how to play a case. ``hang`` is not in it."""
        error = None
        if self.ending == "error":
            meta = None if self.retry_after is None else {"retry_after": self.retry_after}
            error = AgentError(self.error_code, self.about, meta=meta)
        return Turn(
            text=self.text or None,
            thinking=self.thinking or None,
            tool_calls=[ScriptedCall(name=c.name, raw_args=c.args_text, id=c.id) for c in self.calls],
            cut=self.ending == "cut",
            error=error,
            finish_reason=self.ending if self.ending in ("stop", "tool_calls", "length") else None,
        )


TEXT = "The sum of one and two is three."
_ADD = CaseCall("add", '{"a": 1, "b": 2}', "provider_call_1")

CASES: tuple[ModelCase, ...] = (
    ModelCase("text", "answers with text in more than one piece", text=TEXT, required=True),
    ModelCase("thinking", "thinks first, then answers", text=TEXT, thinking="One and two. Easy."),
    ModelCase("tool_call", "calls add", calls=(_ADD,), ending="tool_calls", required=True),
    ModelCase(
        "text_and_call", "says something, then calls add", text=TEXT, calls=(_ADD,), ending="tool_calls"
    ),
    ModelCase(
        "parallel_calls",
        "calls add twice in one answer",
        calls=(_ADD, CaseCall("add", '{"a": 3, "b": 4}', "provider_call_2")),
        ending="tool_calls",
    ),
    ModelCase(
        "same_id",
        "makes two different calls under one id",
        calls=(_ADD, CaseCall("add", '{"a": 3, "b": 4}', "provider_call_1")),
        ending="tool_calls",
    ),
    ModelCase(
        "bad_arguments",
        "calls add with arguments that are not JSON, and ends as if all were well",
        calls=(CaseCall("add", '{"a": 1, "b": two', "provider_call_1"),),
        ending="tool_calls",
    ),
    ModelCase(
        "no_arguments",
        "calls a tool that takes nothing",
        calls=(CaseCall("now", "{}", "provider_call_1"),),
        ending="tool_calls",
    ),
    ModelCase("length", "stops at the length limit", text=TEXT, ending="length"),
    ModelCase("length_call", "stops at the length limit inside a call", calls=(_ADD,), ending="length"),
    ModelCase("cut", "stops in the middle of its text", text=TEXT, ending="cut", required=True),
    ModelCase("cut_call", "stops in the middle of a call", calls=(_ADD,), ending="cut"),
    ModelCase("hang", "says something and then nothing more", text=TEXT, ending="hang", required=True),
    ModelCase(
        "rate_limited",
        "refuses: too many requests, try again in 7 seconds",
        ending="error",
        error_code="ModelRateLimited",
        retry_after=7,
    ),
    ModelCase("overloaded", "refuses: overloaded", ending="error", error_code="ModelOverloaded"),
    ModelCase("server_error", "refuses: internal error", ending="error", error_code="ModelServerError"),
    ModelCase("auth_error", "refuses: the key is wrong", ending="error", error_code="ModelAuthError"),
    ModelCase("not_found", "refuses: no such model", ending="error", error_code="ModelNotFound"),
    ModelCase(
        "overflow", "refuses: the prompt is too long", ending="error", error_code="ModelContextOverflow"
    ),
    ModelCase("bad_request", "refuses: a field is wrong", ending="error", error_code="ModelBadRequest"),
)


@dataclass(frozen=True, slots=True)
class Wired:
    """A model and a way to see what became of its source.

    ``closed`` returns once the source is closed: for example a server that waits for its client to hang up.
    ``finish`` is called when the check is over. ``sent`` gives the bodies of all requests so far, JSON in
    bytes or as values, so that the kit can look at them.
    """

    model: Model
    closed: Callable[[], Awaitable[object]] | None = None
    finish: Callable[[], Awaitable[object]] | None = None
    sent: Callable[[], Sequence[bytes | object]] | None = None


MakeModel: TypeAlias = Callable[[ModelCase], "Model | Wired | Awaitable[Model | Wired | None] | None"]
"""Makes the model that plays a case, every time it is asked; None where the protocol has no such case."""


@dataclass(slots=True)
class ModelReport:
    """What was checked. ``skipped`` says why something could not be."""

    passed: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} checks passed"]
        lines += [f"skipped {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


async def build(make_model: MakeModel, case: ModelCase) -> Wired | None:
    made = make_model(case)
    if inspect.isawaitable(made):
        made = await made
    if made is None or isinstance(made, Wired):
        return made
    if not isinstance(made, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AssertionError(f"make_model gave a {type(made).__name__} for {case.name!r}, not a Model")
    return Wired(made)


# Histories that every adapter must take: ours, other providers', a newer writer's


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
