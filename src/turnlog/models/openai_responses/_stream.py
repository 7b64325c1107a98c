"""Events of the Responses API in, chunks out. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from turnlog.contract import AgentError, Chunk, JsonObject, TextChunk, TokenUsage

from .._answer import (
    UNREADABLE,
    AnswerWriter,
    EventReader,
    PartKind,
    ServerEvent,
    as_list,
    as_object,
    as_text,
)
from .._faults import map_stream_fault
from .._openai import read_usage
from ..wire import ToolNames
from ._items import FAMILY, Event, ItemKind, read_event, read_json
from ._output import Output

_SPEAKS: dict[str, tuple[ItemKind, PartKind, str]] = {
    "response.output_text": ("message", "text", "content"),
    "response.refusal": ("message", "text", "content"),
    "response.reasoning_summary_text": ("reasoning", "thinking", "summary"),
    "response.reasoning_summary": ("reasoning", "thinking", "summary"),
    "response.reasoning_text": ("reasoning", "thinking", "content"),
    "response.reasoning": ("reasoning", "thinking", "content"),
}
"""Events that bring text → (the item's kind, our part, the field of the item it grows)."""

_INCOMPLETE = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
"""``incomplete_details.reason`` → our finish reason; what a newer API adds is ``other``."""

_REMEMBERED = 64
_TICKS = 1e-10
"""xAI counts cost in these shares of a dollar."""


class ResponsesReader(EventReader[ServerEvent]):
    """``limit`` is the longest answer that was asked for; see :class:`Output` for the rest."""

    def __init__(
        self,
        model: str,
        *,
        names: ToolNames,
        provider: str,
        origin: JsonObject,
        stored: bool = False,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self._provider = provider
        self._limit = limit
        self._writer = AnswerWriter(model, FAMILY)
        self._output = Output(self._writer, names, origin, stored)
        self._number: Any = None
        self._recent: dict[int, bytes] = {}
        self._counts = True

    def _fill(self, events: Iterable[ServerEvent], chunks: list[Chunk]) -> None:
        decode, output = read_event.strict, self._output
        for name, data in events:
            try:
                event = decode(data)
            except UNREADABLE:
                chunks += self.push(name, data)
                if self.ended:
                    return
                continue
            if event.type == "response.output_text.delta":
                section, delta = output.speaking, event.delta
                # Nearly every event: more of the text that is being said.
                if (
                    section is not None
                    and type(delta) is str
                    and delta
                    and not section.over
                    and section is output.section_of(event)
                ):
                    if not self._repeats(event.sequence_number, data):
                        section.pieces.append(delta)
                        chunks.append(TextChunk(text_delta=delta))
                    continue
            chunks += self._push(event, name, data)
            if self.ended:
                return

    def push(self, name: str, data: bytes) -> Sequence[Chunk]:
        """The chunks of one event. Raises what the provider says is wrong."""
        return () if data.strip() == b"[DONE]" else self._push(read_event(data), name, data)

    def _push(self, event: Event, name: str, data: bytes) -> Sequence[Chunk]:
        if not event.type:
            event.type = name
        if self._repeats(event.sequence_number, data):
            return ()
        self._read(event, data)
        return self._writer.take()

    def _repeats(self, number: Any, data: bytes) -> bool:
        """Whether the same event came before, with the same bytes. Numbers decide nothing else."""
        if type(number) is not int or not self._counts:
            self._output.intact = False
            return False
        known = self._recent.get(number)
        if known is not None:
            self._counts = self._counts and known == data  # a server that does not count is not asked again
            return self._counts
        if self._number is not None and number != self._number + 1:
            self._output.intact = False
        self._number = number
        self._recent[number] = data
        self._recent.pop(number - _REMEMBERED, None)
        return False

    def _read(self, event: Event, data: bytes) -> None:
        output, kind = self._output, event.type
        match kind:
            case "response.function_call_arguments.delta":
                output.add_args(event)
            case "response.function_call_arguments.done":
                output.end_args(event)
            case "response.output_item.added":
                output.begin(event)
            case "response.output_item.done":
                output.end(event.output_index, as_object(event.item))
            case "response.content_part.added":
                output.announce(event, "content")
            case "response.reasoning_summary_part.added":
                output.announce(event, "summary")
            case "response.content_part.done":
                output.end_part(event)
            case "response.completed" | "response.done" | "response.incomplete":
                self._finish(read_json(bytes(event.response)), kind)
            case "response.failed" | "response.cancelled":
                raise self._unfinished(read_json(bytes(event.response)), kind.rpartition(".")[2])
            case "error" | "response.error":
                raise map_stream_fault(read_json(data), self._provider)
            case _:
                base, _, tail = kind.rpartition(".")
                if base in _SPEAKS:
                    self._on_text(event, base, tail)
                elif not kind.startswith("response."):
                    self._on_unnamed(event, data)

    def _on_text(self, event: Event, base: str, tail: str) -> None:
        if tail not in ("delta", "done"):
            return
        section = self._output.hear(event, *_SPEAKS[base])
        if section is None:
            return
        refusal = base == "response.refusal"
        section.refusal = section.refusal or refusal
        if tail == "delta":
            delta = event.delta
            self._output.speak(section, as_text(delta) or as_text(as_object(delta).get("text")))
        else:
            self._output.complete(section, event.refusal if refusal else event.text)

    def _on_unnamed(self, event: Event, data: bytes) -> None:
        """An answer that was not streamed, an error without a name, or a kind that a later version adds."""
        if event.object == "response" or (not event.type and isinstance(event.output, list)):
            response = read_json(data)
            status = as_text(response.get("status")) or "completed"
            if status not in ("completed", "incomplete"):
                raise self._unfinished(response, status)
            self._finish(response, f"response.{status}")
        elif event.error is not None or (not event.type and (event.message or event.detail)):
            raise map_stream_fault(read_json(data), self._provider)

    # ── the end ──

    def _finish(self, response: JsonObject, kind: str) -> None:
        if self.ended:
            return
        if response.get("error") is not None:
            raise map_stream_fault({"error": response["error"]}, self._provider)
        reason, said = "stop", "completed"
        if kind == "response.incomplete" or response.get("status") == "incomplete":
            said = as_text(as_object(response.get("incomplete_details")).get("reason")) or "incomplete"
            reason = _INCOMPLETE.get(said, "other")
        self._output.reconcile(as_list(response.get("output")))
        usage = _usage(response)
        if usage is not None:
            self._writer.put(usage)
            # Some servers call an answer complete that reached its limit, and have no field to say so.
            unsaid = reason == "stop" and "incomplete_details" not in response
            if unsaid and self._limit is not None and usage.output_tokens >= self._limit:
                reason, said = "length", "max_output_tokens"
        self._output.refuse_cut_calls(reason, said)
        if self._output.refused and reason == "stop" and not self._writer.calls:
            reason = "refusal"
        data = {"origin": FAMILY, "id": response.get("id"), "model": response.get("model")}
        self._writer.finish(reason, said, {name: value for name, value in data.items() if value})
        self.ended = True

    def _unfinished(self, response: JsonObject, status: str) -> AgentError:
        if response.get("error") is not None:
            return map_stream_fault({"error": response["error"]}, self._provider)
        if status in ("queued", "in_progress"):
            return AgentError(
                "ModelProtocolError",
                f"{self._provider} answers in the background ({status}), which is not read here; "
                "leave 'background' out of the request",
                retryable=False,
            )
        reason = as_text(as_object(response.get("incomplete_details")).get("reason")) or status
        return AgentError(
            "ModelServerError", f"{self._provider} gave up on the answer ({reason}) and did not say why"
        )


def _usage(response: JsonObject) -> TokenUsage | None:
    found = as_object(response.get("usage"))
    ticks = found.get("cost_in_usd_ticks")
    if isinstance(ticks, int) and "cost" not in found:
        found = {**found, "cost": ticks * _TICKS}
    return read_usage(found)
