"""The files this session has touched, read off its tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from turnlog.contract import Entry, ModelOutputEntry, ToolResultsEntry, ToolStartedEntry, WidgetEventEntry

from ._widget import RenderContext, Widget

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

    def initial(self) -> Workspace:
        return Workspace()

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
