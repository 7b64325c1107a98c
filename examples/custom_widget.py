"""A widget of your own: state that the model sees and changes, kept nowhere but in the log.

Run it: `python examples/custom_widget.py`. The widget is a budget. The model spends from it with a tool, sees
what is left on its LiveScreen, and is refused when it would overdraw. A fork has a budget of its own, and a
replay rebuilds it from the log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from turnlog import Agent
from turnlog.contract import Entry, ToolSpec, WidgetEventEntry
from turnlog.loop import fork_session, replay
from turnlog.models import ScriptedModel, Turn
from turnlog.testing import check_widget
from turnlog.widgets import RenderContext, Widget, WidgetAnswer, WidgetToolContext, screen_at


@dataclass(frozen=True)
class Budget:
    left: int
    spent: tuple[tuple[str, int], ...] = ()


class BudgetWidget(Widget[Budget]):
    """State is a fold over entries: `reduce` takes an entry and returns the next state, and nothing else."""

    name: ClassVar[str] = "budget"
    description: ClassVar[str] = "Money that may be spent in this session."

    def __init__(self, amount: int = 100) -> None:
        self._amount = amount

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return (
            ToolSpec(
                name="spend",
                description="Spend from the budget.",
                parameter_schema={
                    "type": "object",
                    "properties": {
                        "what": {"type": "string"},
                        "amount": {"type": "integer", "minimum": 1},
                    },
                    "required": ["what", "amount"],
                    "additionalProperties": False,
                },
            ),
        )

    def initial(self) -> Budget:
        return Budget(self._amount)

    def reduce(self, state: Budget, entry: Entry) -> Budget:
        if not isinstance(entry, WidgetEventEntry) or entry.payload.widget != self.name:
            return state
        if entry.payload.event != "spent":
            return state
        what, amount = str(entry.payload.data["what"]), int(entry.payload.data["amount"])
        return Budget(state.left - amount, (*state.spent, (what, amount)))

    def render_live_screen(self, ctx: RenderContext[Budget]) -> dict[str, str] | None:
        lines = [f"- {what}: {amount}" for what, amount in ctx.state.spent]
        return {"Budget": "\n".join([f"{ctx.state.left} of {self._amount} left", *lines])}

    def execute_tool(self, name: str, ctx: WidgetToolContext[Budget]) -> WidgetAnswer:
        if name != "spend":
            return super().execute_tool(name, ctx)
        amount = ctx.arguments["amount"]
        if amount > ctx.state.left:
            return WidgetAnswer(f"only {ctx.state.left} left; {amount} was not spent", is_error=True)
        event = self.event("spent", dict(ctx.arguments), ctx.tool_call_id)
        return WidgetAnswer(f"{ctx.state.left - amount} left", [event])


def spend(what: str, amount: int) -> Turn:
    return Turn(tool_calls=[{"name": "spend", "arguments": {"what": what, "amount": amount}}])


async def main() -> int:
    checks = await check_widget(BudgetWidget, calls=[("spend", {"what": "tea", "amount": 3})])
    print(f"check_widget: {len(checks)} checks passed")
    model = ScriptedModel(
        [spend("books", 70), spend("a lamp", 50), "Books, but no lamp.", spend("a lamp", 90), "A lamp."]
    )
    widget = BudgetWidget()
    async with Agent(model, widgets=[widget], store="memory:") as agent:
        result = await agent.run("Buy books for 70 and a lamp for 50.", session="s1")
        print(f"\ns1: {result.text}\n")
        entries = await agent.store.load("s1")
        print(screen_at([widget], entries, entries[-1].seq))

        await fork_session(agent.store, "s1", at=1, target="s2")
        result = await agent.run("Buy a lamp for 90.", session="s2")
        print(f"\ns2, forked before anything was spent: {result.text}\n")
        entries = await agent.store.load("s2")
        print(screen_at([widget], entries, entries[-1].seq))

        report = await replay(agent.store, "s2", widgets=[widget])
        print(f"\nreplayed: {'identical' if report.identical else report.difference}")
    return 0 if report.identical else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
