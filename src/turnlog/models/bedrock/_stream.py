"""Events of a Converse stream in, chunks out."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from turnlog.contract import (
    AgentError,
    Chunk,
    JsonObject,
    StreamStart,
    TextChunk,
    TokenUsage,
    parse_arguments,
)

from .._answer import AnswerWriter, Block, BlockKind, EventReader, as_object
from ..wire import ToolNames

ORIGIN = "bedrock"
"""The family that reads back what this adapter puts into ``providerData``."""

_FINISH = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "stop_sequence": "stop_sequence",
    "max_tokens": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
"""``stopReason`` → our finish reason; what a newer API adds is ``other``."""


class _Block(Block):
    def __init__(self, kind: BlockKind, raw: JsonObject) -> None:
        super().__init__(kind, raw)
        self.redacted: list[bytes] = []


class ConverseReader(EventReader[JsonObject]):
    """``ended`` waits for the counts, which come after the answer. ``end`` is to be called when the stream is
    over."""

    def __init__(
        self,
        model: str,
        vendor: str,
        *,
        names: ToolNames | None = None,
        request_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._names = names
        self._data: JsonObject = {"origin": ORIGIN, "vendor": vendor}
        self._writer = AnswerWriter(model, ORIGIN)
        self._writer.put(StreamStart(model_id=model, request_id=request_id, reason=reason))
        self._blocks: dict[int, _Block] = {}
        self._stop: str | None = None
        self._fields: Any = None
        self._counted = False

    def _fill(self, events: Iterable[JsonObject], chunks: list[Chunk]) -> None:
        for event in events:
            said = event.get("contentBlockDelta")
            if said is not None and len(event) == 1:
                block, delta = self._blocks.get(said.get("contentBlockIndex")), said.get("delta")
                # Nearly every event: more of the text that is being said.
                text = delta.get("text") if delta and len(delta) == 1 else None
                if text and type(text) is str and block is not None and block.kind == "text":
                    self._writer.open = "text"
                    chunks.append(TextChunk(text_delta=text))
                    continue
            chunks += self._feed(event)
            if self.ended:
                return

    def _feed(self, event: JsonObject) -> Sequence[Chunk]:
        for name, payload in event.items():
            body = as_object(payload)
            match name:
                case "contentBlockStart":
                    self._begin(_index(body), as_object(body.get("start")))
                case "contentBlockDelta":
                    self._on_delta(_index(body), as_object(body.get("delta")))
                case "contentBlockStop":
                    self._end(self._blocks.pop(_index(body), None))
                case "messageStop":
                    self._stop = str(body.get("stopReason"))
                    self._fields = body.get("additionalModelResponseFields")
                case "metadata":
                    self._count(as_object(body.get("usage")))
                case _:  # messageStart, and kinds that a later version adds
                    pass
        if self._stop is not None and self._counted:
            self._finish(self._stop)
        return self._writer.take()

    def end(self) -> Sequence[Chunk]:
        """The stream is over. An answer that did not say why it stopped was cut."""
        if not self.ended:
            if self._stop is None:
                raise AgentError(
                    "ModelServerError", f"{self._model}: the connection ended before the answer was complete"
                )
            self._finish(self._stop)
        return self._writer.take()

    def _finish(self, said: str) -> None:
        reason = _FINISH.get(said, "other")
        for block in self._blocks.values():
            if block.call is not None and reason not in ("length", "content_filter"):
                raise _protocol(f"messageStop while the call of {block.call.name!r} is still open")
            self._end(block)
        self._blocks.clear()
        if said == "model_context_window_exceeded":
            raise AgentError(
                "ModelContextOverflow",
                f"{self._model}: the answer filled the context window before it was done",
            )
        if said.startswith("malformed_"):
            raise AgentError(
                "ModelProtocolError", f"{self._model}: Bedrock could not read the answer ({said})"
            )
        data = {**self._data, "fields": self._fields} if self._fields else None
        self._writer.finish(reason, said, data)
        self.ended = True

    def _count(self, usage: JsonObject) -> None:
        self._counted = True
        if not usage:
            return
        read, written = usage.get("cacheReadInputTokens"), usage.get("cacheWriteInputTokens")
        whole_input = int(usage.get("inputTokens") or 0) + int(read or 0) + int(written or 0)
        output = int(usage.get("outputTokens") or 0)
        self._writer.put(
            TokenUsage(
                input_tokens=whole_input,
                output_tokens=output,
                total_tokens=whole_input + output,
                cached_input_tokens=read,
                cache_write_tokens=written,
            )
        )

    # ── blocks ──

    def _begin(self, index: int, start: JsonObject) -> None:
        previous = self._blocks.pop(index, None)
        if previous is not None:
            if previous.call is not None:
                raise _protocol(f"block {index} starts again while its call is still open")
            self._end(previous)
        tool = as_object(start.get("toolUse"))
        if tool and tool.get("type") != "server_tool_use":
            self._open(index, "call", tool)
        elif tool or "toolResult" in start:  # a tool that runs at the provider
            self._open(index, "verbatim", dict(start))

    def _open(self, index: int, kind: BlockKind, raw: JsonObject) -> _Block:
        block = self._blocks[index] = _Block(kind, raw)
        self._writer.begin(kind if kind in ("text", "thinking") else None)
        if kind == "call":
            name = str(raw.get("name") or "")
            data = {"origin": ORIGIN, "id": raw.get("toolUseId")}
            block.call = self._writer.begin_call(self._names.ours(name) if self._names else name, data)
        return block

    def _on_delta(self, index: int, delta: JsonObject) -> None:
        block = self._blocks.get(index)
        if block is None:  # only calls are announced
            if "toolUse" in delta:
                raise _protocol(f"arguments in block {index}, which is no call")
            block = self._open(index, "thinking" if "reasoningContent" in delta else "text", {})
        for name, payload in delta.items():
            match block.kind, name:
                case "text", "text":
                    self._writer.say("text", payload or "")
                case "text", "citation":
                    block.citations.append(payload)
                case "thinking", "reasoningContent":
                    thought = as_object(payload)
                    self._writer.say("thinking", thought.get("text") or "")
                    block.signature.append(thought.get("signature") or "")
                    block.redacted.append(_bytes(thought.get("redactedContent")))
                case "call", "toolUse":
                    assert block.call is not None
                    self._writer.add_args(block.call, as_object(payload).get("input") or "")
                case "verbatim", "toolUse":
                    block.args.append(as_object(payload).get("input") or "")
                case "verbatim", "toolResult":
                    result = block.raw.setdefault("toolResult", {})
                    result["content"] = [*result.get("content", ()), *(payload or ())]
                case _:  # a kind that a later version adds
                    pass

    def _end(self, block: _Block | None) -> None:
        if block is None:
            return
        match block.kind:
            case "text":
                if block.citations:
                    self._writer.say("text", "", {**self._data, "citations": block.citations})
            case "thinking":
                if signature := "".join(block.signature):
                    self._writer.say("thinking", "", {**self._data, "signature": signature})
                if redacted := b"".join(block.redacted):
                    self._writer.begin("thinking")
                    hidden = base64.b64encode(redacted).decode()
                    self._writer.say("thinking", "", {**self._data, "redacted": hidden})
            case "call":
                assert block.call is not None
                self._writer.end_call(block.call)
            case "verbatim":
                self._pass_on(block)

    def _pass_on(self, block: _Block) -> None:
        if text := "".join(block.args):
            parsed = parse_arguments(text)
            if parsed.arguments is None:
                raise _protocol(f"the input of a provider's tool does not parse: {parsed.error}")
            block.raw["toolUse"] = {**block.raw["toolUse"], "input": parsed.arguments}
        self._writer.begin("text")
        self._writer.say("text", "", {**self._data, "block": block.raw})


def _bytes(value: Any) -> bytes:
    """A client gives bytes; one that reads the JSON itself gives base64."""
    return base64.b64decode(value) if isinstance(value, str) else value or b""


def _index(body: JsonObject) -> int:
    index = body.get("contentBlockIndex")
    return index if isinstance(index, int) else 0


def _protocol(found: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the Converse stream holds {found}")
