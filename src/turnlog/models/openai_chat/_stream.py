"""Chunks of a Chat Completions answer in, chunks of ours out."""

from __future__ import annotations

from typing import Any, cast

from turnlog.contract import AgentError, Chunk, StreamDone, TextChunk, ThinkingChunk, TokenUsage

from .._faults import map_stream_fault
from .._history import ToolNames
from ._calls import CallTable
from ._chunks import CallDelta, Choice, Completion, Delta, decode_chunk
from ._details import merge_details
from ._think import ThinkSplitter
from ._usage import read_usage

FINISH: dict[str, str] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "complete": "stop",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop_sequence",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "content_filtered": "content_filter",
    "refusal": "refusal",
}
"""What servers say, in lower case → what ``done`` says. Anything else is ``other``."""

BROKEN: dict[str, str] = {
    "error": "ModelServerError",
    "abort": "ModelServerError",
    "network_error": "ModelServerError",
    "insufficient_system_resource": "ModelOverloaded",
}
"""Finish reasons that mean there is no answer."""


class ChatReader:
    """Reads one answer. ``push`` gives the chunks of an event, ``finish`` those that end the answer."""

    __slots__ = (
        "_calls",
        "_details",
        "_id",
        "_model",
        "_origin",
        "_provider",
        "_reason",
        "_refused",
        "_thinking_field",
        "_thinks",
        "_usage",
        "_usage_after_finish",
        "done",
    )

    def __init__(
        self,
        names: ToolNames,
        provider: str,
        *,
        origin: dict[str, str],
        think_tags: bool = False,
        keep_reasoning: bool = False,
    ) -> None:
        self._provider = provider
        self._origin = origin
        self._calls = CallTable(names, origin)
        self._thinks = ThinkSplitter() if think_tags else None
        self._details: list[dict[str, Any]] | None = None
        self._thinking_field: str | None = None if keep_reasoning else ""
        self._reason: str | None = None
        self._refused = False
        self._usage: dict[str, Any] | None = None
        self._usage_after_finish = False
        self._id: str | None = None
        self._model: str | None = None
        self.done = False

    def push(self, data: bytes) -> list[Chunk]:
        if data[:1] == b"{":
            return self.read(decode_chunk(data))
        bare = data.strip()
        if bare == b"[DONE]":
            self.done = True
        elif bare:
            return self.read(decode_chunk(bare))
        return []  # nothing at all is a heartbeat

    def read(self, chunk: Completion) -> list[Chunk]:
        choices = chunk.choices
        if choices and chunk.error is None:
            choice = choices[0] if choices[0].index == 0 else self._first(choices)
            if choice is None:
                self._note(chunk, None)
                return []
            delta = choice.delta
            # Nearly every chunk: one piece of text and nothing else.
            if (
                delta is not None
                and type(delta.content) is str
                and delta.content
                and choice.finish_reason is None
                and delta.tool_calls is None
                and delta.reasoning_content is None
                and delta.reasoning is None
                and self._thinks is None
                and delta.reasoning_details is None
                and not self._thinking_field
            ):
                if chunk.usage is not None or choice.usage is not None or chunk.x_groq is not None:
                    self._note(chunk, choice)
                return [TextChunk(text_delta=delta.content)]
            if choice.error is not None:
                raise map_stream_fault(choice.error, self._provider)
            chunks = (
                self._delta(delta or choice.message, choice.delta is None) if delta or choice.message else []
            )
            self._note(chunk, choice)
            return chunks
        self._refuse(chunk)
        self._note(chunk, None)
        return []

    def finish(self) -> list[Chunk]:
        """The end of the answer, when ``[DONE]`` was seen or the server closed the stream in order."""
        reason = self._reason
        # Some servers never say [DONE]. Without it calls count as complete only when the usage, which
        # comes last, has come: more calls may follow a first finish reason.
        complete = self.done or (reason is not None and (not self._calls or self._usage_after_finish))
        if not complete:
            raise AgentError(
                "ModelServerError",
                f"{self._provider}: the stream ended in the middle of the answer"
                + (" (before its tool calls were complete)" if self._calls else ""),
            )
        finish = self._finish_reason(reason)
        chunks: list[Chunk] = list(self._thinks.end()) if self._thinks else []
        chunks += self._kept_thinking()
        chunks += self._calls.end()
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

    def _delta(self, delta: Delta | None, whole: bool) -> list[Chunk]:
        if delta is None:
            return []
        chunks: list[Chunk] = []
        thought = delta.reasoning_content or delta.reasoning
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
                    if thought := _flat(known.get("thinking") or known.get("text")):
                        chunks.append(ThinkingChunk(text_delta=thought))
                case "text" | "output_text":
                    if text := _flat(known.get("text")):
                        chunks += self._text(text)
                case "refusal":
                    if text := _flat(known.get("refusal")):
                        self._refused = True
                        chunks += self._text(text)
                case _:
                    pass  # references, images and whatever comes next have no part of ours
        return chunks

    def _note(self, chunk: Completion, choice: Choice | None) -> None:
        if choice is not None and choice.finish_reason:
            self._reason = choice.finish_reason.lower()
            if self._reason == "stop" and isinstance(choice.stop_reason, str):
                self._reason = "stop_sequence"  # vLLM names the text it stopped at
        usage = (
            chunk.usage
            or (choice.usage if choice else None)
            or (chunk.x_groq.usage if chunk.x_groq else None)
        )
        if usage:
            self._usage = usage
            self._usage_after_finish = self._reason is not None
        if chunk.x_groq is not None and chunk.x_groq.error is not None:
            raise map_stream_fault(chunk.x_groq.error, self._provider)
        if self._id is None:
            self._id, self._model = chunk.id or None, chunk.model

    def _refuse(self, chunk: Completion) -> None:
        """Raise what a chunk without an answer says is wrong, if it does."""
        if chunk.error is not None:
            raise map_stream_fault({"error": chunk.error}, self._provider)
        if chunk.object == "error" or (chunk.choices is None and (chunk.message or chunk.detail)):
            said = {name: getattr(chunk, name) for name in ("message", "detail", "type", "code")}
            raise map_stream_fault(said, self._provider)

    def _first(self, choices: list[Choice]) -> Choice | None:
        return next((choice for choice in choices if choice.index == 0), None)

    # ── the end ──

    def _finish_reason(self, reason: str | None) -> str:
        if reason in BROKEN:
            raise AgentError(BROKEN[reason], f"{self._provider} gave up on the answer ({reason})")
        finish = FINISH.get(reason, "other") if reason is not None else "stop"
        if not self._calls:
            if self._refused and finish in ("stop", "other"):
                return "refusal"
            return "stop" if finish == "tool_calls" else finish
        if finish == "length":
            raise AgentError(
                "ModelProtocolError",
                "the answer hit the output limit inside its tool calls, so none of them is complete; "
                "raise max_tokens, or ask for less in one call",
                retryable=False,
            )
        if finish in ("content_filter", "refusal"):
            raise AgentError(
                "ModelContentFiltered",
                f"{self._provider} withheld the rest of an answer with tool calls ({reason}); none is run",
            )
        if finish == "other" and not self._calls.all_parse():
            raise AgentError(
                "ModelProtocolError", f"the answer stopped inside a tool call ({reason}); none is run"
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


def _flat(value: Any) -> str:
    """Text, or the joined texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_flat(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        return _flat(cast("dict[str, Any]", value).get("text"))
    return ""
