"""One run as a response of OpenAI: what its events become, and the object that they add up to."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import datetime
from time import time
from typing import Any

from turnlog import events
from turnlog.contract import JsonObject, RunEvent, RunResult, encode

from ._app import Server

_TOOLS = "turnlog"
"""The label under which the agent's own tools are shown."""


def name_of(server: Server) -> str:
    return server.agent.name if server.agent is not None else "none"


def _id(session_id: str, run_id: str) -> str:
    return f"resp_{urlsafe_b64encode(session_id.encode()).decode().rstrip('=')}.{run_id}"


class Told:
    """One run as a response: what of it was told so far, event by event."""

    def __init__(self, server: Server, session_id: str, run_id: str, previous: str | None) -> None:
        self.server = server
        self.session_id = session_id
        self.run_id = run_id
        self.ended = False
        self._previous = previous
        self._status = "in_progress"
        self._created = 0
        self._items: list[JsonObject] = []
        self._open: JsonObject | None = None
        self._calls: dict[str, JsonObject] = {}
        self._result: RunResult[Any] | None = None

    def response(self, status: str | None = None) -> JsonObject:
        result = self._result
        error = result.last_error if result is not None else None
        usage = result.usage if result is not None else None
        return {
            "id": _id(self.session_id, self.run_id),
            "object": "response",
            "created_at": self._created or int(time()),
            "status": status or self._status,
            "background": False,
            "error": None
            if error is None
            else {"code": "server_error", "message": f"{error.code}: {error.message}"},
            "incomplete_details": None,
            "instructions": None,
            "metadata": {"session_id": self.session_id, "run_id": self.run_id},
            "model": name_of(self.server),
            "output": self._items,
            "parallel_tool_calls": True,
            "previous_response_id": self._previous,
            "conversation": {"id": self.session_id},
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": None
            if usage is None
            else {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
                "total_tokens": usage.total_tokens,
            },
        }

    def step(self, event: RunEvent) -> list[tuple[str, JsonObject]]:
        """What an event of the run becomes, as names and data."""
        if event.run_id != self.run_id or self.ended:
            return []
        made: list[tuple[str, JsonObject]] = []
        if not self._created:
            self._created = int(datetime.fromisoformat(event.timestamp).timestamp())
            made.append(("response.created", {"response": self.response()}))
        match event:
            case events.TextDelta():
                made += self._write(event.text)
            case events.Retracted():
                made += self._close("incomplete")
            case events.AnswerAdded():
                if self._open is None and event.message.text:  # deltas that were not seen
                    made += self._write(event.message.text)
                made += self._close("completed", event.message.text)
            case events.ToolStarted():
                call = {
                    "id": f"mcp_{event.tool_call_id}",
                    "type": "mcp_call",
                    "server_label": _TOOLS,
                    "name": event.tool_name,
                    "arguments": encode(event.arguments or {}).decode(),
                    "status": "in_progress",
                }
                self._calls[event.tool_call_id] = call
                made += self._add(call)
            case events.ToolFinished():
                made += self._finish_call(event)
            case events.ApprovalRequested():
                asked = {
                    "id": f"mcpr_{event.tool_call_id}",
                    "type": "mcp_approval_request",
                    "server_label": _TOOLS,
                    "name": event.tool_name,
                    "arguments": encode(event.arguments).decode(),
                }
                made += [*self._add(asked), self._done(asked)]
            case events.RunEnded():
                made += self._close("incomplete")
                made.append(self._end(event.result))
            case _:
                pass
        return made

    def _add(self, item: JsonObject) -> list[tuple[str, JsonObject]]:
        self._items.append(item)
        return [("response.output_item.added", {"output_index": len(self._items) - 1, "item": dict(item)})]

    def _done(self, item: JsonObject) -> tuple[str, JsonObject]:
        return "response.output_item.done", {"output_index": self._items.index(item), "item": dict(item)}

    def _write(self, text: str) -> list[tuple[str, JsonObject]]:
        made: list[tuple[str, JsonObject]] = []
        if self._open is None:
            self._open = {
                "id": f"msg_{self.run_id}_{len(self._items)}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            made += self._add(self._open)
            part: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._open["content"] = [part]
            made.append(("response.content_part.added", {**self._place(), "part": dict(part)}))
        self._open["content"][0]["text"] += text
        made.append(("response.output_text.delta", {**self._place(), "delta": text, "logprobs": []}))
        return made

    def _place(self) -> JsonObject:
        assert self._open is not None
        return {
            "item_id": self._open["id"],
            "output_index": self._items.index(self._open),
            "content_index": 0,
        }

    def _close(self, status: str, text: str | None = None) -> list[tuple[str, JsonObject]]:
        item = self._open
        if item is None:
            return []
        item["status"] = status
        part = item["content"][0]
        part["text"] = part["text"] if text is None else text
        made: list[tuple[str, JsonObject]] = [
            ("response.output_text.done", {**self._place(), "text": part["text"], "logprobs": []}),
            ("response.content_part.done", {**self._place(), "part": dict(part)}),
            self._done(item),
        ]
        self._open = None
        return made

    def _finish_call(self, event: events.ToolFinished) -> list[tuple[str, JsonObject]]:
        call = self._calls.pop(event.tool_call_id, None)
        if call is None:
            return []
        said = "".join(part.payload.text for part in event.message.tool_results)
        call["status"] = "completed" if event.status == "success" else "failed"
        call["output" if event.status == "success" else "error"] = said
        return [self._done(call)]

    def _end(self, result: RunResult[Any]) -> tuple[str, JsonObject]:
        self.ended, self._result = True, result
        match result.status:
            case "completed" | "awaiting_human" | "paused":
                self._status = "completed"
            case "failed":
                self._status = "failed"
            case "aborted":
                self._status = "cancelled"
        name = "response.completed" if self._status == "completed" else "response.failed"
        return name, {"response": self.response()}
