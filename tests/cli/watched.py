"""The terminal timeline without a terminal: what its screen shows, and a run of another process to watch."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from turnlog.cli._watch_app import WatchApp
from turnlog.history import open_store

PATIENCE = 60.0


class Watched:
    """``turnlog watch`` in a terminal of textual's own, steered by a pilot."""

    def __init__(self, app: WatchApp, pilot: Any) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """The rows of the screen, as a terminal would show them."""
        # A picture of the screen is made of the same strips, at twenty times the price.
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, *wanted: str) -> str:
        """Wait until the screen shows all of ``wanted``."""
        return await self.when(lambda text: all(each in text for each in wanted), *wanted)

    async def until_focused(self, name: str) -> None:
        await self.when(lambda _: getattr(self.app.focused, "id", None) == name, name)

    async def when(self, fits: Callable[[str], bool], *wanted: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while not fits(text := self.text):
            assert time.monotonic() < deadline, f"waited for {wanted}, saw:\n{text}"
            await self.pilot.pause(0.05)
        return text


@asynccontextmanager
async def watching(
    url: str, session: str | None = None, *, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Watched]:
    store = open_store(url)
    app = WatchApp(store, session, **options)
    try:
        async with app.run_test(size=size) as pilot:
            yield Watched(app, pilot)
    finally:
        await store.close()  # type: ignore[attr-defined]


PROGRAM = """
import asyncio, pathlib, sys
from turnlog import Agent, Approvals, tool
from turnlog.models import ScriptedModel, Turn

async def ask(request):
    pathlib.Path("asked").touch()
    await asyncio.sleep(600)

@tool
async def look(place: str) -> str:
    "Look at a place."
    pathlib.Path("inside").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return f"There is a lamp in the {place}."

@tool(requires_approval=True)
def edit(path: str, old: str, new: str) -> str:
    "Edit a file."
    return f"edited {path}"

def calls(name, **arguments):
    return Turn(text="Let me see.", tool_calls=[{"name": name, "arguments": arguments}])

async def main():
    model = ScriptedModel([
        calls("look", place="attic"),
        calls("edit", path="store.py", old="return rows", new="return list(rows)"),
        "All is **done**.",
    ])
    options = {"tools": [look, edit], "store": "sqlite:log.db", "approvals": Approvals(handler=ask)}
    async with Agent(model, **options) as agent:
        result = await agent.run("What is in the attic?", session="s", title="The attic", check=False)
    print(result.status)

asyncio.run(main())
"""


@asynccontextmanager
async def run_elsewhere(folder: Path) -> AsyncIterator[Any]:
    """A process that drives session ``s``: it looks, then asks before it edits. It is inside its first tool,
    until ``folder/go`` is there."""
    (folder / "store.py").write_text(
        "import os\n\n\ndef claim(self):\n    rows = 1\n    return rows\n\n\n# end\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    try:
        while not (folder / "inside").exists():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
