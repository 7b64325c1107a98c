"""The widgets that come with the package: notes that outlive every fold, steps to be done, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import msgspec

from turnlog.contract import (
    AgentError,
    Entry,
    ModelOutputEntry,
    ToolResultsEntry,
    ToolSpec,
    ToolStartedEntry,
    WidgetEvent,
    WidgetEventEntry,
)

from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext, spec

_UNDO_DEPTH = 50
_MAX_SCOPE = 120


@dataclass(frozen=True, slots=True)
class Notebook:
    """Notes by name, in the order they were first written, and what they were before. Of a shared notebook
    also its scope, and the version of it that these are."""

    notes: tuple[tuple[str, str], ...] = ()
    past: tuple[tuple[tuple[str, str], ...], ...] = ()
    scope: str | None = None
    version: int = 0

    def get(self, name: str) -> str | None:
        return next((text for key, text in self.notes if key == name), None)

    def changed(self, notes: tuple[tuple[str, str], ...]) -> Notebook:
        """With these notes; nothing to undo where they are what they were."""
        if notes == self.notes:
            return self
        return replace(self, notes=notes, past=(*self.past, self.notes)[-_UNDO_DEPTH:])

    def seen(self, scope: str | None, version: int) -> Notebook:
        return replace(self, scope=scope, version=version)


class MemoryNotebookWidget(Widget[Notebook]):
    """The model and the host edit notes; every edit is in the log and can be undone. With ``scope`` the notes
    are shared by all sessions that have it: they have a log of their own in the store, and each session keeps
    what it has read of them as events."""

    name: ClassVar[str] = "notebook"
    description: ClassVar[str] = "Notes that stay in view however long the session grows."

    def __init__(self, *, scope: str | None = None) -> None:
        given = cast("object", scope)
        if given is not None and not (isinstance(given, str) and given.strip() and len(given) <= _MAX_SCOPE):
            raise AgentError(
                "ConfigInvalid",
                f"the scope of a notebook is {given!r}; pass a name of 1 to {_MAX_SCOPE} characters",
            )
        self.scope = scope

    @property
    def tools(self) -> Sequence[ToolSpec]:
        text = {"type": "string"}
        return (
            spec(
                "notebook_write",
                "Keep a note in view for the rest of the session. The same name replaces it."
                if self.scope is None
                else "Keep a note in view, in this session and in later ones. The same name replaces it.",
                {"name": text, "text": text},
                ["name", "text"],
            ),
            spec("notebook_erase", "Remove a note from the notebook.", {"name": text}, ["name"]),
            spec("notebook_undo", "Take back the last change of the notebook.", {}, []),
        )

    def initial(self) -> Notebook:
        return Notebook()

    def save_state(self, state: Notebook) -> Any:
        return msgspec.to_builtins(state)

    def load_state(self, data: Any) -> Notebook:
        return msgspec.convert(data, Notebook)

    def reduce(self, state: Notebook, entry: Entry) -> Notebook:
        if not isinstance(entry, WidgetEventEntry) or entry.payload.widget != self.name:
            return state
        state, data = self.after(state, entry.payload), entry.payload.data
        if "version" in data:
            return state.seen(data.get("scope"), int(data["version"]))
        return state

    def after(self, state: Notebook, event: WidgetEvent) -> Notebook:
        """The notes once ``event`` is in the log."""
        data = event.data
        match event.event:
            case "written":
                name, text = str(data.get("name", "")), str(data.get("text", ""))
                if state.get(name) is None:
                    return state.changed((*state.notes, (name, text)))
                return state.changed(tuple((key, text if key == name else old) for key, old in state.notes))
            case "erased":
                name = str(data.get("name", ""))
                return state.changed(tuple(note for note in state.notes if note[0] != name))
            case "replaced" | "read":
                notes: list[dict[str, str]] = data.get("notes", [])
                return state.changed(tuple((str(note["name"]), str(note["text"])) for note in notes))
            case "undone":
                if not state.past:
                    return state
                return replace(state, notes=state.past[-1], past=state.past[:-1])
            case _:
                return state

    def render_live_screen(self, ctx: RenderContext[Notebook]) -> dict[str, str] | None:
        if not ctx.state.notes:
            return None
        return {"Notebook": "\n".join(_line(name, text) for name, text in ctx.state.notes)}

    def execute_tool(self, name: str, ctx: WidgetToolContext[Notebook]) -> WidgetAnswer:
        arguments = ctx.arguments
        match name:
            case "notebook_write":
                event = self.event("written", dict(arguments), ctx.tool_call_id)
                return WidgetAnswer(f"noted: {arguments['name']}", [event])
            case "notebook_erase":
                if ctx.state.get(arguments["name"]) is None:
                    known = ", ".join(key for key, _ in ctx.state.notes) or "none"
                    return WidgetAnswer(f"no note {arguments['name']!r}; notes: {known}", is_error=True)
                event = self.event("erased", dict(arguments), ctx.tool_call_id)
                return WidgetAnswer(f"erased: {arguments['name']}", [event])
            case "notebook_undo":
                if not ctx.state.past:
                    return WidgetAnswer("nothing to undo", is_error=True)
                return WidgetAnswer("undone", [self.event("undone", {}, ctx.tool_call_id)])
            case _:
                return super().execute_tool(name, ctx)

    # ── for the host ──

    def write(self, name: str, text: str) -> WidgetEvent:
        """The event that keeps a note, for the host to append."""
        return self.event("written", {"name": name, "text": text})

    def erase(self, name: str) -> WidgetEvent:
        """The event that removes a note."""
        return self.event("erased", {"name": name})

    def replace_all(self, notes: Mapping[str, str]) -> WidgetEvent:
        """The event that puts these notes, in this order, in the place of all others."""
        return self.event("replaced", {"notes": [{"name": name, "text": notes[name]} for name in notes]})

    def undo(self) -> WidgetEvent:
        """The event that undoes the last change, by the model or a human."""
        return self.event("undone", {})


def _line(name: str, text: str) -> str:
    """A note of several lines stays one item, and cannot pass for a heading of the screen."""
    return f"- **{' '.join(name.split())}**: " + text.strip().replace("\n", "\n  ")


STATUSES = ("open", "doing", "done", "dropped")
_MARKS = {"open": "[ ]", "doing": "[~]", "done": "[x]", "dropped": "[-]"}


@dataclass(frozen=True, slots=True)
class Todo:
    text: str
    status: str = "open"


class TodoWidget(Widget[tuple[Todo, ...]]):
    """What is to be done, kept by the model where it sees it."""

    name: ClassVar[str] = "todo"
    description: ClassVar[str] = "The steps of the work and how far each is."

    @property
    def tools(self) -> Sequence[ToolSpec]:
        status = {"type": "string", "enum": list(STATUSES)}
        item = {
            "type": "object",
            "properties": {"text": {"type": "string"}, "status": status},
            "required": ["text"],
            "additionalProperties": False,
        }
        return (
            spec(
                "todo_plan",
                "Write the list of steps anew; steps that are done stay if you repeat them.",
                {"items": {"type": "array", "items": item}},
                ["items"],
            ),
            spec(
                "todo_mark",
                "Set the status of one step, counted from 1.",
                {"number": {"type": "integer", "minimum": 1}, "status": status},
                ["number", "status"],
            ),
        )

    def initial(self) -> tuple[Todo, ...]:
        return ()

    def save_state(self, state: tuple[Todo, ...]) -> Any:
        return msgspec.to_builtins(state)

    def load_state(self, data: Any) -> tuple[Todo, ...]:
        return msgspec.convert(data, tuple[Todo, ...])

    def reduce(self, state: tuple[Todo, ...], entry: Entry) -> tuple[Todo, ...]:
        if not isinstance(entry, WidgetEventEntry) or entry.payload.widget != self.name:
            return state
        data = entry.payload.data
        match entry.payload.event:
            case "planned":
                items = cast("list[dict[str, Any]]", data.get("items", []))
                before = {todo.text: todo.status for todo in state}
                return tuple(
                    Todo(text, str(item.get("status", before.get(text, "open"))))
                    for item in items
                    for text in [str(item["text"])]
                )
            case "marked":
                number, status = int(data["number"]), str(data["status"])
                return tuple(
                    Todo(todo.text, status) if position == number else todo
                    for position, todo in enumerate(state, 1)
                )
            case _:
                return state

    def render_live_screen(self, ctx: RenderContext[tuple[Todo, ...]]) -> dict[str, str] | None:
        if not ctx.state:
            return None
        lines = (
            f"{number}. {_MARKS.get(todo.status, '[ ]')} {' '.join(todo.text.split())}"
            for number, todo in enumerate(ctx.state, 1)
        )
        return {"Todo": "\n".join(lines)}

    def execute_tool(self, name: str, ctx: WidgetToolContext[tuple[Todo, ...]]) -> WidgetAnswer:
        match name:
            case "todo_plan":
                count = len(ctx.arguments["items"])
                return WidgetAnswer(
                    f"{count} steps", [self.event("planned", dict(ctx.arguments), ctx.tool_call_id)]
                )
            case "todo_mark":
                number = ctx.arguments["number"]
                if number > len(ctx.state):
                    return WidgetAnswer(
                        f"there is no step {number}; the list has {len(ctx.state)}", is_error=True
                    )
                event = self.event("marked", dict(ctx.arguments), ctx.tool_call_id)
                return WidgetAnswer(f"step {number}: {ctx.arguments['status']}", [event])
            case _:
                return super().execute_tool(name, ctx)


FILE_TOOLS: Mapping[str, str] = {
    "read": "read",
    "read_file": "read",
    "write": "written",
    "write_file": "written",
    "edit": "edited",
    "edit_file": "edited",
}
"""Tool name → what it does to the file its ``path`` argument names."""

_MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Workspace:
    """Files by path with what was done to them last, and the calls whose results are not in yet."""

    files: tuple[tuple[str, str], ...] = ()
    pending: tuple[tuple[str, str, str], ...] = ()

    def touched(self, path: str, action: str) -> Workspace:
        rest = tuple(item for item in self.files if item[0] != path)
        return Workspace((*rest, (path, action)), self.pending)


class WorkspaceWidget(Widget[Workspace]):
    """A tool counts once it succeeded. Tools of your own say it with
    ``ctx.emit("workspace", "touched", {"path": …, "action": …})``."""

    name: ClassVar[str] = "workspace"
    description: ClassVar[str] = "Files touched in this session."

    def __init__(self, file_tools: Mapping[str, str] = FILE_TOOLS) -> None:
        self._file_tools = dict(file_tools)

    @property
    def version(self) -> str:
        return f"1 {sorted(self._file_tools.items())}"

    def initial(self) -> Workspace:
        return Workspace()

    def save_state(self, state: Workspace) -> Any:
        return msgspec.to_builtins(state)

    def load_state(self, data: Any) -> Workspace:
        return msgspec.convert(data, Workspace)

    def reduce(self, state: Workspace, entry: Entry) -> Workspace:
        if isinstance(entry, ModelOutputEntry):
            pending = [
                (part.payload.tool_call_id, str(part.payload.arguments["path"]), action)
                for part in entry.payload.message.tool_calls
                if part.payload.arguments and "path" in part.payload.arguments
                if (action := self._file_tools.get(part.payload.tool_name)) is not None
            ]
            return Workspace(state.files, tuple(pending)) if pending or state.pending else state
        if isinstance(entry, ToolStartedEntry):
            # What runs may not be what was asked for: a human may have named another file.
            path = (entry.payload.arguments or {}).get("path")
            return state if path is None else self._redirect(state, entry.payload.tool_call_id, str(path))
        if isinstance(entry, ToolResultsEntry):
            return self._settle(state, entry)
        if isinstance(entry, WidgetEventEntry) and entry.payload.widget == self.name:
            path = entry.payload.data.get("path")
            if entry.payload.event == "touched" and path:
                return state.touched(str(path), str(entry.payload.data.get("action", "touched")))
        return state

    def _redirect(self, state: Workspace, call_id: str, path: str) -> Workspace:
        pending = tuple((item[0], path, item[2]) if item[0] == call_id else item for item in state.pending)
        return Workspace(state.files, pending)

    def _settle(self, state: Workspace, entry: ToolResultsEntry) -> Workspace:
        done = {outcome.tool_call_id: outcome.status for outcome in entry.payload.outcomes}
        for call_id, path, action in state.pending:
            if done.get(call_id) == "success":
                state = state.touched(path, action)
        left = tuple(item for item in state.pending if item[0] not in done)
        return Workspace(state.files, left)

    def render_live_screen(self, ctx: RenderContext[Workspace]) -> dict[str, str] | None:
        files = ctx.state.files
        if not files:
            return None
        lines = [f"- {path} ({action})" for path, action in files[-_MAX_SHOWN:]]
        if len(files) > _MAX_SHOWN:
            lines.insert(0, f"- … and {len(files) - _MAX_SHOWN} before")
        return {"Files": "\n".join(lines)}
