"""Streams that real and compatible servers send out of the ordinary, and what is said when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from models import anthropic_wire, bedrock_wire, chat_wire, google_wire, responses_wire
from models.adapters_under_test import known_protocols, make_model
from models.recorded import Outcome, collect, outcome_of
from turnlog.contract import AgentError, Message, is_empty_answer, text_part, thinking_part
from turnlog.models._faults import in_words, map_fault
from turnlog.testing import Loopback, LoopbackAnswer

PROTOCOLS = sorted({*known_protocols()} - {"mistral-chat"})


async def play(protocol: str, answer: LoopbackAnswer, **fields: Any) -> Outcome:
    async with Loopback(answer) as server:
        model = make_model(protocol, server.url, **fields)
        found = outcome_of(await collect(model))
        await model.close()
    return found


# ── numbers that mean nothing ──


def renumbered(item: dict[str, Any], numbers: Sequence[int], *, closing: bool) -> list[dict[str, Any]]:
    """The events of an item, its deltas under ``numbers`` and nothing announced."""
    field = "content_index" if item["type"] == "message" else "summary_index"
    at = iter([*numbers, *[numbers[-1]] * 9])
    events: list[dict[str, Any]] = []
    for one in responses_wire.streamed(0, item):
        kind = one["type"]
        if kind.endswith(("part.added", "part.done")) or (kind.endswith("text.done") and not closing):
            continue
        events.append({**one, field: next(at)} if field in one else one)
    return events


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "unclosed"])
@pytest.mark.parametrize("numbers", [[0], [1], [-1], [0, 1, 2]], ids=str)
async def test_a_text_is_said_once_under_whatever_number(numbers: list[int], closing: bool) -> None:
    said = responses_wire.message("hello there")
    thought = responses_wire.reasoning("let me see", encrypted_content="x")
    for item in (said, thought):
        events = [*responses_wire.created(), *renumbered(item, numbers, closing=closing)]
        events += responses_wire.streamed(1, responses_wire.message("Done.", id="msg_2"))
        events.append(responses_wire.ended(item, responses_wire.message("Done.", id="msg_2")))
        heard = await responses_wire.hear(events)
        assert heard.error is None
        texts = [part.payload.text for part in heard.parts]  # type: ignore[union-attr]
        first = "hello there" if item is said else "let me see"
        assert [text for text in texts if text] == [first, "Done."]


# ── ends ──


async def test_content_after_a_finish_reason_needs_another_one() -> None:
    text, call = google_wire.piece({"text": "more"}), google_wire.piece(google_wire.call("run", {"a": 1}))
    stop = google_wire.piece({"text": "so"}, finish="STOP")
    for later in (text, call):
        cut = await google_wire.hear(google_wire.sse(stop, later))
        assert cut.error is not None and cut.error.retryable
        whole = await google_wire.hear(google_wire.sse(stop, later, google_wire.piece(finish="STOP")))
        assert whole.finish in ("stop", "tool_calls")
    still = await google_wire.hear(google_wire.sse(stop, google_wire.piece({"text": ""})))
    assert still.finish == "stop", "an empty text says nothing more"


@pytest.mark.spec("P-5")
async def test_a_refusal_without_words_of_its_own_is_no_empty_answer() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Blocked under the policy."}
    wire = anthropic_wire
    heard = await wire.hear(wire.sse(wire.begin(), *wire.end("refusal", stop_details=details)))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelRefused", False)
    assert heard.error.message == "the model declined to answer: cyber: Blocked under the policy."


@pytest.mark.parametrize("wire", [anthropic_wire, bedrock_wire], ids=["messages", "converse"])
async def test_a_limit_inside_an_open_call_says_to_raise_it(wire: Any) -> None:
    open_call = wire.call(0, "write", '{"path": "a', stop=False)
    if wire is anthropic_wire:
        heard = await wire.hear(wire.sse(wire.begin(), *open_call, *wire.end("max_tokens")))
    else:
        heard = await wire.talk(wire.answer(wire.converse(*open_call, *wire.end("max_tokens"))))
    assert heard.error is not None and not heard.error.retryable
    assert "raise max_tokens" in heard.error.message


# ── what is no text but an answer ──


@pytest.mark.spec("P-5")
async def test_what_the_provider_made_is_an_answer() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    ran = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    drawn = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="}
    custom = {"id": "ct_1", "type": "custom_tool_call", "call_id": "c", "name": "x", "input": "y"}
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    heard = [
        await google_wire.hear(google_wire.sse(google_wire.piece(image, finish="STOP"))),
        await anthropic_wire.hear(
            anthropic_wire.sse(
                anthropic_wire.begin(), *anthropic_wire.block(0, ran), *anthropic_wire.end("end_turn")
            )
        ),
        await responses_wire.hear(responses_wire.answer(drawn)),
        await responses_wire.hear(responses_wire.answer(custom)),
        anthropic_wire.Heard(
            await chat_wire.deltas_of(chat_wire.chunk({"images": picture}), chat_wire.chunk(None, "stop"))
        ),
        anthropic_wire.Heard(
            await chat_wire.deltas_of(chat_wire.chunk({"content": picture}), chat_wire.chunk(None, "stop"))
        ),
    ]
    assert [is_empty_answer(one.message, one.finish or "") for one in heard] == [False] * len(heard)


def test_what_is_empty() -> None:
    def answer(*parts: Any) -> Message:
        return Message(run_id="r", role="assistant", parts=list(parts), timestamp="2026-01-01T00:00:00.000Z")

    signed = {"origin": "google", "signature": "s"}
    assert is_empty_answer(answer(), "stop")
    assert is_empty_answer(answer(text_part(" \n"), thinking_part("so", signed)), "stop")
    assert is_empty_answer(answer(text_part("", signed)), "stop")
    assert is_empty_answer(answer(), "pause")
    assert not is_empty_answer(answer(thinking_part("so", signed)), "pause")
    assert not is_empty_answer(answer(text_part("a")), "stop")


# ── life and silence ──


@pytest.mark.spec("E-2")
@pytest.mark.parametrize("body", [b": ping\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'])
async def test_comments_alone_are_silence_in_the_end(body: bytes) -> None:
    endless = LoopbackAnswer.sse(body * 3000, pieces=len(body), piece_delay=0.01)
    found = await asyncio.wait_for(play("anthropic-messages", endless, timeout_silence=0.4), 120)
    assert found.error.error_code == "ModelTimeout"
    assert "nothing but comments" in found.error.message


async def test_a_large_event_that_comes_slowly_is_life() -> None:
    body = chat_wire.chunk({"content": "x" * 1_000}) + chat_wire.chunk(None, "stop") + chat_wire.DONE
    slow = LoopbackAnswer.sse(body, pieces=12, piece_delay=0.01)
    found = await play("openai-chat", slow, timeout_silence=0.7)
    assert (found.error, found.text) == (None, "x" * 1_000)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("blank", [b"data:\n\n", b"data: \n\n", b"event: x\ndata:\n\n", b"data\n\n"])
async def test_an_event_without_data_is_nothing(protocol: str, blank: bytes) -> None:
    streams = {
        "openai-chat": chat_wire.chunk({"content": "hi"}) + chat_wire.chunk(None, "stop") + chat_wire.DONE,
        "anthropic-messages": anthropic_wire.sse(
            anthropic_wire.begin(), *anthropic_wire.text(0, "hi"), *anthropic_wire.end("end_turn")
        ),
        "openai-responses": responses_wire.sse(responses_wire.answer(responses_wire.message("hi"))),
        "gemini": google_wire.sse(google_wire.piece({"text": "hi"}, finish="STOP")).replace(b"\r", b""),
    }
    body = blank + streams[protocol].replace(b"\n\n", b"\n\n" + blank)
    found = await play(protocol, LoopbackAnswer.sse(body))
    assert (found.error, found.text) == (None, "hi")


async def test_json_too_deep_to_read_is_a_broken_stream() -> None:
    deep = b'data: {"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
    found = await chat_wire.answer(deep)
    assert found.error.error_code == "ModelProtocolError"


async def test_an_array_shows_the_same_in_any_pieces() -> None:
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy"}}
    whole = google_wire.array(google_wire.piece({"text": "a"}), google_wire.piece({"text": "b"}), error)
    seen: set[tuple[str, str]] = set()
    for size in (1, 7, 60, 10_000):
        answer = LoopbackAnswer(body=whole.body, headers=whole.headers, pieces=size)
        found = await play("gemini", answer)
        seen.add((found.text, found.error.error_code))
    assert seen == {("ab", "ModelOverloaded")}


# ── what is said ──


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"upstream connect error", "text/plain", "upstream connect error"),
        (b"upstream connect error", "text/event-stream", "upstream connect error"),
        (b"{}", "application/json", "{}"),
        (b"", "text/event-stream", "sent nothing"),
    ],
)
async def test_an_answer_that_is_none_is_shown(protocol: str, body: bytes, kind: str, words: str) -> None:
    found = await play(protocol, LoopbackAnswer(body=body, headers={"content-type": kind}))
    assert found.error.error_code in ("ModelProtocolError", "ModelServerError")
    assert words in found.error.message


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_reset_is_told_in_words(protocol: str) -> None:
    found = await play(protocol, LoopbackAnswer.sse(b"data: {", cut_at=3, then="reset"))
    assert found.error.error_code == "ModelServerError"
    assert "ReadError" not in found.error.message
    assert "connection" in found.error.message.partition(": ")[2].lower()


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("url", ["http://no-such-host.invalid:9", "https://127.0.0.1:{port}"])
async def test_what_cannot_be_reached_says_the_address(url: str) -> None:
    async def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no TLS is spoken here\n")
        writer.close()

    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
        address = url.format(port=server.sockets[0].getsockname()[1])
        model = make_model("openai-chat", address)
        found = outcome_of(await collect(model))
        await model.close()
    assert found.error.error_code == "ModelUnreachable"
    assert address in found.error.message


async def test_a_page_instead_of_bedrock_is_told_as_one() -> None:
    page = LoopbackAnswer(body=b"<html>log in</html>", headers={"content-type": "text/html; charset=utf-8"})
    heard = await bedrock_wire.talk(page)
    assert heard.error is not None and not heard.error.retryable
    assert "text/html" in (heard.error.message or "")


def fault(headers: dict[str, str], body: Any = None) -> AgentError:
    said = body or {"error": {"type": "rate_limit_error", "message": "Slow down."}}
    return map_fault(429, headers, json.dumps(said), "acme", now=0)


def test_a_wait_is_told_in_words() -> None:
    found = fault({"retry-after": "600"})
    assert found.retry_after == 600
    assert found.message == "acme answered 429 (rate_limit_error): Slow down; it asks to wait 10 minutes"
    assert [in_words(wait) for wait in (0.25, 1, 59, 90, 120, 3600, 9000)] == [
        "0.25 seconds",
        "1 second",
        "59 seconds",
        "90 seconds",
        "2 minutes",
        "60 minutes",
        "2.5 hours",
    ]


def test_a_wait_of_zero_hides_no_other() -> None:
    assert fault({"retry-after-ms": "0", "retry-after": "1"}).retry_after == 1
    assert fault({"retry-after-ms": "0"}).retry_after == 0


def test_an_overflow_names_max_tokens_too() -> None:
    said = "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"
    found = map_fault(400, {}, json.dumps({"error": {"message": said}}), "acme")
    assert found.code == "ModelContextOverflow"
    assert said in found.message and "or max_tokens" in found.message


@pytest.mark.parametrize(("said", "again"), [("true", True), ("false", False), (None, False)])
def test_a_refusal_that_says_to_try_again_is_tried_again(said: str | None, again: bool) -> None:
    headers = {} if said is None else {"x-should-retry": said}
    found = map_fault(400, headers, '{"error": {"message": "odd"}}', "acme")
    assert (found.code, found.retryable) == ("ModelBadRequest", again)


@pytest.mark.spec("E-2")
@pytest.mark.parametrize("name", ["authorization", "x-api-key", "cookie", "x-my-secret", "proxy-token"])
async def test_a_key_in_an_extra_header_that_is_echoed_shows_nowhere(name: str) -> None:
    key = f"k9Qz7Lw2Xv5Rt8Yp1Mn4-{name.encode().hex()}-Bd6Hs3Jf0Gc"
    answer = LoopbackAnswer.json({"error": {"message": f"bad key {key}"}}, 401)
    found = await play("openai-chat", answer, extra_headers={name: f"Bearer {key}"})
    assert found.error.error_code == "ModelAuthError"
    assert key not in found.error.message and "bad key" in found.error.message
