"""Notes that outlive every fold. The model and the host edit them; every edit is in the log and undoable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from turnlog.contract import Entry, ToolSpec, WidgetEvent, WidgetEventEntry

from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext, spec

_UNDO_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Notebook:
    """Notes by name, in the order they were first written, and what they were before."""

    notes: tuple[tuple[str, str], ...] = ()
    past: tuple[tuple[tuple[str, str], ...], ...] = ()

    def get(self, name: str) -> str | None:
        return next((text for key, text in self.notes if key == name), None)

    def changed(self, notes: tuple[tuple[str, str], ...]) -> Notebook:
        """With these notes; nothing to undo where they are what they were."""
        if notes == self.notes:
            return self
        return Notebook(notes, (*self.past, self.notes)[-_UNDO_DEPTH:])


class MemoryNotebookWidget(Widget[Notebook]):
    name: ClassVar[str] = "notebook"
    description: ClassVar[str] = "Notes that stay in view however long the session grows."

    @property
    def tools(self) -> Sequence[ToolSpec]:
        text = {"type": "string"}
        return (
            spec(
                "notebook_write",
                "Keep a note in view for the rest of the session. The same name replaces it.",
                {"name": text, "text": text},
                ["name", "text"],
            ),
            spec("notebook_erase", "Remove a note from the notebook.", {"name": text}, ["name"]),
            spec("notebook_undo", "Take back the last change of the notebook.", {}, []),
        )

    def initial(self) -> Notebook:
        return Notebook()

    def reduce(self, state: Notebook, entry: Entry) -> Notebook:
        if not isinstance(entry, WidgetEventEntry) or entry.payload.widget != self.name:
            return state
        data = entry.payload.data
        match entry.payload.event:
            case "written":
                name, text = str(data.get("name", "")), str(data.get("text", ""))
                if state.get(name) is None:
                    return state.changed((*state.notes, (name, text)))
                return state.changed(tuple((key, text if key == name else old) for key, old in state.notes))
            case "erased":
                name = str(data.get("name", ""))
                return state.changed(tuple(note for note in state.notes if note[0] != name))
            case "replaced":
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
        """The event that takes back the last change, whoever made it."""
        return self.event("undone", {})


def _line(name: str, text: str) -> str:
    """A note of several lines stays one item, and cannot pass for a heading of the screen."""
    return f"- **{' '.join(name.split())}**: " + text.strip().replace("\n", "\n  ")
