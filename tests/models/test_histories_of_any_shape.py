"""Histories of any shape that a log can hold, against the rules of every protocol and its official types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import anthropic_wire, bedrock_wire, google_wire, responses_wire
from models.recorded import PlayingTransport
from models.speakers import OFFICIAL_CHAT
from turnlog.contract import (
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    RequestMetadata,
    ToolCall,
    ToolCallPart,
    ToolSpec,
    parse_arguments,
    text_part,
    thinking_part,
    tool_result_part,
)
from turnlog.models import Model
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.bedrock import BedrockModel
from turnlog.models.google import GoogleModel
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.testing import check_request

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
NAMES = ["look", "3 things/at:once", "wetter_für_zürich", "天気", "n" * 80, "-dash", "a.b", "look "]
TOOLS = [
    ToolSpec(name=name, description="", parameter_schema={"type": "object", "properties": {}})
    for name in NAMES
]

# ── what a message may hold ──

texts = st.sampled_from(["", " ", "\n\n", "Hello.", "數 \U0001f600 \u2028 \x00", "x" * 300, '{"a": 1}'])
images = st.sampled_from(
    [
        Image(mime_type="image/png", data=PIXEL),
        Image(mime_type="image/tiff", data=PIXEL),
        Image(mime_type="image/png", data=""),
        Image(mime_type="image/png", data="not base64!"),
        Image(mime_type="image/png", url="blob:sha256-" + "0" * 64),
        Image(mime_type="image/png", url="https://example.com/a.png"),
        Image(mime_type="image/png", url=f"data:image/png;base64,{PIXEL}"),
        Image(mime_type="image/png", url="data:image/png,plain"),
        Image(mime_type="image/svg+xml", url="data:image/svg+xml;base64,PHN2Zy8+"),
    ]
).map(lambda image: ImagePart(payload=image))
files = st.sampled_from(
    [
        FileRef(path="a.txt"),
        FileRef(path="ü/b", mime_type="application/pdf", size=3),
        FileRef(path="ü/ö.pdf", mime_type="application/pdf", data="JVBERi0="),
        FileRef(path="a.pdf", mime_type="application/pdf", data="no base64!"),
        FileRef(path="a.pdf", mime_type="application/pdf", url="blob:sha256-" + "0" * 64),
        FileRef(path="a.txt", mime_type="text/plain", data="SGVsbG8="),
        FileRef(path="a.bin", data="AAEC"),
    ]
).map(lambda file: FileRefPart(payload=file))
shown = st.one_of(texts.map(text_part), images, files)

ORIGINS = ["anthropic", "google", "bedrock", "openai-chat", "openai-responses", "other"]
marks = st.one_of(
    st.none(),
    st.builds(
        lambda origin, more: {"origin": origin, **more},
        st.sampled_from(ORIGINS),
        st.sampled_from(
            [
                {},
                {"signature": "c2ln"},
                {"signature": "c2ln", "vendor": "anthropic"},
                {"field": "reasoning_content", "host": "127.0.0.1", "model_id": "m"},
                {"id": "msg_1", "at": 0},
                {"citations": []},
            ]
        ),
    ),
)
call_ids = st.sampled_from(["call_0", "1", "id with spaces/and:signs", "ü", "toolu_" + "x" * 200])
call_marks = st.one_of(
    st.none(),
    st.builds(
        lambda origin, given: {"origin": origin, "id": given},
        st.sampled_from(ORIGINS),
        st.sampled_from(["toolu_1", "tooluse_1", "call_0", "toolu_ü " + "x" * 90, "c" * 30, "functions.f:0"]),
    ),
)
arguments = st.sampled_from(["", "{}", '{"a": "ü"}', '{"a": 1', "[1]", "null", ' {"b": [1, null]} '])


@st.composite
def answers(draw: st.DrawFn, known: set[str]) -> tuple[list[Any], list[str]]:
    """(parts of an answer, the ids of its calls); ``known`` are the ids that the session has used."""
    parts: list[Any] = []
    made: list[str] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thinking", "call"]), min_size=1, max_size=4)):
        match kind:
            case "text":
                parts.append(text_part(draw(texts), draw(marks)))
            case "thinking":
                parts.append(thinking_part(draw(texts), draw(marks)))
            case _:
                call_id = f"{draw(call_ids)}{len(known) or ''}"
                known.add(call_id)
                made.append(call_id)
                raw = draw(arguments)
                payload = ToolCall(
                    tool_call_id=call_id,
                    tool_name=draw(st.sampled_from(NAMES)),
                    arguments=parse_arguments(raw).arguments,
                    raw_args_text=raw,
                    provider_data=draw(call_marks),
                )
                parts.append(ToolCallPart(payload=payload))
    return parts, made


results = st.one_of(
    texts,
    st.sampled_from([{}, {"a": [1, None, "ü"]}]),
    st.lists(shown, max_size=3),
)


def message(role: Any, parts: list[Any]) -> Message:
    return Message(run_id="r", role=role, parts=parts, timestamp="2026-01-01T00:00:00.000Z")


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Answers with calls that are answered in one message or several, late, or never; words in between."""
    told: list[Message] = []
    known: set[str] = set()
    for kind in draw(st.lists(st.sampled_from(["user", "answer", "system"]), min_size=1, max_size=5)):
        if kind == "user":
            told.append(message("user", draw(st.lists(shown, min_size=1, max_size=3))))
        elif kind == "system":
            told.append(message("system", [text_part(draw(texts))]))
        else:
            parts, made = draw(answers(known))
            told.append(message("assistant", parts))
            answered = draw(st.lists(st.sampled_from(made), unique=True)) if made else []
            while answered:
                count = draw(st.integers(1, len(answered)))
                batch, answered = answered[:count], answered[count:]
                told.append(
                    message(
                        "tool",
                        [tool_result_part(one, draw(results), is_error=draw(st.booleans())) for one in batch],
                    )
                )
                if draw(st.booleans()):
                    told.append(message("user", [text_part(draw(texts))]))
    return told


# ── who is asked ──


class Recorder:
    """A botocore client that is asked and answers nothing: botocore's own checks are run on the request."""

    def __init__(self) -> None:
        self.client = bedrock_wire.client_of("http://127.0.0.1:9")
        self.body: Any = None

    def converse_stream(self, **arguments: Any) -> dict[str, Any]:
        operation = self.client.meta.service_model.operation_model("ConverseStream")
        from botocore.validate import ParamValidator

        report = ParamValidator().validate(arguments, operation.input_shape)
        assert not report.has_errors(), report.generate_report()
        self.body = arguments
        return {"stream": iter([])}


def over_http(
    kind: type[Model], model: str, body: bytes, **fields: Any
) -> Callable[[list[Message], list[ToolSpec]], Any]:
    async def ask(messages: list[Message], specs: list[ToolSpec]) -> Any:
        transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [body])
        base = fields.pop("base_url", "http://127.0.0.1:1")
        async with httpx2.AsyncClient(transport=transport) as client:
            asked: Any = kind(model, client=client, base_url=base, api_key="k", **fields)
            found: Any = None
            for end in (len(messages) // 2, len(messages)):  # the second request grows out of the first
                meta = RequestMetadata(session_id="s", run_id="r")
                deltas = [
                    d async for d in asked.stream(messages[:end], specs, "Be brief.", request_metadata=meta)
                ]
                assert deltas[-1].payload.error_code == "ModelServerError", deltas[-1]
                found = json.loads(transport.requests[-1].content)
        fields["base_url"] = base
        return found

    return ask


def through_botocore(model: str) -> Callable[[list[Message], list[ToolSpec]], Any]:
    recorder = Recorder()

    async def ask(messages: list[Message], specs: list[ToolSpec]) -> Any:
        asked = BedrockModel(model, client=recorder)
        async for _ in asked.stream(messages, specs, "Be brief."):
            pass
        return recorder.body

    return ask


NOVA = "us.amazon.nova-pro-v1:0"
LLAMA = "us.meta.llama4-scout-17b-instruct-v1:0"
CASES: dict[str, tuple[str, str, Callable[[list[Message], list[ToolSpec]], Any], Callable[[Any], Any]]] = {
    "chat": (
        "openai-chat",
        "m",
        over_http(OpenAIChatModel, "m", b"", reasoning_back="reasoning_content"),
        OFFICIAL_CHAT.validate_python,
    ),
    "mistral": (
        "openai-chat",
        "m",
        over_http(OpenAIChatModel, "m", b"", base_url="https://api.mistral.ai/v1"),
        OFFICIAL_CHAT.validate_python,
    ),
    "blind": ("openai-chat", "m", over_http(OpenAIChatModel, "m", b"", images=False), lambda body: None),
    "responses": (
        "openai-responses",
        "gpt-5.2",
        over_http(OpenAIResponsesModel, "gpt-5.2", b""),
        responses_wire.check_official,
    ),
    "anthropic": (
        "anthropic-messages",
        "claude-sonnet-4-5",
        over_http(AnthropicModel, "claude-sonnet-4-5", b"", thinking=2048),
        anthropic_wire.check_official,
    ),
    "gemini 2": (
        "gemini",
        "gemini-2.5-pro",
        over_http(GoogleModel, "gemini-2.5-pro", b""),
        google_wire.check_official,
    ),
    "gemini 3": (
        "gemini",
        "gemini-3-pro",
        over_http(GoogleModel, "gemini-3-pro", b""),
        google_wire.check_official,
    ),
    "claude": (
        "bedrock-converse",
        bedrock_wire.CLAUDE,
        through_botocore(bedrock_wire.CLAUDE),
        lambda body: None,
    ),
    "nova": ("bedrock-converse", NOVA, through_botocore(NOVA), lambda body: None),
    "llama": ("bedrock-converse", LLAMA, through_botocore(LLAMA), lambda body: None),
}


@pytest.mark.spec("P-9")
@pytest.mark.parametrize("case", CASES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(told=histories(), tools=st.booleans())
def test_no_history_is_refused(case: str, told: list[Message], tools: bool) -> None:
    protocol, model, ask, official = CASES[case]
    body = asyncio.run(ask(told, TOOLS if tools else []))
    check_request(protocol, body, model=model)
    official(body)


def _call(call_id: str, given: dict[str, Any] | None = None) -> ToolCallPart:
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=call_id, tool_name="look", arguments={}, raw_args_text="{}", provider_data=given
        )
    )


SIGNED = [
    thinking_part("hm", {"origin": origin, "signature": "c2ln", "vendor": origin}) for origin in ORIGINS
]
NAMED: dict[str, list[Message]] = {
    "blank words alone": [message("user", [text_part(" ")])],
    "blank words at the end": [
        message("user", [text_part("Hi.")]),
        message("assistant", [text_part("Yes?")]),
        message("user", [text_part("\n")]),
    ],
    "a blank answer": [
        message("user", [text_part("Hi.")]),
        message("assistant", [text_part(" ")]),
        message("user", [text_part("Well?")]),
    ],
    "thoughts alone": [
        message("user", [text_part("Hi.")]),
        message("assistant", list(SIGNED)),
        message("user", [text_part("Well?")]),
    ],
    "thoughts at the end": [
        message("user", [text_part("Hi.")]),
        message("assistant", [text_part("Yes?"), *SIGNED]),
        message("user", [text_part("Well?")]),
    ],
    "ids that nobody takes": [
        message("assistant", [_call("id with spaces"), _call("ü"), _call("x" * 90)]),
        message("tool", [tool_result_part(one, "ok") for one in ("id with spaces", "ü", "x" * 90)]),
    ],
    "an answer that a server gave twice": [
        message("user", [text_part("Look.")]),
        *(
            one
            for turn in "abc"
            for one in (
                message(
                    "assistant",
                    [
                        _call(f"{turn}-{origin}", {"origin": origin, "id": "toolu_1", "vendor": "anthropic"})
                        for origin in ORIGINS
                    ],
                ),
                message("tool", [tool_result_part(f"{turn}-{origin}", turn) for origin in ORIGINS]),
            )
        ),
    ],
    "pictures that nobody takes": [
        message(
            "user",
            [
                ImagePart(payload=Image(mime_type="image/tiff", data=PIXEL)),
                ImagePart(payload=Image(mime_type="image/png", data="!")),
                ImagePart(payload=Image(mime_type="image/png", url="data:image/png,plain")),
            ],
        )
    ],
    "nothing at all": [],
}


@pytest.mark.spec("P-9")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMED)
async def test_no_such_history_is_refused(case: str, name: str) -> None:
    protocol, model, ask, official = CASES[case]
    body = await ask(NAMED[name], TOOLS)
    check_request(protocol, body, model=model)
    official(body)
    last = (body.get("messages") or body.get("contents") or body["input"])[-1]
    if case not in ("chat", "blind", "responses"):  # those let a model speak twice
        assert last["role"] in ("user", "tool")
