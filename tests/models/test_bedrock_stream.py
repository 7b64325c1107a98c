"""Converse streams through a real botocore client: recorded ones, and each case by hand."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from models.anthropic_wire import HELLO, WEATHER
from models.bedrock_wire import (
    answer,
    block,
    call,
    client_of,
    converse,
    end,
    exchange,
    frame,
    talk,
    talk_plainly,
    text,
)
from models.recorded import FOLDER, body_of, check_outcome, load, outcome_of
from turnlog.contract import AgentError, DoneDelta, ToolCallEndDelta
from turnlog.models import load_model
from turnlog.models.bedrock import BedrockModel
from turnlog.testing import Loopback, LoopbackAnswer

NAMES = [
    name
    for name in sorted(f"{path.parent.name}/{path.name}" for path in FOLDER.glob("*/*converse.*.json"))
    if load(name)["protocol"] == "bedrock-converse" and load(name)["kind"] in ("eventstream", "json")
]
STREAMS = [name for name in NAMES if load(name)["kind"] == "eventstream"]
ANSWERED = [name for name in STREAMS if not {"error", "error_required"} & set(load(name)["expected"])]
BOTOCORE_REFUSES = "converse.bedrock.vercelai.amazon-bedrock-tool-no-args.d3553f"
"""A block's start with nothing in it: botocore takes no such event."""

FINISH = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "guardrail_intervened": "content_filter",
}

needs_recordings = pytest.mark.skipif(not NAMES, reason="no recorded exchanges here; set TURNLOG_SHARED")


def _short(name: str) -> str:
    return name.removesuffix(".json").rpartition("/")[2]


def _played(recorded: dict[str, Any], **fields: Any) -> LoopbackAnswer:
    response = recorded["response"]
    return LoopbackAnswer(
        body=body_of(recorded), status=response["status"], headers=response["headers"], **fields
    )


def _without_server_tools(recorded: dict[str, Any]) -> dict[str, Any]:
    """The index lists calls that the provider itself ran; they are no calls for us."""
    expected = recorded["expected"]
    calls = [one for one in expected.get("tool_calls") or [] if one["name"] != "nova_code_interpreter"]
    return {**recorded, "expected": {**expected, "tool_calls": calls}}


# ── recorded ──


@needs_recordings
@pytest.mark.parametrize(
    "name", [n for n in NAMES if load(n)["stream"] or load(n)["response"]["status"] >= 400], ids=_short
)
async def test_an_exchange_reads_as_it_was_recorded(name: str) -> None:
    recorded = _without_server_tools(load(name))
    played = _played(recorded)
    heard = await (talk_plainly if recorded["id"] == BOTOCORE_REFUSES else talk)(played)
    check_outcome(recorded, outcome_of(heard.deltas))
    if said := recorded["expected"].get("finish_reason"):
        assert heard.finish == FINISH[said]
    usage = recorded["expected"].get("usage")
    if usage and heard.done:
        assert heard.usage is not None
        assert heard.usage.total_tokens == usage["totalTokens"]
        assert heard.usage.cached_input_tokens == usage.get("cacheReadInputTokens")


@needs_recordings
@pytest.mark.parametrize("name", ANSWERED, ids=_short)
async def test_where_the_network_cuts_does_not_matter(name: str) -> None:
    whole = await talk(_played(load(name)))
    for pieces in (7, [1, 300, 2, 11, 1000]):
        heard = await talk(_played(load(name), pieces=pieces))
        assert [(d.kind, d.payload) for d in heard.deltas] == [(d.kind, d.payload) for d in whole.deltas]


@needs_recordings
@pytest.mark.parametrize("name", ANSWERED, ids=_short)
async def test_a_cut_answer_is_an_error(name: str) -> None:
    body = body_of(load(name))
    terminal = body.index(b"messageStop")
    for at in range(0, terminal, max(1, terminal // 8)):
        for then in ("end", "close"):
            heard = await talk(_played(load(name), cut_at=at, then=then))
            assert heard.error is not None, at
            assert heard.error.retryable, heard.error


@needs_recordings
@pytest.mark.parametrize("name", ANSWERED, ids=_short)
async def test_a_client_of_another_kind_gives_the_same(name: str) -> None:
    if load(name)["id"] != BOTOCORE_REFUSES:
        played = _played(load(name))
        whole, plain = await talk(played), await talk_plainly(played)
        assert [(d.kind, d.payload) for d in plain.deltas[1:]] == [
            (d.kind, d.payload) for d in whole.deltas[1:]
        ]


# ── by hand ──


async def test_text_and_usage() -> None:
    usage = {
        "inputTokens": 3,
        "outputTokens": 7,
        "totalTokens": 130,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
    }
    heard = await talk(answer(converse(*text(0, "Hel", "", "lo"), *end("end_turn", usage))))
    assert heard.message.text == "Hello"
    assert [delta.kind for delta in heard.deltas] == ["start", "text", "text", "usage", "done"]
    counts = heard.usage
    assert counts is not None
    assert (counts.input_tokens, counts.output_tokens, counts.total_tokens) == (123, 7, 130)
    assert (counts.cached_input_tokens, counts.cache_write_tokens) == (100, 20)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop_sequence"),
        ("max_tokens", "length"),
        ("content_filtered", "content_filter"),
        ("something_new", "other"),
    ],
)
async def test_stop_reasons(reason: str, finish: str) -> None:
    assert (await talk(answer(converse(*text(0, "so far"), *end(reason))))).finish == finish


async def test_thinking_of_all_kinds() -> None:
    secret = base64.b64encode(b"hidden").decode()
    body = converse(
        *block(0, {"reasoningContent": {"text": "h"}}, {"reasoningContent": {"text": "m"}},
               {"reasoningContent": {"signature": "sig"}}),
        *block(1, {"reasoningContent": {"redactedContent": secret}}),
        *block(2, {"reasoningContent": {"text": "plain"}}),
        *text(3, "yes"),
        *end("end_turn"),
    )  # fmt: skip
    heard = await talk(answer(body))
    mine = {"origin": "bedrock", "vendor": "anthropic"}
    assert heard.shape == [
        ("thinking", "hm", {**mine, "signature": "sig"}),
        ("thinking", "", {**mine, "redacted": secret}),
        ("thinking", "plain", None),
        ("text", "yes", None),
    ]


async def test_parallel_calls_and_names() -> None:
    body = converse(
        *text(0, "Looking."),
        *call(1, "weather", '{"city":', ' "Paris"}', id="tooluse_a"),
        *call(2, "weather", id="tooluse_b"),
        *end("tool_use"),
    )
    heard = await talk(answer(body), HELLO, [WEATHER])
    assert heard.finish == "tool_calls"
    first, second = heard.message.tool_calls
    assert first.payload.arguments == {"city": "Paris"}
    assert first.payload.provider_data == {"origin": "bedrock", "id": "tooluse_a"}
    assert second.payload.arguments == {}


async def test_tools_of_the_provider_and_citations_travel_with_their_text() -> None:
    tool = {"toolUseId": "tooluse_s", "name": "interpreter", "type": "server_tool_use"}
    result = {"toolUseId": "tooluse_s", "type": "interpreter_result", "status": "success"}
    citation = {"title": "t", "sourceContent": [{"text": "s"}], "location": {"web": {"url": "u"}}}
    body = converse(
        *text(0, "a"),
        *block(1, {"toolUse": {"input": '{"x": 1}'}}, start={"toolUse": tool}),
        *block(2, {"toolResult": [{"json": {"n": 1}}]}, start={"toolResult": result}),
        *block(3, {"text": "b"}, {"citation": citation}),
        *text(4, "c"),
        *end("end_turn"),
    )
    heard = await talk(answer(body))
    datas = [data for _, _, data in heard.shape]
    assert heard.message.text == "abc"
    assert heard.message.tool_calls == []
    assert datas[1]["block"] == {"toolUse": {**tool, "input": {"x": 1}}}
    assert datas[2]["block"] == {"toolResult": {**result, "content": [{"json": {"n": 1}}]}}
    assert datas[3]["citations"] == [citation]


CUT: list[tuple[list[tuple[str, dict[str, Any]]], str, bool]] = [
    ([*call(0, "a", '{"x": 1'), *end("max_tokens")], "ModelProtocolError", False),
    ([*call(0, "a", '{"x": 1'), *end("content_filtered")], "ModelContentFiltered", False),
    ([*call(0, "a", '{"x": 1', stop=False), *end("tool_use")], "ModelProtocolError", True),
    ([*call(0, "a", "{", stop=False), *call(0, "b", "{}"), *end("tool_use")], "ModelProtocolError", True),
    ([*call(0, "a", "{}"), *end("malformed_tool_use")], "ModelProtocolError", True),
    ([*call(0, "a", "{}"), *end("model_context_window_exceeded")], "ModelContextOverflow", False),
    ([*block(0, {"toolUse": {"input": "{}"}}), *end("tool_use")], "ModelProtocolError", True),
    ([*call(0, "a", "{}")], "ModelServerError", True),
]


@pytest.mark.parametrize("case", range(len(CUT)))
async def test_a_cut_call_has_no_end(case: int) -> None:
    events, code, retryable = CUT[case]
    heard = await talk(answer(converse(*events)))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == (code, retryable)
    assert not any(isinstance(delta, ToolCallEndDelta) for delta in heard.deltas)


async def test_counts_may_come_first_or_not_at_all() -> None:
    stop, counts = end("end_turn")
    for events in ([counts, stop], [stop]):
        heard = await talk(answer(converse(*text(0, "hi"), *events)))
        assert (heard.finish, heard.message.text) == ("stop", "hi")


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("throttlingException", "ModelRateLimited", True),
        ("serviceUnavailableException", "ModelOverloaded", True),
        ("internalServerException", "ModelServerError", True),
        ("modelStreamErrorException", "ModelServerError", True),
        ("validationException", "ModelBadRequest", False),
    ],
)
async def test_exceptions_in_the_middle(kind: str, code: str, retryable: bool) -> None:
    body = converse(*text(0, "so far")) + frame(kind, {"message": "No."}, exception=True)
    heard = await talk(answer(body))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == (code, retryable)
    assert "No." in (heard.error.message or "")


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (400, "ValidationException", "Input is too long for requested model.", "ModelContextOverflow"),
        (400, "ValidationException", "A field is wrong.", "ModelBadRequest"),
        (403, "AccessDeniedException", "You may not.", "ModelAuthError"),
        (403, "ExpiredTokenException", "The security token is expired", "ModelAuthError"),
        (404, "ResourceNotFoundException", "No such model.", "ModelNotFound"),
        (408, "ModelTimeoutException", "Too slow.", "ModelTimeout"),
        (429, "ThrottlingException", "Too many requests.", "ModelRateLimited"),
        (500, "InternalServerException", "Oops.", "ModelServerError"),
        (503, "ServiceUnavailableException", "Busy.", "ModelOverloaded"),
    ],
)
async def test_refusals(status: int, kind: str, message: str, code: str) -> None:
    heard = await talk(LoopbackAnswer.json({"message": message}, status, {"x-amzn-errortype": kind}))
    assert heard.error is not None
    assert heard.error.error_code == code


async def test_a_damaged_frame() -> None:
    body = bytearray(converse(*text(0, "hello"), *end("end_turn")))
    body[-40] ^= 0xFF
    heard = await talk(answer(bytes(body)))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)


async def test_no_connection() -> None:
    client = client_of("http://127.0.0.1:9")
    model = BedrockModel("m", client=client)
    deltas = [delta async for delta in model.stream(HELLO)]
    client.close()
    assert deltas[-1].payload.error_code == "ModelUnreachable"  # type: ignore[union-attr]


# ── threads and connections ──


async def test_silence_ends_the_call_and_the_connection() -> None:
    body = converse(*text(0, "so far"))
    async with Loopback(answer(body + b"\0" * 12, cut_at=len(body), then="stall")) as server:
        client = client_of(server.url)
        model = BedrockModel("m", client=client, timeout_silence=0.1)
        deltas = [delta async for delta in model.stream(HELLO)]
        assert deltas[-1].payload.error_code == "ModelTimeout"  # type: ignore[union-attr]
        assert "timeout_silence" in deltas[-1].payload.message  # type: ignore[union-attr]
        await server.no_connections()
        client.close()


async def test_closing_the_stream_closes_the_connection() -> None:
    body = converse(*text(0, "a", "b"))
    async with Loopback(answer(body + b"\0" * 12, cut_at=len(body), then="stall")) as server:
        client = client_of(server.url)
        stream = BedrockModel("m", client=client).stream(HELLO)
        async for delta in stream:
            if delta.kind == "text":
                break
        await stream.aclose()
        await server.no_connections()
        client.close()


async def test_a_connection_is_used_again() -> None:
    async with Loopback(answer(converse(*text(0, "ok"), *end("end_turn")))) as server:
        client = client_of(server.url)
        model = BedrockModel("m", client=client)
        for _ in range(3):
            deltas = [delta async for delta in model.stream(HELLO)]
            assert isinstance(deltas[-1], DoneDelta)
        assert server.connections == 1
        client.close()


async def test_many_events_wait_for_a_slow_reader() -> None:
    body = converse(*text(0, *["x"] * 2000), *end("end_turn"))
    heard = await talk(answer(body))
    assert heard.message.text == "x" * 2000


async def test_raw_events_on_request() -> None:
    heard, _ = await exchange(
        answer(converse(*text(0, "hi"), *end("end_turn"))), config={"include_raw": True}
    )
    raw = [event for delta in heard.deltas if delta.provider_raw for event in delta.provider_raw["events"]]
    assert {"messageStop": {"stopReason": "end_turn"}} in raw


# ── configuration ──


def test_it_loads_by_name() -> None:
    model = load_model("bedrock:amazon.nova-micro-v1:0", region="us-east-1")
    assert isinstance(model, BedrockModel)
    assert model.descriptor.model == "amazon.nova-micro-v1:0"
    assert model.supports("tools")
    assert not model.supports("images")


@pytest.mark.parametrize("fields", [{"client": object()}, {"timeout_silence": 0}, {"max_tokens": 0}])
def test_bad_configuration_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentError) as caught:
        BedrockModel("m", **fields)
    assert caught.value.code == "ConfigInvalid"


async def test_a_client_is_made_when_none_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "none"), ("AWS_SECRET_ACCESS_KEY", "none")):
        monkeypatch.setenv(name, value)
    async with Loopback(answer(converse(*text(0, "ok"), *end("end_turn")))) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
        model = BedrockModel("amazon.nova-lite-v1:0", region="us-east-1")
        deltas = [delta async for delta in model.stream(HELLO)]
        await model.close()
    assert isinstance(deltas[-1], DoneDelta), deltas[-1]
