"""A process that runs an agent on a session: ``python writer_process.py STORE SESSION WORK ARGUMENTS…``.

``turns NAME COUNT``: says COUNT things and has them answered, trying again while the session is busy.
``hold FOLDER TTL``: runs a tool that waits for FOLDER/go, after it made FOLDER/inside; then says what came of
it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from turnlog import Agent, tool
from turnlog.contract import AgentError
from turnlog.loop import SessionOptions
from turnlog.testing import ScriptedModel, Turn


async def turns(store: str, session: str, name: str, count: int) -> None:
    script = [f"Heard {name} {number}." for number in range(count)]
    async with Agent(ScriptedModel(script), store=store) as agent:
        for number in range(count):
            while True:
                try:
                    result = await agent.run(f"{name} {number}", session=session, check=False)
                except AgentError as error:
                    if error.code != "SessionBusy":
                        raise
                    await asyncio.sleep(0.01)
                    continue
                assert result.status == "completed", result
                break


async def hold(store: str, session: str, folder: str, ttl: float) -> None:
    inside, go = Path(folder, "inside"), Path(folder, "go")

    @tool(timeout=None, idempotent=True)
    def wait() -> str:
        """Wait."""
        inside.touch()
        while not go.exists():
            time.sleep(0.02)
        return "waited"

    script = [Turn(tool_calls=[{"name": "wait", "arguments": {}}]), "Done waiting."]
    async with Agent(
        ScriptedModel(script), tools=[wait], store=store, sessions=SessionOptions(lease_ttl=ttl)
    ) as agent:
        result = await agent.run("Wait.", session=session, check=False)
    error = result.last_error
    print(
        json.dumps({"status": result.status, "code": error and error.code, "said": error and error.message})
    )


if __name__ == "__main__":
    store, session, work, *words = sys.argv[1:]
    if work == "turns":
        asyncio.run(turns(store, session, words[0], int(words[1])))
    else:
        asyncio.run(hold(store, session, words[0], float(words[1])))
