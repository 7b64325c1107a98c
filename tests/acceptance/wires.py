"""The five protocols of the provider adapters, each spoken by a server on this machine.

``Says`` is an answer whatever the protocol; a ``Protocol`` writes it in the provider's own bytes, and a
``Line`` is a model with the server it talks to.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from models.bedrock_wire import client_of, frame
from turnlog import load_model
from turnlog.contract import MessageDelta, ToolSpec, user_message
from turnlog.models import Model
from turnlog.testing import Loopback, LoopbackAnswer

KEY = "sk-test-0f9e8d7c6b5a49382716"
HELLO = [user_message("Hello?")]
ADD = ToolSpec(
    name="add",
    description="Adds two numbers.",
    parameter_schema={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


@dataclass(frozen=True)
class Says:
    """Thinking, then text, then calls (name and arguments as text). ``end`` is the provider's own word."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[tuple[str, str]] = ()
    end: str = ""
    cached: int = 0
    number: int = 1

    @property
    def signature(self) -> str:
        return f"c2lnbmF0dXJl{self.number:04d}"

    @property
    def pieces(self) -> list[str]:
        return in_pieces(self.text)


def in_pieces(words: str) -> list[str]:
    return [words[at : at + 5] for at in range(0, len(words), 5)]


def sse(*events: Any, named: bool = False) -> bytes:
    lines = [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ]
    return "".join(lines).encode()


# ── Chat Completions ──


def chat(says: Says) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if says.thinking:
        deltas.append({"reasoning_content": says.thinking})
    deltas += [{"content": piece} for piece in says.pieces]
    for at, (name, raw) in enumerate(says.calls):
        head = {"index": at, "id": f"call_{says.number}_{at}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": at, "function": {"arguments": p}}]} for p in in_pieces(raw)]
    chunks = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = says.end or ("tool_calls" if says.calls else "stop")
    chunks.append({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
    details = {"prompt_tokens_details": {"cached_tokens": says.cached}}
    chunks.append({"id": "chatcmpl-1", "choices": [], "usage": {**usage, **details}})
    return [*(sse(chunk) for chunk in chunks), b"data: [DONE]\n\n"]


# ── Responses ──


def responses(says: Says) -> list[bytes]:
    events: list[dict[str, Any]] = []
    output: list[dict[str, Any]] = []

    def tell(kind: str, **fields: Any) -> None:
        events.append({"type": f"response.{kind}", "sequence_number": len(events), **fields})

    def item(value: dict[str, Any], begun: dict[str, Any], *deltas: tuple[str, dict[str, Any]]) -> None:
        at = len(output)
        tell("output_item.added", output_index=at, item={**value, **begun, "status": "in_progress"})
        for kind, fields in deltas:
            tell(kind, item_id=value["id"], output_index=at, **fields)
        output.append({**value, "status": "completed"})
        tell("output_item.done", output_index=at, item=output[-1])

    head = {"id": f"resp_{says.number}", "object": "response", "model": "m"}
    tell("created", response={**head, "status": "in_progress", "output": []})
    n = says.number
    if says.thinking:
        summary = [{"type": "summary_text", "text": says.thinking}]
        thought = {
            "id": f"rs_{n}",
            "type": "reasoning",
            "summary": summary,
            "encrypted_content": says.signature,
        }
        item(
            thought,
            {"summary": []},
            ("reasoning_summary_text.delta", {"summary_index": 0, "delta": says.thinking}),
        )
    if says.text:
        content = [{"type": "output_text", "text": says.text, "annotations": []}]
        message = {"id": f"msg_{n}", "type": "message", "role": "assistant", "content": content}
        told = [("output_text.delta", {"content_index": 0, "delta": piece}) for piece in says.pieces]
        item(message, {"content": []}, *told)
    for at, (name, raw) in enumerate(says.calls):
        call = {"id": f"fc_{n}_{at}", "type": "function_call", "call_id": f"call_{n}_{at}", "name": name}
        args = [("function_call_arguments.delta", {"delta": piece}) for piece in in_pieces(raw)]
        item({**call, "arguments": raw}, {"arguments": ""}, *args)
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": says.cached},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 107,
    }
    whole = {**head, "output": output, "usage": usage}
    if says.end:
        tell(
            "incomplete",
            response={**whole, "status": "incomplete", "incomplete_details": {"reason": says.end}},
        )
    else:
        tell("completed", response={**whole, "status": "completed"})
    return [sse(event, named=True) for event in events]


# ── Anthropic Messages ──


def blocks(says: Says) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The blocks of an Anthropic answer: how each begins, and its deltas."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if says.thinking:
        thought = {"type": "thinking_delta", "thinking": says.thinking}
        signed = {"type": "signature_delta", "signature": says.signature}
        found.append(({"type": "thinking", "thinking": "", "signature": ""}, [thought, signed]))
    if says.text:
        told = [{"type": "text_delta", "text": piece} for piece in says.pieces]
        found.append(({"type": "text", "text": ""}, told))
    for at, (name, raw) in enumerate(says.calls):
        begun = {"type": "tool_use", "id": f"toolu_{says.number}_{at}", "name": name, "input": {}}
        found.append((begun, [{"type": "input_json_delta", "partial_json": p} for p in in_pieces(raw)]))
    return found


def anthropic(says: Says) -> list[bytes]:
    usage = {"input_tokens": 100 - says.cached, "cache_read_input_tokens": says.cached, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    ]
    for at, (begun, deltas) in enumerate(blocks(says)):
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    end = says.end or ("tool_use" if says.calls else "end_turn")
    events += [
        {"type": "message_delta", "delta": {"stop_reason": end}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    return [sse(event, named=True) for event in events]


# ── Gemini ──


def gemini(says: Says) -> list[bytes]:
    parts: list[dict[str, Any]] = []
    if says.thinking:
        parts.append({"text": says.thinking, "thought": True})
    parts += [{"text": piece} for piece in says.pieces]
    calls: list[dict[str, Any]] = [
        {"functionCall": {"name": name, "args": json.loads(raw)}} for name, raw in says.calls
    ]
    if says.thinking:
        signed = calls[0] if calls else {"text": ""}
        signed["thoughtSignature"] = says.signature
        parts += [] if calls else [signed]
    chunks: list[dict[str, Any]] = [
        {"candidates": [{"index": 0, "content": {"parts": [part]}}]} for part in parts
    ]
    last = {"index": 0, "content": {"role": "model", "parts": calls}, "finishReason": says.end or "STOP"}
    usage = {
        "promptTokenCount": 100,
        "candidatesTokenCount": 7,
        "totalTokenCount": 107,
        "cachedContentTokenCount": says.cached,
    }
    chunks.append({"candidates": [last], "usageMetadata": usage, "responseId": "r", "modelVersion": "m"})
    return [sse(chunk) for chunk in chunks]


# ── Converse ──


def converse(says: Says) -> list[bytes]:
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
    at = 0

    def block(start: dict[str, Any] | None, *deltas: dict[str, Any]) -> None:
        nonlocal at
        if start is not None:
            events.append(("contentBlockStart", {"contentBlockIndex": at, "start": start}))
        for delta in deltas:
            events.append(("contentBlockDelta", {"contentBlockIndex": at, "delta": delta}))
        events.append(("contentBlockStop", {"contentBlockIndex": at}))
        at += 1

    if says.thinking:
        thought = {"reasoningContent": {"text": says.thinking}}
        block(None, thought, {"reasoningContent": {"signature": says.signature}})
    if says.text:
        block(None, *({"text": piece} for piece in says.pieces))
    for number, (name, raw) in enumerate(says.calls):
        use = {"toolUse": {"toolUseId": f"tooluse_{says.number}_{number}", "name": name}}
        block(use, *({"toolUse": {"input": piece}} for piece in in_pieces(raw)))
    usage = {
        "inputTokens": 100 - says.cached,
        "cacheReadInputTokens": says.cached,
        "outputTokens": 7,
        "totalTokens": 107,
    }
    events += [
        ("messageStop", {"stopReason": says.end or ("tool_use" if says.calls else "end_turn")}),
        ("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
    ]
    return [frame(*event) for event in events]


@dataclass(frozen=True, eq=False)
class Protocol:
    """``name`` as ``check_request`` knows it, ``model`` as ``load_model`` does."""

    name: str
    model: str
    write: Callable[[Says], list[bytes]]
    fault: Callable[[int, str, str], Any]
    """The body of a refusal: its status, the provider's word for it, its message."""
    options: dict[str, Any]

    @property
    def model_id(self) -> str:
        return self.model.partition(":")[2]

    def answer(self, says: Says, **fields: Any) -> LoopbackAnswer:
        kind = "application/vnd.amazon.eventstream" if self.write is converse else "text/event-stream"
        return LoopbackAnswer(body=b"".join(self.write(says)), headers={"content-type": kind}, **fields)

    def cut(self, says: Says, events: int, then: Any = "close") -> LoopbackAnswer:
        """The answer up to its last ``events`` events, and then nothing more."""
        written = self.write(says)
        return self.answer(says, cut_at=len(b"".join(written[:-events])), then=then)

    def refusal(
        self, status: int, word: str, message: str, headers: dict[str, str] | None = None
    ) -> LoopbackAnswer:
        named = {"x-amzn-errortype": word} if self.write is converse else {}
        return LoopbackAnswer.json(self.fault(status, word, message), status, {**named, **(headers or {})})

    def load(self, url: str, **options: Any) -> Model:
        where = {"client": client_of(url)} if self.write is converse else {"base_url": url, "api_key": KEY}
        return load_model(self.model, **{**where, **self.options, **options})


def openai_fault(status: int, word: str, message: str) -> Any:
    return {"error": {"message": message, "type": word, "code": word}}


CHAT = Protocol(
    "openai-chat", "openai-chat:gpt-5.2", chat, openai_fault, {"reasoning_back": "reasoning_content"}
)
RESPONSES = Protocol("openai-responses", "openai:gpt-5.2", responses, openai_fault, {})
ANTHROPIC = Protocol(
    "anthropic-messages",
    "anthropic:claude-sonnet-4-5",
    anthropic,
    lambda status, word, message: {"type": "error", "error": {"type": word, "message": message}},
    {"thinking": 2048},
)
GEMINI = Protocol(
    "gemini",
    "google:gemini-3-pro",
    gemini,
    lambda status, word, message: {"error": {"code": status, "status": word, "message": message}},
    {},
)
CONVERSE = Protocol(
    "bedrock-converse",
    "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    converse,
    lambda status, word, message: {"message": message},
    {},
)
PROTOCOLS = {protocol.name: protocol for protocol in (CHAT, RESPONSES, ANTHROPIC, GEMINI, CONVERSE)}
every = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
NO_THINKING: dict[Protocol, dict[str, Any]] = {ANTHROPIC: {"thinking": None}}


@dataclass
class Line:
    """A model and the server that it talks to."""

    protocol: Protocol
    server: Loopback
    model: Model

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.server.requests]

    async def ask(self, messages: Sequence[Any] = HELLO, *args: Any, **options: Any) -> list[MessageDelta]:
        return [delta async for delta in self.model.stream(messages, *args, **options)]


@asynccontextmanager
async def line_to(protocol: Protocol, *answers: Says | LoopbackAnswer, **options: Any) -> AsyncIterator[Line]:
    played = [protocol.answer(one) if isinstance(one, Says) else one for one in answers]
    async with Loopback(*played) as server:
        model = protocol.load(server.url, **options)
        try:
            yield Line(protocol, server, model)
        finally:
            await model.close()


def text_of(deltas: Sequence[Any]) -> str:
    return "".join(delta.payload.text_delta for delta in deltas if delta.kind == "text")


def thinking_of(deltas: Sequence[Any]) -> str:
    return "".join(delta.payload.text_delta for delta in deltas if delta.kind == "thinking")


def calls_of(deltas: Sequence[Any]) -> list[tuple[str, str]]:
    """Names and raw arguments of the calls that ended."""
    names = {d.payload.tool_call_id: d.payload.tool_name for d in deltas if d.kind == "tool_call_start"}
    raw = dict.fromkeys(names, "")
    for delta in deltas:
        if delta.kind == "tool_call_args":
            raw[delta.payload.tool_call_id] += delta.payload.args_text_delta
    ended = [delta.payload.tool_call_id for delta in deltas if delta.kind == "tool_call_end"]
    return [(names[each], raw[each]) for each in ended]
