"""The built-in tools of a session: those of its widgets, ``recall`` and ``read_artifact``."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from turnlog.context import recall_search, recall_text
from turnlog.contract import READ_ARTIFACT, RECALL, AgentError, JsonObject, Store, WidgetEvent
from turnlog.history import named_blobs, visible_entries
from turnlog.tools import Tool, ToolContext, ToolError
from turnlog.widgets import MemoryNotebookWidget, Widget

from ._folds import Folds
from ._memory import SharedNotes


@dataclass(frozen=True, slots=True)
class SessionShare:
    """What the built-in tools of one session work on."""

    folds: Folds
    store: Store
    notes: SharedNotes | None = None


SHARE: ContextVar[SessionShare] = ContextVar("turnlog session of a running tool")
"""Set around each call, and no attribute of ``ToolContext``: a user's tool must not reach the session."""


def widget_tools(widgets: tuple[Widget[Any], ...]) -> list[Tool]:
    """The tools of all widgets, as ordinary tools."""
    return [
        Tool.from_schema(spec.name, spec.description, spec.parameter_schema, _widget_body(widget, spec.name))
        for widget in widgets
        for spec in widget.tools
    ]


def _widget_body(widget: Widget[Any], name: str) -> Any:
    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        answer = SHARE.get().folds.host.execute(widget, name, arguments, ctx.tool_call_id)
        if answer.is_error:
            raise ToolError(answer.text)
        shared = SHARE.get().notes
        for event in answer.events:
            if shared is not None and isinstance(widget, MemoryNotebookWidget):
                event = await _in_memory(shared, event)
            ctx.emit(event.widget, event.event, event.data)
        return answer.text

    return run


async def _in_memory(notes: SharedNotes, event: WidgetEvent) -> WidgetEvent:
    try:
        return await notes.change(event)
    except AgentError as error:
        raise ToolError(error.message) from error


def memory_tools() -> list[Tool]:
    """``recall`` and ``read_artifact``: offered once there is something to bring back."""
    offset = {"type": "integer", "minimum": 0, "description": "Where to start, in characters."}
    query = {"type": "string", "description": "Words to search for; the best places come first."}
    return [
        Tool.from_schema(
            RECALL,
            "Bring back something that was shortened or is no longer in view: name it by its # number "
            "(entry), or search for words in it (query).",
            _schema({"entry": {"type": "string"}, "query": query, "offset": offset}, []),
            _recall,
            idempotent=True,
            concurrent=True,
        ),
        Tool.from_schema(
            READ_ARTIFACT,
            "Read on in an output that was too long to show. Name it as it was named there.",
            _schema({"artifact": {"type": "string"}, "offset": offset}, ["artifact"]),
            _read_artifact,
            idempotent=True,
            concurrent=True,
        ),
    ]


def _schema(properties: JsonObject, required: list[str]) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


async def _recall(arguments: JsonObject, ctx: ToolContext) -> str:
    folds, entry, query = SHARE.get().folds, arguments.get("entry"), arguments.get("query")
    if (entry is None) == (query is None):
        raise ToolError(
            "give either entry, the # number of what was shortened, or query, words to search for"
        )
    entries = visible_entries(folds.session.entries)
    try:
        if query is not None:
            return recall_search(entries, query, size=folds.context.page_size, skip=folds.context.live_ids)
        return recall_text(
            entries, str(entry), offset=arguments.get("offset", 0), limit=folds.context.page_size
        )
    except AgentError as error:
        raise ToolError(error.message) from error


async def _read_artifact(arguments: JsonObject, ctx: ToolContext) -> str:
    share = SHARE.get()
    name = arguments["artifact"]
    # The bytes of other sessions, and those of what was redacted, are not this session's to read.
    if not any(name in named_blobs(entry) for entry in visible_entries(share.folds.session.entries)):
        raise ToolError(f"this session has no artifact {name!r}; name one as it was named in a result")
    try:
        data = await share.store.get_blob(name)
    except AgentError as error:
        raise ToolError(f"{error.message}; do without it, or make it again") from error
    text = data.decode("utf-8", "replace")
    start = arguments.get("offset", 0)
    page = text[start : start + share.folds.context.page_size]
    if not page:
        raise ToolError(f"the artifact has {len(text)} characters; {start} is past its end")
    left = len(text) - start - len(page)
    return f"{page}\n[{left} characters left: read on from offset {start + len(page)}]" if left else page
