"""Chunks of a Chat Completions answer in, chunks of ours out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from turnlog.contract import AgentError, Chunk, StreamDone, TextChunk, ThinkingChunk, TokenUsage

from .._answer import UNREADABLE, EventReader, ServerEvent
from .._faults import map_stream_fault
from .._openai import read_usage
from ..wire import ToolNames
from ._calls import (
    CallDelta,
    CallTable,
    Choice,
    Completion,
    Delta,
    ThinkSplitter,
    decode_chunk,
    decode_strict,
)

_GROWING = ("text", "summary", "data")


def merge_details(kept: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> str:
    """Add ``fragments`` to ``kept``; give the text that can be shown."""
    shown = ""
    for fragment in fragments:
        for name in ("text", "summary"):
            value = fragment.get(name)
            if isinstance(value, str):
                shown += value
        last = kept[-1] if kept else None
        if (
            last is None
            or last.get("type") != fragment.get("type")
            or last.get("index") != fragment.get("index")
            or fragment.get("type") == "reasoning.encrypted"
        ):
            kept.append(dict(fragment))
            continue
        for name, value in fragment.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value
    return shown


_WORDS = {
    "stop": "stop eos eos_token end_turn complete",
    "tool_calls": "tool_calls tool_call tool_use function_call",
    "length": "length max_tokens max_output_tokens model_length model_context_window_exceeded",
    "stop_sequence": "stop_sequence",
    "content_filter": "content_filter safety sensitive content_filtered recitation prohibited_content"
    " blocklist spii",
    "refusal": "refusal",
}
FINISH = {word: reason for reason, words in _WORDS.items() for word in words.split()}
"""What servers say, in lower case and up to a colon → what ``done`` says. Anything else is ``other``."""

BROKEN = {
    **dict.fromkeys(("error", "abort", "aborted", "cancelled", "network_error"), "ModelServerError"),
    "server_error": "ModelServerError",
    "timeout": "ModelTimeout",
    "insufficient_system_resource": "ModelOverloaded",
    "function_call_filter": "ModelProtocolError",
    "malformed_function_call": "ModelProtocolError",
}
"""Finish reasons that mean there is no answer."""

_UNSAID = frozenset({"null", "none"})
"""What some servers write where there is no finish reason."""

_CUT = frozenset({"length", "content_filter", "refusal"})

_BASE_STATUS = {1001: 408, 1002: 429, 1004: 401, 1008: 402, 1039: 413, 2013: 400, 2049: 401, 2056: 402}
"""MiniMax answers 200 and counts its failures by itself: its code → the HTTP status that says the same."""

_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")


class ChatReader(EventReader[ServerEvent]):
    """Reads one answer. ``push`` gives the chunks of one event, ``finish`` those that end the answer, which
    has ``ended`` with ``[DONE]``; what a server says after that does not count."""

    def __init__(
        self,
        names: ToolNames,
        provider: str,
        *,
        origin: dict[str, str],
        think_tags: bool = False,
        keep_reasoning: bool = False,
    ) -> None:
        super().__init__()
        self._provider = provider
        self._origin = origin
        self._calls = CallTable(names, origin)
        self._thinks = ThinkSplitter() if think_tags else None
        self._details: list[dict[str, Any]] | None = None
        self._thinking_field: str | None = None if keep_reasoning else ""
        self._reason: str | None = None
        self._refused = False
        self._streamed = False
        self._usage: dict[str, Any] | None = None
        self._usage_after_finish = False
        self._id: str | None = None
        self._model: str | None = None

    def _fill(self, events: Iterable[ServerEvent], chunks: list[Chunk]) -> None:
        for name, data in events:
            if not name and data[:1] == b"{":
                try:
                    found = decode_strict(data)
                except UNREADABLE:
                    found = decode_chunk(data)
                if (text := self._plain_text(found)) is not None:
                    chunks.append(TextChunk(text_delta=text))
                else:
                    chunks += self._read(found)
                continue
            chunks += self.push(data, name)
            if self.ended:
                return

    def push(self, data: bytes, name: str = "") -> list[Chunk]:
        """The chunks of one event; ``name`` is what the event calls itself, mostly nothing."""
        if name == "error":
            raise map_stream_fault(_said(data), self._provider)
        if data[:1] == b"{":
            return self._read(decode_chunk(data))
        bare = data.strip()
        if bare == b"[DONE]":
            self.ended = True
        elif bare:
            return self._read(decode_chunk(bare))
        return []  # nothing at all is a heartbeat

    def _plain_text(self, chunk: Completion) -> str | None:
        """The text of a chunk that holds nothing else, as nearly every one does."""
        choices = chunk.choices
        if not choices or len(choices) > 1 or chunk.error or self._thinks is not None or self._thinking_field:
            return None
        choice = choices[0]
        delta = choice.delta
        if (
            delta is None
            or type(delta.content) is not str
            or not delta.content
            or choice.finish_reason is not None
            or choice.index != 0
            or delta.tool_calls is not None
            or delta.reasoning_content is not None
            or delta.reasoning is not None
            or delta.reasoning_details is not None
            or delta.images is not None
            or choice.error is not None
        ):
            return None
        self._streamed = True
        if chunk.usage is not None or choice.usage is not None or chunk.x_groq is not None:
            self._note(chunk, choice)
        return delta.content

    def _read(self, chunk: Completion) -> list[Chunk]:
        choices = chunk.choices
        if not choices or chunk.error:
            self._refuse(chunk)
            self._note(chunk, None)
            return []
        choice = choices[0]
        if len(choices) > 1 or choice.index != 0:
            return self._several(chunk, choices)
        return self._one(chunk, choice)

    def _several(self, chunk: Completion, choices: list[Choice]) -> list[Chunk]:
        """Only the first answer of several is read; some servers send it in several pieces at once."""
        chunks: list[Chunk] = []
        for choice in choices:
            if choice.index == 0:
                chunks += self._one(chunk, choice)
        if all(choice.index for choice in choices):
            self._note(chunk, None)
        return chunks

    def _one(self, chunk: Completion, choice: Choice) -> list[Chunk]:
        if choice.error:
            raise map_stream_fault(choice.error, self._provider)
        chunks: list[Chunk] = []
        if choice.delta is not None:
            chunks = self._delta(choice.delta, whole=False)
        elif not self._streamed:  # else it says once more, at the end, what was streamed
            chunks = self._delta(choice.message, whole=True)
        self._streamed = self._streamed or bool(chunks)
        self._note(chunk, choice)
        return chunks

    @property
    def cut(self) -> str:
        """Where the answer broke off, in words; empty when it is complete.

        Some servers never say [DONE]. Without it calls count as complete only when the usage, which
        comes last, has come: more calls may follow a first finish reason.
        """
        if self.ended or (self._reason is not None and (not self._calls or self._usage_after_finish)):
            return ""
        return "before its tool calls were complete" if self._calls else "in the middle of the answer"

    def finish(self) -> list[Chunk]:
        """The end of the answer, when ``[DONE]`` was seen or the server closed the stream in order."""
        finish = self._finish_reason(self._reason)
        chunks: list[Chunk] = list(self._thinks.end()) if self._thinks else []
        chunks += self._kept_thinking()
        chunks += self._calls.end(whole=finish not in _CUT)
        if usage := self.usage():
            chunks.append(usage)
        chunks.append(StreamDone(finish_reason=finish, provider_data=self._answer_data()))
        return chunks

    def usage(self) -> TokenUsage | None:
        return read_usage(self._usage) if self._usage else None

    def _answer_data(self) -> dict[str, Any]:
        """The server's own name for the answer, and the model that gave it."""
        data = {"origin": self._origin["origin"], "id": self._id, "model": self._model}
        return {name: value for name, value in data.items() if value}

    # ── what a chunk holds ──

    def _delta(self, delta: Delta | None, *, whole: bool) -> list[Chunk]:
        if delta is None:
            return []
        chunks: list[Chunk] = []
        thought = delta.reasoning_content or delta.reasoning or delta.reasoning_text
        if delta.reasoning_details:
            told = merge_details(self._details_kept(), delta.reasoning_details)
            thought = thought or told
        if thought:
            if self._thinking_field is None:
                self._thinking_field = "reasoning_content" if delta.reasoning_content else "reasoning"
            chunks.append(ThinkingChunk(text_delta=thought))
        content = delta.content
        if content:
            if type(content) is str:
                chunks += self._text(content)
            else:
                chunks += self._parts(cast("list[Any]", content))
        if delta.refusal:
            self._refused = True
            chunks += self._text(delta.refusal)
        for image in delta.images or ():
            chunks += self._kept(image)
        fragments = delta.tool_calls or []
        if delta.function_call is not None and not fragments:
            fragments = [CallDelta(index=0, function=delta.function_call)]
        for number, fragment in enumerate(fragments):
            if whole and fragment.index is None:
                fragment.index = number
            self._usage_after_finish = False
            if begun := self._calls.push(fragment):
                chunks += self._thinking_ends()
                chunks += begun
        return chunks

    def _text(self, text: str) -> list[Chunk]:
        if self._thinks is not None:
            return list(self._thinks.push(text))
        return [*self._thinking_ends(), TextChunk(text_delta=text)]

    def _parts(self, parts: list[Any]) -> list[Chunk]:
        """Content as a list: Mistral's text and thoughts."""
        chunks: list[Chunk] = []
        for part in parts:
            if isinstance(part, str):
                chunks += self._text(part)
                continue
            if not isinstance(part, dict):
                continue
            known = cast("dict[str, Any]", part)
            match known.get("type"):
                case "thinking" | "reasoning":
                    if thought := _flat(known.get("thinking") or known.get("text") or known.get("summary")):
                        chunks.append(ThinkingChunk(text_delta=thought))
                case "text" | "output_text":
                    if text := _flat(known.get("text")):
                        chunks += self._text(text)
                case "refusal":
                    if text := _flat(known.get("refusal")):
                        self._refused = True
                        chunks += self._text(text)
                case "image_url" | "image" | "output_image":
                    chunks += self._kept(known)
                case _:
                    pass  # references and whatever comes next have no part of ours
        return chunks

    def _kept(self, block: dict[str, Any]) -> list[Chunk]:
        """An image that the model made has no part of ours: it travels whole, inside an empty one."""
        return [
            *self._thinking_ends(),
            TextChunk(text_delta="", provider_data={**self._origin, "block": block}),
        ]

    def _note(self, chunk: Completion, choice: Choice | None) -> None:
        if choice is not None and choice.finish_reason:
            self._end_with(choice.finish_reason.lower(), choice.stop_reason)
        usage = (
            chunk.usage
            or (choice.usage if choice else None)
            or (chunk.x_groq.usage if chunk.x_groq else None)
        )
        if usage:
            self._count(usage)
        if chunk.x_groq is not None and chunk.x_groq.error is not None:
            raise map_stream_fault(chunk.x_groq.error, self._provider)
        if self._id is None:
            self._id, self._model = chunk.id or None, chunk.model

    def _end_with(self, reason: str, stopped_at: str | int | None) -> None:
        """The last finish reason counts, but none takes back that the answer is cut or broken."""
        kind = _kind(reason)
        known = _kind(self._reason or "")
        if kind in _UNSAID or known in BROKEN or (FINISH.get(known) in _CUT and kind not in BROKEN):
            return
        self._reason = reason
        if reason == "stop" and isinstance(stopped_at, str):
            self._reason = "stop_sequence"  # vLLM names the text it stopped at

    def _count(self, usage: dict[str, Any]) -> None:
        if self._usage is None or any(usage.get(name) for name in _COUNTS):
            self._usage = usage
        self._usage_after_finish = self._reason is not None

    def _refuse(self, chunk: Completion) -> None:
        """Raise what a chunk without an answer says is wrong, if it does."""
        if chunk.error:
            raise map_stream_fault({"error": chunk.error}, self._provider)
        if base := chunk.base_resp:
            code = base.get("status_code")
            if code:
                said = {"code": code, "message": base.get("status_msg")}
                raise map_stream_fault(said, self._provider, status=_BASE_STATUS.get(code))
        if chunk.object == "error" or (
            chunk.choices is None and (chunk.message or chunk.msg or chunk.detail)
        ):
            said = {name: getattr(chunk, name) for name in ("message", "msg", "detail", "type", "code")}
            raise map_stream_fault(said, self._provider)

    # ── the end ──

    def _finish_reason(self, reason: str | None) -> str:
        kind = None if reason is None else _kind(reason)
        if kind in BROKEN:
            raise AgentError(BROKEN[kind], f"{self._provider} gave up on the answer ({reason})")
        finish = "stop" if kind is None else FINISH.get(kind, "other")
        if not self._calls:
            if self._refused and finish in ("stop", "other"):
                return "refusal"
            return "stop" if finish == "tool_calls" else finish
        if finish in _CUT:
            return finish  # its calls get no end, so the base refuses them
        if (reason is None or finish == "other") and not self._calls.all_parse():
            raise AgentError(
                "ModelProtocolError",
                f"the answer stopped inside a tool call ({reason or 'without a reason'}); none is run",
            )
        return "tool_calls"

    # ── thinking that goes back ──

    def _details_kept(self) -> list[dict[str, Any]]:
        if self._details is None:
            self._details = []
        return self._details

    def _thinking_ends(self) -> list[Chunk]:
        """Mark the thoughts so far as this server's own, where it wants them back."""
        field = self._thinking_field
        if not field:
            return []
        self._thinking_field = None
        return [ThinkingChunk(text_delta="", provider_data={**self._origin, "field": field})]

    def _kept_thinking(self) -> list[Chunk]:
        if self._details and self._thinking_field != "":
            return [ThinkingChunk(text_delta="", provider_data={**self._origin, "details": self._details})]
        return self._thinking_ends()


def _kind(reason: str) -> str:
    """A finish reason without what some servers explain after it (``content_filter: RECITATION``)."""
    return reason.partition(":")[0].strip()


def _said(data: bytes) -> Any:
    """What an event that calls itself an error holds: JSON, or words."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {"message": data.decode("utf-8", "replace")}


def _flat(value: Any) -> str:
    """Text, or the joined texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_flat(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        return _flat(cast("dict[str, Any]", value).get("text"))
    return ""
