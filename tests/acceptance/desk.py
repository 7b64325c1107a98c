"""What the acceptance tests share: an agent on a script, tools that leave traces, and a look at the log.

Only the public API is used here and in the tests of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnlog import Agent, open_store, tool
from turnlog.contract import Entry, IdSource, Message, Store
from turnlog.system import SystemIds
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def asks_for(*calls: dict[str, Any], text: str | None = None) -> Turn:
    """An answer that calls tools."""
    return Turn(text=text, tool_calls=calls)


class Desk:
    """A store that several agents may use one after the other, as several processes would."""

    def __init__(self, url: str = "memory:", ids: IdSource | None = None) -> None:
        self.store: Store = open_store(url)
        self.clock = FixedClock()
        self.ids: IdSource = ids or FixedIds()
        self.done: list[str] = []
        self.model: ScriptedModel | None = None

    @classmethod
    def on_disk(cls, folder: Path) -> Desk:
        """Ids of the machine: those of several desks on one file must differ."""
        return cls(f"sqlite:{folder}/log.db", SystemIds())

    def agent(self, *turns: Any, tools: Sequence[Any] | None = None, **options: Any) -> Agent:
        self.model = ScriptedModel(list(turns), clock=self.clock, ids=self.ids)
        return Agent(
            self.model,
            tools=self.tools() if tools is None else tools,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            **options,
        )

    def tools(self) -> list[Any]:
        done = self.done

        @tool
        async def look(place: str) -> str:
            """Look at a place."""
            done.append(f"look {place}")
            return f"{place} is quiet"

        @tool(requires_approval=True)
        async def pay(amount: int) -> str:
            """Pay an amount."""
            done.append(f"pay {amount}")
            return f"paid {amount}"

        return [look, pay]

    async def entries(self, session: str = "s") -> list[Entry]:
        return await self.store.load(session)

    async def of_kind(self, kind: str, session: str = "s") -> list[Any]:
        return [entry for entry in await self.entries(session) if entry.kind == kind]

    @property
    def seen(self) -> list[Message]:
        """What the model was sent last."""
        assert self.model is not None
        return list(self.model.requests[-1].messages)


def results_in(messages: Sequence[Message]) -> list[tuple[bool, Any]]:
    return [
        (part.payload.is_error, part.payload.content) for message in messages for part in message.tool_results
    ]
