"""What is to be done, kept by the model where it sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from turnlog.contract import Entry, ToolSpec, WidgetEventEntry

from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext, spec

STATUSES = ("open", "doing", "done", "dropped")
_MARKS = {"open": "[ ]", "doing": "[~]", "done": "[x]", "dropped": "[-]"}


@dataclass(frozen=True, slots=True)
class Todo:
    text: str
    status: str = "open"


class TodoWidget(Widget[tuple[Todo, ...]]):
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
