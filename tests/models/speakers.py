"""Every adapter with a server that says what a test wants said: thoughts, text and calls, in its protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from models import anthropic_wire, bedrock_wire, google_wire
from turnlog.models import Model
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.bedrock import BedrockModel
from turnlog.models.google import GoogleModel
from turnlog.models.google._turns import NO_SIGNATURE
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

OFFICIAL_CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)


@dataclass(frozen=True)
class Said:
    """One answer of a model, whatever its protocol. ``number`` makes the ids of calls differ."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    number: int = 0

    @property
    def signature(self) -> str:
        return f"c2ln{self.number:04d}"

    def pieces(self) -> list[str]:
        return [self.text[:5], self.text[5:]] if self.text else []


@dataclass(frozen=True)
class Speaker:
    """An adapter under test. ``thoughts`` finds what a request carries of thinking and its signatures,
    ``own`` is how those of an answer must stand there; ``official`` checks a body with the official client's
    types."""

    protocol: str
    model_id: str
    build: Callable[[str, Any], Model]
    answer: Callable[[Said], LoopbackAnswer]
    thoughts: Callable[[Any], list[Any]]
    own: Callable[[Said], list[Any]]
    official: Callable[[Any], Any]

    def stalled(self, said: Said) -> LoopbackAnswer:
        """The answer up to its first words, and then silence."""
        whole = self.answer(said)
        second = json.dumps(said.pieces()[1])[1:-1].encode()
        return replace(whole, cut_at=whole.body.index(second), then="stall")


class Voice:
    """A speaker that is on air: its model, its server, and the bodies of the requests it got."""

    def __init__(self, speaker: Speaker, server: Loopback, model: Model) -> None:
        self.speaker = speaker
        self.server = server
        self.model = model

    def will_say(self, *answers: Said | LoopbackAnswer) -> None:
        self.server.answers += [self.speaker.answer(one) if isinstance(one, Said) else one for one in answers]

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.server.requests]


@asynccontextmanager
async def on_air(speaker: Speaker, ids: FixedIds, clock: FixedClock) -> Any:
    async with Loopback() as server:
        model = speaker.build(server.url, {"clock": clock, "ids": ids})
        try:
            yield Voice(speaker, server, model)
        finally:
            await model.close()


# ── Chat Completions ──


def _chat_answer(said: Said) -> LoopbackAnswer:
    deltas: list[dict[str, Any]] = []
    if said.thinking:
        deltas.append({"reasoning_content": said.thinking})
    deltas += [{"content": piece} for piece in said.pieces()]
    for at, (name, arguments) in enumerate(said.calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        deltas.append({"tool_calls": [{"index": at, "id": f"call_{said.number}_{at}", "function": function}]})
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    reason = "tool_calls" if said.calls else "stop"
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    body = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)
    return LoopbackAnswer.sse(body + b"data: [DONE]\n\n")


CHAT = Speaker(
    "openai-chat",
    "gpt-5.2",
    lambda url, fixed: OpenAIChatModel("gpt-5.2", base_url=url, reasoning_back="reasoning_content", **fixed),
    _chat_answer,
    lambda body: [m["reasoning_content"] for m in body["messages"] if "reasoning_content" in m],
    lambda said: [said.thinking],
    OFFICIAL_CHAT.validate_python,
)


# ── Anthropic ──


def _anthropic_answer(said: Said) -> LoopbackAnswer:
    wire = anthropic_wire
    events: list[dict[str, Any]] = [wire.begin()]
    at = 0
    if said.thinking:
        events += wire.thinking(at, said.thinking, said.signature)
        at += 1
    if said.text:
        events += wire.text(at, *said.pieces())
        at += 1
    for name, arguments in said.calls:
        events += wire.call(at, name, json.dumps(arguments), id=f"toolu_{said.number}_{at}")
        at += 1
    return LoopbackAnswer.sse(wire.sse(*events, *wire.end("tool_use" if said.calls else "end_turn")))


ANTHROPIC = Speaker(
    "anthropic-messages",
    "claude-sonnet-4-5",
    lambda url, fixed: AnthropicModel("claude-sonnet-4-5", base_url=url, thinking=2048, **fixed),
    _anthropic_answer,
    lambda body: [
        block for turn in body["messages"] for block in turn["content"] if block["type"] == "thinking"
    ],
    lambda said: [{"type": "thinking", "thinking": said.thinking, "signature": said.signature}],
    anthropic_wire.check_official,
)


# ── Gemini ──


def _gemini_answer(said: Said) -> LoopbackAnswer:
    wire = google_wire
    pieces: list[dict[str, Any]] = []
    if said.thinking:
        pieces.append(wire.piece({"text": said.thinking, "thought": True}))
    pieces += [wire.piece({"text": text}) for text in said.pieces()]
    if said.calls:
        calls = [wire.call(name, arguments) for name, arguments in said.calls]
        calls[0]["thoughtSignature"] = said.signature
        pieces.append(wire.piece(*calls, finish="STOP"))
    else:
        pieces.append(wire.piece({"text": "", "thoughtSignature": said.signature}, finish="STOP"))
    return LoopbackAnswer.sse(wire.sse(*pieces))


def _gemini_own(said: Said) -> list[Any]:
    thought = {"text": said.thinking, "thought": True}
    if not said.calls:
        return [thought, {"text": "", "thoughtSignature": said.signature}]
    name, arguments = said.calls[0]
    call = {"functionCall": {"name": name, "args": arguments}, "thoughtSignature": said.signature}
    return [thought, call]


GEMINI = Speaker(
    "gemini",
    "gemini-3-pro",
    lambda url, fixed: GoogleModel("gemini-3-pro", base_url=url, **fixed),
    _gemini_answer,
    lambda body: [
        part
        for content in body["contents"]
        for part in content["parts"]
        if part.get("thought") or part.get("thoughtSignature", NO_SIGNATURE) != NO_SIGNATURE
    ],
    _gemini_own,
    google_wire.check_official,
)


# ── Converse ──


def _converse_answer(said: Said) -> LoopbackAnswer:
    wire = bedrock_wire
    events: wire.Events = []
    at = 0
    if said.thinking:
        thought = {"reasoningContent": {"text": said.thinking}}
        events += wire.block(at, thought, {"reasoningContent": {"signature": said.signature}})
        at += 1
    if said.text:
        events += wire.text(at, *said.pieces())
        at += 1
    for name, arguments in said.calls:
        events += wire.call(at, name, json.dumps(arguments), id=f"tooluse_{said.number}_{at}")
        at += 1
    return wire.answer(wire.converse(*events, *wire.end("tool_use" if said.calls else "end_turn")))


CONVERSE = Speaker(
    "bedrock-converse",
    bedrock_wire.CLAUDE,
    lambda url, fixed: BedrockModel(bedrock_wire.CLAUDE, client=bedrock_wire.client_of(url), **fixed),
    _converse_answer,
    lambda body: [
        block["reasoningContent"]["reasoningText"]
        for turn in body["messages"]
        for block in turn["content"]
        if "reasoningContent" in block
    ],
    lambda said: [{"text": said.thinking, "signature": said.signature}],
    lambda body: None,  # botocore checks what it sends by the service's own model
)

SPEAKERS: list[Speaker] = [CHAT, ANTHROPIC, GEMINI, CONVERSE]


# ── Responses ──


def _responses() -> Speaker:
    from models import responses_wire as wire
    from turnlog.models.openai_responses import OpenAIResponsesModel

    def items(said: Said) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if said.thinking:
            found.append(reasoning(said))
        if said.text:
            found.append(wire.message(said.text, id=f"msg_{said.number}"))
        for at, (name, arguments) in enumerate(said.calls):
            call_id = f"call_{said.number:012d}{at:012d}"
            item_id = f"fc_{said.number}_{at}"
            found.append(wire.function_call(json.dumps(arguments), id=item_id, call_id=call_id, name=name))
        return found

    def reasoning(said: Said) -> dict[str, Any]:
        return wire.reasoning(said.thinking, id=f"rs_{said.number}", encrypted_content=said.signature)

    return Speaker(
        "openai-responses",
        "gpt-5.2",
        lambda url, fixed: OpenAIResponsesModel("gpt-5.2", base_url=url, **fixed),
        lambda said: LoopbackAnswer.sse(wire.sse(wire.answer(*items(said)))),
        lambda body: [item for item in body["input"] if item.get("type") == "reasoning"],
        lambda said: [reasoning(said)],
        wire.check_official,
    )


if find_spec("turnlog.models.openai_responses") is not None:
    SPEAKERS.append(_responses())
